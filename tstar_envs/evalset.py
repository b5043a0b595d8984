"""Evaluation sets: fixed panels of test tasks, and task sets with their hashes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gymnasium as gym

from tstar_envs.core import TextEnv
from tstar_envs.data.files import read_json
from tstar_envs.errors import PanelMismatch, UnknownOption
from tstar_envs.registry import find_entry
from tstar_envs.utils import canonical, check_option, digest_all

FOLDER = Path(__file__).parent / "panels"
# Characters kept of a task's digest, enough to find which task differs; the hash covers whole digests.
SHORT = 12
SUITES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "paper": (
            "tstar/HotpotQA",
            "tstar/NQ",
            "tstar/TriviaQA",
            "tstar/PopQA",
            "tstar/2WikiMultihopQA",
            "tstar/MuSiQue",
            "tstar/Bamboogle",
            "tstar/WebShop",
            "tstar/ALFWorld",
            "tstar/Blocksworld-stack",
            "tstar/Blocksworld-unstack",
            "tstar/Sokoban-easy",
            "tstar/Sokoban-medium",
            "tstar/Sokoban-hard",
        ),
    }
)


@dataclass(frozen=True)
class PanelTasks:
    """Tasks of one environment in an evaluation set.

    Attributes:
        env: Gymnasium id.
        split: split of the tasks.
        rules_version: rules version of the environment.
        tasks: ids, in the order of the split.
        hash: hash over all of these fields, the contents of the tasks and their shared world.
        world: digest of the data shared by all tasks (``TextEnv.world_digest``).
        digests: prefix of each task's digest, in the order of the tasks.
    """

    env: str
    split: str
    rules_version: str
    tasks: tuple[str, ...]
    hash: str
    world: str
    digests: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Panel(Mapping[str, PanelTasks]):
    """Standard evaluation set: a mapping from environment ids to their tasks, in registry order.

    ``panel[name]`` also takes short names.

    Attributes:
        version: name of the version.
        entries: environment id -> its tasks.
        hash: hash over the hashes of all entries.
    """

    version: str
    entries: Mapping[str, PanelTasks]
    hash: str

    def __getitem__(self, name: str) -> PanelTasks:
        """Look up the tasks of an environment, by id or short name, in any case.

        Raises:
            UnknownOption: unknown environment, or not part of this panel; the message lists the valid ones.
        """
        found = self.entries.get(find_entry(name).id)
        if found is None:
            raise UnknownOption(f"{name!r} is not in panel {self.version}; it has: {', '.join(self.entries)}")
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def suite(self, name: str) -> tuple[str, ...]:
        """List the ids of a suite; ``paper`` has the rows of the paper's tables.

        Raises:
            UnknownOption: unknown suite.
        """
        check_option("suite", name, tuple(SUITES))
        return SUITES[name]

    def check(self, env: gym.Env[Any, Any], name: str | None = None) -> None:
        """Require that an environment plays this panel's tasks under its rules, whatever data it was made with.

        Args:
            env: environment of ``gym.make``, with or without its wrappers.
            name: id or short name of an environment that was not made by ``gym.make``.

        Raises:
            PanelMismatch: another rules version, missing or different tasks, or a different corpus or shop; the message says which.
            UnknownOption: not an environment of this suite, or it has no id and ``name`` is missing.
        """
        inner = env.unwrapped
        if not isinstance(inner, TextEnv):
            raise UnknownOption(f"a panel is of environments of tstar_envs, not of a {type(inner).__name__}")
        name = name or (inner.spec.id if inner.spec is not None else None)
        if name is None:
            raise UnknownOption(
                f"this {type(inner).__name__} was not made by gym.make, so say which id it plays: check(env, 'tstar/...')"
            )
        part = self[name]
        differs = "; ".join(_differences(part, inner))
        if differs:
            raise PanelMismatch(
                f"{part.env} made here (data tier {inner.tier!r}) does not match panel {self.version}: {differs}. Play it with the "
                "shipped data (data='mini') in a version of tstar that has these rules, or leave the panel out"
            )


def _differences(part: PanelTasks, env: TextEnv[Any, Any]) -> list[str]:
    found = []
    rules = str(env.metadata["rules_version"])
    if rules != part.rules_version:
        found.append(f"its rules version is {rules}, the panel's is {part.rules_version}")
    known = set(env.task_ids(part.split))
    missing = [task for task in part.tasks if task not in known]
    if missing:
        found.append(
            f"{len(missing)} of {len(part.tasks)} tasks are not in its split {part.split!r}, the first is {missing[0]!r}"
        )
    digests = {task: env.task_digest(task) for task in part.tasks if task in known}
    short = dict(zip(part.tasks, part.digests, strict=True))
    changed = [task for task, digest in digests.items() if not digest.startswith(short[task])]
    if changed:
        found.append(
            f"{len(changed)} of {len(part.tasks)} tasks have other contents, the first is {changed[0]!r}"
        )
    if found:  # do not read the shared world (minutes for a public corpus or shop): the tasks differ already
        return found
    world = env.world_digest()
    if world != part.world:
        return ["its shared data (the corpus, the shop) differ"]
    return [] if hash_of(part.env, part.split, rules, world, digests) == part.hash else ["its hash differs"]


def hash_of(env: str, split: str, rules_version: str, world: str, tasks: Mapping[str, str]) -> str:
    """Hash one entry of an evaluation set.

    Args:
        world: digest of the shared world, ``TextEnv.world_digest``.
        tasks: task id -> ``TextEnv.task_digest``, in order.
    """
    return digest_all([env, split, rules_version, world, canonical(list(tasks.items()))])


@lru_cache
def panel(version: str) -> Panel:
    """Load a standard evaluation set by its version.

    Example:
        >>> from tstar_envs import panel
        >>> v1 = panel("v1")
        >>> len(v1["sokoban-easy"].tasks), v1.suite("paper")[:2]
        (200, ('tstar/HotpotQA', 'tstar/NQ'))

    Args:
        version: ``v1``. A released version never changes; changed rules or tasks get a new version.

    Raises:
        UnknownOption: unknown version; the message lists the valid ones.
    """
    check_option("panel", version, panel_versions())
    record = read_json(FOLDER / f"{version}.json")
    entries = {
        env: PanelTasks(
            env,
            part["split"],
            part["rules_version"],
            tuple(part["tasks"]),
            part["hash"],
            part["world"],
            tuple(part["tasks"].values()),
        )
        for env, part in record["entries"].items()
    }
    return Panel(version, entries, digest_all([version, *(part.hash for part in entries.values())]))


panel_of = panel  # for functions with an argument named panel


def panel_versions() -> tuple[str, ...]:
    """List the versions of the standard evaluation set."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


