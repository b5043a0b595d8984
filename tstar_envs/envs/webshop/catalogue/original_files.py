"""A shop from the original's files: what its catalogue and its goals are made from."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from tstar_envs.data.faults import Faults
from tstar_envs.data.files import read_json, regular_file
from tstar_envs.data.limits import FILE_BYTES
from tstar_envs.envs.webshop.catalogue import json_stream, original_products
from tstar_envs.envs.webshop.catalogue.catalogue import Catalogue
from tstar_envs.envs.webshop.catalogue.json_stream import where_is
from tstar_envs.envs.webshop.catalogue.nouns import best_tagger
from tstar_envs.envs.webshop.catalogue.original_goals import (
    check_goal,
    draw_price,
    human_goals,
    make_tasks,
    shuffle_goals,
    synthetic_goals,
)
from tstar_envs.envs.webshop.catalogue.plan import Plan, store_folder
from tstar_envs.envs.webshop.catalogue.records import Records
from tstar_envs.envs.webshop.task import Task
from tstar_envs.errors import BadData, MissingData

LARGE_BYTES = 64_000_000  # files up to this size are read as a whole


def source_paths(folder: Path) -> list[Path]:
    """The files of a folder that a shop is made from, the products first.

    Raises:
        MissingData: no products.
        BadData: a pipe or a device has the name of one.
    """
    path = _pick(folder, "items_shuffle")
    if path is None:
        raise MissingData(
            f"no items_shuffle*.json in {folder}; scripts/fetch_data webshop (1.18 million products) or webshop-1000 fetches the "
            "original's files, and data='mini' works without any"
        )
    others = (
        _pick(folder, "items_ins_v2"),
        *(folder / name for name in ("items_human_ins.json", "goals.json", "prices.json")),
    )
    return [
        regular_file(path),
        *(regular_file(other) for other in others if other is not None and other.exists()),
    ]


def plan(folder: Path, seed: int, skip_bad: bool = False) -> Plan:
    """How the shop of a folder is built; see ``tasks.load_shop``."""
    sources = source_paths(folder)
    path, extra = sources[0], _pick(folder, "items_ins_v2")
    human, fixed, fixed_prices = (
        folder / name for name in ("items_human_ins.json", "goals.json", "prices.json")
    )
    product_faults, goal_faults = Faults(skip_bad), Faults(skip_bad)
    tagger = best_tagger()
    store = store_folder(
        str(folder.resolve()), sources, seed, tagger.name, *(["skip_bad"] if skip_bad else [])
    )
    prices = _fixed_prices(fixed_prices) if fixed_prices.is_file() else {}
    records = store.with_name(store.name + ".attributes")

    @lru_cache(maxsize=1)
    def attributes() -> Mapping[str, Any]:
        if extra is None:
            return {}
        if extra.stat().st_size <= LARGE_BYTES:
            read: dict[str, Any] = _read_json(extra, dict)
            return read
        return Records.write(records, json_stream.stream_object(extra))

    def tasks(catalogue: Catalogue) -> list[Task]:
        if fixed.is_file():
            _read_json(fixed, list)  # what follows is less strict about commas
            goals = []
            for number, (where, goal) in enumerate(json_stream.stream_array(fixed)):
                with goal_faults.collect(f"{where}, goal {number}"):
                    goals.append(check_goal(goal, f"{where}, goal {number}"))
        else:
            goals = shuffle_goals(list(_draw_goals(catalogue, attributes, extra, human, seed, goal_faults)))
        shutil.rmtree(records, ignore_errors=True)  # it may never have been needed
        goal_faults.settle(len(goals), "goals")
        if not goals:
            raise _no_goals(
                folder,
                [source for source in (fixed, human, extra) if source is not None and source in sources],
            )

        def nouns(goal: dict[str, Any]) -> list[str]:
            number = catalogue.find(goal["asin"])
            product = catalogue.product(number) if number is not None else None
            same = product is not None and product["name"] == goal["name"]
            return list(product["nouns"]) if product is not None and same else tagger.nouns(goal["name"])

        return make_tasks(goals, nouns)

    return Plan(
        store,
        lambda: original_products.read_products(path, attributes(), extra, product_faults),
        lambda product: (
            float(prices[product["asin"]]) if product["asin"] in prices else draw_price(product, seed)
        ),
        tagger,
        tasks,
        path.stat().st_size > LARGE_BYTES,
        by_asin=True,
        faults=(product_faults, goal_faults),
    )


def _read_json(path: Path, kind: type) -> Any:
    """One of the smaller files; control characters in its texts need not be escaped, as in the products."""
    return read_json(path, kind, FILE_BYTES, strict=False)


def _no_goals(folder: Path, sources: list[Path]) -> MissingData:
    """Why a shop has products and no goal."""
    if not sources:
        return MissingData(
            f"{folder}: products, but no goals: add items_human_ins.json (instructions of people), items_ins_v2*.json (from which goals "
            "are made) or goals.json, as scripts/fetch_data webshop does"
        )
    names = ", ".join(source.name for source in sources)
    return MissingData(
        f"{folder}: no goal in {names} is for one of its products; the keys there must be ASINs of items_shuffle*.json"
    )


def _pick(folder: Path, stem: str) -> Path | None:
    """The original's file of the whole set, else the only (or first) one with a number in its name."""
    whole = folder / f"{stem}.json"
    return whole if whole.is_file() else next(iter(sorted(folder.glob(f"{stem}*.json"))), None)


def _fixed_prices(path: Path) -> dict[str, Any]:
    prices: dict[str, Any] = _read_json(path, dict)
    for asin, price in prices.items():
        if (
            isinstance(price, bool)
            or not isinstance(price, int | float)
            or not abs(price) <= sys.float_info.max
        ):
            raise BadData(f"{where_is(path, asin)} must hold a number, found {price!r:.80}")
    return prices


def _draw_goals(
    catalogue: Catalogue,
    attributes: Callable[[], Mapping[str, Any]],
    extra: Path | None,
    human: Path,
    seed: int,
    faults: Faults,
) -> Iterator[dict[str, Any]]:
    """Human goals where the folder has them, else synthetic ones, in the order of the products."""
    written: dict[str, Any] = _read_json(human, dict) if human.is_file() else {}
    source, path = (written, human) if written else (attributes(), extra or human)
    numbered = sorted((number, asin) for asin in source if (number := catalogue.find(asin)) is not None)
    for number, asin in numbered:
        product, price = catalogue.product(number), catalogue.price(number)
        with faults.collect(f"{path}: {asin}"):
            yield from (human_goals if written else synthetic_goals)(
                product, source[asin], price, seed, partial(where_is, path, asin)
            )
