"""Policy as the player of a group, and the transcript of an episode."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tstar_envs import (
    EnvironmentFailed,
    Episode,
    GroupEnv,
    Snapshot,
    StepResult,
    TextEnv,
    called,
    progress_of,
)
from tstar_envs.utils import without_actions
from tstar_train.engines.base import Engine, Sample
from tstar_train.policy.codec import Codec, thought_length
from tstar_train.policy.kv import ContextTooLong
from tstar_train.progress import progress
from tstar_train.types import Trajectory, Turn


@dataclass
class Transcript:
    """Token contexts of one episode; sampled replies are kept as ids and never encoded again.

    Attributes:
        codec: codec between turns and token ids.
        prompt: the environment's rules, for codecs that use them.
        instruction: the goal; inserted before an observation that does not contain it.
        kind: ``concat`` or ``step``.
        history: number of turns kept by ``step``, 0 or more.
        observations: the first observation, then one after each reply.
        replies: ids of the replies, each with its stop token unless it was truncated.
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
        """Return the ids before the next reply.

        Args:
            room: maximum number of tokens, None for no limit. ``concat`` keeps the start (rules, instruction, first observation) and as
                many of the last turns as fit, at least one; ``step`` drops history, down to the current observation.

        Raises:
            ContextTooLong: even the shortest context does not fit.
        """
        least = []
        for least in self._shorter_and_shorter():
            if room is None or len(least) <= room:
                return least
        raise ContextTooLong(
            f"the shortest context, without older turns, has {len(least)} tokens, and there is room for {room}"
        )

    def _shorter_and_shorter(self) -> Iterator[list[int]]:
        done = len(self.replies)
        if self.kind == "concat":
            for first in range(max(1, done)):
                yield [*self._start, *itertools.chain.from_iterable(self._turns[first:])]
            return
        # What may be done now is said once, with the current observation (as verl-agent's prompts do).
        seen = [*map(without_actions, self.observations[:-1]), self.observations[-1]]
        for first in range(max(0, done - self.history), done + 1):
            shown = seen[first]
            if self.instruction not in shown:
                shown = f"{self.instruction}\n{shown}"
            ids = self.codec.start(self.prompt, shown)
            for reply, observation in zip(self.replies[first:], seen[first + 1 :], strict=True):
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
        max_tokens: maximum reply length in tokens.
        temperature: sampling temperature: 1 in training, 0 for greedy decoding.
        context: ``concat`` (the whole transcript) or ``step`` (task, the last ``history`` turns and the current observation).
        history: number of turns kept by ``step``, 0 or more.
        progress: True to record ``Turn.progress``.
        snapshots: True to keep ``Trajectory.snapshots``, from which episodes can be played on.
    """

    max_tokens: int = 64
    temperature: float = 1.0
    context: str = "concat"
    history: int = 2
    progress: bool = False
    snapshots: bool = False


def transcript_of(episode: Episode, codec: Codec, prompt: str, sampling: Sampling) -> Transcript:
    """Make the transcript of a new episode."""
    return Transcript(
        codec, prompt, episode.instruction, episode.first_observation, sampling.context, sampling.history
    )


def snapshot_of(env: TextEnv[Any, Any]) -> Snapshot[Any]:
    """Take a snapshot of an environment, possibly a user's.

    Raises:
        EnvironmentFailed: it raised.
    """
    taken: Snapshot[Any] = called("the environment", EnvironmentFailed, env.snapshot)
    return taken


class PolicyPlayer:
    """Samples replies for a group, and records them in trajectories and transcripts.

    If a row's context leaves no room for a reply, even without older turns, its episode is truncated with a reward of 0 and marked
    (``overlong``).

    Args:
        group: environments, one per row.
        engine: engine that samples replies.
        codec: codec between turns and token ids.
        trajectories: one trajectory per row.
        lines: one transcript per row.
        seed: seed of the samples. A row's samples depend only on it, the task, the member and the turn.
        sampling: temperature, lengths and context form.
        begun: per row, the ids that its first reply starts with (a given thought). They do not count for ``max_tokens``, and their
            log-probabilities are recorded as 0.
        repeats: per row, the number of earlier occurrences of its task in the same round; part of the seeds.
        first: by row, a first turn that was sampled before.
        on_turn: called before each turn with the number of ended rows and the number of the turn, from 1.
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
        first: Mapping[int, Turn] | None = None,
        on_turn: Callable[[int, int], None] | None = None,
    ) -> None:
        self._on_turn = on_turn
        self._group, self._engine, self._codec, self._trajectories, self._lines = (
            group,
            engine,
            codec,
            trajectories,
            lines,
        )
        self._seed, self._sampling, self._begun = seed, sampling, begun
        self._again = [f"/pass {count}" if count else "" for count in repeats] or [""] * len(trajectories)
        self._first = dict(first or {})
        self._turns = [0] * len(trajectories)
        self._said: dict[int, Turn] = {}  # added to the trajectory by ``played``

    @property
    def at_once(self) -> int | None:
        """Maximum number of rows played side by side; None for all."""
        most: int | None = getattr(self._engine, "rows_at_once", None)
        return most

    def replies(self, rows: Sequence[int]) -> dict[int, str]:
        """Sample the reply of each row that has room for one; a first turn that is given is taken instead.

        Raises:
            NotFinite: a log-probability is NaN or infinite.
        """
        if self._on_turn is not None:
            self._on_turn(self._group.running.count(False), max(self._turns[row] for row in rows) + 1)
        self._said = {row: self._first.pop(row) for row in rows if row in self._first}
        self._sample([row for row in rows if row not in self._said])
        for row in self._said:
            self._turns[row] += 1
        # The ids are kept as sampled: this decoded text is never encoded again.
        return {row: self._codec.decode(turn.reply) for row, turn in self._said.items()}

    def _sample(self, rows: Sequence[int]) -> None:
        sampling = self._sampling
        offered: dict[int, tuple[list[int], list[int]]] = {}
        for row in rows:
            first = list(self._begun[row]) if self._begun is not None and not self._turns[row] else []
            try:
                offered[row] = (
                    first,
                    self._lines[row].context(self._engine.limit - sampling.max_tokens - len(first)),
                )
            except ContextTooLong:
                self._cut(row)
        if not offered:
            return
        seeds = [
            f"{self._seed}/{t.episode.task}{self._again[row]}/{t.member}/{self._turns[row]}"
            for row, t in ((row, self._trajectories[row]) for row in offered)
        ]
        samples = self._engine.generate(
            [context + first for first, context in offered.values()],
            seeds,
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            keys=[(self._seed, self._trajectories[row].group, row) for row in offered],
        )
        for (row, (first, context)), sample in zip(offered.items(), samples, strict=True):
            ids, logprobs = Sample(first + sample.ids, [0.0] * len(first) + sample.logprobs)
            self._said[row] = Turn(context, ids, logprobs, thought_length(self._codec, ids))

    def played(self, row: int, result: StepResult) -> None:
        """Record the turn and the environment's result."""
        progress.advance()
        turn, trajectory = self._said[row], self._trajectories[row]
        trajectory.turns.append(turn)
        turn.next_actions = result.info["admissible_actions"]
        if self._sampling.progress:
            turn.progress = (
                float(result.info["success"]) if result.over else progress_of(self._group.envs[row])
            )
        if self._sampling.snapshots:
            trajectory.snapshots.append(snapshot_of(self._group.envs[row]))
        if not result.over:
            turn.shaping = result.reward
            self._lines[row].add(turn.reply, result.observation)

    def _cut(self, row: int) -> None:
        trajectory = self._trajectories[row]
        trajectory.episode.ended = "truncated"
        trajectory.episode.extra["overlong"] = True
        if self._sampling.progress and trajectory.turns:
            trajectory.turns[-1].progress = 0.0  # as for every other end without success
