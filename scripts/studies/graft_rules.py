"""Rules that judge a grafted thought: is it about its state, and does it name what was wrong.

They stand for the hand counts of the paper's table ("Valid" and "Error") and read words alone, so that anybody gets the same counts.
A thought is valid if it is not empty, whole (no broken character), and all that it names is there:

- HotpotQA (``search_qa``): names (runs of capitalised words) and years stand in the question or a passage read so far.
- WebShop: products are on the page that is open, and every word that is not one of the expert's own wordings, prices too, stands in the
  instruction or on a page seen so far.
- ALFWorld: numbered objects and places were seen or listed so far; the kind of object that is looked for stands in the task or was seen.
- Sokoban: boxes, targets and the player are where it says, other places are no walls, and the move that it announces (its last
  direction) is admissible.

The action that follows must be admissible too (``admissible``). The mistake is named if the action that follows, and the announced one,
is another than the failed branch's, and the words that decide differ: the names above, and the kind of step (to answer, buy, open ...).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tstar_envs import Step, UnknownOption
from tstar_envs.envs.webshop.expert import THOUGHTS


@dataclass(frozen=True)
class Situation:
    """Facts that are known where a thought is grafted.

    Attributes:
        observation: the last one.
        seen: the instruction and all observations so far.
        actions: admissible ones; None for an open set.
    """

    observation: str
    seen: str
    actions: Sequence[str] | None = None


def lacks(phrase: str, text: str) -> bool:
    """Check that a phrase does not stand in a text, as whole words in any case."""
    return not re.search(rf"(?<!\w){re.escape(phrase)}(?!\w)", text, re.IGNORECASE)


_NAME = re.compile(r"[A-Z][\w'-]*(?: (?:of )?[A-Z][\w'-]*)*")
_OPENERS = frozenset("A An First I It Next Now So That The These This To".split())
_YEAR = re.compile(r"\b\d{3,4}\b")


def _qa_names(thought: str) -> set[str]:
    """Names and years; a sentence's first word is not part of a name if it opens sentences only."""
    names = set(_YEAR.findall(thought))
    for run in _NAME.findall(thought):
        words = run.split()
        while words and words[0] in _OPENERS:
            words = words[1:]
        if words:
            names.add(" ".join(words))
    return names


def _qa_lacking(thought: str, here: Situation) -> str:
    found = [name for name in sorted(_qa_names(thought)) if lacks(name, here.seen)]
    return f"{found[0]!r} is neither in the question nor in a passage" if found else ""


def _qa_deciding(thought: str) -> set[str]:
    answers = re.search(r"\b(answers?|asked|makes it)\b", thought)
    return {name.lower() for name in _qa_names(thought)} | {"finish" if answers else "search"}


_PRODUCT = re.compile(r"\bb0\w+")
_WORD = re.compile(r"\$?[a-z0-9]+(?:\.\d+)?")
_WORDINGS = " ".join(wording for wordings in THOUGHTS.values() for wording in wordings)
_PLAIN = frozenset(_WORD.findall(re.sub(r"\{\w\}", " ", f"{_WORDINGS} what is asked for").lower()))
_STEPS = frozenset("back buy description features next open page read reviews search".split())


def _shop_words(thought: str) -> set[str]:
    return set(_WORD.findall(thought.lower()))


def _shop_lacking(thought: str, here: Situation) -> str:
    for product in _PRODUCT.findall(thought.lower()):
        if lacks(product, here.observation):
            return f"{product} is not on this page"
    found = [word for word in sorted(_shop_words(thought) - _PLAIN) if lacks(word, here.seen)]
    return f"{found[0]!r} stands nowhere" if found else ""


def _shop_deciding(thought: str) -> set[str]:
    words = _shop_words(thought)
    return (words - _PLAIN) | (words & _STEPS)


_NUMBERED = re.compile(r"\b[a-z]+ \d+\b")
_WANTED = re.compile(r"(?:\b(?:need|look for|get) |^)(?:an?|another) ([a-z]+)\b", re.IGNORECASE)
_VERBS = {"pick": "take", "turn": "use", "bring": "put", "examine": "look"}
_HANDLING = re.compile(r"\b(open|take|pick|clean|heat|cool|put|bring|use|turn|examine|go|try)\b")


