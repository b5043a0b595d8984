"""Merging of turns: which are equal to the policy, and the components they form."""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Literal, Protocol, runtime_checkable

from tstar_train.tree.node import TrajectoryLike

History = Literal["sequence", "state"]


def history_keys(group: Sequence[TrajectoryLike], history: History) -> list[list[str]]:
    """Compute S(v) of every step, its own action included, as a string; equal for equal histories.

    Args:
        group: the trajectories.
        history: "sequence" hashes the ordered effect keys of the state-modifying steps, "state" takes
            `state_key`.

    Returns:
        Per trajectory, one key per step.

    Raises:
        ValueError: `history="state"` and a step without a state key, which would merge with everything.
    """
    keys: list[list[str]] = []
    for i, trajectory in enumerate(group):
        if history == "state":
            keys.append([step.state_key for step in trajectory.steps])
            if not all(keys[-1]):
                t = next(t for t, key in enumerate(keys[-1]) if not key)
                raise ValueError(
                    f"step {t} of trajectory {i} has no state_key: give one or use history='sequence'"
                )
            continue
        row: list[str] = []
        digest = b""
        for step in trajectory.steps:
            if step.modifies_state:
                # The digest has a fixed length, so no two sequences of keys run together into the same bytes.
                # Keys may quote model output, and with it lone surrogates.
                own = step.effect_key.encode("utf-8", "surrogatepass")
                digest = hashlib.blake2b(digest + own, digest_size=16).digest()
            row.append(digest.hex())
        keys.append(row)
    return keys


class Components:
    """Disjoint sets of trajectories (union-find with path halving)."""

    def __init__(self, parent: dict[int, int]) -> None:
        self.parent = parent

    def find(self, i: int) -> int:
        while self.parent[i] != i:
            self.parent[i] = self.parent[self.parent[i]]
            i = self.parent[i]
        return i

    def unite(self, i: int, j: int) -> None:
        self.parent[self.find(j)] = self.find(i)

    def connected(self, i: int, j: int) -> bool:
        return self.find(i) == self.find(j)

    def classes(self) -> list[list[int]]:
        found: defaultdict[int, list[int]] = defaultdict(list)
        for i in sorted(self.parent):
            found[self.find(i)].append(i)
        return list(found.values())


@dataclass
class Bucket:
    """Continuing steps at one depth with one history.

    Attributes:
        t: the step.
        members: the trajectories.
        components: what has been joined so far.
        open: pairs not asked about yet.
        skipped: pairs that others had connected before their turn came.
    """

    t: int
    members: list[int]
    components: Components = field(init=False)
    open: list[tuple[int, int]] = field(init=False)
    skipped: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.components = Components({i: i for i in self.members})
        self.open = list(combinations(sorted(self.members), 2))

    def propose(self) -> list[tuple[int, int]]:
        """Return the next pairs to compare; no answer about the others could settle any of them."""
        if_all_pass = Components(dict(self.components.parent))
        proposed: list[tuple[int, int]] = []
        later: list[tuple[int, int]] = []
        for i, j in self.open:
            if self.components.connected(i, j):
                self.skipped += 1
            elif if_all_pass.connected(i, j):
                later.append((i, j))
            else:
                if_all_pass.unite(i, j)
                proposed.append((i, j))
        self.open = later
        return proposed


Symmetry = Literal["max", "mean", "forward"]
Triple = tuple[int, int, int]
Classes = list[list[list[int]]]  # by depth, sorted trajectories


class KL(Protocol):
    """`kl(t, i, j)`: D_KL between the policies of trajectories i and j after step t, in nats.

    It may be infinite, and a Monte Carlo estimate may be negative; NaN is refused.
    """

    def __call__(self, t: int, i: int, j: int, /) -> float: ...


@runtime_checkable
class BatchedKL(Protocol):
    """`KL` that receives each round's comparisons in advance."""

    def __call__(self, t: int, i: int, j: int, /) -> float: ...

    def prefetch(self, pairs: list[Triple]) -> None:
        """Compute every `(t, i, j)` in one go: exactly these calls follow, in this order."""


# Receives the `(kl, calls)` of all groups in a round: exactly these calls follow.
Prefetch = Callable[[Sequence[tuple[Any, list[Triple]]]], None]


@dataclass
class PairCounts:
    """Counts of the pairs of steps at one depth: possible = ending + history + connected + tested.

    Attributes:
        possible: all pairs at one depth.
        skipped_ending: one step or both end their trajectory, so there is no next action to compare.
        skipped_history: both go on, after incompatible histories.
        skipped_connected: compatible, but joined by other pairs before their turn came.
        tested: pairs that `kl` was asked about.
        kl_calls: single calls of `kl` made for them, one or two for each.
    """

    possible: int = 0
    skipped_ending: int = 0
    skipped_history: int = 0
    skipped_connected: int = 0
    tested: int = 0
    kl_calls: int = 0


Questions = Generator[list[Triple], list[float], tuple[Classes, PairCounts]]


