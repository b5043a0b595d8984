"""Shops by the option ``data``: the shipped one, the original's products where they are, or a folder; each is opened once per process."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from tstar_envs.data.faults import check_skip_bad
from tstar_envs.data.files import read_json
from tstar_envs.data.locate import (
    PathLike,
    Published,
    Stamped,
    choose_tier,
    existing,
    stamped,
    with_mini_named,
)
from tstar_envs.data.shipped import MANIFEST, read_shipped_records
from tstar_envs.envs.webshop.shop import Shop, make_shop, task_from_record
from tstar_envs.envs.webshop.stores import LEXICON, Plan, open_plan, store_folder, webshop_home
from tstar_envs.utils import SPLITS

MINI_FOLDER = Path(__file__).parent / "data"
PRODUCTS, GOALS = MINI_FOLDER / "products.jsonl.gz", MINI_FOLDER / "goals.jsonl.gz"


def _products_in(folder: Path) -> Path | None:
    return next(folder.glob("items_shuffle*.json"), None)


def published_products() -> Published:
    """The original's products, of which ``auto`` makes the shop when they are there."""
    return Published(
        "WebShop's original products",
        _products_in(webshop_home()),
        (webshop_home(),),
        "scripts/fetch_data webshop",
        _first_product,
    )


def _first_product(products: Path) -> None:
    from tstar_envs.envs.webshop.original import stream_array

    next(stream_array(products), None)


def find_tier(data: PathLike) -> tuple[str, Path]:
    """The tier and the folder that an environment's ``data`` option means.

    Raises:
        UnknownOption: an empty path.
        MissingData: nothing there.
        BadData: a pipe, a device, or a name that the system refuses.
    """
    tier = choose_tier(data, lambda: published_products().found is not None)
    if tier == "path":
        return tier, existing(data, "data", "a folder of the original's files, 'mini' or 'full'")
    return tier, MINI_FOLDER if tier == "mini" else webshop_home()


def load_shop(data: PathLike, seed: int = 0, skip_bad: bool = False) -> Shop:
    """Open a shop; one that was opened in this process and did not change since is the same.

    Args:
        data: ``mini`` (shipped), ``full`` (``$TSTAR_DATA/webshop``), ``auto``, or a folder with ``items_shuffle*.json``,
            ``items_ins_v2*.json``, ``items_human_ins.json`` and, to fix the draws, ``goals.json`` and ``prices.json``.
        seed: of the drawn prices and price limits.
        skip_bad: leave out products and goals that cannot be used; ``left_out`` says how many and why.

    Raises:
        UnknownOption: an empty path.
        MissingData: the folder, its product file, or goals for its products are not there.
        BadData: a file cannot be used, or something in it; file, line and field of all are named.
        WriteFailed: the store of large files cannot be written.
    """
    check_skip_bad(skip_bad)
    tier, folder = find_tier(data)
    sources: Stamped = ()
    if tier != "mini":
        from tstar_envs.envs.webshop.original import source_paths

        sources = stamped(source_paths(folder))
    with with_mini_named(tier):
        return open_shop(tier, folder, os.fspath(data), seed, skip_bad, sources)


@lru_cache(maxsize=8)
def open_shop(tier: str, folder: Path, data: str, seed: int, skip_bad: bool, sources: Stamped) -> Shop:
    """``load_shop`` once the files are known."""
    catalogue, tasks, left_out = open_plan(_plan(tier, folder, seed, skip_bad))
    return make_shop(tier, catalogue, tasks, load_shop, data, seed, skip_bad, left_out=left_out)


def _plan(tier: str, folder: Path, seed: int, skip_bad: bool) -> Plan:
    """How a shop is built; what reads the original's files is loaded where there are such files only."""
    if tier == "mini":
        return _mini_plan()
    from tstar_envs.envs.webshop import original

    return original.plan(folder, seed, skip_bad)


def _mini_plan() -> Plan:
    manifest = read_json(MINI_FOLDER / MANIFEST)
    return Plan(
        store_folder("mini", [], manifest["sha256_uncompressed"]),
        lambda: read_shipped_records(PRODUCTS),
        lambda product: float(product["pricing"][0]),
        LEXICON,
        lambda catalogue: [task_from_record(record) for record in read_shipped_records(GOALS)],
    )


def survey_mini() -> dict[str, int]:
    """How many tasks each shipped split has, without building the catalogue."""
    splits = [record["split"] for record in read_shipped_records(GOALS)]
    return {split: splits.count(split) for split in SPLITS}