def _house_lacking(thought: str, here: Situation) -> str:
    named = [*_NUMBERED.findall(thought.lower()), *(kind.lower() for kind in _WANTED.findall(thought))]
    found = [name for name in named if lacks(name, here.seen)]
    return f"no {found[0]} was seen" if found else ""


def _house_deciding(thought: str) -> set[str]:
    verbs = {_VERBS.get(verb, verb) for verb in _HANDLING.findall(thought.lower())}
    return {*_NUMBERED.findall(thought.lower()), *verbs}


_CELL = re.compile(r"\((\d+), (\d+)\)")
_AT = r" (\(\d+, \d+\))"
_ROLES = {
    "Boxes": re.compile(rf"\bbox at{_AT}", re.IGNORECASE),
    "Targets": re.compile(rf"\b(?:belongs on|onto|goes to|on its way to|away from){_AT}", re.IGNORECASE),
    "Player": re.compile(rf"\b(?:(?<!away )from|I am at|and am at|I stand at){_AT}", re.IGNORECASE),
}
_DIRECTION = re.compile(r"\b(up|down|left|right)\b(?! behind)", re.IGNORECASE)


def _level_lacking(thought: str, here: Situation) -> str:
    rows = [line for line in here.observation.splitlines() if line.startswith("#")]
    for name, role in _ROLES.items():
        line = re.search(rf"^{name}: (.*)$", here.observation, re.MULTILINE)
        if line is None:
            raise UnknownOption(
                "the rules read Sokoban's cells: play with the option observation=grid_coords"
            )
        for cell in role.findall(thought):
            if cell not in line[1]:
                return f"{cell} is not among {name.lower()} {line[1]}"
    for row, column in _CELL.findall(thought):
        r, c = int(row), int(column)
        if r >= len(rows) or c >= len(rows[r]) or rows[r][c] == "#":
            return f"({row}, {column}) is a wall"
    move = _level_announced(thought)
    return f"{move} is not possible" if move and move not in (here.actions or ()) else ""


def _level_announced(thought: str) -> str:
    directions = _DIRECTION.findall(thought)
    return directions[-1].capitalize() if directions else ""


def _level_deciding(thought: str) -> set[str]:
    directions = {direction.lower() for direction in _DIRECTION.findall(thought)}
    return {*map(str, _CELL.findall(thought)), *directions, f"then {_level_announced(thought)}"}


@dataclass(frozen=True)
class Rules:
    """Rules of one family.

    Attributes:
        lacking: what a thought names that is not there; "" if all is.
        deciding: words of a thought that tell what it decides.
        announced: action that a thought names in so many words; "" if the family's thoughts name none.
    """

    lacking: Callable[[str, Situation], str]
    deciding: Callable[[str], set[str]]
    announced: Callable[[str], str] = lambda thought: ""


RULES = {
    "search_qa": Rules(_qa_lacking, _qa_deciding),
    "webshop": Rules(_shop_lacking, _shop_deciding),
    "alfworld": Rules(_house_lacking, _house_deciding),
    "sokoban": Rules(_level_lacking, _level_deciding, _level_announced),
}


def problem(family: str, thought: str, here: Situation) -> str:
    """Find why a thought is not about a state; "" if it is.

    Args:
        family: a key of ``RULES``.
        thought: plain text, without its cue.
        here: where it is grafted.
    """
    if not thought.strip():
        return "it is empty"
    if "\ufffd" in thought or "\n" in thought.strip():
        return "it is not whole"
    return RULES[family].lacking(thought, here)


def admissible(step: Step, actions: Sequence[str] | None) -> bool:
    """Check an action that was played: valid by the environment's word, and listed where actions are listed.

    Args:
        step: the record.
        actions: those that were listed before it; None or empty for an open set.
    """
    return step.action_valid and (not actions or step.action in actions)


def names_mistake(family: str, thought: str, action: str, failed_thought: str, failed_action: str) -> bool:
    """Check whether a thought, and the action that followed it, put another decision in the failed one's place.

    Args:
        family: a key of ``RULES``.
        thought: the graft's.
        action: that followed it; "" if none could be read.
        failed_thought: of the failed branch.
        failed_action: of the failed branch; "" if none could be read.
    """
    rules = RULES[family]
    announced = rules.announced(thought) or action
    others = action != failed_action and announced != failed_action
    return bool(action) and others and rules.deciding(thought) != rules.deciding(failed_thought)
