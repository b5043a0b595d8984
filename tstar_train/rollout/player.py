"""Policy as the player of a group, and the transcript of an episode."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tstar_envs import Episode, GroupEnv, StepResult, progress_of
from tstar_train.engines.base import Engine, Sample
from tstar_train.policy.codec import Codec, thought_length
from tstar_train.policy.kv import ContextTooLong
from tstar_train.types import Trajectory, Turn


@dataclass
class Transcript:
    """One episode as contexts. The policy's own replies are kept as sampled and never encoded again.

    Attributes:
        codec: turns to ids.
        prompt: the environment's rules, for codecs that show them.
        instruction: the goal; put before an observation that does not state it itself.
        kind: ``concat`` or ``step``.
        history: turns kept by ``step``, 0 or more.
        observations: the first one, then one after each reply.
        replies: ids, each with its end token unless it was cut.
    """

    codec: Codec
    prompt: str
    instruction: str
    observation: str
    kind: str = "concat"
    history: int = 2
    observations: list[str] = field(init=False)
    replies: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.observations = [self.observation]
        self._start = self.codec.start(self.prompt, self.observation) if self.kind == "concat" else []
        self._turns: list[list[int]] = []

    def context(self, room: int | None = None) -> list[int]:
        """Ids before the next reply.

        Args:
            room: most tokens, None for any number. ``concat`` keeps the start (rules, instruction, first observation) and as many of
                the last turns as fit, at least one; ``step`` shortens its history down to the current observation.

        Raises:
            ContextTooLong: not even that fits.
        """
        least = []
        for least in self._shorter_and_shorter():
            if room is None or len(least) <= room:
                return least
        raise ContextTooLong(
            f"without the turns that can be left out a context has {len(least)} tokens, and there is room for {room}"
        )

    def _shorter_and_shorter(self) -> Iterator[list[int]]:
        done = len(self.replies)
        if self.kind == "concat":
            for first in range(max(1, done)):
                yield [*self._start, *itertools.chain.from_iterable(self._turns[first:])]
            return
        for first in range(max(0, done - self.history), done + 1):
            shown = self.observations[first]
            if self.instruction not in shown:
                shown = f"{self.instruction}\n{shown}"
            ids = self.codec.start(self.prompt, shown)
            for reply, observation in zip(self.replies[first:], self.observations[first + 1 :], strict=True):
                ids += self._turn(reply, observation)
            yield ids

    def add(self, reply: Sequence[int], observation: str) -> None:
        """Append a reply that did not end the episode, and its observation."""
        self.replies.append(list(reply))
        self.observations.append(observation)
        if self.kind == "concat":
            self._turns.append(self._turn(reply, observation))

    def _turn(self, reply: Sequence[int], observation: str) -> list[int]:
        return [*self.codec.closed(reply), *self.codec.observation(observation)]


@dataclass(frozen=True)
class Sampling:
    """Sampling options of replies.

    Attributes:
        max_tokens: longest reply.
        temperature: 1 in training; 0 is greedy.
        context: ``concat`` (the whole transcript) or ``step`` (task, the last ``history`` turns and the current observation).
        history: turns kept by ``step``, 0 or more.
        progress: whether ``Turn.progress`` is recorded.
    """

    max_tokens: int = 64
    temperature: float = 1.0
    context: str = "concat"
    history: int = 2
    progress: bool = False


def overlong(episode: Episode) -> bool:
    """Check whether an episode ended because its context left no room for a reply."""
    return bool(episode.extra.get("overlong", False))


def transcript_of(episode: Episode, codec: Codec, prompt: str, sampling: Sampling) -> Transcript:
    """Make the transcript of a new episode."""
    return Transcript(
        codec, prompt, episode.instruction, episode.first_observation, sampling.context, sampling.history
    )


class PolicyPlayer:
    """Samples replies, and keeps what was sampled in the rows' trajectories and transcripts.

    A row whose context leaves no room for a reply, however many turns are left out, cannot go on: it is truncated there with a
    reward of 0, and marked (``overlong``).

    Args:
        group: environments, one per row.
        engine: samples replies.
        codec: turns to ids.
        trajectories: one per row.
        lines: one per row.
        seed: the samples of a row depend on it, on the task, the member and the turn alone.
        sampling: temperature, lengths, context form.
        begun: per row, the ids that its first reply begins with (a thought that is given, not sampled); they are not
            counted in ``max_tokens`` and their log-probabilities are recorded as 0.
        repeats: per row, how often its task came before in the same round; it is part of the seeds.
        told: called before each turn with the number of rows that have ended, and of the turn, from 1.
    """

    def __init__(
        self,
        group: GroupEnv,
        engine: Engine,
        codec: Codec,
        trajectories: Sequence[Trajectory],
        lines: Sequence[Transcript],
        *,
        seed: str,
        sampling: Sampling,
        begun: Sequence[Sequence[int]] | None = None,
        repeats: Sequence[int] = (),
        told: Callable[[int, int], None] | None = None,
    ) -> None:
        self._told = told
        self._group, self._engine, self._codec, self._trajectories, self._lines = (
            group,
            engine,
            codec,
            trajectories,
            lines,
        )
        self._seed, self._sampling, self._begun = seed, sampling, begun
        self._again = [f"/pass {count}" if count else "" for count in repeats] or [""] * len(trajectories)
        self._turn = 0
        self._said: dict[int, Turn] = {}  # joins its trajectory once it was played

    def replies(self, rows: Sequence[int]) -> dict[int, str]:
        """Sample the reply of each row that has room for one.

        Raises:
            NotFinite: the log-probabilities are no numbers.
        """
        sampling = self._sampling
        if self._told is not None:
            self._told(len(self._lines) - len(rows), self._turn + 1)
        offered: dict[int, tuple[list[int], list[int]]] = {}
        for row in rows:
            first = list(self._begun[row]) if self._begun is not None and self._turn == 0 else []
            try:
                offered[row] = (
                    first,
                    self._lines[row].context(self._engine.limit - sampling.max_tokens - len(first)),
                )
            except ContextTooLong:
                self._cut(row)
        if not offered:
            return {}
        seeds = [
            f"{self._seed}/{t.episode.task}{self._again[row]}/{t.member}/{self._turn}"
            for row, t in ((row, self._trajectories[row]) for row in offered)
        ]
        samples = self._engine.generate(
            [context + first for first, context in offered.values()],
            seeds,
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            keys=[(self._seed, row) for row in offered],
        )
        self._turn += 1
        self._said = {}
        for (row, (first, context)), sample in zip(offered.items(), samples, strict=True):
            ids, logprobs = Sample(first + sample.ids, [0.0] * len(first) + sample.logprobs)
            self._said[row] = Turn(context, ids, logprobs, thought_length(self._codec, ids))
        # Kept as sampled: what is decoded here is never encoded again.
        return {row: self._codec.decode(turn.reply) for row, turn in self._said.items()}

    def played(self, row: int, result: StepResult) -> None:
        """Keep the turn, and what the environment made of it."""
        turn, trajectory = self._said[row], self._trajectories[row]
        trajectory.turns.append(turn)
        turn.next_actions = result.info["admissible_actions"]
        if self._sampling.progress:
            turn.progress = (
                float(result.info["success"]) if result.over else progress_of(self._group.envs[row])
            )
        if not result.over:
            turn.shaping = result.reward
            self._lines[row].add(turn.reply, result.observation)

    def _cut(self, row: int) -> None:
        trajectory = self._trajectories[row]
        trajectory.episode.ended = "truncated"
        trajectory.episode.extra["overlong"] = True
        if self._sampling.progress and trajectory.turns:
            trajectory.turns[-1].progress = 0.0  # as for every other end without success
