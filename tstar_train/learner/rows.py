"""Rows: credited turns become credited tokens."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import groupby, pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from tstar_envs import Step
from tstar_train.advantages import below_zero
from tstar_train.config import Config, RolloutConfig
from tstar_train.distributed import Communicator
from tstar_train.engines.check import require_agreement
from tstar_train.learner.terms import Term
from tstar_train.losses import Aggregation, Correction, importance_weights, token_weight
from tstar_train.policy.kv import common_prefix
from tstar_train.types import CorrectionWork, Group, TokenSequence, Trajectory, Turn, join_rows, rows_of

T = TypeVar("T")
Episode = tuple[Trajectory, list[TokenSequence]]
Key = tuple[int, int]  # group and member: the order of the tasks
_TRAINED = 3  # forward and backward pass of a token, in forward passes


def penalties(steps: Sequence[Step], rollout: RolloutConfig) -> NDArray[np.float64]:
    """Compute the penalty subtracted from each turn's advantage, shape (turns,).

    Args:
        steps: the turns of one episode, in order.
        rollout: ``invalid_penalty`` is for an invalid action, ``revisit_penalty`` for a valid one that leads to the state after an earlier
            turn (same ``state_key``).
    """
    result = np.zeros(len(steps))
    seen: set[str] = set()
    for number, step in enumerate(steps):
        if not step.action_valid:
            result[number] = rollout.invalid_penalty
        elif step.state_key in seen:
            result[number] = rollout.revisit_penalty
        seen.add(step.state_key)
    return result


def progress_made(turns: Sequence[Turn], begun: float = 0.0) -> NDArray[np.float64]:
    """Compute the progress of each turn, shape (turns,), as a fraction of the whole: the change of ``Turn.progress``.

    A turn that loses the task, or uses up the steps, loses all progress made before it. The sum over an episode is 1 if it succeeds and 0
    otherwise. This is the one-step advantage with the progress as the critic (GAE with gamma 1 and lambda 0, Schulman et al. 2016), a
    difference of potentials as in Ng, Harada and Russell (1999). Their shaping also counts for earlier turns, so the optimal policy stays
    optimal. This credit goes to the turn alone, without that guarantee.

    Args:
        turns: turns of one episode, in order; all have ``progress``.
        begun: progress before the first of them.

    Raises:
        ValueError: progress was not recorded (see ``Sampling.progress``).
    """
    after = []
    for number, turn in enumerate(turns):
        if turn.progress is None:
            raise ValueError(
                f"turn {number} has no progress: collect the episodes with Sampling(progress=True)"
            )
        after.append(turn.progress)
    return np.diff(np.array(after, dtype=np.float64), prepend=begun)


# A "sequence" of the loss functions is one episode, even if it has several rows.
_AGGREGATION: dict[str, Aggregation] = {"token-mean": "token-mean", "episode-mean": "seq-mean-token-mean"}


def make_rows(config: Config, groups: Sequence[Group]) -> list[tuple[Trajectory, list[TokenSequence]]]:
    """Make the rows of every trajectory: its turns' advantages, minus penalties, plus progress credit.

    A fork's first turn has neither if it was chosen because nobody had tried its action.

    Args:
        config: the run's options.
        groups: groups with the advantages of their turns.
    """
    made = []
    for group in groups:
        # A fork is a part of an episode, often a single turn: a group with forks weighs as much as one without, and all its tokens alike.
        replies = [len(turn.reply) for t in group.members for turn in t.turns]
        length = sum(replies) / config.rollout.group_size if group.forks else None
        for trajectory, advantages in zip(group.members, group.advantages, strict=True):
            made.append((trajectory, _rows(config, trajectory, advantages, length)))
    return made


def _rows(
    config: Config, trajectory: Trajectory, advantages: np.ndarray, length: float | None
) -> list[TokenSequence]:
    negative, credit = config.optim.negative_weight, config.rollout.progress_credit
    earned = below_zero(advantages, negative)
    if not (config.imitates_ways and config.graft.way_only):
        fork, compared = trajectory.fork, earned
        earned = earned - penalties(trajectory.episode.steps, config.rollout)[trajectory.before :]
        if credit:
            begun = 0.0 if fork is None else fork.progress or 0.0
            earned += below_zero(credit * progress_made(trajectory.turns, begun), negative)
        if fork is not None and fork.untried:
            earned[0] = compared[0]  # chosen among several, it is no sample of the policy
    episode = join_rows(rows_of(trajectory, earned.tolist()))
    own = float(sum(s.num_response_tokens for s in episode)) if length is None else length
    weight = token_weight(own, _AGGREGATION[config.optim.aggregation])
    for sequence in episode:
        sequence.weight = weight
    return episode


def weigh(
    episodes: Sequence[Sequence[TokenSequence]], correction: Correction, cap: float, most: float
) -> CorrectionWork:
    """Set the importance weights of rows whose sampler is not exact (``TokenSequence.correction``).

    A sequence of "sequence-mask" is one episode, even if it has several rows: all that the policy wrote in it, as in TRL, where an episode
    with its tool calls is one row.

    Args:
        episodes: rows of each episode, with the trainer's ``old_logprobs`` beside the sampler's ``logprobs``, at the same temperature.
        correction: see ``losses.importance_weights``; "none" sets nothing.
        cap: largest ratio.
        most: largest difference in nats about a token that a correction may explain.

    Raises:
        EngineMismatch: they differ by more than ``most`` about a token. The update checks the rows that it computes, and a row whose tokens
            are all masked is none of them.
    """
    done = CorrectionWork()
    if correction == "none":
        return done
    for rows in episodes:
        own = [m for row in rows for m in row.response_mask]
        old, said = (
            torch.tensor([x for row in rows for x in getattr(row, name)], dtype=torch.float64)
            for name in ("old_logprobs", "logprobs")
        )
        mask = torch.tensor(own, dtype=torch.bool)
        log_ratio = torch.where(mask, old - said, 0.0)
        require_agreement(float(log_ratio.abs().max()) if own else 0.0, most)
        weights = importance_weights(log_ratio[None], correction, cap)[0]
        done.tokens += sum(own)
        done.masked += int((weights[mask] == 0).sum())
        done.truncated += int((log_ratio[mask].exp() > cap).sum()) if correction == "token-truncate" else 0
        done.weights += float(weights[mask].sum())
        numbers = iter(torch.where(mask, weights, 1.0).tolist())
        for row in rows:
            row.correction = [next(numbers) for _ in row.ids]
    return done


def correct(sequences: Sequence[TokenSequence]) -> None:
    """Multiply the rows' advantages by their importance weights, which multiplies every policy loss that is linear in them."""
    for row in sequences:
        if row.correction:
            row.advantages = [a * w for a, w in zip(row.advantages, row.correction, strict=True)]