@dataclass(frozen=True)
class TaskSet:
    """Tasks of one environment with their hash. Made by ``task_set``.

    Attributes:
        env: Gymnasium id.
        split: split of the tasks.
        rules_version: rules version of the environment.
        ids: task ids, in order.
        hash: hash over the fields above, the contents of the tasks and their shared world. The tasks of a panel have the panel's hash.
        panel: version of the panel, None if the tasks are not those of a panel.
        options: options of the environment; not part of the hash.
    """

    env: str
    split: str
    rules_version: str
    ids: tuple[str, ...]
    hash: str
    panel: str | None
    options: dict[str, Any]

    def make(self) -> TextEnv[Any, Any]:
        """Make a new environment for these tasks, without Gymnasium's wrappers."""
        return find_entry(self.env).make(split=self.split, **self.options)

    def id_at(self, index: int) -> str:
        """Look up a task by its index.

        Raises:
            UnknownOption: the index is out of range.
        """
        if not 0 <= index < len(self.ids):
            raise UnknownOption(
                f"there is no task {index}: {self.env}, split {self.split!r}, has {len(self.ids)} here, from 0"
            )
        return self.ids[index]

    def record(self) -> dict[str, Any]:
        """Summary of the task set for tables and logs."""
        return {
            "env": self.env,
            "split": self.split,
            "rules_version": self.rules_version,
            "panel": self.panel,
            "tasks_hash": self.hash,
        }


def task_set(
    env: str, *, split: str = "test", panel: str | None = None, limit: int | None = None, **options: Any
) -> TaskSet:
    """Select tasks of an environment, with their hash.

    Example:
        >>> from tstar_envs import task_set
        >>> tasks = task_set("sokoban-easy", split="valid", limit=3)
        >>> env = tasks.make()
        >>> observation, info = env.reset(options={"task": tasks.ids[0]})
        >>> info["task_id"] == tasks.id_at(0)
        True

    Args:
        env: Gymnasium id or short name.
        split: take the tasks of this split, in its order.
        panel: take the tasks and the split of a panel (``v1``) instead.
        limit: take only the first tasks, at most so many.
        options: options of the environment.

    Raises:
        UnknownOption: unknown environment, split, panel or option, or a limit below 1.
        PanelMismatch: the environment made here does not play the panel's tasks.
    """
    if limit is not None and limit < 1:
        raise UnknownOption(f"limit must be 1 or more, got {limit}")
    entry = find_entry(env)
    chosen = panel_of(panel) if panel is not None else None
    part = chosen[entry.id] if chosen is not None else None
    split = part.split if part is not None else split
    made = entry.make(split=split, **options)
    try:
        if chosen is not None:
            chosen.check(made, entry.id)
        ids = tuple((part.tasks if part is not None else made.task_ids(split))[:limit])
        if part is not None and len(ids) == len(part.tasks):
            own = part.hash
        else:
            digests = {task: made.task_digest(task) for task in ids}
            own = hash_of(entry.id, split, entry.rules_version, made.world_digest(), digests)
    finally:
        made.close()
    return TaskSet(entry.id, split, entry.rules_version, ids, own, panel, dict(options))
