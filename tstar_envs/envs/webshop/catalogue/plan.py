"""What a store is made from, and where it lies."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tstar_envs.data import locate
from tstar_envs.data.faults import Faults
from tstar_envs.envs.webshop.catalogue.catalogue import Catalogue
from tstar_envs.envs.webshop.catalogue.nouns import Tagger
from tstar_envs.envs.webshop.catalogue.product import Product
from tstar_envs.envs.webshop.task import Task

FORMAT = 3  # to be raised with every change of the files or of what they hold, the analysis of texts included


def webshop_home() -> Path:
    """``$TSTAR_DATA/webshop``."""
    return locate.data_home() / "webshop"


class Plan(NamedTuple):
    """What a store is made from.

    Attributes:
        store: its folder.
        products: reads the products, the same on every call.
        price: draws the price of one.
        tagger: finds the nouns of those that come without.
        tasks: makes the tasks, when the catalogue is there.
        large: whether building takes minutes and must not be done in memory.
        by_asin: see ``Catalogue``.
        faults: collect what of products and goals cannot be used, where they come from outside.
    """

    store: Path
    products: Callable[[], Iterable[Product]]
    price: Callable[[Product], float]
    tagger: Tagger
    tasks: Callable[[Catalogue], list[Task]]
    large: bool = False
    by_asin: bool = False
    faults: tuple[Faults, Faults] = (Faults(), Faults())


def store_folder(origin: str, sources: Sequence[Path], *variant: Any) -> Path:
    """Where the store of some source files lies.

    Args:
        origin: what names the set, whatever is in it at the moment.
        sources: its files; another size or time of change means another store.
        variant: what else the store depends on.
    """
    now = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in sources]
    return webshop_home() / "stores" / "-".join(map(_digest, ((FORMAT, origin), now, variant)))


def _digest(value: Any) -> str:
    return hashlib.blake2b(repr(value).encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
