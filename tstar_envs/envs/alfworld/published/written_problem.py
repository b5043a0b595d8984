"""Writes the PDDL problem of a game."""

from __future__ import annotations

from tstar_envs.envs.alfworld.game.facts import NEEDED_ABILITY, Facts, Goal
from tstar_envs.envs.alfworld.game.kinds import spelling

# Predicates as the domain spells them.
_SPELLED = {
    "isreceptacleobject": "isReceptacleObject",
    "isclean": "isClean",
    "ishot": "isHot",
    "iscool": "isCool",
    "istoggled": "isToggled",
    "issliced": "isSliced",
}


def write_problem(facts: Facts, goal: Goal, name: str) -> str:
    """A PDDL problem of the domain ``alfred``."""
    locations = {
        *facts.receptacle_location.values(),
        *(place for _, place in facts.object_locations),
        facts.agent_location,
    }
    lines = ["agent1 - agent"]
    lines += [f"{raw} - object" for raw in sorted(facts.object_kinds)] + [
        f"{raw} - receptacle" for raw in sorted(facts.receptacle_kinds)
    ]
    lines += [f"{raw} - location" for raw in sorted(locations)]
    lines += [
        f"{_type(kind)} - otype"
        for kind in sorted({*facts.object_kinds.values()} | {kind for _, kind in facts.fits})
    ]
    lines += [
        f"{_type(kind)} - rtype"
        for kind in sorted({*facts.receptacle_kinds.values()} | {kind for kind, _ in facts.fits})
    ]
    init = [f"(receptacleType {raw} {_type(kind)})" for raw, kind in sorted(facts.receptacle_kinds.items())]
    init += [f"(objectType {raw} {_type(kind)})" for raw, kind in sorted(facts.object_kinds.items())]
    init += [f"(canContain {_type(place)} {_type(kind)})" for place, kind in sorted(facts.fits)]
    for predicate, members in (*facts.abilities.items(), *facts.marks.items()):
        init += [f"({_SPELLED.get(predicate, predicate)} {raw})" for raw in sorted(members)]
    init += [f"(openable {raw})" for raw in sorted(facts.openable)] + [
        f"(opened {raw})" for raw in sorted(facts.opened)
    ]
    init += [f"(inReceptacle {raw} {place})" for raw, place in sorted(facts.inside)]
    init += [f"(inReceptacleObject {inner} {outer})" for inner, outer in sorted(facts.nested)]
    init += [f"(objectAtLocation {raw} {place})" for raw, place in sorted(facts.object_locations)]
    init += [
        f"(receptacleAtLocation {raw} {place})" for raw, place in sorted(facts.receptacle_location.items())
    ]
    init += [f"(holds agent1 {facts.held})", "(holdsAny agent1)"] if facts.held else []
    init.append(f"(atLocation agent1 {facts.agent_location})")
    objects, facts_text = ("\n".join(f"    {line}" for line in part) for part in (lines, init))
    problem = f"(define (problem plan_{name.replace('-', '_')})\n(:domain alfred)\n"
    return f"{problem}(:objects\n{objects}\n)\n(:init\n{facts_text}\n)\n(:goal {_condition(goal)})\n)\n"


def _type(kind: str) -> str:
    return f"{spelling().get(kind, kind)}Type"


def _condition(goal: Goal) -> str:
    kind = f"(objectType ?o {_type(goal.object_kind)})"
    if goal.lamp_kind:
        lit = (
            f"(objectType ?ot {_type(goal.lamp_kind)}) (toggleable ?ot) (isToggled ?ot) (receptacleAtLocation ?r ?l) (atLocation ?a ?l) "
            "(inReceptacle ?ot ?r)"
        )
        return (
            f"(and (exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and {lit})) "
            f"(exists (?o - object ?a - agent) (and {kind} (holds ?a ?o))))"
        )
    place = f"(receptacleType ?r {_type(goal.receptacle_kind)})"
    if goal.count == 2:
        first, second = (
            f"(objectType ?o{n} {_type(goal.object_kind)}) {place} (inReceptacle ?o{n} ?r)" for n in (1, 2)
        )
        inner = f"(exists (?o2 - object) (and (not (= ?o1 ?o2)) {second}))"
        return f"(and (exists (?r - receptacle) (exists (?o1 - object) (and {first} {inner}))))"
    treated = "".join(f"({NEEDED_ABILITY[mark]} ?o) ({_SPELLED[mark]} ?o) " for mark in sorted(goal.marks))
    return f"(and (exists (?r - receptacle) (exists (?o - object) (and {treated}(inReceptacle ?o ?r) {kind} {place}))))"
