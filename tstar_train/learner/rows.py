"""Rows: credited turns become credited tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from tstar_envs import Step
from tstar_train.advantages import below_zero
from tstar_train.config import Config, RolloutConfig
from tstar_train.engines.check import require_agreement
from tstar_train.losses import Aggregation, Correction, importance_weights, token_weight
from tstar_train.types import CorrectionWork, Group, TokenSequence, Trajectory, Turn, join_rows, rows_of


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
