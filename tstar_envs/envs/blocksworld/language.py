"""The language of one problem: its facts, goal, operators and refusals in words."""

from __future__ import annotations

from collections.abc import Sequence

from tstar_envs.envs.blocksworld.clauses import clauses_of
from tstar_envs.envs.blocksworld.compact_notation import TABLE_WORD, write_goal
from tstar_envs.envs.blocksworld.facts import ON, ONTABLE, Fact
from tstar_envs.envs.blocksworld.goal import Goal
from tstar_envs.envs.blocksworld.operators import Operator, OperatorFields, violated
from tstar_envs.envs.blocksworld.state import TABLE, State
from tstar_envs.envs.blocksworld.task import Problem
from tstar_envs.envs.blocksworld.vocabularies import COLOURS, MYSTERY, PLAIN
from tstar_envs.envs.blocksworld.vocabulary import Vocabulary
from tstar_envs.errors import UnknownOption

NAMES = ("own", "colours", "letters", "mystery")


def name_blocks(problem: Problem, names: str) -> tuple[str, ...]:
    """What the blocks are called under the option ``names``.

    Args:
        problem: has names of its own.
        names: ``own`` keeps them; ``colours`` too where all are colours, else the blocks get the 12 colours; ``letters`` and
            ``mystery`` call them a, b, c, ... New names go by the alphabetical order of the own ones, so that they reveal no more
            about the start than those did.

    Raises:
        UnknownOption: more blocks than colours or letters.
    """
    own = problem.names
    if names == "own" or (names == "colours" and set(own) <= set(COLOURS)):
        return own
    supply = COLOURS if names == "colours" else tuple("abcdefghijklmnopqrstuvwxyz")
    if len(own) > len(supply):
        raise UnknownOption(
            f"names={names!r} has {len(supply)} names, but this problem has {len(own)} blocks; use names='own'"
        )
    new = dict(zip(sorted(own), supply, strict=False))
    return tuple(new[name] for name in own)


class Language:
    """How the facts and operators of one problem are put into words.

    Args:
        labels: names of the blocks.
        vocabulary: plain or mystery words.
        observation: ``natural`` or ``compact``.

    Attributes:
        clauses: facts and actions as clauses, shared by all problems in the same words.

    Raises:
        UnknownOption: ``compact`` with a block that is called ``table``.
    """

    def __init__(self, labels: tuple[str, ...], vocabulary: Vocabulary, observation: str) -> None:
        if TABLE_WORD in labels and observation == "compact" and vocabulary is PLAIN:
            raise UnknownOption(
                f"a block of this problem is called {TABLE_WORD!r}, by which compact goals mean the table; "
                "use names='letters' or observation='natural'"
            )
        self.labels = labels
        self.vocabulary = vocabulary
        self.natural = observation == "natural"
        self.clauses = clauses_of(vocabulary.name, self.natural)
        self._numbers = {label: block for block, label in enumerate(labels)}
        self._verbs = {word: verb for verb, word in vocabulary.verbs.items()}

    def block(self, block: int) -> str:
        """A block in a sentence."""
        return self.clauses.block(self.labels[block])

    def fact(self, fact: Fact) -> str:
        """A fact as a clause."""
        return self._clause(*fact)

    def action(self, operator: Operator) -> str:
        """The canonical action of an operator."""
        return self._clause(*operator)

    def operator(self, action: str) -> OperatorFields:
        """The operator of a canonical action, the inverse of ``action``."""
        words, numbers = action.split(" "), self._numbers
        under = numbers[words[2]] if len(words) == 3 else TABLE
        return self._verbs[words[0]], numbers[words[1]], under

    def _clause(self, word: str, block: int, under: int) -> str:
        """A predicate or verb with its blocks; ``TABLE`` stands where it has none."""
        labels = self.labels
        if under >= 0:
            return self.clauses[word, labels[block], labels[under]]
        return self.clauses[word, labels[block]] if block >= 0 else self.clauses[word,]

    def wish(self, fact: Fact) -> str:
        """A fact that the goal demands, as a clause."""
        return self.clauses.phrases.wishes[fact.predicate].format(*self._arguments(fact))

    def in_place(self, blocks: Sequence[int], goal: Goal) -> list[str]:
        """A part of a tower that stands as the goal wants it, from bottom to top, as clauses: where words are to hide towers, its facts."""
        if self.vocabulary is not MYSTERY:
            return ["in place: " + (", " if self.natural else " ").join(map(self.block, blocks))]
        places = {fact.block: fact for fact in goal.facts if fact.predicate in (ON, ONTABLE)}
        return [f"already {self.fact(places[block])}" for block in blocks if block in places]

    def act(self, operator: Operator) -> str:
        """An operator as the end of a sentence that starts with "I"."""
        return self.clauses.phrases.acts[operator.verb].format(*self._arguments(operator))

    def _arguments(self, thing: Fact | Operator) -> list[str]:
        return [self.block(block) for block in thing.arguments]

    def refusal(self, state: State, operator: Operator) -> str:
        """Why an operator is illegal in a state, "" if it is legal."""
        clash = violated(state, operator)
        if clash is None:
            return ""
        needed, counter = clash
        return f"{self.action(operator)} needs: {self.fact(needed)}; but {self.fact(counter)}"

    def goal(self, goal: Goal) -> str:
        """The goal as the agent reads it."""
        if self.natural:
            return f"Goal: {', '.join(self.fact(fact) for fact in goal.facts)}."
        if self.vocabulary is MYSTERY:
            return f"goal: {', '.join(self.fact(fact) for fact in goal.facts)}"
        others = [self.fact(fact) for fact in goal.facts if fact.predicate not in (ON, ONTABLE)]
        return "goal: " + ", ".join([*filter(None, [write_goal(goal, self.labels)]), *others])
