"""Observations of Blocksworld: states in words, and the admissible actions.

A step changes one tower by its top block. So a tower in words holds the one below its top block, and the states of an episode share
the words of the towers that they share: taking a block finds the rest written already, stacking one writes one tower anew.
"""

from __future__ import annotations

import re
from typing import Any, TypeAlias

from tstar_envs.envs.blocksworld.clauses import BlockClauses
from tstar_envs.envs.blocksworld.compact_notation import SEPARATOR
from tstar_envs.envs.blocksworld.facts import HANDEMPTY
from tstar_envs.envs.blocksworld.language import Language
from tstar_envs.envs.blocksworld.operators import PUT_DOWN, STACK, OperatorFields
from tstar_envs.envs.blocksworld.state import HAND, State, towers
from tstar_envs.envs.blocksworld.vocabularies import COLOURS, PLAIN

OBSERVATIONS = ("natural", "compact")
GOAL_REACHED = "The goal is reached."

# A tower in words: its bottom block, its top block, the tower below that (None if it is the table), the words, the action that takes
# its top, the top's name. Plain tuples, so that the garbage collector leaves them alone.
TowerText: TypeAlias = tuple[int, int, Any, str, str, str]
# Those of a state, in the order of their bottom blocks; the held block is in none.
TowerTexts: TypeAlias = tuple[TowerText, ...]


class Renderer:
    """Writes the states of one problem.

    Does what the function ``text.render`` does in other families, and keeps the parts that states share.

    Args:
        language: its words.
    """

    def __init__(self, language: Language) -> None:
        clauses = language.clauses
        self._blocks: list[BlockClauses] = [clauses.blocks[label] for label in language.labels]
        self._compact = not language.natural and language.vocabulary is PLAIN
        if self._compact:
            self._before, self._after_hand, self._separator, self._end = (
                "hand: ",
                " | towers: ",
                SEPARATOR,
                "",
            )
        elif language.natural:
            self._before, self._after_hand, self._separator, self._end = "State: ", ", ", ", ", "."
        else:
            self._before, self._after_hand, self._separator, self._end = "state: ", ", ", ", ", ""
        hand = "empty" if self._compact else clauses[HANDEMPTY,]
        self._nothing_held = f"{self._before}{hand}{self._after_hand}"

    def towers(self, state: State) -> TowerTexts:
        """The towers of a state in words."""
        found = []
        for tower in towers(state):
            text = None
            for block in tower:
                text = self._on_top(block, text)
            found.append(text)
        return tuple(found)  # type: ignore[arg-type]  # no tower is empty

    def towers_after(self, before: TowerTexts, operator: OperatorFields) -> TowerTexts:
        """The towers after a legal operator, from those before it: only one of them is written anew."""
        verb, block, under = operator
        found = list(before)
        if verb == PUT_DOWN:
            found.append(self._on_top(block, None))
            found.sort()  # by bottom blocks, of which no two are the same
            return tuple(found)
        top = under if verb == STACK else block
        for place, tower in enumerate(before):
            if tower[1] == top:
                if verb == STACK:
                    found[place] = self._on_top(block, tower)
                elif tower[2] is None:
                    del found[place]
                else:
                    found[place] = tower[2]
                break
        return tuple(found)

    def _on_top(self, block: int, tower: TowerText | None) -> TowerText:
        """A tower with one more block; None stands for the table."""
        clauses = self._blocks[block]
        label = clauses.label
        if tower is None:
            text = label if self._compact else f"{clauses.clear}{clauses.on_table}"
            return block, block, None, text, clauses.pick_up, label
        bottom, top, _, lower, _, under = tower
        place, take = clauses.on[under]
        if self._compact:
            return bottom, block, tower, f"{lower} {label}", take, label
        # What stands below is written without the clause that its top is clear.
        text = f"{clauses.clear}{place}{lower[self._blocks[top].clear_length :]}"
        return bottom, block, tower, text, take, label

    def render(self, state: State, piles: TowerTexts) -> tuple[str, tuple[str, ...]]:
        """The observation of a state, and its admissible actions.

        The text names what the hand holds, then the towers in the order of their bottom blocks. Natural, and mystery in both styles: every
        fact that holds, each tower from its top down. Compact: ``compact_notation``. Actions are in the order of
        ``operators.legal_operators``.

        Args:
            state: to be written.
            piles: its towers.
        """
        actions: tuple[str, ...]
        if HAND in state:
            clauses = self._blocks[state.index(HAND)]
            stack = clauses.stack
            hand = clauses.label if self._compact else clauses.held
            head = f"{self._before}{hand}{self._after_hand}"
            actions = (clauses.put_down, *[stack[tower[5]] for tower in piles])
        else:
            head, actions = self._nothing_held, tuple([tower[4] for tower in piles])
        if self._compact or piles:
            return f"{head}{self._separator.join([tower[3] for tower in piles])}{self._end}", actions
        return f"{head.removesuffix(self._separator)}{self._end}", actions


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
