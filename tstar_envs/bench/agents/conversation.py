"""The messages of one episode, and what of them is sent: the rules, the task and the latest turns always, the oldest turns as they fit."""

from __future__ import annotations

import math
from typing import Any

Message = dict[str, Any]
# Until the endpoint has counted a request; English has about four, so that this is on the safe side.
FEWEST_CHARACTERS_PER_TOKEN = 3.0
# English has four to five, grids and JSON fewer: an endpoint that counts less than this was sent more than it counts.
MOST_CHARACTERS_PER_TOKEN = 10.0
_LONG = 5_000  # characters; of shorter requests what surrounds the messages says more than they do
_LONGER = 1.25  # times the characters of a request that had as many tokens
_OVERHEAD = 6  # tokens around a message


class Conversation:
    """Messages of an episode in the order they were said.

    Args:
        opening: what is always sent: the rules, demonstrations, the first observation; the last one is a user's.
    """

    def __init__(self, opening: list[Message]) -> None:
        self._opening = opening
        self._turns: list[list[Message]] = []
        self.per_token = FEWEST_CHARACTERS_PER_TOKEN
        self._refused = math.inf  # characters of the shortest request that did not fit the model
        self._counted = (0, 0)  # characters and tokens of the request that had the most

    def add(self, *messages: Message) -> None:
        """A turn: what the agent said, and what was answered."""
        self._turns.append(list(messages))

    @property
    def turns(self) -> int:
        """How many have been added."""
        return len(self._turns)

    def fitting(self, tokens: int, drop: int = 0) -> tuple[list[Message], int]:
        """The messages to send.

        Args:
            tokens: bound on their length, estimated from their characters. The opening and the last turn are sent in any case.
            drop: leave out at least so many of the oldest turns.

        Returns:
            Messages and the number of turns left out; where there are any, the last message of the opening says so.
        """
        kept = self._turns[drop:]
        while len(kept) > 1 and not self._fits([*self._opening, *(m for turn in kept for m in turn)], tokens):
            kept = kept[1:]
        dropped = len(self._turns) - len(kept)
        opening = list(self._opening)
        if dropped:
            turns = "turn is" if dropped == 1 else "turns are"
            opening[-1] = {
                **opening[-1],
                "content": f"{opening[-1]['content']}\n\n({dropped} earlier {turns} left out here.)",
            }
        return [*opening, *(m for turn in kept for m in turn)], dropped

    def counted(self, messages: list[Message], tokens: int | None) -> bool:
        """Learn from what the endpoint counted how many characters a token has.

        Returns:
            Whether the count can be that of the messages. If it cannot (fewer tokens than so many characters have, or no more than a
            request had that these messages are a good deal longer than), the endpoint cut them or counts a part; nothing is learned.
        """
        if not tokens:
            return True
        characters, (before, most) = _characters(messages), self._counted
        per_token = characters / max(1, tokens - _OVERHEAD * len(messages))
        stands_still = tokens <= most and characters > _LONGER * before
        if stands_still or (per_token > MOST_CHARACTERS_PER_TOKEN and characters > _LONG):
            return False
        if tokens > most:
            self._counted = (characters, tokens)
        self.per_token = min(MOST_CHARACTERS_PER_TOKEN, max(1.0, per_token))
        return True

    def refused(self, messages: list[Message]) -> None:
        """Remember messages that did not fit: so many characters are not sent again."""
        self._refused = min(self._refused, _characters(messages))

    def _fits(self, messages: list[Message], tokens: int) -> bool:
        characters = _characters(messages)
        return (
            characters / self.per_token + _OVERHEAD * len(messages) <= tokens and characters < self._refused
        )


def _characters(messages: list[Message]) -> int:
    return sum(
        len(str(value))
        for message in messages
        for name, value in message.items()
        if name in ("content", "tool_calls")
    )
