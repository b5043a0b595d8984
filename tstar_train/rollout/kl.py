"""KL divergence between turns, sampled or exact over admissible actions."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tstar_envs import UnknownOption
from tstar_train.engines.base import Engine
from tstar_train.policy.codec import ACTION_CUE, Codec
from tstar_train.types import KLWork, Trajectory

Ids = tuple[int, ...]
Triple = tuple[int, int, int]
Direction = tuple[Ids, Ids]
_MULTIPLE = 8  # of tokens, for the length of samples


@dataclass
class ActionKL:
    """Monte Carlo estimate ``kl(t, i, j)`` for one group; implements the tree's ``BatchedKL``.

    Attributes:
        engine: engine that samples and computes log-probabilities.
        codec: codec, for the action cue.
        group: the trajectories, in the order of the tree's numbers.
        samples: number of samples, the paper's K.
        over: ``action`` or ``turn``.
        threshold: eps_kl, for early rejection: a rejected direction returns a lower bound that is at least this. None
            never rejects early, which the mean of both directions needs.
        max_tokens: maximum length of a sampled action or turn.
        as_listed: True to sample no more than the longest admissible action takes, where the environment lists them.
        seed: seed of the samples.
        ahead: True to sample in both contexts of a direction in one call, since an accepted direction needs the other one next. Does not
            change results.
        work: counters, shared by the groups of an iteration.
        drawn: samples so far per context: token ids with their counts.
    """

    engine: Engine
    codec: Codec
    group: Sequence[Trajectory]
    samples: int = 16
    over: str = "action"
    threshold: float | None = 0.25
    max_tokens: int = 64
    as_listed: bool = False
    seed: str = "kl"
    ahead: bool = False
    work: KLWork = field(default_factory=KLWork)
    _cue: Ids = ()
    _contexts: dict[tuple[int, int], Ids] = field(default_factory=dict)
    _sources: set[Ids] = field(default_factory=set)
    drawn: dict[Ids, Counter[Ids]] = field(default_factory=dict)
    _scores: dict[tuple[Ids, Ids], float] = field(default_factory=dict)
    _answers: dict[tuple[Ids, Ids], float] = field(default_factory=dict)
    _room: int | None = None

    def __post_init__(self) -> None:
        self._cue = tuple(self.codec.text(ACTION_CUE)) if self.over == "action" else ()

    def __call__(self, t: int, i: int, j: int) -> float:
        """Estimate D_KL between trajectories i and j after step t, in nats."""
        self.prefetch([(t, i, j)])
        return self._answers[self._context(i, t), self._context(j, t)]

    def prefetch(self, pairs: list[Triple]) -> None:
        """Compute all these directions in a few model calls."""
        prefetch_together([(self, pairs)])

    def _open(self, pairs: Sequence[Triple]) -> list[Direction]:
        """Return the directions among these that have no estimate yet, each once."""
        wanted: dict[Direction, None] = {}
        for t, i, j in pairs:
            key = self._context(i, t), self._context(j, t)
            if key in self._answers or key in wanted:
                continue
            self.work.asked += 1
            if key[0] == key[1]:
                self.work.identical += 1
                self._answers[key] = 0.0
            else:
                wanted[key] = None
        sources = {source for source, _ in wanted} - self._sources
        self._sources |= sources
        self.work.sampled_contexts += len(sources)
        return list(wanted)

    def _context(self, i: int, t: int) -> Ids:
        """Return the context of the next action of trajectory i after step t."""
        if (i, t) not in self._contexts:
            self._contexts[i, t] = (*self.group[i].turns[t + 1].context, *self._cue)
        return self._contexts[i, t]

    def _longest_sample(self) -> int:
        """Limit the sample length: samples fit after the longest context, and are no longer than an action if these are listed."""
        if self._room is None:
            turns = [turn for trajectory in self.group for turn in trajectory.turns]
            most = self.max_tokens
            listed = {action for turn in turns for action in turn.next_actions or ()}
            if self.as_listed and listed and all(turn.next_actions is not None for turn in turns):
                longest = max(map(len, encoded_actions(self.codec, sorted(listed))))
                # Groups whose samples have the same length are sampled together.
                most = min(most, math.ceil(longest / _MULTIPLE) * _MULTIPLE)
            self._room = min(most, self.engine.limit - max(len(t.context) for t in turns) - len(self._cue))
        return self._room

    def _lower_bound(self, source: Ids, target: Ids) -> float:
        """Average the terms; a term not scored yet under the target is at least log pi(a | s_u), since log pi(a | s_v) <= 0."""
        drawn = self.drawn[source].items()
        return (
            sum(n * (self._scores[source, a] - self._scores.get((target, a), 0.0)) for a, n in drawn)
            / self.samples
        )


def prefetch_together(asked: Sequence[tuple[ActionKL, list[Triple]]]) -> None:
    """Prefetch the estimates of several groups in a few model calls.

    Args:
        asked: estimators of the same engine, each with the directions to compute.
    """
    wanted = [(kl, key) for kl, pairs in asked for key in kl._open(pairs)]
    if not wanted:
        return
    _draw([(kl, context) for kl, key in wanted for context in (key if kl.ahead else key[:1])])
    # Score every sample in its own context, but only the most frequent one in the other context: this alone rejects most pairs of
    # different states.
    _score(
        [(kl, s, a) for kl, (s, _) in wanted for a in kl.drawn[s]]
        + [(kl, v, kl.drawn[s].most_common(1)[0][0]) for kl, (s, v) in wanted]
    )
    going_on = []
    for kl, key in wanted:
        bound = kl._lower_bound(*key)
        if kl.threshold is not None and bound >= kl.threshold:
            kl.work.rejected_early += 1
            kl._answers[key] = bound
        else:
            going_on.append((kl, key))
    _score([(kl, target, a) for kl, (source, target) in going_on for a in kl.drawn[source]])
    for kl, key in going_on:
        kl._answers[key] = kl._lower_bound(*key)  # equals the estimate once all terms are scored
    for kl, _ in wanted:
        kl.work.unscored += 2 * kl.samples


def _draw(contexts: Sequence[tuple[ActionKL, Ids]]) -> None:
    """Draw samples of the contexts that have none."""
    calls: dict[
        tuple[int, int], dict[tuple[int, Ids], ActionKL]
    ] = {}  # by (sample length, samples per context) of one call
    for kl, context in contexts:
        if context not in kl.drawn:
            calls.setdefault((kl._longest_sample(), kl.samples), {})[id(kl), context] = kl
    for (room, copies), new in calls.items():
        # Seeds depend on the context, not on the order of trajectories, so a permuted group gives the same tree.
        seeds = [
            f"{kl.seed}/{hash_ids(context)}/{k}" for (_, context), kl in new.items() for k in range(copies)
        ]
        any_of_them = next(iter(new.values()))
        # Text after the action (a next thought, an imagined observation) says nothing about the action: stop at the line break.
        ends = any_of_them.codec.line_ends if any_of_them.over == "action" else ()
        drawn = any_of_them.engine.generate(
            [context for _, context in new], seeds, max_tokens=room, copies=copies, ends=ends
        )
        for number, ((_, context), kl) in enumerate(new.items()):
            kl.drawn[context] = Counter(
                tuple(sample.ids) for sample in drawn[number * copies : (number + 1) * copies]
            )


def _score(wanted: Sequence[tuple[ActionKL, Ids, Ids]]) -> None:
    """Score (context, continuation) pairs.

    Own and other contexts use the same code path, otherwise rounding noise could decide at the threshold.
    """
    missing: dict[tuple[int, Ids], tuple[ActionKL, dict[Ids, None]]] = {}
    for kl, context, continuation in wanted:
        if (context, continuation) not in kl._scores:
            missing.setdefault((id(kl), context), (kl, {}))[1][continuation] = None
    if not missing:
        return
    engine = wanted[0][0].engine
    results = engine.logprobs(
        [context for _, context in missing], [list(continuations) for _, continuations in missing.values()]
    )
    for ((_, context), (kl, continuations)), scores in zip(missing.items(), results, strict=True):
        for continuation, score in zip(continuations, scores, strict=True):
            kl._scores[context, continuation] = score
            kl.work.scored += 1


def hash_ids(ids: Sequence[int]) -> str:
    """Return a stable name for a token sequence."""
    return hashlib.blake2b(repr(list(ids)).encode(), digest_size=8).hexdigest()


@dataclass
class ExactKL:
    """Exact KL over the admissible actions: a finite sum of renormalized probabilities, without sampling noise.

    Attributes:
        engine: engine that computes log-probabilities.
        codec: codec, for the action cue.
        group: the trajectories.
        work: counters.
    """

    engine: Engine
    codec: Codec
    group: Sequence[Trajectory]
    work: KLWork = field(default_factory=KLWork)
    _distributions: dict[tuple[int, int], dict[str, float]] = field(default_factory=dict)

    def __call__(self, t: int, i: int, j: int) -> float:
        """Compute D_KL between trajectories i and j after step t, in nats; infinite if j's list lacks an action of i's."""
        self.work.asked += 1
        if self.group[i].turns[t + 1].context == self.group[j].turns[t + 1].context:
            self.work.identical += 1
            return 0.0
        self.prefetch([(t, i, j)])
        mine, theirs = self._distributions[i, t], self._distributions[j, t]
        self.work.unscored += len(mine) + len(theirs)
        if set(mine) - set(theirs):
            return math.inf
        return sum(math.exp(p) * (p - theirs[action]) for action, p in mine.items())

    def prefetch(self, pairs: list[tuple[int, int, int]]) -> None:
        """Score the admissible actions of all these steps in one call."""
        different = [
            (t, i, j)
            for t, i, j in pairs
            if self.group[i].turns[t + 1].context != self.group[j].turns[t + 1].context
        ]
        missing = dict.fromkeys(
            (k, t) for t, i, j in different for k in (i, j) if (k, t) not in self._distributions
        )
        if not missing:
            return
        contexts, actions = [], []
        for i, t in missing:
            listed = self.group[i].turns[t].next_actions
            if listed is None:
                raise UnknownOption(
                    f"kl_estimator 'exact' needs admissible actions, which {self.group[i].episode.env} does not list: use 'mc'"
                )
            contexts.append(self.group[i].turns[t + 1].context)
            actions.append(listed)
        scored = action_logprobs(self.engine, self.codec, contexts, actions)
        for key, distribution in zip(missing, scored, strict=True):
            self.work.scored += len(distribution)
            self._distributions[key] = distribution


def encoded_actions(codec: Codec, actions: Sequence[str]) -> list[list[int]]:
    """Encode actions as they follow the action cue in a reply, so that the tokens equal those of sampled replies."""
    cue = codec.text(ACTION_CUE)
    return [codec.reply(f"{ACTION_CUE} {action}")[len(cue) :] for action in actions]


def action_logprobs(
    engine: Engine, codec: Codec, contexts: Sequence[Sequence[int]], actions: Sequence[Sequence[str]]
) -> list[dict[str, float]]:
    """Compute the policy's log-probabilities of listed actions, in nats, renormalized over each list.

    The action comes right after the action cue, with no thought before it.

    Args:
        engine: engine that computes log-probabilities.
        codec: codec, for the action cue.
        contexts: token ids before each reply.
        actions: for each context, the actions to compare.
    """
    cue = codec.text(ACTION_CUE)
    encoded = [encoded_actions(codec, listed) for listed in actions]
    found = []
    for listed, scores in zip(actions, engine.logprobs([[*c, *cue] for c in contexts], encoded), strict=True):
        top = max(scores)
        total = top + math.log(sum(math.exp(s - top) for s in scores))
        found.append({a: s - total for a, s in zip(listed, scores, strict=True)})
    return found
