"""What the policy sees before a reply: the transcript of an episode so far, whole or cut to the last turns.

``concat`` is everything from the first observation on; it grows, and what was computed for it stays useful. ``step`` is the
instruction, the last ``history`` turns and the current observation: right where an observation holds the whole state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tstar_train.policy.codec import Codec


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
        self._whole = self.codec.start(self.prompt, self.observation) if self.kind == "concat" else []

    def context(self) -> list[int]:
        """Ids before the next reply."""
        if self.kind == "concat":
            return list(self._whole)
        first = max(0, len(self.replies) - self.history)
        shown = self.observations[first]
        if self.instruction not in shown:
            shown = f"{self.instruction}\n{shown}"
        ids = self.codec.start(self.prompt, shown)
        for reply, observation in zip(self.replies[first:], self.observations[first + 1 :], strict=True):
            ids += self._turn(reply, observation)
        return ids

    def add(self, reply: Sequence[int], observation: str) -> None:
        """A reply that did not end the episode, and what followed."""
        self.replies.append(list(reply))
        self.observations.append(observation)
        if self.kind == "concat":
            self._whole += self._turn(reply, observation)

    def _turn(self, reply: Sequence[int], observation: str) -> list[int]:
        return [*self.codec.closed(reply), *self.codec.observation(observation)]
