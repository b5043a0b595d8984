"""The production KL estimate: action distributions of one policy in two contexts, batched and cached.

``D_KL(u || v) ~ 1/K sum_k [log pi(a_k | s_u) - log pi(a_k | s_v)]``, a_k ~ pi(. | s_u)  (eq:kl_divergence), where s is the
context *after* the step. What a is, ``over`` says: ``action``, what follows the action cue with no thought before it, or
``turn``, thought and action together. Work is saved without changing a single result: identical contexts have KL 0;
the K samples of a context are drawn once, equal ones scored once with multiplicity; one call scores all sources of a round;
and a pair is given up as soon as the remaining terms cannot bring the mean under the threshold.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tstar_envs import UnknownOption
from tstar_train.engines.base import Engine
from tstar_train.policy.codec import ACTION_CUE, Codec
from tstar_train.rollout.types import Trajectory

Ids = tuple[int, ...]


@dataclass
class KLWork:
    """What the estimates cost.

    Attributes:
        asked: single directions asked for.
        identical: answered 0 because the contexts are equal.
        sampled_contexts: contexts that K samples were drawn in.
        scored: continuations scored.
        unscored: continuations that would have been scored without multiplicity, caching and early rejection.
        rejected_early: directions given up before all their samples were scored.
    """

    asked: int = 0
    identical: int = 0
    sampled_contexts: int = 0
    scored: int = 0
    unscored: int = 0
    rejected_early: int = 0


@dataclass
class ActionKL:
    """``kl(t, i, j)`` for one group; implements the tree's ``BatchedKL``.

    Attributes:
        engine: samples and scores.
        codec: for the action cue.
        group: the trajectories, in the order the tree numbers them.
        samples: K.
        over: ``action`` or ``turn``.
        threshold: eps_kl, for early rejection: a rejected direction answers a lower bound that is at least this. None
            never rejects early, which the mean of both directions needs.
        max_tokens: longest sampled action or turn.
        seed: of the samples.
        work: counters, shared by the groups of an iteration.
    """

    engine: Engine
    codec: Codec
    group: Sequence[Trajectory]
    samples: int = 16
    over: str = "action"
    threshold: float | None = 0.25
    max_tokens: int = 64
    seed: str = "kl"
    work: KLWork = field(default_factory=KLWork)
    _drawn: dict[Ids, Counter[Ids]] = field(default_factory=dict)
    _scores: dict[tuple[Ids, Ids], float] = field(default_factory=dict)
    _answers: dict[tuple[Ids, Ids], float] = field(default_factory=dict)
    _room: int | None = None

    def __call__(self, t: int, i: int, j: int) -> float:
        """The estimate of D_KL between trajectories i and j after step t, in nats."""
        self.prefetch([(t, i, j)])
        return self._answers[self._context(i, t), self._context(j, t)]

    def prefetch(self, pairs: list[tuple[int, int, int]]) -> None:
        """Compute all these directions in few model calls."""
        wanted = []
        for t, i, j in pairs:
            key = self._context(i, t), self._context(j, t)
            if key in self._answers or key in wanted:
                continue
            self.work.asked += 1
            if key[0] == key[1]:
                self.work.identical += 1
                self._answers[key] = 0.0
            else:
                wanted.append(key)
        if not wanted:
            return
        self._draw([source for source, _ in wanted])
        # Every sample under its own context, but under the other one the likeliest sample first: on its own it rejects
        # most pairs of different states.
        self._score(
            [(s, a) for s, _ in wanted for a in self._drawn[s]] + [(v, self._drawn[s].most_common(1)[0][0]) for s, v in wanted]
        )
        open_pairs = []
        for key in wanted:
            bound = self._lower_bound(*key)
            if self.threshold is not None and bound >= self.threshold:
                self.work.rejected_early += 1
                self._answers[key] = bound
            else:
                open_pairs.append(key)
        self._score([(target, a) for source, target in open_pairs for a in self._drawn[source]])
        for key in open_pairs:
            self._answers[key] = self._lower_bound(*key)  # exact once every term is known
        self.work.unscored += 2 * self.samples * len(wanted)

    def _context(self, i: int, t: int) -> Ids:
        """What the next action of trajectory i after step t is conditioned on."""
        ids = self.group[i].turns[t + 1].context
        return tuple(ids + self.codec.text(ACTION_CUE) if self.over == "action" else ids)

    def _longest_sample(self) -> int:
        """Samples drawn in one context are scored in others: they are to fit behind the longest."""
        if self._room is None:
            contexts = [len(turn.context) for trajectory in self.group for turn in trajectory.turns]
            cue = len(self.codec.text(ACTION_CUE)) if self.over == "action" else 0
            self._room = min(self.max_tokens, self.engine.limit - max(contexts) - cue)
        return self._room

    def _draw(self, sources: Sequence[Ids]) -> None:
        new = [s for s in dict.fromkeys(sources) if s not in self._drawn]
        if not new:
            return
        # Seeds hang on the context, not on the order of trajectories, so a permuted group merges alike.
        seeds = [f"{self.seed}/{hash_ids(s)}/{k}" for s in new for k in range(self.samples)]
        # A model that goes on behind its action (its next thought, what it expects to see) says nothing more about the action.
        ends = self.codec.line_ends if self.over == "action" else ()
        drawn = self.engine.generate(new, seeds, max_tokens=self._longest_sample(), copies=self.samples, ends=ends)
        for number, source in enumerate(new):
            part = drawn[number * self.samples : (number + 1) * self.samples]
            self._drawn[source] = Counter(tuple(sample.ids) for sample in part)
        self.work.sampled_contexts += len(new)

    def _score(self, wanted: Sequence[tuple[Ids, Ids]]) -> None:
        """Score (context, continuation) pairs, own and other contexts by the same path, or thresholds would flip on noise."""
        missing: dict[Ids, dict[Ids, None]] = {}
        for context, continuation in wanted:
            if (context, continuation) not in self._scores:
                missing.setdefault(context, {})[continuation] = None
        if not missing:
            return
        contexts = list(missing)
        results = self.engine.score(contexts, [list(missing[c]) for c in contexts])
        for context, scores in zip(contexts, results, strict=True):
            for continuation, score in zip(missing[context], scores, strict=True):
                self._scores[context, continuation] = score
                self.work.scored += 1

    def _lower_bound(self, source: Ids, target: Ids) -> float:
        """Mean of the terms; one not scored yet under the target is at least log pi(a | s_u), since log pi(a | s_v) <= 0."""
        drawn = self._drawn[source].items()
        return sum(n * (self._scores[source, a] - self._scores.get((target, a), 0.0)) for a, n in drawn) / self.samples


@dataclass
class ExactKL:
    """KL over the admissible actions, enumerated: a finite sum without sampling noise (probabilities renormalised).

    Attributes:
        engine: scores.
        codec: for the action cue.
        group: the trajectories.
        work: counters.
    """

    engine: Engine
    codec: Codec
    group: Sequence[Trajectory]
    work: KLWork = field(default_factory=KLWork)
    _distributions: dict[tuple[int, int], dict[str, float]] = field(default_factory=dict)

    def __call__(self, t: int, i: int, j: int) -> float:
        """D_KL between trajectories i and j after step t, in nats; infinite if j's list lacks an action of i's."""
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
        different = [(t, i, j) for t, i, j in pairs if self.group[i].turns[t + 1].context != self.group[j].turns[t + 1].context]
        missing = dict.fromkeys((k, t) for t, i, j in different for k in (i, j) if (k, t) not in self._distributions)
        if not missing:
            return
        contexts, actions = [], []
        for i, t in missing:
            listed = self.group[i].turns[t].next_actions
            if listed is None:
                raise UnknownOption(
                    f"kl_estimator 'exact' needs admissible actions, which {self.group[i].episode.env} does not list: use 'mc'"
                )
            contexts.append([*self.group[i].turns[t + 1].context, *self.codec.text(ACTION_CUE)])
            actions.append(listed)
        # Encoded after the cue as a reply would be, so that the tokens are those that sampling gives.
        cue = len(self.codec.text(ACTION_CUE))
        encoded = [[self.codec.reply(f"{ACTION_CUE} {a}")[cue:] for a in listed] for listed in actions]
        scored = self.engine.score(contexts, encoded)
        for (i, t), listed, scores in zip(missing, actions, scored, strict=True):
            self.work.scored += len(scores)
            top = max(scores)
            total = top + math.log(sum(math.exp(s - top) for s in scores))
            self._distributions[i, t] = {a: s - total for a, s in zip(listed, scores, strict=True)}


def hash_ids(ids: Sequence[int]) -> str:
    """A stable name for a token sequence."""
    return hashlib.blake2b(repr(list(ids)).encode(), digest_size=8).hexdigest()
