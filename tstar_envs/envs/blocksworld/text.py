"""What is said in Blocksworld besides the states (``telling``): goals, actions, refusals and the prompt."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tstar_envs.envs.blocksworld.notation import TABLE_WORD, write_goal
from tstar_envs.envs.blocksworld.phrases import phrasebook
from tstar_envs.envs.blocksworld.problem import Problem
from tstar_envs.envs.blocksworld.rules import ON, ONTABLE, Fact, Goal, Operator, State, violated
from tstar_envs.envs.blocksworld.telling import Teller
from tstar_envs.envs.blocksworld.vocabulary import COLOURS, MYSTERY, PLAIN, Vocabulary
from tstar_envs.errors import UnknownOption

OBSERVATIONS = ("natural", "compact")
NAMES = ("own", "colours", "letters", "mystery")


def name_blocks(problem: Problem, names: str) -> tuple[str, ...]:
    """What the blocks are called under the option ``names``.

    Args:
        problem: has names of its own.
        names: ``own`` keeps them; ``colours`` too where all are colours, else the blocks get the 12 colours; ``letters`` and
            ``mystery`` call them a, b, c, ... New names go by the alphabetical order of the own ones, so that they tell no more
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
        self._book = phrasebook(vocabulary.name, self.natural)
        self.teller = Teller(labels, self._book)

    def block(self, block: int) -> str:
        """A block in a sentence."""
        return self._book.block(self.labels[block])

    def fact(self, fact: Fact) -> str:
        """A fact as a clause."""
        return self._clause(*fact)

    def action(self, operator: Operator) -> str:
        """The canonical action of an operator."""
        return self._clause(*operator)

    def _clause(self, word: str, block: int, under: int) -> str:
        """A predicate or verb with its blocks; ``TABLE`` stands where it has none."""
        labels = self.labels
        if under >= 0:
            return self._book[word, labels[block], labels[under]]
        return self._book[word, labels[block]] if block >= 0 else self._book[word,]

    def wish(self, fact: Fact) -> str:
        """A fact that the goal demands, as a clause."""
        return self._book.phrases.wishes[fact.predicate].format(*self._arguments(fact))

    def in_place(self, blocks: Sequence[int], goal: Goal) -> list[str]:
        """A part of a tower that stands as the goal wants it, from bottom to top, as clauses: where words are to hide towers, its facts."""
        if self.vocabulary is not MYSTERY:
            return ["in place: " + (", " if self.natural else " ").join(map(self.block, blocks))]
        places = {fact.block: fact for fact in goal.facts if fact.predicate in (ON, ONTABLE)}
        return [f"already {self.fact(places[block])}" for block in blocks if block in places]

    def act(self, operator: Operator) -> str:
        """An operator as the end of a sentence that starts with "I"."""
        return self._book.phrases.acts[operator.verb].format(*self._arguments(operator))

    def _arguments(self, thing: Fact | Operator) -> list[str]:
        return [self.block(block) for block in thing.arguments]

    def read_action(self, action: str) -> Operator | str:
        """The operator that an action names, or what is wrong with it."""
        found = self.vocabulary.read_action(action)
        if found is None:
            return f"the action must be {self.vocabulary.usage()}"
        verb, names = found
        for name in names:
            if name not in self.labels:
                kind = "object" if self.vocabulary is MYSTERY else "block"
                return f"there is no {kind} {name!a:.60}; there are {', '.join(self.labels)}"
        return Operator(verb, *map(self.labels.index, names))

    def refusal(self, state: State, operator: Operator) -> str:
        """Why an operator is illegal in a state, "" if it is legal."""
        clash = violated(state, operator)
        return (
            ""
            if clash is None
            else f"{self.action(operator)} needs: {self.fact(clash[0])}; but {self.fact(clash[1])}"
        )

    def goal(self, goal: Goal) -> str:
        """The goal as the agent reads it."""
        if self.natural:
            return f"Goal: {', '.join(self.fact(fact) for fact in goal.facts)}."
        if self.vocabulary is MYSTERY:
            return f"goal: {', '.join(self.fact(fact) for fact in goal.facts)}"
        others = [self.fact(fact) for fact in goal.facts if fact.predicate not in (ON, ONTABLE)]
        return "goal: " + ", ".join([*filter(None, [write_goal(goal, self.labels)]), *others])


_TASK = {
    "plain": "You move blocks with one hand, which holds one block at a time, until every fact of the goal holds.",
    "mystery": "You change facts about objects by four actions until every fact of the goal holds.",
}
_ACTIONS = {
    "plain": (
        "pick-up X: take block X from the table; X must be clear (nothing on it) and the hand empty",
        "put-down X: put block X, which you hold, on the table",
        "stack X Y: put block X, which you hold, on block Y; Y must be clear",
        "unstack X Y: take block X off block Y; X must be on Y and clear, and the hand empty",
    ),
    "mystery": (
        "attack X: needs province X, planet X and harmony; then pain X holds, and these three no longer hold",
        "succumb X: needs pain X; then province X, planet X and harmony hold, and pain X no longer holds",
        "overcome X Y: needs pain X and province Y; then harmony, province X and X craves Y hold, and these two no longer hold",
        "feast X Y: needs X craves Y, province X and harmony; then pain X and province Y hold, and these three no longer hold",
    ),
}
_COMPACT = (
    "States and goals are written tower by tower, each from bottom to top: `red blue / green` means that blue is on red. A goal says "
    "only what must be on what; the word table in front of a tower demands that its lowest block is on the table."
)
_CONSIDER = {
    "plain": "what is in the way and what you do next",
    "mystery": "what must still hold and what you do next",
}
_FORMS = {
    "react": "In each turn write one thought and one action:\nThought: {consider}\nAction: one of\n{actions}",
    "tags": "In each turn reason inside <think> and </think>, then write one action inside <action> and </action>:\n{actions}",
}


# As terminals call the colours of blocks; black and white get a ground on which they are seen.
_STYLES = {
    "orange": "dark_orange",
    "white": "bold white on black",
    "black": "black on white",
    "silver": "grey70",
    "gold": "gold3",
}


def highlights(observation: str, labels: tuple[str, ...]) -> list[tuple[int, int, str]]:
    """The names of blocks that are colours, in their colours; see ``TextEnv.highlights``."""
    return [
        (word.start(), word.end(), _STYLES.get(word[0], word[0]))
        for word in re.finditer(r"[a-z]+", observation)
        if word[0] in labels and word[0] in COLOURS
    ]


def prompt(vocabulary: Vocabulary, observation: str, style: str, horizon: int | None) -> str:
    """The rules and the grammar of actions as an agent is told them; ``horizon`` is None where it differs from task to task."""
    actions = "\n".join(f"  {line}" for line in _ACTIONS[vocabulary.name])
    parts = [
        _TASK[vocabulary.name],
        _FORMS[style].format(actions=actions, consider=_CONSIDER[vocabulary.name]),
    ]
    if observation == "compact" and vocabulary is PLAIN:
        parts.append(_COMPACT)
    turns = "The number of turns is limited." if horizon is None else f"You have {horizon} turns."
    parts.append(f"X and Y are names. An impossible action changes nothing and costs a turn. {turns}")
    return "\n".join(parts)
