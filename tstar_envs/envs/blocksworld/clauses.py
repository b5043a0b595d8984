"""Facts and actions as clauses, by block names; shared by all problems in the same words.

Most problems use the same few names, so a clause is put together once, when it is first asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

from tstar_envs.envs.blocksworld.facts import CLEAR, HOLDING, ON, ONTABLE
from tstar_envs.envs.blocksworld.operators import PICK_UP, PUT_DOWN, STACK, UNSTACK
from tstar_envs.envs.blocksworld.vocabularies import COLOURS, MYSTERY, VOCABULARIES
from tstar_envs.envs.blocksworld.vocabulary import Vocabulary

MOST_CLAUSES = 4096  # kept per vocabulary and style; 12 colours make 450
MOST_BLOCKS = 256  # blocks whose clauses are kept, each with up to so many others


Made = TypeVar("Made")


class MadeWhenAsked(dict[str, Made]):
    """A value for each name, made when it is first asked for; of ``MOST_BLOCKS`` names at a time."""

    def __init__(self, make: Callable[[str], Made]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, name: str) -> Made:
        if len(self) >= MOST_BLOCKS:
            self.clear()
        found = self[name] = self._make(name)
        return found


class Clauses(dict[tuple[str, ...], str]):
    """Facts as clauses and actions, by predicate or verb and names of blocks; ``blocks`` has those of each block."""

    def __init__(self, vocabulary: Vocabulary, natural: bool) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.natural = natural
        self.phrases = vocabulary.natural if natural else vocabulary.compact
        self.blocks: MadeWhenAsked[BlockClauses] = MadeWhenAsked(lambda label: BlockClauses(self, label))

    def __missing__(self, key: tuple[str, ...]) -> str:
        if len(self) >= MOST_CLAUSES:
            self.clear()
        word, *labels = key
        if word in self.vocabulary.verbs:
            text = self.vocabulary.action(word, *labels)
        else:
            text = self.phrases.facts[word].format(*map(self.block, labels))
        self[key] = text
        return text

    def block(self, label: str) -> str:
        """A block in a sentence."""
        if not self.natural:
            return label
        if self.vocabulary is MYSTERY:
            return f"object {label}"
        return f"the {label} block" if label in COLOURS else f"block {label}"


class BlockClauses:
    """The clauses of one block, as the top of a tower and in the hand.

    Attributes:
        label: its name.
        on_table: its place if it stands on the table.
        clear: that nothing is on it, as the first of several clauses; and its length.
        held: that it is in the hand.
        pick_up: the action that takes it from the table.
        put_down: the action that puts it there.
        on: by the name of the block below it: its place, as one of several clauses, and the action that takes it from there.
        stack: by the name of another block: the action that stacks it there.
    """

    def __init__(self, clauses: Clauses, label: str) -> None:
        self.label = label
        self.on_table, self.held = clauses[ONTABLE, label], clauses[HOLDING, label]
        self.clear = f"{clauses[CLEAR, label]}, "
        self.clear_length = len(self.clear)
        self.pick_up, self.put_down = clauses[PICK_UP, label], clauses[PUT_DOWN, label]
        self.on = MadeWhenAsked(
            lambda under: (f"{clauses[ON, label, under]}, ", clauses[UNSTACK, label, under])
        )
        self.stack = MadeWhenAsked(lambda onto: clauses[STACK, label, onto])


@lru_cache(maxsize=2 * len(VOCABULARIES))
def clauses_of(vocabulary: str, natural: bool) -> Clauses:
    """The clauses of a vocabulary (by name) and a style."""
    return Clauses(next(v for v in VOCABULARIES if v.name == vocabulary), natural)
