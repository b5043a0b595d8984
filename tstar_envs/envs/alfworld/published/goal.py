"""Reads the goal of a PDDL problem: one of the forms in which ALFWorld's games write the six kinds of task."""

from __future__ import annotations

from collections.abc import Iterator

from tstar_envs.envs.alfworld.game.facts import Goal
from tstar_envs.envs.alfworld.published.expressions import Expression
from tstar_envs.errors import BadData


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
        found = " ".join(f"({' '.join(atom)})" for atom in sorted(atoms))
        raise BadData(
            f"{where}: the goal is none of ALFWorld's six kinds (pick, look, clean, heat, cool, pick two): {found:.300}"
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
    """The kind that a type of the domain stands for: ``mug`` for ``mugtype``."""
    return type_name.removesuffix("type")
