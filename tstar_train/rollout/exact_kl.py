"""The exact KL estimate, where the environment lists the admissible actions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from tstar_envs import UnknownOption
from tstar_train.engines.base import Engine
from tstar_train.policy.codec import ACTION_CUE, Codec
from tstar_train.rollout.action_kl import KLWork
from tstar_train.rollout.types import Trajectory


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
