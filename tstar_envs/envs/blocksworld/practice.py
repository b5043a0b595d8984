"""Endless practice: fresh problems for warm starts and curricula, none of them a held-out one under other names."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tstar_envs.data.tasks import LoadedTasks
from tstar_envs.envs.blocksworld.generate import CanonicalForm, canonical_form, fresh_problems
from tstar_envs.envs.blocksworld.problem import Task
from tstar_envs.envs.blocksworld.tasks import VARIANTS, load_shipped, task_set
from tstar_envs.errors import UnknownOption
from tstar_envs.utils import check_option

TASKS = 160


@lru_cache(maxsize=1)
def held_out_forms() -> frozenset[CanonicalForm]:
    """Canonical forms of the shipped valid and test problems of both variants."""
    shipped = [task for variant in VARIANTS for task in load_shipped(variant).tasks.values()]
    return frozenset(canonical_form(task.problem) for task in shipped if task.split != "train")


def practice_set(
    seed: int | str, variants: str | Sequence[str] = VARIANTS, size: int = TASKS
) -> LoadedTasks[Task]:
    """Fresh train tasks, the same for the same seed.

    Args:
        seed: of the tasks.
        variants: ``stack``, ``unstack``, or several of them, in turn.
        size: how many.

    Raises:
        UnknownOption: no variant, or an unknown one.
    """
    variants = (variants,) if isinstance(variants, str) else tuple(variants)
    if not variants:
        raise UnknownOption(f"no variant to practise; choose of: {', '.join(VARIANTS)}")
    for variant in variants:
        check_option("variants", variant, VARIANTS)
    streams = [fresh_problems(f"practice/{seed}", variant, held_out_forms()) for variant in variants]
    problems = [next(streams[number % len(streams)]) for number in range(size)]
    tasks = [Task(f"practice-{seed}-{number:04d}", "train", p) for number, p in enumerate(problems)]
    return task_set("practice", tasks)