def equivalence_classes(
    groups: Sequence[Sequence[TrajectoryLike]],
    kls: Sequence[KL],
    eps_kl: float,
    kl_symmetry: Symmetry,
    history: History,
    prefetch: Prefetch | None = None,
) -> list[tuple[Classes, PairCounts]]:
    """Partition the steps of every depth of each group into connected components of "same decision".

    Groups are independent but ask in the same rounds, so that one call can answer all.

    Args:
        groups: each of trajectories with at least one step.
        kls: the divergence of each group; one with `prefetch` receives the calls of each round first.
        eps_kl: two steps are joined where the divergence is below this, in nats.
        kl_symmetry: "max" needs both directions below, "mean" their mean, "forward" only D(i || j) with
            i < j, which alone of the three depends on the order of the trajectories.
        history: see `history_keys`.
        prefetch: receives the calls of all groups in a round, instead of each `kl` receiving its own.

    Returns:
        Of each group (classes, counts): `classes[t]` holds sorted lists of trajectories, ordered by their
        first, and the counts of pairs say what was asked and what was saved.

    Raises:
        ValueError: a `kl` returned NaN.
    """
    asking = [_questions(group, eps_kl, kl_symmetry, history) for group in groups]
    found: dict[int, tuple[Classes, PairCounts]] = {}
    calls = {number: calls for number in range(len(groups)) if (calls := _next(asking, number, None, found))}
    while calls:
        if prefetch is not None:
            prefetch([(kls[number], asked) for number, asked in calls.items()])
        answers = {
            number: _ask(kls[number], asked, prefetched=prefetch is not None)
            for number, asked in calls.items()
        }
        calls = {number: more for number in calls if (more := _next(asking, number, answers[number], found))}
    return [found[number] for number in range(len(groups))]


def _next(
    asking: Sequence[Questions],
    number: int,
    answers: list[float] | None,
    found: dict[int, tuple[Classes, PairCounts]],
) -> list[Triple]:
    """Return a group's next comparisons; empty once its classes are `found`."""
    try:
        return next(asking[number]) if answers is None else asking[number].send(answers)
    except StopIteration as done:
        found[number] = done.value
        return []


def _questions(
    group: Sequence[TrajectoryLike], eps_kl: float, kl_symmetry: Symmetry, history: History
) -> Questions:
    """Coroutine of one group: yields rounds of comparisons, receives the answers, returns the classes."""
    keys = history_keys(group, history)
    counts = PairCounts()
    continuing: list[Bucket] = []
    classes: Classes = []
    for t in range(max(len(trajectory.steps) for trajectory in group)):
        buckets: defaultdict[tuple[bool, str], list[int]] = defaultdict(list)
        for i, trajectory in enumerate(group):
            if t < len(trajectory.steps):
                buckets[t == len(trajectory.steps) - 1, keys[i][t]].append(i)
        # An ending step has no next action: equal histories decide, and the bucket is the class.
        classes.append([members for (ending, _), members in buckets.items() if ending])
        going_on = [members for (ending, _), members in buckets.items() if not ending]
        continuing += [Bucket(t, members) for members in going_on]

        possible = math.comb(sum(map(len, buckets.values())), 2)
        both_go_on = math.comb(sum(map(len, going_on)), 2)
        counts.possible += possible
        counts.skipped_ending += possible - both_go_on
        counts.skipped_history += both_go_on - sum(math.comb(len(members), 2) for members in going_on)

    while proposed := [(bucket, pair) for bucket in continuing for pair in bucket.propose()]:
        passed = yield from _below(
            [(bucket.t, i, j) for bucket, (i, j) in proposed], eps_kl, kl_symmetry, counts
        )
        for (bucket, (i, j)), joined in zip(proposed, passed, strict=True):
            if joined:
                bucket.components.unite(i, j)
    for bucket in continuing:
        classes[bucket.t] += bucket.components.classes()
        counts.skipped_connected += bucket.skipped
    return [sorted(at_depth) for at_depth in classes], counts


def _below(
    pairs: list[Triple], eps_kl: float, symmetry: Symmetry, counts: PairCounts
) -> Generator[list[Triple], list[float], list[bool]]:
    """Decide for each pair (t, i, j) with i < j whether it is functionally equivalent."""
    counts.tested += len(pairs)
    backward = [(t, j, i) for t, i, j in pairs]
    if symmetry == "mean":
        counts.kl_calls += 2 * len(pairs)
        both = yield pairs + backward
        there, back = both[: len(pairs)], both[len(pairs) :]
        return [(d + e) / 2 < eps_kl for d, e in zip(there, back, strict=True)]
    counts.kl_calls += len(pairs)
    passed = [divergence < eps_kl for divergence in (yield pairs)]
    hopeful = [pair for pair, hope in zip(backward, passed, strict=True) if hope]
    if symmetry == "max" and hopeful:
        # The maximum can only be below eps where the first direction already is.
        counts.kl_calls += len(hopeful)
        answers = iter((yield hopeful))
        passed = [hope and next(answers) < eps_kl for hope in passed]
    return passed


def _ask(kl: KL, calls: list[Triple], prefetched: bool) -> list[float]:
    if not prefetched and isinstance(kl, BatchedKL):
        kl.prefetch(calls)
    answers = []
    for t, i, j in calls:
        answer = float(kl(t, i, j))
        if math.isnan(answer):
            raise ValueError(f"kl({t}, {i}, {j}) is NaN: the policy's log-probabilities there are broken")
        answers.append(answer)
    return answers
