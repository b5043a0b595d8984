"""Reader of published game files: PDDL domain, problem, goal and grammar of ``game.tw-pddl``."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from tstar_envs.data.expressions import Expressions, Unbalanced, read_expressions
from tstar_envs.data.files import GAME_OBJECTS, JSON_DEPTH, parse_json
from tstar_envs.envs.alfworld.game import (
    ABILITIES,
    MARKS,
    TOOLS,
    Facts,
    Game,
    Goal,
    Phrase,
    Wording,
    build_game,
)
from tstar_envs.errors import BadData

Expression: TypeAlias = "str | list[Expression]"


def read_definition(text: str, where: str, what: str = "problem") -> list[Expression]:
    """Parse a ``(define ...)`` expression into its parts, in lower case, as planners do.

    Args:
        text: PDDL.
        where: name of the file in error messages.
        what: "problem" or "domain", for error messages.

    Raises:
        BadData: not a single such expression, or brackets nested too deeply.
    """

    def check_depth(depth: int) -> None:
        if depth > 20:  # reading the limit is slow
            JSON_DEPTH.check(depth, f"{where}, PDDL {what}")

    try:
        found = read_expressions(text, check_depth)
    except Unbalanced as error:
        if not error.missing:
            raise BadData(f"{where}: the PDDL {what} closes a bracket that it did not open") from None
        found = Expressions(0)
    whole: Expression | None = found[0] if found else None
    if not isinstance(whole, list) or whole[:1] != ["define"]:
        raise BadData(
            f"{where}: the PDDL {what} must be one expression (define ...), with every bracket closed"
        )
    return whole


def read_goal(condition: Expression, where: str) -> Goal:
    """Parse a PDDL condition to one of ALFWorld's six goals.

    Raises:
        BadData: the condition is none of them.
    """
    atoms = set(_atoms(condition, {}, [0], where))
    for count in (1, 2):
        for mark, ability in (
            ("", ""),
            ("isclean", "cleanable"),
            ("ishot", "heatable"),
            ("iscool", "coolable"),
        ):
            goal = _place_goal(atoms, count, mark, ability)
            if goal is not None:
                return goal
    goal = _look_goal(atoms)
    if goal is None:
        found = " ".join(f"({' '.join(atom)})" for atom in sorted(atoms))
        raise BadData(
            f"{where}: the goal is none of ALFWorld's six kinds (pick, look, clean, heat, cool, pick two): {found:.300}"
        )
    return goal


def _atoms(
    condition: Expression, names: dict[str, str], counter: list[int], where: str
) -> Iterator[tuple[str, ...]]:
    """Flatten a condition of ``and`` and ``exists`` to its facts, with a unique name for every variable."""
    if isinstance(condition, str) or not condition:
        raise BadData(f"{where}: the goal has a part {condition!r:.60} that is not a condition")
    head, *rest = condition
    if head == "and":
        for part in rest:
            yield from _atoms(part, names, counter, where)
    elif head == "exists" and len(rest) == 2 and isinstance(rest[0], list):
        inner = dict(names)
        for variable in rest[0]:
            if isinstance(variable, str) and variable.startswith("?"):
                counter[0] += 1
                inner[variable] = f"?{counter[0]}"
        yield from _atoms(rest[1], inner, counter, where)
    elif head == "not" and len(rest) == 1 and isinstance(rest[0], list) and rest[0][:1] == ["="]:
        yield ("differ", *sorted(names.get(str(word), str(word)) for word in rest[0][1:]))
    elif (
        isinstance(head, str)
        and all(isinstance(word, str) for word in rest)
        and head not in ("or", "not", "forall", "imply")
    ):
        yield (head, *(names.get(str(word), str(word)) for word in rest))
    else:
        raise BadData(f"{where}: the goal uses {head!r:.30}, which no game of ALFWorld does")


def _only(atoms: set[tuple[str, ...]], predicate: str) -> list[tuple[str, ...]]:
    return sorted(atom[1:] for atom in atoms if atom[0] == predicate)


def _place_goal(atoms: set[tuple[str, ...]], count: int, mark: str, ability: str) -> Goal | None:
    kinds, receptacles = _only(atoms, "objecttype"), _only(atoms, "receptacletype")
    if len(kinds) != count or len(receptacles) != 1 or len({kind for _, kind in kinds}) != 1:
        return None
    objects, (receptacle, receptacle_kind) = [o for o, _ in kinds], receptacles[0]
    expected = {("receptacletype", receptacle, receptacle_kind), *(("objecttype", *kind) for kind in kinds)}
    expected |= {("inreceptacle", object_, receptacle) for object_ in objects}
    if count == 2:
        expected.add(("differ", *objects))
    if mark:
        expected |= {(predicate, object_) for predicate in (mark, ability) for object_ in objects}
    if atoms != expected:
        return None
    return Goal(kind_of(kinds[0][1]), kind_of(receptacle_kind), "", count, frozenset({mark} - {""}))


def _look_goal(atoms: set[tuple[str, ...]]) -> Goal | None:
    holds, lit, kinds = (
        _only(atoms, "holds"),
        _only(atoms, "istoggled"),
        {atom[0]: atom[1] for atom in _only(atoms, "objecttype")},
    )
    if len(holds) != 1 or len(lit) != 1 or len(_only(atoms, "atlocation")) != 1 or len(kinds) != 2:
        return None
    (holder, object_), (lamp,), (_, location) = holds[0], lit[0], _only(atoms, "atlocation")[0]
    agent = _only(atoms, "atlocation")[0][0]
    if object_ not in kinds or lamp not in kinds:
        return None
    expected = {
        ("objecttype", object_, kinds[object_]),
        ("objecttype", lamp, kinds[lamp]),
        ("holds", holder, object_),
        ("toggleable", lamp),
        ("istoggled", lamp),
        ("atlocation", agent, location),
    }
    goal = Goal(kind_of(kinds[object_]), "", kind_of(kinds[lamp]))
    if atoms == expected | {("objectatlocation", lamp, location)}:
        return Goal(goal.object_kind, "", goal.lamp_kind, lamp_in_receptacle=False)
    receptacles = _only(atoms, "receptacleatlocation")
    if len(receptacles) == 1 and atoms == expected | {
        ("receptacleatlocation", receptacles[0][0], location),
        ("inreceptacle", lamp, receptacles[0][0]),
    }:
        return goal
    return None


def kind_of(type_name: str) -> str:
    """Convert a type of the domain to its name: ``mug`` for ``mugtype``."""
    return type_name.removesuffix("type")


def read_problem(text: str, where: str) -> tuple[Facts, Goal]:
    """Parse facts and goal of a PDDL problem of the domain ``alfred``, in lower case.

    Raises:
        BadData: not such a problem, or not covered by the rules.
    """
    sections = {
        str(part[0]): part[1:] for part in read_definition(text, where) if isinstance(part, list) and part
    }
    for name in (":objects", ":init", ":goal"):
        if name not in sections:
            raise BadData(f"{where}: the PDDL problem has no section {name}")
    GAME_OBJECTS.check(len(sections[":objects"]) // 3, where)  # each is "name - type"
    facts = _read_facts(sections[":init"], where)
    goal_section = sections[":goal"]
    if len(goal_section) != 1:
        raise BadData(f"{where}: the section :goal must hold one condition, found {len(goal_section)}")
    return facts, read_goal(goal_section[0], where)


def _read_facts(init: list[Expression], where: str) -> Facts:
    facts = Facts()
    fits, inside, nested, lying = facts.fits, facts.inside, facts.nested, facts.object_locations
    relations = {
        "cancontain": fits,
        "inreceptacle": inside,
        "inreceptacleobject": nested,
        "objectatlocation": lying,
    }
    unary = {**facts.abilities, **facts.marks, "openable": facts.openable, "opened": facts.opened}
    maps = {
        "receptacletype": facts.receptacle_types,
        "objecttype": facts.object_types,
        "receptacleatlocation": facts.receptacle_location,
    }
    for fact in init:
        if not isinstance(fact, list) or not fact or not all(isinstance(word, str) for word in fact):
            continue  # distances and costs are not used by the game
        predicate, *arguments = map(str, fact)
        facts.named.update(arguments)
        if predicate in unary and len(arguments) == 1:
            unary[predicate].add(arguments[0])
        elif len(arguments) != 2:
            continue  # mark of the planner, such as (checked r)
        elif predicate in relations:
            relations[predicate].add(
                (kind_of(arguments[0]), kind_of(arguments[1]))
                if predicate == "cancontain"
                else (arguments[0], arguments[1])
            )
        elif predicate in maps:
            value = arguments[1] if predicate == "receptacleatlocation" else kind_of(arguments[1])
            if maps[predicate].setdefault(arguments[0], value) != value:
                raise BadData(
                    f"{where}: {arguments[0]} has two values of {predicate}: {maps[predicate][arguments[0]]} and {value}"
                )
        elif predicate == "atlocation":
            facts.agent_location = arguments[1]
        elif predicate == "holds":
            facts.held = arguments[1]
    _complete(facts, where)
    return facts


def _complete(facts: Facts, where: str) -> None:
    """Complete the facts: things without a type in the file are included too."""
    if not facts.agent_location:
        raise BadData(f"{where}: the PDDL problem does not say where the agent is (atLocation)")
    pairs = [*facts.inside, *facts.object_locations]
    for object_ in (
        *(o for o, _ in pairs),
        *(o for pair in facts.nested for o in pair),
        *([facts.held] if facts.held else []),
    ):
        facts.object_types.setdefault(object_, "")
    for mark in (*ABILITIES, *MARKS):
        for object_ in (facts.abilities if mark in facts.abilities else facts.marks)[mark]:
            facts.object_types.setdefault(object_, "")
    for receptacle in (
        *facts.receptacle_location,
        *facts.openable,
        *facts.opened,
        *(r for _, r in facts.inside),
    ):
        facts.receptacle_types.setdefault(receptacle, "")


# operator -> (verb, predicate and variable of its tool); the allowed types are read from the file
TOOL_OF = {
    "cleanobject": ("clean", "receptacletype", "?r"),
    "heatobject": ("heat", "receptacletype", "?r"),
    "coolobject": ("cool", "receptacletype", "?r"),
    "sliceobject": ("slice", "objecttype", "?ko"),
}
# Digests of the operators of alfred.pddl in alfworld 0.4.2, without those types; tests recompute them from that package.
OPERATORS = {
    "look": "c5001e4dd3ee0792",
    "inventory": "ec4138a9b7d27fac",
    "examinereceptacle": "a0631b439aa7ca8f",
    "examineobject": "94ab2531ba0dd306",
    "gotolocation": "a6e8c00418f24ec6",
    "openobject": "09169b5db7a39f59",
    "closeobject": "ee4640cf45ae1cfe",
    "pickupobject": "ee933842e9b2e13a",
    "putobject": "2643d0e1ec4eda6e",
    "cleanobject": "1662237273422ced",
    "heatobject": "3626ca4152648eb9",
    "coolobject": "8f553932bd1d966d",
    "toggleobject": "ffdae885a427fe11",
    "sliceobject": "0a61eddc67ae11aa",
    "help": "ec4138a9b7d27fac",
}


def digest(value: Any) -> str:
    """Compute a short digest of a JSON value."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def operator_digest(operator: Expression) -> str:
    """Compute a short digest of an operator, ignoring costs and the order within ``and`` and ``or``."""
    return digest(_plain(operator))


