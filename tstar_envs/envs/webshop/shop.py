"""A shop: a catalogue with its tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tstar_envs.choices import SPLITS
from tstar_envs.data.faults import NOTHING_LEFT_OUT, LeftOut
from tstar_envs.envs.webshop.catalogue.catalogue import Catalogue
from tstar_envs.envs.webshop.task import ShopTask


@dataclass(frozen=True)
class Shop:
    """A catalogue and its tasks; never changes, and travels between processes by how it is opened."""

    tier: str
    catalogue: Catalogue
    tasks: dict[str, ShopTask]
    by_split: dict[str, tuple[str, ...]]
    opener: tuple[Callable[..., Shop], tuple[Any, ...]]
    left_out: LeftOut = NOTHING_LEFT_OUT

    def __deepcopy__(self, memo: dict[int, Any]) -> Shop:
        return self

    def __reduce__(self) -> tuple[Callable[..., Shop], tuple[Any, ...]]:
        return self.opener


def make_shop(
    tier: str, catalogue: Catalogue, tasks: list[ShopTask], opener: Callable[..., Shop], *arguments: Any
) -> Shop:
    """A shop of these tasks."""
    by_split = {split: tuple(task.id for task in tasks if task.split == split) for split in SPLITS}
    return Shop(tier, catalogue, {task.id: task for task in tasks}, by_split, (opener, arguments))
