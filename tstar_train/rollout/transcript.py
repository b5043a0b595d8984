"""What the policy sees before a reply: the transcript of an episode so far, whole or cut to the last turns.

``concat`` is everything from the first observation on; it grows, and what was computed for it stays useful. ``step`` is the
instruction, the last ``history`` turns and the current observation: right where an observation holds the whole state.
Where either is too long, the oldest turns are left out first, and never the start, the instruction or the current observation.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tstar_train.policy.codec import Codec
from tstar_train.policy.limit import ContextTooLong


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
        """A reply that did not end the episode, and what followed."""
        self.replies.append(list(reply))
        self.observations.append(observation)
        if self.kind == "concat":
            self._turns.append(self._turn(reply, observation))

    def _turn(self, reply: Sequence[int], observation: str) -> list[int]:
        return [*self.codec.closed(reply), *self.codec.observation(observation)]
