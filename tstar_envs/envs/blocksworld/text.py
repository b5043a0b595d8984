"""What is said in Blocksworld: observations, goals, actions and refusals in the chosen names and style, and the prompt."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from tstar_envs.envs.blocksworld.notation import SEPARATOR, TABLE_WORD, write_goal
from tstar_envs.envs.blocksworld.problem import Problem
from tstar_envs.envs.blocksworld.rules import (
    CLEAR,
    HANDEMPTY,
    HOLDING,
    ON,
    ONTABLE,
    PICK_UP,
    PUT_DOWN,
    STACK,
    TABLE,
    UNSTACK,
    Fact,
    Goal,
    Operator,
    State,
    Towers,
    violated,
)
from tstar_envs.envs.blocksworld.vocabulary import COLOURS, MYSTERY, PLAIN, VOCABULARIES, Vocabulary
from tstar_envs.errors import UnknownOption

OBSERVATIONS = ("natural", "compact")
MOST_TOWERS = 512  # texts kept per problem
MOST_PHRASES = 4096  # kept per vocabulary and style; 12 colours make 450
TowerText = tuple[str, str, str]  # a tower in words, the action that takes its top, its words as part of a higher tower
HeldText = tuple[str, str, tuple[str, ...]]  # what is said in front of the towers, putting down, stacking on each block
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
        raise UnknownOption(f"names={names!r} has {len(supply)} names, but this problem has {len(own)} blocks; use names='own'")
    new = dict(zip(sorted(own), supply, strict=False))
    return tuple(new[name] for name in own)


class Phrasebook(dict[tuple[str, ...], str]):
    """Facts as clauses and actions, by predicate or verb and names of blocks; each is put together when first asked for.

    Shared by all problems told in the same words, since most of them use the same few names.
    """

    def __init__(self, vocabulary: Vocabulary, natural: bool) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.phrases = vocabulary.natural if natural else vocabulary.compact
        self._natural = natural

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
        if not self._natural:
            return label
        if self.vocabulary is MYSTERY:
            return f"object {label}"
        return f"the {label} block" if label in COLOURS else f"block {label}"


@lru_cache(maxsize=2 * len(VOCABULARIES))
def _phrasebook(vocabulary: str, natural: bool) -> Phrasebook:
    return Phrasebook(next(v for v in VOCABULARIES if v.name == vocabulary), natural)


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
        self._compact = observation == "compact" and vocabulary is PLAIN
        self._book = _phrasebook(vocabulary.name, self.natural)
        self._towers: dict[tuple[int, ...], TowerText] = {}
        self._held: dict[int, HeldText] = {}
        self._nothing_held = self._head("empty" if self._compact else self._book[HANDEMPTY,])
        self._marks = (SEPARATOR, "") if self._compact else (", ", "." if self.natural else "")

    def block(self, block: int) -> str:
        """A block in a sentence."""
        return self._book.block(self.labels[block])

    def fact(self, fact: Fact) -> str:
        """A fact as a clause."""
        return self._book[(fact.predicate, *(self.labels[block] for block in fact.arguments))]

    def action(self, operator: Operator) -> str:
        """The canonical action of an operator."""
        return self._book[(operator.verb, *(self.labels[block] for block in operator.arguments))]

    def wish(self, fact: Fact) -> str:
        """A fact that the goal demands, as a clause."""
        return self._book.phrases.wishes[fact.predicate].format(*self._arguments(fact))

    def in_place(self, blocks: Sequence[int]) -> str:
        """A part of a tower that stands as the goal wants it, from bottom to top, as a clause."""
        return "in place: " + (", " if self.natural else " ").join(map(self.block, blocks))

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
        return "" if clash is None else f"{self.action(operator)} needs: {self.fact(clash[0])}; but {self.fact(clash[1])}"

    def situation(self, held: int, piles: Towers) -> tuple[str, tuple[str, ...]]:
        """A state as the agent reads it, and its admissible actions.

        The text tells the hand, then the towers in the order of their bottom blocks. Natural, and mystery in both styles: every
        fact that holds, each tower from its top down. Compact: ``notation``. Admissible actions come in the order of the towers.

        Args:
            held: the block in the hand, ``TABLE`` if it is empty.
            piles: ``rules.towers`` of the state.
        """
        # Most towers stay as they are in a step, and few towers make many states: what is said of them is kept, up to a bound.
        known = self._towers
        if len(known) > MOST_TOWERS:
            known.clear()
        texts, takes = [], []
        for tower in piles:
            text, take, _ = known.get(tower) or self._tell_tower(tower)
            texts.append(text)
            takes.append(take)
        if held == TABLE:
            head, actions = self._nothing_held, tuple(takes)
        else:
            head, put_down, onto = self._held.get(held) or self._tell_held(held)
            actions = (put_down, *[onto[tower[-1]] for tower in piles])
        separator, end = self._marks
        if self._compact or texts:
            return f"{head}{separator.join(texts)}{end}", actions
        return f"{head.removesuffix(separator)}{end}", actions

    def _head(self, hand: str) -> str:
        """What stands in front of the towers."""
        if self._compact:
            return f"hand: {hand} | towers: "
        return f"State: {hand}, " if self.natural else f"state: {hand}, "

    def _tell_held(self, held: int) -> HeldText:
        """A block in the hand in words."""
        book, label = self._book, self.labels[held]
        head = self._head(label if self._compact else book[HOLDING, label])
        told = self._held[held] = head, book[PUT_DOWN, label], tuple([book[STACK, label, other] for other in self.labels])
        return told

    def _tell_tower(self, tower: tuple[int, ...]) -> TowerText:
        """A tower in words, from those of the tower below its top block, which is nearly always known already."""
        book, top = self._book, self.labels[tower[-1]]
        if len(tower) == 1:
            rest, place, take = "", book[ONTABLE, top], book[PICK_UP, top]
        else:
            under = self.labels[tower[-2]]
            rest = (self._towers.get(tower[:-1]) or self._tell_tower(tower[:-1]))[2]
            place, take = book[ON, top, under], book[UNSTACK, top, under]
        if self._compact:
            text = inner = f"{rest} {top}" if rest else top
        else:
            inner = f"{place}, {rest}" if rest else place
            text = f"{book[CLEAR, top]}, {inner}"
        told = self._towers[tower] = text, take, inner
        return told

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
_FORMS = {
    "react": "In each turn write one thought and one action:\nThought: what is in the way and what you do next\nAction: one of\n{actions}",
    "tags": "In each turn reason inside <think> and </think>, then write one action inside <action> and </action>:\n{actions}",
}


# As terminals call the colours of blocks; black and white get a ground on which they are seen.
_STYLES = {
    "orange": "dark_orange", "white": "bold white on black", "black": "black on white", "silver": "grey70", "gold": "gold3",
}  # fmt: skip


def highlights(observation: str, labels: tuple[str, ...]) -> list[tuple[int, int, str]]:
    """The names of blocks that are colours, in their colours; see ``TextEnv.highlights``."""
    return [
        (word.start(), word.end(), _STYLES.get(word[0], word[0]))
        for word in re.finditer(r"[a-z]+", observation)
        if word[0] in labels and word[0] in COLOURS
    ]


def prompt(vocabulary: Vocabulary, observation: str, style: str, horizon: int) -> str:
    """The rules and the grammar of actions as an agent is told them."""
    actions = "\n".join(f"  {line}" for line in _ACTIONS[vocabulary.name])
    parts = [_TASK[vocabulary.name], _FORMS[style].format(actions=actions)]
    if observation == "compact" and vocabulary is PLAIN:
        parts.append(_COMPACT)
    parts.append(f"X and Y are names. An impossible action changes nothing and costs a turn. You have {horizon} turns.")
    return "\n".join(parts)
