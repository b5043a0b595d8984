"""What a rollout yields: trajectories of turns, and the rows that the losses are computed on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tstar_envs import Episode, Step


@dataclass(slots=True)
class Turn:
    """One call of the policy.

    Attributes:
        context: ids the policy was conditioned on, exactly as it saw them.
        reply: ids it sampled, end token included if it wrote one.
        logprobs: log-probability of each reply id under the sampling distribution, in nats.
        thought_length: how many leading ids of the reply are the thought.
        next_actions: admissible actions after the turn, None where the set is open.
        shaping: the environment's reward where it did not end the episode; 0 unless an option such as Sokoban's ``reward="shaped"``
            asks for more.
        progress: ``env.progress()`` after the turn; 1 where it won, 0 where the episode ended otherwise. None where it was not asked for.
    """

    context: list[int]
    reply: list[int]
    logprobs: list[float]
    thought_length: int
    next_actions: list[str] | None = None
    shaping: float = 0.0
    progress: float | None = None


@dataclass(slots=True)
class Trajectory:
    """One episode with the tokens behind it.

    Attributes:
        group: index of its task among the tasks of the iteration.
        member: index within the group.
        episode: the record; its steps are parallel to ``turns``.
        turns: token ids of every turn.
        start_key: the environment's key of the state that the episode began in.
        penalty: what an algorithm takes off what the episode is compared by (DAPO, for replies that are too long).
    """

    group: int
    member: int
    episode: Episode
    turns: list[Turn] = field(default_factory=list)
    start_key: str = ""
    penalty: float = 0.0

    @property
    def earned(self) -> float:
        """What the environment gave: the terminal reward, in [0, 1], and all shaping before it."""
        return self.episode.reward + sum(turn.shaping for turn in self.turns)

    @property
    def reward(self) -> float:
        """What the group's trajectories are compared by."""
        return self.earned - self.penalty

    @property
    def states_before(self) -> list[str]:
        """The environment's key of the state in which each turn was taken."""
        return [self.start_key, *(step.state_key for step in self.steps)][: len(self.turns)]

    @property
    def steps(self) -> list[Step]:
        """The environment's record of each turn."""
        return self.episode.steps


@dataclass(slots=True)
class Row:
    """One turn as training data.

    Attributes:
        task: task id.
        group: index of the task in the iteration.
        member: trajectory within the group.
        turn: index of the turn.
        ids: context and reply.
        mask: 1 for the policy's own tokens.
        logprobs: sampling log-probabilities, 0 where the mask is 0.
        advantage: of every token of the turn.
    """

    task: str
    group: int
    member: int
    turn: int
    ids: list[int]
    mask: list[int]
    logprobs: list[float]
    advantage: float


@dataclass(slots=True)
class TokenSequence:
    """Rows of one trajectory whose contexts extend one another, joined so that each token is computed once.

    Attributes:
        ids: the longest row's ids.
        mask: 1 for the policy's own tokens of all joined turns.
        logprobs: sampling log-probabilities per position.
        advantages: per position.
        weight: of each of its tokens in the weighted mean that is the base loss.
        values: what a critic says before each position, empty without one.
        returns: what it should have said, empty without one.
        old: log-probabilities per position under the policy before the update as the trainer computes them; empty where ``logprobs``
            are those.
    """

    ids: list[int]
    mask: list[int]
    logprobs: list[float]
    advantages: list[float]
    weight: float = 1.0
    values: list[float] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)
    old: list[float] = field(default_factory=list)

    @property
    def own_tokens(self) -> int:
        """How many tokens the policy wrote."""
        return sum(self.mask)


def rows_of(trajectory: Trajectory, advantages: Sequence[float]) -> list[Row]:
    """One row per turn.

    Args:
        trajectory: an episode.
        advantages: one per turn.
    """
    return [
        Row(
            task=trajectory.episode.task,
            group=trajectory.group,
            member=trajectory.member,
            turn=number,
            ids=[*turn.context, *turn.reply],
            mask=[0] * len(turn.context) + [1] * len(turn.reply),
            logprobs=[0.0] * len(turn.context) + turn.logprobs,
            advantage=float(advantage),
        )
        for number, (turn, advantage) in enumerate(zip(trajectory.turns, advantages, strict=True))
    ]


def join_rows(rows: Sequence[Row]) -> list[TokenSequence]:
    """Join consecutive rows of one trajectory wherever a row's ids begin the next one's context.

    The loss is a sum over masked tokens, each conditioned on all ids before it, so joined rows have the same loss.
    """
    joined: list[TokenSequence] = []
    owner: tuple[int, int] | None = None
    for row in rows:
        last = joined[-1] if joined and owner == (row.group, row.member) else None
        start = len(last.ids) if last is not None else 0
        if last is not None and row.ids[:start] == last.ids and not any(row.mask[:start]):
            last.ids = row.ids
            last.mask += row.mask[start:]
            last.logprobs += row.logprobs[start:]
            last.advantages += [row.advantage] * (len(row.ids) - start)
        else:
            joined.append(
                TokenSequence(row.ids, list(row.mask), list(row.logprobs), [row.advantage] * len(row.ids))
            )
        owner = (row.group, row.member)
    return joined
