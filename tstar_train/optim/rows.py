"""Rows of tokens made from credited turns, with the weight of each token in the update."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tstar_train.algorithms.advantages import below_zero
from tstar_train.config import Config
from tstar_train.losses import Aggregation, token_weight
from tstar_train.rollout.credit import progress_made
from tstar_train.rollout.group import GroupResult
from tstar_train.rollout.penalties import penalties
from tstar_train.rollout.types import TokenSequence, Trajectory, join_rows, rows_of

# An episode, in however many rows, is the sequence of the losses.
_AGGREGATION: dict[str, Aggregation] = {"token-mean": "token-mean", "episode-mean": "seq-mean-token-mean"}


def make_rows(config: Config, groups: Sequence[GroupResult]) -> list[tuple[Trajectory, list[TokenSequence]]]:
    """Every trajectory with its rows: its turns' advantages, less their penalties, plus what they are credited with besides.

    Args:
        config: the run's options.
        groups: with the advantages of their turns.
    """
    return [
        (t, _rows(config, t, a)) for g in groups for t, a in zip(g.trajectories, g.advantages, strict=True)
    ]


def _rows(config: Config, trajectory: Trajectory, advantages: np.ndarray) -> list[TokenSequence]:
    negative, credit = config.optim.negative_weight, config.rollout.progress_credit
    earned = below_zero(advantages, negative) - penalties(trajectory.steps, config.rollout)
    if credit:
        earned += below_zero(credit * progress_made(trajectory.turns), negative)
    episode = join_rows(rows_of(trajectory, earned.tolist()))
    weight = token_weight(float(sum(s.own_tokens for s in episode)), _AGGREGATION[config.optim.aggregation])
    for sequence in episode:
        sequence.weight = weight
    return episode
