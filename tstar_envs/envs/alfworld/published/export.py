"""Writes scenes as the files of the public format, which ALFWorld's own code plays: ``game.tw-pddl`` and ``traj_data.json``.

Domain and grammar are not this project's: they are read from the installed package ``alfworld`` (extra ``alfworld``).
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from tstar_envs.data.files import parse_json, read_text
from tstar_envs.envs.alfworld.game.scene import Scene, scene_facts
from tstar_envs.envs.alfworld.published.folders import GAME_FILE, PUBLISHED
from tstar_envs.envs.alfworld.published.textworld_game import alfworld_file
from tstar_envs.envs.alfworld.published.written_problem import write_problem
from tstar_envs.envs.alfworld.shipped import scene_of
from tstar_envs.envs.alfworld.task import SHIPPED_SPLITS, SPLIT_ALIASES, Task
from tstar_envs.envs.alfworld.task_types import LOOK

FOLDER_OF = {
    **{split: split for split in SHIPPED_SPLITS},
    **{split: alias for alias, split in SPLIT_ALIASES.items()},
}


@lru_cache(maxsize=1)
def game_logic(feature: str) -> tuple[str, str]:
    """Domain (PDDL) and grammar of every game, as the installed package ``alfworld`` has them; MissingExtra without it."""
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
    domain, grammar = game_logic(feature)
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


def task_data(task: Task, feature: str) -> dict[str, Any]:
    """The contents of a task's ``game.tw-pddl`` file, made from its scene where it has none.

    Raises:
        MissingExtra: it has none, and the package ``alfworld`` with domain and grammar is not installed.
    """
    scene = scene_of(task)
    if scene is not None:
        return game_data(scene, task.id, feature)
    data: dict[str, Any] = parse_json(read_text(str(task.source)), task.source)
    return data
