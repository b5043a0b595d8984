"""What is said in Blocksworld: observations, goals, actions and refusals in the chosen names and style, and the prompt."""

from __future__ import annotations

from tstar_envs.envs.blocksworld.notation import SEPARATOR, write_goal
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
from tstar_envs.envs.blocksworld.vocabulary import COLOURS, MYSTERY, PLAIN, Vocabulary
from tstar_envs.errors import UnknownOption

OBSERVATIONS = ("natural", "compact")
MOST_TOWERS = 512  # texts kept per problem
TowerText = tuple[str, str, str]  # a tower in words, the action that takes its top, its words as part of a higher tower
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


class Language:
    """How the facts and operators of one problem are put into words.

    Args:
        labels: names of the blocks.
        vocabulary: plain or mystery words.
        observation: ``natural`` or ``compact``.
    """

    def __init__(self, labels: tuple[str, ...], vocabulary: Vocabulary, observation: str) -> None:
        self.labels = labels
        self.vocabulary = vocabulary
        self.natural = observation == "natural"
        self._compact = observation == "compact" and vocabulary is PLAIN
        self._phrases = vocabulary.natural if self.natural else vocabulary.compact
        self._number = {label: block for block, label in enumerate(labels)}
        self._spoken = tuple(self._speak(label) for label in labels)
        # Observations are made of these: the last entry of a row (index TABLE) is the table.
        self.operators: dict[str, Operator] = {}  # by canonical action, as far as they were asked for
        self._actions: dict[Operator, str] = {}
        self._facts: dict[Fact, str] = {}
        self._towers: dict[tuple[int, ...], TowerText] = {}
        self._hands: dict[int, tuple[str, list[str]]] = {}

    def _speak(self, label: str) -> str:
        if not self.natural:
            return label
        if self.vocabulary is MYSTERY:
            return f"object {label}"
        return f"the {label} block" if label in COLOURS else f"block {label}"

    def block(self, block: int) -> str:
        """A block in a sentence."""
        return self._spoken[block]

    def fact(self, fact: Fact) -> str:
        """A fact as a clause."""
        text = self._facts.get(fact)
        if text is None:
            text = self._facts[fact] = self._phrases.facts[fact.predicate].format(*self._arguments(fact))
        return text

    def wish(self, fact: Fact) -> str:
        """A fact that the goal demands, as a clause."""
        return self._phrases.wishes[fact.predicate].format(*self._arguments(fact))

    def act(self, operator: Operator) -> str:
        """An operator as the end of a sentence that starts with "I"."""
        return self._phrases.acts[operator.verb].format(*self._arguments(operator))

    def _arguments(self, thing: Fact | Operator) -> list[str]:
        return [self._spoken[block] for block in thing.arguments]

    def action(self, operator: Operator) -> str:
        """The canonical action of an operator."""
        text = self._actions.get(operator)
        if text is None:
            labels = (self.labels[block] for block in operator.arguments)
            text = self._actions[operator] = self.vocabulary.action(operator.verb, *labels)
            self.operators[text] = operator
        return text

    def read_action(self, action: str) -> Operator | str:
        """The operator that an action names, or what is wrong with it."""
        found = self.vocabulary.read_action(action)
        if found is None:
            return f"the action must be {self.vocabulary.usage()}"
        verb, names = found
        for name in names:
            if name not in self._number:
                kind = "object" if self.vocabulary is MYSTERY else "block"
                return f"there is no {kind} {name!a:.60}; there are {', '.join(self.labels)}"
        return Operator(verb, *(self._number[name] for name in names))

    def refusal(self, state: State, operator: Operator) -> str:
        """Why an operator is illegal in a state, "" if it is legal."""
        clash = violated(state, operator)
        return "" if clash is None else f"{self.action(operator)} needs: {self.fact(clash[0])}; but {self.fact(clash[1])}"

    def situation(self, held: int, piles: Towers) -> tuple[str, list[str]]:
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
        told = [known.get(tower) or self._tell_tower(tower) for tower in piles]
        hand, drops = self._hands.get(held) or self._tell_hand(held)
        if self._compact:
            text = f"hand: {hand} | towers: {SEPARATOR.join([tower[0] for tower in told])}"
        else:
            text = ", ".join([hand, *[tower[0] for tower in told]])
            text = f"State: {text}." if self.natural else f"state: {text}"
        if held == TABLE:
            return text, [tower[1] for tower in told]
        return text, [drops[TABLE], *[drops[tower[-1]] for tower in piles]]

    def _tell_hand(self, held: int) -> tuple[str, list[str]]:
        """The hand in words, and the actions that put down what it holds: on each block, and last (``TABLE``) on the table."""
        if self._compact:
            text = "empty" if held == TABLE else self.labels[held]
        else:
            text = self.fact(Fact(HANDEMPTY) if held == TABLE else Fact(HOLDING, held))
        drops = []
        if held != TABLE:
            drops = [self.action(Operator(STACK, held, under)) for under in range(len(self.labels))]
            drops.append(self.action(Operator(PUT_DOWN, held)))
        self._hands[held] = text, drops
        return text, drops

    def _tell_tower(self, tower: tuple[int, ...]) -> TowerText:
        """A tower in words, from those of the tower below its top block, which is nearly always known already."""
        top = tower[-1]
        if len(tower) == 1:
            rest, place, take = "", self.fact(Fact(ONTABLE, top)), Operator(PICK_UP, top)
        else:
            known = self._towers.get(tower[:-1]) or self._tell_tower(tower[:-1])
            rest, place, take = known[2], self.fact(Fact(ON, top, tower[-2])), Operator(UNSTACK, top, tower[-2])
        if self._compact:
            text = inner = f"{rest} {self.labels[top]}" if rest else self.labels[top]
        else:
            inner = f"{place}, {rest}" if rest else place
            text = f"{self.fact(Fact(CLEAR, top))}, {inner}"
        told = self._towers[tower] = text, self.action(take), inner
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


def prompt(vocabulary: Vocabulary, observation: str, style: str, horizon: int) -> str:
    """The rules and the grammar of actions as an agent is told them."""
    actions = "\n".join(f"  {line}" for line in _ACTIONS[vocabulary.name])
    parts = [_TASK[vocabulary.name], _FORMS[style].format(actions=actions)]
    if observation == "compact" and vocabulary is PLAIN:
        parts.append(_COMPACT)
    parts.append(f"X and Y are names. An impossible action changes nothing and costs a turn. You have {horizon} turns.")
    return "\n".join(parts)
