"""States put into words step by step, for all problems that are told in the same words.

A step changes one tower, so a state is kept as the numbers of its towers, and a tower is told once, from what was said of the
tower without its top block. Flat tuples of numbers also spare the garbage collector, which passes over nested ones again and again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from threading import RLock
from typing import Protocol, TypeAlias
from weakref import WeakSet

from tstar_envs.envs.blocksworld.notation import SEPARATOR
from tstar_envs.envs.blocksworld.rules import CLEAR, HANDEMPTY, HOLDING, ON, ONTABLE, PICK_UP, PUT_DOWN, STACK, UNSTACK
from tstar_envs.envs.blocksworld.text import OBSERVATIONS, Phrasebook, phrasebook
from tstar_envs.envs.blocksworld.vocabulary import PLAIN, VOCABULARIES

MOST_KEPT = 32_768  # states and steps together, of all problems of a process; at most about 2 kB each
NO_TOWER = -1
Standing: TypeAlias = tuple[int, ...]  # the numbers of a state's towers, in the order of their bottom blocks


class Forgetful(Protocol):
    """Something that keeps what it can work out again."""

    def forget(self) -> None:
        """Keep it no longer."""


class Memory:
    """How much is kept in this process; beyond ``MOST_KEPT`` everything is forgotten.

    Attributes:
        lock: held while something is worked out and kept, since environments may be played in several threads.
    """

    def __init__(self) -> None:
        self.lock = RLock()
        self._keepers: WeakSet[Forgetful] = WeakSet()
        self._kept = 0

    def add(self, keeper: Forgetful) -> None:
        """Something that is to forget with the others."""
        with self.lock:
            self._keepers.add(keeper)

    def make_room(self, number: int = 1) -> None:
        """To be called before this many states or steps are kept, by a holder of the lock."""
        self._kept += number
        if self._kept > MOST_KEPT:
            for keeper in self._keepers:
                keeper.forget()
            self._kept = number


MEMORY = Memory()


class Stacking(dict[str, str]):
    """Stacking a block on another one, by the other one's name."""

    def __init__(self, book: Phrasebook, held: str) -> None:
        super().__init__()
        self._book, self._held = book, held

    def __missing__(self, other: str) -> str:
        action = self[other] = self._book[STACK, self._held, other]
        return action


class Teller:
    """Towers by number, in the given words; for holders of ``MEMORY.lock``. A number means nothing any more once room was made.

    Args:
        vocabulary: name of the vocabulary.
        observation: ``natural`` or ``compact``.

    Attributes:
        tops: tower -> the name of its top block.
    """

    def __init__(self, vocabulary: str, observation: str) -> None:
        self._natural = observation == "natural"
        self._compact = observation == "compact" and vocabulary == PLAIN.name
        self._book = phrasebook(vocabulary, self._natural)
        self._separator, self._end = (SEPARATOR, "") if self._compact else (", ", "." if self._natural else "")
        self._nothing_held = self._head("empty" if self._compact else self._book[HANDEMPTY,])
        self._holding: dict[str, tuple[str, str, Stacking]] = {}  # block -> what stands in front, putting it down, stacking it
        self._numbers: dict[tuple[int, str], int] = {}  # (tower without its top block or ``NO_TOWER``, top block) -> tower
        self._lower: list[int] = []  # tower -> the tower without its top block
        self.tops: list[str] = []
        self._bottoms: list[str] = []
        self._texts: list[str] = []
        self._parts: list[str] = []  # tower -> its words as the lower part of a higher tower
        self._takes: list[str] = []  # tower -> the action that takes its top
        MEMORY.add(self)

    def forget(self) -> None:
        """Forget everything."""
        for kept in (self._numbers, self._lower, self.tops, self._bottoms, self._texts, self._parts, self._takes, self._holding):
            kept.clear()

    def standing(self, piles: Sequence[Sequence[str]]) -> Standing:
        """The numbers of towers, each given as the names of its blocks from bottom to top."""
        found = []
        for pile in piles:
            number = NO_TOWER
            for block in pile:
                number = self._number(number, block)
            found.append(number)
        return tuple(found)

    def moved(self, standing: Standing, held: str | None, position: int, order: Mapping[str, int]) -> Standing:
        """The towers after a legal operator.

        Args:
            standing: the towers before it.
            held: the block in the hand, None if it is empty.
            position: which of the admissible actions, see ``tell``.
            order: of bottom blocks.
        """
        after = list(standing)
        if held is None:
            lower = self._lower[after[position]]
            if lower == NO_TOWER:
                del after[position]
            else:
                after[position] = lower
        elif position:
            after[position - 1] = self._number(after[position - 1], held)
        else:
            bottoms, own = self._bottoms, order[held]
            after.insert(sum([order[bottoms[number]] < own for number in standing]), self._number(NO_TOWER, held))
        return tuple(after)

    def tell(self, held: str | None, standing: Standing) -> tuple[str, tuple[str, ...]]:
        """A state as the agent reads it, and its admissible actions: in the order of the towers, putting down before them.

        The text tells the hand, then the towers in the order of their bottom blocks. Natural, and mystery in both styles: every
        fact that holds, each tower from its top down. Compact: ``notation``.

        Args:
            held: the block in the hand, None if it is empty.
            standing: the towers.
        """
        if held is None:
            head, actions = self._nothing_held, tuple(map(self._takes.__getitem__, standing))
        else:
            head, put_down, onto = self._holding.get(held) or self._tell_held(held)
            actions = (put_down, *map(onto.__getitem__, map(self.tops.__getitem__, standing)))
            if not standing and not self._compact:
                head = head.removesuffix(self._separator)
        return f"{head}{self._separator.join(map(self._texts.__getitem__, standing))}{self._end}", actions

    def _head(self, hand: str) -> str:
        """What stands in front of the towers."""
        if self._compact:
            return f"hand: {hand} | towers: "
        return f"State: {hand}, " if self._natural else f"state: {hand}, "

    def _tell_held(self, held: str) -> tuple[str, str, Stacking]:
        book = self._book
        head = self._head(held if self._compact else book[HOLDING, held])
        told = self._holding[held] = head, book[PUT_DOWN, held], Stacking(book, held)
        return told

    def _number(self, lower: int, top: str) -> int:
        found = self._numbers.get((lower, top))
        return self._add(lower, top) if found is None else found

    def _add(self, lower: int, top: str) -> int:
        book = self._book
        number = self._numbers[lower, top] = len(self.tops)
        if lower == NO_TOWER:
            bottom, rest, place, take = top, "", book[ONTABLE, top], book[PICK_UP, top]
        else:
            under = self.tops[lower]
            bottom, rest, place, take = self._bottoms[lower], self._parts[lower], book[ON, top, under], book[UNSTACK, top, under]
        if self._compact:
            text = part = f"{rest} {top}" if rest else top
        else:
            part = f"{place}, {rest}" if rest else place
            text = f"{book[CLEAR, top]}, {part}"
        self._lower.append(lower)
        self.tops.append(top)
        self._bottoms.append(bottom)
        self._texts.append(text)
        self._parts.append(part)
        self._takes.append(take)
        return number


@lru_cache(maxsize=len(VOCABULARIES) * len(OBSERVATIONS))
def teller_of(vocabulary: str, observation: str) -> Teller:
    """The towers in the given words, shared by all problems of the process that use them."""
    return Teller(vocabulary, observation)