class _Operators(NamedTuple):
    """Checked domain: an error ("" for none), and verb -> types of its tools."""

    fault: str
    tools: Mapping[str, frozenset[str]]


def read_tools(domain: str, where: str) -> Mapping[str, frozenset[str]]:
    """Read the tools of the actions of a domain.

    Args:
        domain: field ``pddl_domain`` of a game file.
        where: name of the file in error messages.

    Returns:
        Verb -> types, as ``game.TOOLS``.

    Raises:
        BadData: not PDDL, or an operator differs, is missing or is unknown; the message names it.
    """
    fault, tools = _read(domain)
    if fault:
        raise BadData(f"{where}: {fault}")
    return tools


@lru_cache(maxsize=16)  # games of one release share a 17 KB domain
def _read(domain: str) -> _Operators:
    try:
        parts = read_definition(domain, "field 'pddl_domain'", "domain")
    except BadData as error:
        return _Operators(str(error), TOOLS)
    operators = {
        str(part[1]): part[2:]
        for part in parts
        if isinstance(part, list) and len(part) > 1 and part[0] == ":action"
    }
    tools = dict(TOOLS)
    for name in sorted({*operators, *OPERATORS}):
        if name not in operators:
            if name != "help":  # games before ALFWorld 0.4 have no help
                return _Operators(f"the domain lacks ALFWorld's operator {name!r}; {_OTHER_GAME}", TOOLS)
            continue
        operator: Expression = operators[name]
        if name in TOOL_OF:
            verb, *condition = TOOL_OF[name]
            operator, types = without_types(operator, condition)
            tools[verb] = frozenset(map(kind_of, types))
        if operator_digest(operator) != OPERATORS.get(name):
            return _Operators(f"the domain's operator {name!r:.60} is not ALFWorld's; {_OTHER_GAME}", TOOLS)
    return _Operators("", tools)


