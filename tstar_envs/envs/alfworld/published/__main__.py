"""Exports shipped games in the layout of ALFWorld's download.

``python -m tstar_envs.envs.alfworld.published --out FOLDER`` writes
``FOLDER/json_2.1.1/<split>/<task>-<Object>-None-<Receptacle>-<scene>/trial_<task id>/``. It needs the extra ``alfworld``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tstar_envs.choices import check_option
from tstar_envs.envs.alfworld.published.export import FOLDER_OF, write_scene_files
from tstar_envs.envs.alfworld.published.folders import PUBLISHED
from tstar_envs.envs.alfworld.shipped import scene_of
from tstar_envs.envs.alfworld.task import SHIPPED_SPLITS, SPLIT_ALIASES
from tstar_envs.envs.alfworld.task_types import TASK_TYPES
from tstar_envs.envs.alfworld.tasks import load_tasks
from tstar_envs.errors import TStarError, UnknownOption


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
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
    """Write the shipped games of a variant, and say how many there are of each split.

    Args:
        out: folder for the tree.
        split: one of ``SHIPPED_SPLITS``, "" for all.
        variant: one of ``TASK_TYPES``, or "all".
        count: only the first so many of each split; None for all.

    Returns:
        The exit code, 0.

    Raises:
        UnknownOption: no such split or variant, or no count above 0.
        MissingExtra: the package ``alfworld``, which has domain and grammar, is not installed.
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
