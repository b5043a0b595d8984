"""Reads ``game.tw-pddl``: a JSON file with the PDDL domain, the PDDL problem and the grammar that words the answers."""

from __future__ import annotations

from collections.abc import Iterator

from tstar_envs.data.files import parse_json
from tstar_envs.data.limits import GAME_OBJECTS
from tstar_envs.envs.alfworld.domain import check_domain
from tstar_envs.envs.alfworld.expressions import Expression, read_definition
from tstar_envs.envs.alfworld.facts import ABILITIES, MARKS, Facts, Goal
from tstar_envs.envs.alfworld.game import Game, build_game
from tstar_envs.envs.alfworld.grammar import read_grammar
from tstar_envs.errors import BadData


def read_game(text: str, where: str) -> Game:
    """A game from the text of a ``game.tw-pddl`` file.

    Args:
        text: of the file.
        where: how errors call it.

    Raises:
        BadData: not such a file, or a game that the rules do not cover; the message says what was found.
    """
    data = parse_json(text, where)
    for name in ("pddl_problem", "grammar", *(["pddl_domain"] if "pddl_domain" in data else [])):
        if not isinstance(data.get(name), str):
            raise BadData(
                f"{where}: field {name!r} must be a string; expected a game.tw-pddl file of ALFWorld"
            )
    if data.get(
        "pddl_domain"
    ):  # a file without one leaves open what the game's actions do, and nothing differs
        check_domain(data["pddl_domain"], where)
    facts, goal = read_problem(data["pddl_problem"], where)
    task, wording = read_grammar(data["grammar"], where)
    return build_game(facts, goal, task, wording)


def read_problem(text: str, where: str) -> tuple[Facts, Goal]:
    """Facts and goal of a PDDL problem of the domain ``alfred``; names are read in lower case, as planners do.

    Raises:
        BadData: no such problem, or one that the rules do not cover.
    """
    sections = {
        str(part[0]): part[1:] for part in read_definition(text, where) if isinstance(part, list) and part
    }
    for name in (":objects", ":init", ":goal"):
        if name not in sections:
            raise BadData(f"{where}: the PDDL problem has no section {name}")
    GAME_OBJECTS.check(len(sections[":objects"]) // 3, where)  # each is written "name - type"
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
        "receptacletype": facts.receptacle_kinds,
        "objecttype": facts.object_kinds,
        "receptacleatlocation": facts.receptacle_location,
    }
    for fact in init:
        if not isinstance(fact, list) or not fact or not all(isinstance(word, str) for word in fact):
            continue  # distances and costs, which the game does not use
        predicate, *arguments = map(str, fact)
        facts.named.update(arguments)
        if predicate in unary and len(arguments) == 1:
            unary[predicate].add(arguments[0])
        elif len(arguments) != 2:
            continue  # a mark of the planner, such as (checked r)
        elif predicate in relations:
            relations[predicate].add(
                (_kind(arguments[0]), _kind(arguments[1]))
                if predicate == "cancontain"
                else (arguments[0], arguments[1])
            )
        elif predicate in maps:
            value = arguments[1] if predicate == "receptacleatlocation" else _kind(arguments[1])
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
    """What the file leaves unsaid: things without a kind are things all the same."""
    if not facts.agent_location:
        raise BadData(f"{where}: the PDDL problem does not say where the agent is (atLocation)")
    pairs = [*facts.inside, *facts.object_locations]
    for object_ in (
        *(o for o, _ in pairs),
        *(o for pair in facts.nested for o in pair),
        *([facts.held] if facts.held else []),
    ):
        facts.object_kinds.setdefault(object_, "")
    for mark in (*ABILITIES, *MARKS):
        for object_ in (facts.abilities if mark in facts.abilities else facts.marks)[mark]:
            facts.object_kinds.setdefault(object_, "")
    for receptacle in (
        *facts.receptacle_location,
        *facts.openable,
        *facts.opened,
        *(r for _, r in facts.inside),
    ):
        facts.receptacle_kinds.setdefault(receptacle, "")


def _kind(type_name: str) -> str:
    return type_name.removesuffix("type")


def read_goal(condition: Expression, where: str) -> Goal:
    """The goal that a PDDL condition says, one of the six of ALFWorld.

    Raises:
        BadData: it is none of them.
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
        told = " ".join(f"({' '.join(atom)})" for atom in sorted(atoms))
        raise BadData(
            f"{where}: the goal is none of ALFWorld's six kinds (pick, look, clean, heat, cool, pick two): {told:.300}"
        )
    return goal


def _atoms(
    condition: Expression, names: dict[str, str], counter: list[int], where: str
) -> Iterator[tuple[str, ...]]:
    """The facts that a condition of ``and`` and ``exists`` asks for, with a name of its own for every variable."""
    if isinstance(condition, str) or not condition:
        raise BadData(f"{where}: the goal has a part {condition!r:.60} that is no condition")
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
    return Goal(_kind(kinds[0][1]), _kind(receptacle_kind), "", count, frozenset({mark} - {""}))


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
    goal = Goal(_kind(kinds[object_]), "", _kind(kinds[lamp]))
    if atoms == expected | {("objectatlocation", lamp, location)}:
        return Goal(goal.object_kind, "", goal.lamp_kind, lamp_in_receptacle=False)
    receptacles = _only(atoms, "receptacleatlocation")
    if len(receptacles) == 1 and atoms == expected | {
        ("receptacleatlocation", receptacles[0][0], location),
        ("inreceptacle", lamp, receptacles[0][0]),
    }:
        return goal
    return None
