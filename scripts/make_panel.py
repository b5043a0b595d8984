"""Make tstar_envs/panels/VERSION.json: the test tasks of a standard evaluation, and digests of their contents.

    python scripts/make_panel.py v1 --out tstar_envs/panels/v1.json

200 tasks of each id, or all where there are fewer: of each kind (of question, of household task; where there are none, of each length
of a shortest solution) its share, drawn by a fixed draw, in the order of the split. A released version is never made anew.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym

from tstar_envs import EnvEntry, StableRandom, TextEnv, list_envs, write_whole
from tstar_envs.evalset import SHORT, hash_of

TASKS, SPLIT = 200, "test"
STRATA = ("kind", "task_type", "optimal_length")  # the first of these that an environment reports


def stratum(env: TextEnv[Any, Any], task: str) -> str:
    _, info = env.reset(options={"task": task})
    return next((f"{info[name]:>3}" for name in STRATA if info.get(name) is not None), "")


def shares(sizes: dict[str, int], count: int) -> dict[str, int]:
    """How many of each stratum make ``count`` in all: its share rounded down, and one more for the largest remainders."""
    whole = sum(sizes.values())
    taken = {name: size * count // whole for name, size in sizes.items()}
    by_remainder = sorted(sizes, key=lambda name: (-(sizes[name] * count % whole), name))
    for name in by_remainder[: count - sum(taken.values())]:
        taken[name] += 1
    return taken


def choose(env: TextEnv[Any, Any], ids: Sequence[str], seed: str) -> list[str]:
    if len(ids) <= TASKS:
        return list(ids)
    strata: dict[str, list[str]] = defaultdict(list)
    for task in ids:
        strata[stratum(env, task)].append(task)
    taken = shares({name: len(of) for name, of in strata.items()}, TASKS)
    chosen = {
        task
        for name, of in strata.items()
        for task in StableRandom(f"{seed}/{name}").shuffled(of)[: taken[name]]
    }
    return [task for task in ids if task in chosen]


def entry_of(entry: EnvEntry, version: str) -> dict[str, Any]:
    env = gym.make(entry.id, data="mini", split=SPLIT, disable_env_checker=True).unwrapped
    assert isinstance(env, TextEnv)  # noqa: S101
    tasks = {
        task: env.task_digest(task)
        for task in choose(env, env.task_ids(SPLIT), f"panel/{version}/{entry.id}")
    }
    world = env.world_digest()
    return {
        "split": SPLIT,
        "rules_version": entry.rules_version,
        "world": world,
        "hash": hash_of(entry.id, SPLIT, entry.rules_version, world, tasks),
        "tasks": {task: digest[:SHORT] for task, digest in tasks.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("version", help="name of the panel, for example v1")
    parser.add_argument("--out", type=Path, required=True, help="file to write the panel to")
    arguments = parser.parse_args()
    entries = {entry.id: entry_of(entry, arguments.version) for entry in list_envs()}
    write_whole(
        arguments.out, json.dumps({"version": arguments.version, "entries": entries}, indent=1) + "\n"
    )
    print(
        f"{arguments.out}: {sum(len(part['tasks']) for part in entries.values())} tasks of {len(entries)} environments"
    )


if __name__ == "__main__":
    main()