def places_of(episodes: Sequence[Episode], costs: Sequence[int], world: Communicator) -> list[int]:
    """Choose the rank that trains on each trajectory; all ranks call it.

    Ranks get contiguous parts of the trajectories in order of task, with about as many tokens to compute. They depend on the rows alone,
    not on who has them.

    Args:
        episodes: every trajectory of this rank with its rows.
        costs: of each, see ``costs_of``.
        world: communicator between the ranks.

    Returns:
        Ranks, in the order of ``episodes``.
    """
    keys = [(t.group, t.member) for t, _ in episodes]
    every = sorted(pair for part in world.gather(list(zip(keys, costs, strict=True))) for pair in part)
    whole = cut_evenly([cost for _, cost in every], world.size)
    firsts = world.broadcast([every[part.start][0] if part else None for part in whole[1:]])
    # A rank with nothing takes over where the next one begins.
    last: Key | None = None
    begins: list[Key] = []
    for first in reversed(firsts):
        last = first if first is not None else last
        begins.append(last if last is not None else (1 << 62, 0))
    begins.reverse()
    return [bisect_right(begins, key) for key in keys]


def costs_of(
    episodes: Sequence[Episode], terms: Sequence[Term], *, frozen: bool, epochs: int, share: bool
) -> list[int]:
    """Estimate the work of each trajectory in tokens of a forward pass.

    Args:
        episodes: every trajectory of whole groups with its rows.
        terms: terms of the base loss; rows that none needs are not trained on.
        frozen: True if all rows are computed once before the update.
        epochs: passes of the update; each computes a token forward and backward.
        share: True if tokens that another row of the group begins with are computed once.
    """
    costs = [0] * len(episodes)
    for _, of_group in groupby(enumerate(episodes), key=lambda one: one[1][0].group):
        rows = sorted(
            ((row.ids, n, row) for n, (_, rows) in of_group for row in rows), key=lambda one: one[:2]
        )
        before: list[int] = []
        for ids, n, row in rows:
            shared = common_prefix(before, ids) if share else len(ids) * (before == ids)
            passes = frozen + _TRAINED * epochs * any(term.needs(row) for term in terms)
            costs[n] += passes * (len(ids) - shared)
            before = ids
    return costs


