"""PPO (Schulman et al. 2017) with a critic, over the tokens that the policy wrote."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from tstar_train.advantages import Floats, below_zero, gae, turn_gae, whitened
from tstar_train.algorithms.base import Advantages, Algorithm, whole_episode
from tstar_train.algorithms.gigpo import turn_rewards

if TYPE_CHECKING:
    from tstar_train.distributed import Communicator
    from tstar_train.learner.terms import Term
    from tstar_train.types import TokenSequence, Trajectory


class PPO(Algorithm):
    """PPO with a critic: generalised advantage estimation (``gae``) over the policy's tokens.

    Tokens of the environment are skipped. Advantages are whitened over all tokens of the iteration. A turn's reward is at its last token.
    With ``level`` turn a whole reply is one action (Turn-PPO, ``turn_gae``); the ratio is still clipped token by token, where Turn-PPO
    clips that of whole replies. T-STAR does not apply: there is no episode-level term to replace.
    """

    needs_values = True
    carries_tstar = False

    def episode_advantages(self, group: Sequence[Trajectory]) -> Advantages:
        """See ``Algorithm``: nothing is compared between episodes."""
        return whole_episode(group, np.zeros(len(group)))

    def token_advantages(
        self, episodes: Sequence[tuple[Trajectory, list[TokenSequence]]], world: Communicator
    ) -> None:
        """See ``Algorithm``. What turns are penalised or credited with besides stays, beside the advantages."""
        options = self.config.ppo
        advantages = []
        for trajectory, rows in episodes:
            raw, returns = self._estimate(trajectory, rows)
            advantages.append(raw)
            for sequence, part in zip(
                rows, np.split(returns, np.cumsum([len(s.ids) for s in rows])[:-1]), strict=True
            ):
                sequence.returns = part.tolist()
        masks = [np.concatenate([s.response_mask for s in rows]).astype(bool) for _, rows in episodes]
        if options.whiten:
            advantages = _whitened_over_ranks(advantages, masks, world)
        for (_, rows), values in zip(episodes, advantages, strict=True):
            weighed = below_zero(values, self.config.optim.negative_weight)
            for sequence, part in zip(
                rows, np.split(weighed, np.cumsum([len(s.ids) for s in rows])[:-1]), strict=True
            ):
                sequence.advantages = [a + b for a, b in zip(sequence.advantages, part.tolist(), strict=True)]

    def _estimate(self, trajectory: Trajectory, rows: Sequence[TokenSequence]) -> tuple[Floats, Floats]:
        """Compute (advantages, value targets) at each position of an episode's rows."""
        options = self.config.ppo
        mask = np.concatenate([s.response_mask for s in rows]).astype(bool)
        values = np.concatenate([s.values for s in rows])
        if options.level == "token":
            return gae(rewards_by_token(trajectory, rows), values, mask, options.gamma, options.lam)
        advantages, returns = np.zeros(len(mask)), np.zeros(len(mask))
        lengths = [len(turn.reply) for turn in trajectory.turns]
        advantages[mask], returns[mask] = turn_gae(
            turn_rewards(trajectory), values[mask], lengths, options.gamma, options.lam
        )
        return advantages, returns

    def terms(self) -> list[Term]:
        """See ``Algorithm``: the policy's and the critic's."""
        from tstar_train.learner.terms import ValueTerm

        return [*super().terms(), ValueTerm(self.config.ppo.value_weight, self.config.ppo.value_clip)]


def rewards_by_token(trajectory: Trajectory, rows: Sequence[TokenSequence]) -> np.ndarray:
    """Compute the reward at each position of an episode's rows: a turn's reward is at its last token.

    Args:
        trajectory: the episode.
        rows: its rows in order; the policy's own tokens are those of its turns, one after the other.
    """
    mask = np.concatenate([s.response_mask for s in rows]).astype(bool)
    rewards = np.zeros(len(mask))
    places = np.flatnonzero(mask)
    last = np.cumsum([len(turn.reply) for turn in trajectory.turns]) - 1
    rewards[places[last]] = turn_rewards(trajectory)
    return rewards


def _whitened_over_ranks(
    advantages: Sequence[np.ndarray], masks: Sequence[np.ndarray], world: Communicator
) -> list[np.ndarray]:
    """Whitened over the own tokens of all ranks."""
    own = (
        np.concatenate([a[m] for a, m in zip(advantages, masks, strict=True)]) if advantages else np.zeros(0)
    )
    count, total = world.all_reduce(torch.tensor([len(own), own.sum()], dtype=torch.float64)).tolist()
    mean = total / max(count, 1)
    squares = float(world.all_reduce(torch.tensor([((own - mean) ** 2).sum()], dtype=torch.float64)).item())
    return [whitened(a, m, mean, squares, int(count)) for a, m in zip(advantages, masks, strict=True)]
