"""States in words, and the admissible actions.

A step changes one tower by its top block. So a tower in words holds the one below its top block, and the states of an episode share
what is said of the towers that they share: taking a block finds the rest told already, stacking one tells one tower anew.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from tstar_envs.envs.blocksworld.notation import SEPARATOR
from tstar_envs.envs.blocksworld.phrases import BlockWords, Phrasebook
from tstar_envs.envs.blocksworld.rules import HAND, HANDEMPTY, TABLE, State, towers
from tstar_envs.envs.blocksworld.vocabulary import PLAIN

# A tower in words: its bottom block, its top block, the tower below that (None if it is the table), the words, the action that takes
# its top, the top's name. Plain tuples, so that the garbage collector leaves them alone.
Told: TypeAlias = tuple[int, int, Any, str, str, str]
ToldTowers: TypeAlias = tuple[
    Told, ...
]  # of a state, in the order of their bottom blocks; the held block is in none


class Teller:
    """Tells the states of one problem.

    Args:
        labels: names of the blocks.
        book: the words.
    """

    def __init__(self, labels: tuple[str, ...], book: Phrasebook) -> None:
        self._words: list[BlockWords] = [book.words[label] for label in labels]
        self._compact = not book.natural and book.vocabulary is PLAIN
        self._before, self._after_hand = (
            ("hand: ", " | towers: ") if self._compact else ("State: " if book.natural else "state: ", ", ")
        )
        self._nothing_held = (
            f"{self._before}{'empty' if self._compact else book[HANDEMPTY,]}{self._after_hand}"
        )
        self._separator, self._end = (SEPARATOR, "") if self._compact else (", ", "." if book.natural else "")

    def towers(self, state: State) -> ToldTowers:
        """The towers of a state (``rules.towers``)."""
        found = []
        for tower in towers(state):
            told = None
            for block in tower:
                told = self.on_top(block, told)
            found.append(told)
        return tuple(found)  # type: ignore[arg-type]  # no tower is empty

    def on_top(self, block: int, tower: Told | None) -> Told:
        """A tower with one more block; None stands for the table."""
        words = self._words[block]
        label = words.label
        if tower is None:
            return (
                block,
                block,
                None,
                label if self._compact else f"{words.clear}{words.on_table}",
                words.pick_up,
                label,
            )
        bottom, top, _, lower, _, under = tower
        place, take = words.on[under]
        if self._compact:
            return bottom, block, tower, f"{lower} {label}", take, label
        # What stands below is told without saying that its top is clear.
        return (
            bottom,
            block,
            tower,
            f"{words.clear}{place}{lower[self._words[top].clear_length :]}",
            take,
            label,
        )

    def after_legal(
        self, state: State, piles: ToldTowers, held: int, position: int
    ) -> tuple[State, ToldTowers, int]:
        """Where one of the legal operators leads.

        Args:
            state: before it.
            piles: its towers.
            held: the block in the hand, ``TABLE`` if it is empty.
            position: which of ``rules.legal_operators``.

        Returns:
            The state after it, its towers, and the block in the hand.
        """
        standing, below = list(piles), list(state)
        if held == TABLE:
            _, held, rest, *_ = standing[position]
            below[held] = HAND
            if rest is None:
                del standing[position]
            else:
                standing[position] = rest
            return tuple(below), tuple(standing), held
        if position:
            tower = standing[position - 1]
            below[held] = tower[1]
            standing[position - 1] = self.on_top(held, tower)
        else:
            below[held] = TABLE
            standing.append(self.on_top(held, None))
            standing.sort()  # by bottom blocks, of which no two are the same
        return tuple(below), tuple(standing), TABLE

    def situation(self, held: int, piles: ToldTowers) -> tuple[str, tuple[str, ...]]:
        """A state as the agent reads it, and its admissible actions.

        The text tells the hand, then the towers in the order of their bottom blocks. Natural, and mystery in both styles: every
        fact that holds, each tower from its top down. Compact: ``notation``. Admissible actions come in the order of the towers.

        Args:
            held: the block in the hand, ``TABLE`` if it is empty.
            piles: its towers.
        """
        actions: tuple[str, ...]
        if held == TABLE:
            head, actions = self._nothing_held, tuple([tower[4] for tower in piles])
        else:
            words = self._words[held]
            stack = words.stack
            head = f"{self._before}{words.label if self._compact else words.held}{self._after_hand}"
            actions = (words.put_down, *[stack[tower[5]] for tower in piles])
        if self._compact or piles:
            return f"{head}{self._separator.join([tower[3] for tower in piles])}{self._end}", actions
        return f"{head.removesuffix(self._separator)}{self._end}", actions
