"""Reads the PDDL problem of a game file."""

from __future__ import annotations

from tstar_envs.data.limits import GAME_OBJECTS
from tstar_envs.envs.alfworld.game.facts import ABILITIES, MARKS, Facts, Goal
from tstar_envs.envs.alfworld.published.expressions import Expression, read_definition
from tstar_envs.envs.alfworld.published.goal import kind_of, read_goal
from tstar_envs.errors import BadData


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
