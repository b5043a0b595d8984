"""A shop: a catalogue with its tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tstar_envs.data.faults import NOTHING_LEFT_OUT, LeftOut
from tstar_envs.data.tasks import LoadedTasks, ids_by_split
from tstar_envs.envs.webshop.catalogue.catalogue import Catalogue
from tstar_envs.envs.webshop.task import Task


@dataclass(frozen=True, eq=False, kw_only=True)
class Shop(LoadedTasks[Task]):
    """The tasks of a shop and its catalogue; they travel between processes by how the shop is opened.

    Attributes:
        catalogue: the products and their index.
        opener: a function and its arguments, which give this shop again.
    """

    catalogue: Catalogue
    opener: tuple[Callable[..., Shop], tuple[Any, ...]]

    def __reduce__(self) -> tuple[Callable[..., Shop], tuple[Any, ...]]:
        return self.opener


def make_shop(
    tier: str,
    catalogue: Catalogue,
    tasks: list[Task],
    opener: Callable[..., Shop],
    *arguments: Any,
    left_out: LeftOut = NOTHING_LEFT_OUT,
) -> Shop:
    """A shop of these tasks, which ``opener(*arguments)`` gives again."""
    return Shop(
        "WebShop",
        tier,
        {task.id: task for task in tasks},
        ids_by_split((task.id, task.split) for task in tasks),
        left_out=left_out,
        catalogue=catalogue,
        opener=(opener, arguments),
    )
