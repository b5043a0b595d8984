"""Reads the grammar of a game file: how the game words its answers.

The sentences of simple actions are read, for releases differ in them: before ALFWorld 0.4 games said "You arrive at loc 21." and
"put mug 1 in/on desk 1". All else that an answer depends on must be what it is in ALFWorld; what differs is refused by its name.
"""

from __future__ import annotations

import json
import re
from typing import TypeAlias

from tstar_envs.data.files import parse_json
from tstar_envs.envs.alfworld.game.wording import Phrase, Wording
from tstar_envs.envs.alfworld.published.domain import digest
from tstar_envs.errors import BadData

Rules: TypeAlias = dict[str, list[dict[str, str]]]
_BLOCK = re.compile(r'grammar\s*::\s*"""(.*?)"""', re.DOTALL)
_ACTION = re.compile(
    r'action\s+(\w+)\s*\{\s*template\s*::\s*"([^"]*)"\s*;(?:\s*feedback\s*::\s*"([^"]*)"\s*;)?'
)
_GAP = re.compile(r"\{(\w+)(?:\.name)?\}")
_SPECIAL = re.compile(r"[{}\[\]#]")
_CONTENTS = " #examineReceptacle.feedback#"
# Action of the domain -> (rule of its answer, its variables as the rules here call them: o object, r receptacle, l location, k knife)
_ANSWERS = {
    "go": ("GotoLocation.feedback", {"r": "r", "lend": "l"}),
    "open": ("OpenObject.feedback", {"r": "r"}),
    "close": ("CloseObject.feedback", {"r": "r"}),
    "take": ("PickupObject.feedback", {"o": "o", "r": "r"}),
    "move": ("PutObject.feedback", {"o": "o", "r": "r"}),
    "clean": ("cleanObject.feedback", {"o": "o", "r": "r"}),
    "heat": ("heatObject.feedback", {"o": "o", "r": "r"}),
    "cool": ("coolObject.feedback", {"o": "o", "r": "r"}),
    "slice": ("sliceObject.feedback", {"co": "o", "ko": "k"}),
}
# Digests of what is compared, of alfred.twl2 in alfworld 0.4.2; tests make them anew from that package.
COMPARED_RULES = {
    "intro": "35b317b87ba4c2c7",
    "inventory.feedback": "2b9d9039b4864bd6",
    "examineReceptacle.feedback": "457001c3218490e8",
    "examineObject.feedback": "6d55b8fc15b6dbc5",
    "toggleObject.feedback": "987464b5f96ac10b",
    "look.feedback": "208751eada055632",
    "look-variations": "de5b437b5a01de93",
    "list_objects_on_the_floor": "83293fcd86fec1e9",
    "list_appliances": "9387857a64a06eda",
    "overview(o)": "1c5594bb30180d31",
    "overview(r)": "801e2fb368f8a216",
    "list_empty": "c8f396061973fdbb",
    "list_separator": "8cedf4e173a856f0",
    "list_last_separator": "66f22c7a5b9c5913",
}
COMPARED_ACTIONS = {
    "GotoLocation": "b0bb439d34545f0a",
    "OpenObject": "9f24a628707de687",
    "CloseObject": "f01a17be1e7ecb0a",
    "PickupObject": "1c8ba2cc81d294ae",
    "inventory": "83ac3a1ab6e5f15c",
    "examineReceptacle": "1c99ffa91550e247",
    "examineObject": "5a9db45e78b464cb",
    "ToggleObject": "43b166ae7d888b38",
    "HeatObject": "c7f480bfe25bdc28",
    "CleanObject": "c085f3b554a3ec1c",
    "CoolObject": "b433fe1441343ca2",
    "SliceObject": "c586e9e8ddb4b0e9",
    "look": "bdb56f2a8d80c7b4",
}


