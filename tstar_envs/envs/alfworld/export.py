"""Writes scenes as the files of the public format, which ALFWorld's own code plays: ``game.tw-pddl`` and ``traj_data.json``.

``python -m tstar_envs.envs.alfworld.export --out FOLDER`` writes shipped games in the layout of ALFWorld's download:
``FOLDER/json_2.1.1/<split>/<task>-<Object>-None-<Receptacle>-<scene>/trial_<task id>/``. Domain and grammar are not this
project's: they are read from the installed package ``alfworld`` (extra ``alfworld``).
"""

from __future__ import annotations

import argparse
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from tstar_envs.choices import check_option
from tstar_envs.envs.alfworld.catalogue import spelling
from tstar_envs.envs.alfworld.distribution import LOOK, TASK_TYPES
from tstar_envs.envs.alfworld.facts import NEEDED_ABILITY, Facts, Goal
from tstar_envs.envs.alfworld.scene import Scene, scene_facts
from tstar_envs.envs.alfworld.tasks import GAME_FILE, PUBLISHED, SPLIT_ALIASES, SPLITS, load_tasks
from tstar_envs.envs.alfworld.textworld_game import alfworld_file
from tstar_envs.errors import TStarError, UnknownOption

# Predicates as the domain spells them.
_SPELLED = {
    "isreceptacleobject": "isReceptacleObject",
    "isclean": "isClean",
    "ishot": "isHot",
    "iscool": "isCool",
    "istoggled": "isToggled",
    "issliced": "isSliced",
}
FOLDER_OF = {**{split: split for split in SPLITS}, **{split: alias for alias, split in SPLIT_ALIASES.items()}}


@lru_cache(maxsize=1)
def _logic(feature: str) -> tuple[str, str]:
    return alfworld_file("data/alfred.pddl", feature), alfworld_file("data/alfred.twl2", feature)


def game_data(scene: Scene, name: str, feature: str = "exporting games") -> dict[str, Any]:
    """The contents of the ``game.tw-pddl`` file of a scene.

    Args:
        scene: what to write.
        name: of the problem.
        feature: what needs it, for the error.

    Raises:
        MissingExtra: the package ``alfworld``, which has domain and grammar, is not installed.
    """
    domain, grammar = _logic(feature)
    return {
        "pddl_domain": domain,
        "grammar": grammar.replace("UNKNOWN GOAL", scene.description),
        "pddl_problem": write_problem(scene_facts(scene), scene.goal, name),
        "solvable": True,
        "walkthrough": None,
    }


def trajectory_data(scene: Scene, name: str) -> dict[str, Any]:
    """The part of ``traj_data.json`` that ALFWorld's text code reads."""
    looking = scene.task == LOOK
    number = scene.house.scene
    return {
        "task_id": f"trial_{name}",
        "task_type": scene.task,
        "pddl_params": {
            "object_target": scene.object,
            "parent_target": "" if looking else scene.receptacle,
            "toggle_target": scene.receptacle if looking else "",
            "mrecep_target": "",
            "object_sliced": False,
        },
        "scene": {"floor_plan": f"FloorPlan{number}", "scene_num": number},
        "turk_annotations": {"anns": [{"task_desc": f"{scene.description}.", "high_descs": []}]},
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


def write_scene_files(scene: Scene, name: str, folder: Path, split: str) -> Path:
    """Write both files of a scene below ``folder``; gives the path of ``game.tw-pddl``."""
    title = f"{scene.task}-{scene.object}-None-{scene.receptacle}-{scene.house.scene}"
    target = folder / PUBLISHED / FOLDER_OF[split] / title / f"trial_{name}"
    target.mkdir(parents=True, exist_ok=True)
    (target / "traj_data.json").write_text(
        json.dumps(trajectory_data(scene, name), indent=1), encoding="utf-8"
    )
    game = target / GAME_FILE
    game.write_text(json.dumps(game_data(scene, name)), encoding="utf-8")
    return game


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="folder for the tree json_2.1.1/<split>/...")
    parser.add_argument(
        "--split", default="", help=f"one of {', '.join((*SPLITS, *SPLIT_ALIASES))}; default: all"
    )
    parser.add_argument("--variant", default="all", help=f"one of {', '.join(TASK_TYPES)}; default: all")
    parser.add_argument(
        "--tasks", type=int, default=None, help="the first N tasks of each split; default: all"
    )
    chosen = parser.parse_args(arguments)
    try:
        return _export(
            chosen.out, SPLIT_ALIASES.get(chosen.split, chosen.split), chosen.variant, chosen.tasks
        )
    except (TStarError, OSError) as error:
        parser.exit(2, f"error: {error}\n")


def _export(out: Path, split: str, variant: str, count: int | None) -> int:
    check_option("--split", split, ("", *SPLITS))
    check_option("--variant", variant, ("all", *TASK_TYPES))
    if count is not None and count < 1:
        raise UnknownOption(f"--tasks must be at least 1, got {count}")
    tasks = load_tasks(variant, "mini")
    for name in SPLITS if not split else (split,):
        ids = tasks.by_split[name][:count]
        for task_id in ids:
            scene = tasks.tasks[task_id].scene
            if scene is not None:
                write_scene_files(scene, task_id, out, name)
        print(f"{len(ids)} games in {out / PUBLISHED / FOLDER_OF[name]}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
