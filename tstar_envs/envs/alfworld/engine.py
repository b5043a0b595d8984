"""Original engine: TextWorld under ALFWorld's wrappers, and export of its game files."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tstar_envs.data.files import parse_json, read_text
from tstar_envs.envs.alfworld.game import NEEDED_ABILITY, Answer, Facts, Goal, Mirrored
from tstar_envs.envs.alfworld.rooms import LOOK, TASK_TYPES, Scene, scene_facts, spelling
from tstar_envs.envs.alfworld.tasks import (
    GAME_FILE,
    PUBLISHED,
    SHIPPED_SPLITS,
    SPLIT_ALIASES,
    Task,
    load_tasks,
    scene_of,
)
from tstar_envs.errors import BadData, MissingExtra, TStarError, UnknownOption
from tstar_envs.utils import check_option

FEATURE = "backend='textworld'"


@contextmanager
def _kept_as_it_is() -> Iterator[None]:
    """Restore the global state that the engine overwrites."""
    argv, stdout, data = sys.argv, sys.stdout, os.environ.get("ALFWORLD_DATA")
    try:
        if data is None:  # otherwise the import creates a folder in the home folder
            os.environ["ALFWORLD_DATA"] = tempfile.gettempdir()
        yield
    finally:
        sys.argv, sys.stdout = argv, stdout
        if data is None:
            os.environ.pop("ALFWORLD_DATA", None)


def alfworld_file(name: str, feature: str) -> str:
    """Read a text file of the installed package ``alfworld`` without importing it, such as ``data/alfred.pddl``.

    Raises:
        MissingExtra: the package is not installed.
    """
    spec = find_spec("alfworld")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtra(feature, "alfworld", "alfworld")
    return (Path(next(iter(spec.submodule_search_locations))) / name).read_text(encoding="utf-8")


class TextWorldGame:
    """Game in the original engine.

    Args:
        data: parsed contents of a ``game.tw-pddl`` file.

    Raises:
        MissingExtra: ``textworld`` or ``alfworld`` is not installed.
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        for package in ("textworld", "fast_downward", "alfworld"):
            if find_spec(package) is None:
                raise MissingExtra(FEATURE, package, "alfworld")
        with _kept_as_it_is(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings of these packages at import
            from alfworld.agents.environment.alfred_tw_env import AlfredDemangler, AlfredInfos
            from textworld.core import EnvInfos
            from textworld.envs.pddl import PddlEnv

            infos = EnvInfos(won=True, admissible_commands=True, extras=["gamefile"])
            self._env: Any = AlfredInfos(AlfredDemangler(PddlEnv(infos), shuffle=False))
            self._env.load(dict(data))

    def reset(self) -> Answer:
        """Start the game."""
        with _kept_as_it_is():
            return _answer(self._env.reset())

    def step(self, command: str) -> Answer:
        """Send a command; allowed even after the game is won."""
        state, _, _ = self._env.step(command)
        return _answer(state)


def _answer(state: Any) -> Answer:
    return Answer(str(state["feedback"]), tuple(map(str, state["admissible_commands"])), bool(state["won"]))


# Predicates in the domain's spelling.
_SPELLED = {
    "isreceptacleobject": "isReceptacleObject",
    "isclean": "isClean",
    "ishot": "isHot",
    "iscool": "isCool",
    "istoggled": "isToggled",
    "issliced": "isSliced",
}


def write_problem(facts: Facts, goal: Goal, name: str) -> str:
    """Write a PDDL problem of the domain ``alfred``."""
    locations = {
        *facts.receptacle_location.values(),
        *(place for _, place in facts.object_locations),
        facts.agent_location,
    }
    lines = ["agent1 - agent"]
    lines += [f"{raw} - object" for raw in sorted(facts.object_types)] + [
        f"{raw} - receptacle" for raw in sorted(facts.receptacle_types)
    ]
    lines += [f"{raw} - location" for raw in sorted(locations)]
    lines += [
        f"{_type(kind)} - otype"
        for kind in sorted({*facts.object_types.values()} | {kind for _, kind in facts.fits})
    ]
    lines += [
        f"{_type(kind)} - rtype"
        for kind in sorted({*facts.receptacle_types.values()} | {kind for kind, _ in facts.fits})
    ]
    init = [f"(receptacleType {raw} {_type(kind)})" for raw, kind in sorted(facts.receptacle_types.items())]
    init += [f"(objectType {raw} {_type(kind)})" for raw, kind in sorted(facts.object_types.items())]
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


FOLDER_OF = {
    **{split: split for split in SHIPPED_SPLITS},
    **{split: alias for alias, split in SPLIT_ALIASES.items()},
}


@lru_cache(maxsize=1)
def game_logic(feature: str) -> tuple[str, str]:
    """Read domain (PDDL) and grammar from the installed package ``alfworld``; MissingExtra without it."""
    return alfworld_file("data/alfred.pddl", feature), alfworld_file("data/alfred.twl2", feature)


def game_data(scene: Scene, name: str, feature: str = "exporting games") -> dict[str, Any]:
    """Create the contents of a scene's ``game.tw-pddl`` file.

    Args:
        scene: the scene.
        name: name of the problem.
        feature: feature name for the error message.

    Raises:
        MissingExtra: the package ``alfworld``, which provides domain and grammar, is not installed.
    """
    domain, grammar = game_logic(feature)
    return {
        "pddl_domain": domain,
        "grammar": grammar.replace("UNKNOWN GOAL", scene.description),
        "pddl_problem": write_problem(scene_facts(scene), scene.goal, name),
        "solvable": True,
        "walkthrough": None,
    }


def trajectory_data(scene: Scene, name: str) -> dict[str, Any]:
    """Create the fields of ``traj_data.json`` that ALFWorld's text code reads."""
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


def write_scene_files(scene: Scene, name: str, folder: Path, split: str) -> Path:
    """Write both files of a scene below ``folder`` and return the path of ``game.tw-pddl``."""
    title = f"{scene.task}-{scene.object}-None-{scene.receptacle}-{scene.house.scene}"
    target = folder / PUBLISHED / FOLDER_OF[split] / title / f"trial_{name}"
    target.mkdir(parents=True, exist_ok=True)
    (target / "traj_data.json").write_text(
        json.dumps(trajectory_data(scene, name), indent=1), encoding="utf-8"
    )
    game = target / GAME_FILE
    game.write_text(json.dumps(game_data(scene, name)), encoding="utf-8")
    return game


def task_data(task: Task, feature: str) -> dict[str, Any]:
    """Get the contents of a task's ``game.tw-pddl`` file, generated from its scene if there is no file.

    Raises:
        MissingExtra: the file must be generated and the package ``alfworld`` is not installed.
    """
    scene = scene_of(task)
    if scene is not None:
        return game_data(scene, task.id, feature)
    data: dict[str, Any] = parse_json(read_text(str(task.source)), task.source)
    return data


class Mirror:
    """Mirror of an episode in the original engine.

    It starts on demand and replays commands after a state was restored.
    """

    def __init__(self) -> None:
        self._live: tuple[str, tuple[str, ...], TextWorldGame] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_live": None}  # the engine is not pickled; it restarts on demand

    def start(self, task: Task) -> Mirrored:
        """Start a game.

        Raises:
            MissingExtra: the engine is not installed.
        """
        _, answer = self._replay(task, ())
        return Mirrored((), answer)

    def step(self, task: Task, before: Mirrored, typed: str, ours: Answer) -> Mirrored:
        """Send a command to the engine and compare its answer.

        Raises:
            BadData: its answer differs from this project's rules, so tags and expert would be wrong.
        """
        live, _ = self._replay(task, before.history)
        history = (*before.history, typed)
        self._live = None  # after a failure the engine's state is unknown
        answer = live.step(typed)
        self._live = task.id, history, live
        if (answer.feedback, answer.won) != (ours.feedback, ours.won):
            raise BadData(
                f"task {task.id!r}: after {typed!r:.80} the original engine says {answer.feedback!r:.200}, and the rules of "
                f"this project {ours.feedback!r:.200}; please report the game"
            )
        return Mirrored(history, answer)

    def _replay(self, task: Task, history: tuple[str, ...]) -> tuple[TextWorldGame, Answer]:
        """Bring the engine to the state after the given commands.

        Returns its last answer if it was restarted, else an empty one.
        """
        if self._live is not None and self._live[:2] == (task.id, history) and history:
            return self._live[2], Answer("", (), False)
        known = self._live[2] if self._live is not None and self._live[0] == task.id else None
        game = known or TextWorldGame(task_data(task, FEATURE))
        answer = game.reset()
        for typed in history:
            answer = game.step(typed)
        self._live = task.id, history, game
        return game, answer


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tstar_envs.envs.alfworld.published",
        description=__doc__.splitlines()[0] if __doc__ else None,
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="Folder that the tree json_2.1.1/<split>/... is written to."
    )
    parser.add_argument(
        "--split",
        default="",
        help=f"Split to export: {', '.join((*SHIPPED_SPLITS, *SPLIT_ALIASES))}; default: all.",
    )
    parser.add_argument(
        "--variant",
        default="all",
        help=f"Type of the tasks to export: {', '.join(TASK_TYPES)}; default: all.",
    )
    parser.add_argument(
        "--tasks", type=int, default=None, help="Export only the first N tasks of each split; default: all."
    )
    chosen = parser.parse_args(arguments)
    try:
        return export_games(
            chosen.out, SPLIT_ALIASES.get(chosen.split, chosen.split), chosen.variant, chosen.tasks
        )
    except (TStarError, OSError) as error:
        parser.exit(2, f"error: {error}\n")


def export_games(out: Path, split: str, variant: str, count: int | None) -> int:
    """Write the shipped games of a variant and print the number per split.

    Args:
        out: target folder.
        split: one of ``SHIPPED_SPLITS``, "" for all.
        variant: one of ``TASK_TYPES``, or "all".
        count: maximum number of games per split; None for all.

    Returns:
        The exit status, 0.

    Raises:
        UnknownOption: unknown split or variant, or a count below 1.
        MissingExtra: the package ``alfworld``, which provides domain and grammar, is not installed.
    """
    check_option("--split", split, ("", *SHIPPED_SPLITS))
    check_option("--variant", variant, ("all", *TASK_TYPES))
    if count is not None and count < 1:
        raise UnknownOption(f"--tasks must be at least 1, got {count}")
    tasks = load_tasks(variant, "mini")
    for name in SHIPPED_SPLITS if not split else (split,):
        ids = tasks.by_split[name][:count]
        for task_id in ids:
            scene = scene_of(tasks.tasks[task_id])
            if scene is not None:
                write_scene_files(scene, task_id, out, name)
        print(f"{len(ids)} games in {out / PUBLISHED / FOLDER_OF[name]}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