def cut_evenly(costs: Sequence[int], parts: int) -> list[range]:
    """Cut a list into contiguous parts so that the largest sum of a part is as small as possible.

    Args:
        costs: numbers from 0.
        parts: number of parts; the last ones may be empty.
    """
    if not any(costs):
        costs = [1] * len(costs)
    low, high = max([1, -(-sum(costs) // parts), *costs]), max(1, sum(costs))
    while low < high:
        middle = (low + high) // 2
        if len(_filled(costs, middle)) <= parts:
            high = middle
        else:
            low = middle + 1
    begins = _filled(costs, low)
    bounds = [*begins, *[len(costs)] * (parts + 1 - len(begins))]
    return [range(first, last) for first, last in pairwise(bounds)]


def _filled(costs: Sequence[int], most: int) -> list[int]:
    """Begin a part wherever the one before would have more than ``most``; return where they begin."""
    begins, own = [0], 0
    for n, cost in enumerate(costs):
        if own + cost > most:
            begins.append(n)
            own = 0
        own += cost
    return begins


def moved(
    items: Sequence[T], keys: Sequence[Key], places: Sequence[int] | None, world: Communicator
) -> list[T]:
    """Send items to other ranks; all ranks call it.

    Args:
        items: of this rank.
        keys: group and member of each.
        places: rank of each; None if all stay.
        world: communicator between the ranks.

    Returns:
        The items that this rank has now, in order of their keys.
    """
    if places is None:
        return list(items)
    parts: list[list[tuple[Key, T]]] = [[] for _ in range(world.size)]
    for item, key, place in zip(items, keys, places, strict=True):
        parts[place].append((key, item))
    found = [pair for part in world.exchange(parts) for pair in part]
    return [item for _, item in sorted(found, key=lambda pair: pair[0])]


def moved_episodes(episodes: Sequence[Episode], places: Sequence[int], world: Communicator) -> list[Episode]:
    """Send trajectories with their rows to other ranks, see ``moved``; snapshots stay behind."""
    packed: list[Episode | PackedEpisode] = [
        one if place == world.rank else PackedEpisode.of(*one)
        for one, place in zip(episodes, places, strict=True)
    ]
    keys = [(t.group, t.member) for t, _ in episodes]
    return [
        one.unpacked() if isinstance(one, PackedEpisode) else one
        for one in moved(packed, keys, places, world)
    ]


class PackedEpisode(NamedTuple):
    """A trajectory with its rows, for another rank: what a row holds is not repeated in every turn.

    Attributes:
        trajectory: without turns and snapshots.
        turns: row, length of the context, length of the reply, and the turn without them.
        rows: of each row the figures by name; runs of equal numbers are written once.
    """

    trajectory: Trajectory
    turns: list[tuple[int, int, int, Turn]]
    rows: list[dict[str, Any]]

    @classmethod
    def of(cls, trajectory: Trajectory, rows: Sequence[TokenSequence]) -> PackedEpisode:
        """Pack a trajectory and its rows."""
        turns, number = [], 0
        for turn in trajectory.turns:
            start, length = len(turn.context), len(turn.reply)
            # Rows are joined in order of turn: a turn is in the first row that holds all that it holds.
            ids = [*turn.context, *turn.reply]
            while (
                rows[number].ids[: len(ids)] != ids or rows[number].logprobs[start:][:length] != turn.logprobs
            ):
                number += 1
            turns.append((number, start, length, replace(turn, context=[], reply=[], logprobs=[])))
        bare = replace(trajectory, turns=[], snapshots=[], start_actions=None)
        return cls(
            bare, turns, [{f.name: _packed(getattr(row, f.name)) for f in fields(row)} for row in rows]
        )

    def unpacked(self) -> Episode:
        """Return what was packed."""
        rows = [TokenSequence(**{name: _unpacked(value) for name, value in row.items()}) for row in self.rows]
        turns = [
            replace(
                turn,
                context=rows[number].ids[:start],
                reply=rows[number].ids[start : start + length],
                logprobs=rows[number].logprobs[start : start + length],
            )
            for number, start, length, turn in self.turns
        ]
        return replace(self.trajectory, turns=turns), rows


def _packed(value: Any) -> Any:
    """Pack a list of numbers as (runs of equal ones, their lengths), or as they are where few repeat."""
    if not isinstance(value, list) or not value:
        return value
    numbers = np.array(value, dtype=np.float64 if isinstance(value[0], float) else np.int32)
    bits = numbers.view(np.int64) if numbers.itemsize == 8 else numbers  # 0 and -0 are two numbers
    begins = np.flatnonzero(np.diff(bits, prepend=bits[0] + 1))
    if len(begins) > len(value) // 2:
        return numbers, None
    return numbers[begins], np.diff(begins, append=len(value)).astype(np.int32)


def _unpacked(value: Any) -> Any:
    if not isinstance(value, tuple):
        return value
    numbers, lengths = value
    return (numbers if lengths is None else np.repeat(numbers, lengths)).tolist()