def read_grammar(grammar: str, where: str) -> tuple[str, Wording]:
    """The task in words, and how the game words its answers.

    Args:
        grammar: field ``grammar`` of a game file.
        where: how errors call the file.

    Raises:
        BadData: no such grammar, or one that words an answer in a way that this project does not know; the rule is named.
    """
    rules = read_rules(grammar, where)
    actions = read_actions(grammar)
    for name in ("task", "PutObject.feedback"):
        if name not in rules:
            raise BadData(
                f"{where}: field 'grammar' has no rule {name!r}; expected the grammar of ALFWorld's games"
            )
    for name, expected in COMPARED_RULES.items():
        if rule_digest(rules.get(name, [])) != expected:
            raise _differs(where, f"grammar's rule {name!r}", rules.get(name))
    for name, expected in COMPARED_ACTIONS.items():
        if digest(actions.get(name)) != expected:
            raise _differs(where, f"grammar's action {name}", actions.get(name))
    template, feedback = actions.get("PutObject", ("", ""))
    if feedback != "#PutObject.feedback#":
        raise _differs(where, "grammar's action PutObject", feedback or None)
    answers = {verb: _sentence(rules, name, variables, where) for verb, (name, variables) in _ANSWERS.items()}
    move = _phrase(template, {"o": "o", "r": "r"}, "the command of PutObject", where)
    help_ = _help(rules, actions["help"][1], where) if "help" in actions else ""
    return _literal(rules, "task", where), Wording(move, answers, help_)


def read_rules(grammar: str, where: str) -> Rules:
    """All rules of a grammar by name, those inside its actions too; BadData (``where`` names the file) if they are none."""
    found: Rules = {}
    for block in _BLOCK.findall(grammar):
        for name, entries in parse_json(block, f"{where}, field 'grammar'", strict=False).items():
            if not isinstance(entries, list) or not all(
                isinstance(e, dict) and isinstance(e.get("rhs"), str) for e in entries
            ):
                raise BadData(
                    f"{where}: the grammar's rule {name!r:.60} must be a list of objects with a text 'rhs'"
                )
            found[name] = entries
    return found


def read_actions(grammar: str) -> dict[str, tuple[str, str]]:
    """The actions of a grammar by name: how the command is written, and the answer ("" where there is none)."""
    return {name: (template, feedback) for name, template, feedback in _ACTION.findall(grammar)}


def rule_digest(entries: list[dict[str, str]]) -> str:
    """A short name of what a rule says, however its conditions are spaced."""
    return digest([(" ".join(entry.get("condition", "").split()), entry["rhs"]) for entry in entries])


def _sentence(rules: Rules, name: str, variables: dict[str, str], where: str) -> Phrase:
    """The answer of a simple action: one sentence with names in it, perhaps followed by what a receptacle holds."""
    entries = rules.get(name, [])
    if len(entries) != 1 or entries[0].get("condition"):
        raise _differs(where, f"grammar's rule {name!r}", entries or None)
    text = entries[0]["rhs"]
    contents = text.endswith(_CONTENTS) and "r" in variables.values()
    # The game's own parser drops white space at the beginning of a text.
    return _phrase(
        text.removesuffix(_CONTENTS) if contents else text, variables, f"rule {name!r}", where
    )._replace(contents=contents)


def _phrase(text: str, variables: dict[str, str], what: str, where: str) -> Phrase:
    pieces = _GAP.split(text.lstrip())
    unknown = [name for name in pieces[1::2] if name not in variables]
    if unknown or _SPECIAL.search("".join(pieces[::2])):
        raise BadData(
            f"{where}: {what} of the grammar says {text!r:.120}, which this project cannot word: expected plain text and "
            f"{', '.join(f'{{{name}.name}}' for name in variables)}"
        )
    return Phrase(tuple(pieces[::2]), tuple(variables[name] for name in pieces[1::2]))


def _literal(rules: Rules, name: str, where: str) -> str:
    """The text of a rule that says the same always."""
    return _phrase(rules[name][0]["rhs"], {}, f"rule {name!r}", where).texts[0] if rules.get(name) else ""


def _help(rules: Rules, feedback: str, where: str) -> str:
    """The answer to ``help``: the text itself, as in the published games, or a rule that holds it."""
    name = re.fullmatch(r"#([^#]*)#", feedback.strip())
    return (
        _literal(rules, name[1], where)
        if name is not None
        else _phrase(feedback, {}, "the answer to help", where).texts[0]
    )


def _differs(where: str, what: str, found: object) -> BadData:
    finding = "is missing" if found is None else f"says {json.dumps(found)[:200]}"
    return BadData(
        f"{where}: the {what} {finding}, and that is not as in ALFWorld's games; this project would answer otherwise than the game"
    )
