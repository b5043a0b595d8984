"""Commands of Blocksworld: the operator that an action names, however it is written."""

from __future__ import annotations

from typing import NamedTuple

from tstar_envs.envs.blocksworld.operators import Operator
from tstar_envs.envs.blocksworld.vocabulary import Vocabulary
from tstar_envs.react import AROUND_ACTION

_BETWEEN = str.maketrans("(),", "   ")


class Command(NamedTuple):
    """What an action asks for.

    Attributes:
        operator: None where the action could not be read.
        problem: what is wrong with it as the agent reads it, "" if nothing is.
    """

    operator: Operator | None
    problem: str = ""


def read_command(action: str, labels: tuple[str, ...], vocabulary: Vocabulary) -> Command:
    """Read one operator on blocks of these names; see ``read_words`` for its forms."""
    found = read_words(action, vocabulary)
    if found is None:
        return Command(None, f"the action must be {vocabulary.usage()}")
    verb, names = found
    for name in names:
        if name not in labels:
            listed = ", ".join(labels)
            return Command(None, f"there is no {vocabulary.thing} {name!a:.60}; there are {listed}")
    return Command(Operator(verb, *map(labels.index, names)))


def read_words(action: str, vocabulary: Vocabulary) -> tuple[str, tuple[str, ...]] | None:
    """The operator and the names of its blocks, None if the text is no action of this vocabulary.

    Case, white space, surrounding punctuation, brackets and commas are ignored, so PDDL's ``(stack a b)`` and ``Stack(a, b)`` are
    read as well.
    """
    words = " ".join(action.strip(AROUND_ACTION).lower().translate(_BETWEEN).split())
    for verb, form in vocabulary.grammar.items():
        match = form.fullmatch(words)
        if match is not None:
            return verb, match.groups()
    return None
