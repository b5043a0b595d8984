"""Facts and actions as clauses, and what is said of single blocks; shared by all problems that are told in the same words.

Most problems use the same few names, so a clause is put together once, when it is first asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

from tstar_envs.envs.blocksworld.rules import CLEAR, HOLDING, ON, ONTABLE, PICK_UP, PUT_DOWN, STACK, UNSTACK
from tstar_envs.envs.blocksworld.vocabulary import COLOURS, MYSTERY, VOCABULARIES, Vocabulary

MOST_PHRASES = 4096  # kept per vocabulary and style; 12 colours make 450
MOST_WORDS = 256  # blocks whose words are kept, each with up to so many others


Said = TypeVar("Said")


class Lazily(dict[str, Said]):
    """What is said of each name, made when it is first asked for; of ``MOST_WORDS`` names at a time."""

    def __init__(self, make: Callable[[str], Said]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, name: str) -> Said:
        if len(self) >= MOST_WORDS:
            self.clear()
        found = self[name] = self._make(name)
        return found


class Phrasebook(dict[tuple[str, ...], str]):
    """Facts as clauses and actions, by predicate or verb and names of blocks; ``words`` has what is said of each block."""

    def __init__(self, vocabulary: Vocabulary, natural: bool) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.natural = natural
        self.phrases = vocabulary.natural if natural else vocabulary.compact
        self.words: Lazily[BlockWords] = Lazily(lambda label: BlockWords(self, label))

    def __missing__(self, key: tuple[str, ...]) -> str:
        if len(self) >= MOST_PHRASES:
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


class BlockWords:
    """What is said of one block as the top of a tower, and in the hand.

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

    def __init__(self, book: Phrasebook, label: str) -> None:
        self.label = label
        self.on_table, self.clear, self.held = (
            book[ONTABLE, label],
            f"{book[CLEAR, label]}, ",
            book[HOLDING, label],
        )
        self.clear_length = len(self.clear)
        self.pick_up, self.put_down = book[PICK_UP, label], book[PUT_DOWN, label]
        self.on = Lazily(lambda under: (f"{book[ON, label, under]}, ", book[UNSTACK, label, under]))
        self.stack = Lazily(lambda onto: book[STACK, label, onto])


@lru_cache(maxsize=2 * len(VOCABULARIES))
def phrasebook(vocabulary: str, natural: bool) -> Phrasebook:
    """The one book of a vocabulary (by name) and a style."""
    return Phrasebook(next(v for v in VOCABULARIES if v.name == vocabulary), natural)