_OTHER_GAME = "the rules of this project would play another game"


def without_types(operator: Expression, condition: list[str]) -> tuple[Expression, list[str]]:
    """Remove the types from an operator's conditions on one variable.

    Args:
        operator: parts of the operator.
        condition: predicate and variable, such as ``receptacletype ?r``.

    Returns:
        The operator with ``(or predicate variable)`` instead of such a condition or an ``or`` of them, and the types.
    """
    if not isinstance(operator, list):
        return operator, []
    choices = operator[1:] if operator[:1] == ["or"] else [operator]
    if choices and all(
        isinstance(choice, list) and len(choice) == 3 and choice[:2] == condition for choice in choices
    ):
        return ["or", *condition], [str(choice[2]) for choice in choices]
    parts, types = [], []
    for part in operator:
        plain, found = without_types(part, condition)
        parts.append(plain)
        types += found
    return parts, types


def _plain(expression: Expression) -> Expression:
    if not isinstance(expression, list):
        return expression
    inner = [_plain(part) for part in expression if not (isinstance(part, list) and part[:1] == ["increase"])]
    return [inner[0], *sorted(inner[1:], key=repr)] if inner[:1] in (["and"], ["or"]) else inner


Rules: TypeAlias = dict[str, list[dict[str, str]]]
_BLOCK = re.compile(r'grammar\s*::\s*"""(.*?)"""', re.DOTALL)
_ACTION = re.compile(
    r'action\s+(\w+)\s*\{\s*template\s*::\s*"([^"]*)"\s*;(?:\s*feedback\s*::\s*"([^"]*)"\s*;)?'
)
_GAP = re.compile(r"\{(\w+)(?:\.name)?\}")
_SPECIAL = re.compile(r"[{}\[\]#]")
_CONTENTS = " #examineReceptacle.feedback#"
# action of the domain -> (rule of its answer, names of its variables here: o object, r receptacle, l location, k knife)
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
# Digests of the compared rules of alfred.twl2 in alfworld 0.4.2; tests recompute them from that package.
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
    """Parse the task description and the wording of a game.

    Args:
        grammar: field ``grammar`` of a game file.
        where: name of the file in error messages.

    Raises:
        BadData: not such a grammar, or an answer with unsupported wording; the message names the rule.
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
    """Parse all rules of a grammar by name, including those inside its actions.

    BadData if they are malformed.
    """
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
    """Parse the actions of a grammar: name -> (command template, answer or "")."""
    return {name: (template, feedback) for name, template, feedback in _ACTION.findall(grammar)}


def rule_digest(entries: list[dict[str, str]]) -> str:
    """Compute a short digest of a rule, ignoring white space in its conditions."""
    return digest([(" ".join(entry.get("condition", "").split()), entry["rhs"]) for entry in entries])


def _sentence(rules: Rules, name: str, variables: dict[str, str], where: str) -> Phrase:
    """Parse the answer of a simple action.

    It is one sentence with names, optionally followed by the contents of a receptacle.
    """
    entries = rules.get(name, [])
    if len(entries) != 1 or entries[0].get("condition"):
        raise _differs(where, f"grammar's rule {name!r}", entries or None)
    text = entries[0]["rhs"]
    contents = text.endswith(_CONTENTS) and "r" in variables.values()
    # The game's parser drops leading white space.
    return _phrase(
        text.removesuffix(_CONTENTS) if contents else text, variables, f"rule {name!r}", where
    )._replace(contents=contents)


def _phrase(text: str, variables: dict[str, str], what: str, where: str) -> Phrase:
    pieces = _GAP.split(text.lstrip())
    unknown = [name for name in pieces[1::2] if name not in variables]
    if unknown or _SPECIAL.search("".join(pieces[::2])):
        raise BadData(
            f"{where}: {what} of the grammar says {text!r:.120}, which is not supported: expected plain text and "
            f"{', '.join(f'{{{name}.name}}' for name in variables)}"
        )
    return Phrase(tuple(pieces[::2]), tuple(variables[name] for name in pieces[1::2]))


def _literal(rules: Rules, name: str, where: str) -> str:
    """Get the text of a rule without variants."""
    return _phrase(rules[name][0]["rhs"], {}, f"rule {name!r}", where).texts[0] if rules.get(name) else ""


def _help(rules: Rules, feedback: str, where: str) -> str:
    """Parse the answer to ``help``: literal text, as in the published games, or a rule."""
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


def read_game(text: str, where: str) -> Game:
    """Parse a ``game.tw-pddl`` file to a game.

    Args:
        text: contents of the file.
        where: name of the file in error messages.

    Raises:
        BadData: not such a file, or a game not covered by the rules; the message says what was found.
    """
    data = parse_json(text, where)
    for name in ("pddl_problem", "grammar", *(["pddl_domain"] if "pddl_domain" in data else [])):
        if not isinstance(data.get(name), str):
            raise BadData(
                f"{where}: field {name!r} must be a string; expected a game.tw-pddl file of ALFWorld"
            )
    # A file without a domain has nothing that could differ.
    tools = read_tools(data["pddl_domain"], where) if data.get("pddl_domain") else TOOLS
    facts, goal = read_problem(data["pddl_problem"], where)
    task, wording = read_grammar(data["grammar"], where)
    return build_game(facts, goal, task, wording, tools)
