"""Shops: a catalogue with its goals, opened once per process from the shipped files, a folder or a generator."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tstar_envs.core import SPLITS
from tstar_envs.envs.webshop import building, source_files
from tstar_envs.envs.webshop.catalogue import Catalogue, Product
from tstar_envs.envs.webshop.goals import ShopTask, check_goal, draw_price, human_goals, make_tasks, shuffle_goals, synthetic_goals
from tstar_envs.envs.webshop.nouns import Tagger, best_tagger
from tstar_envs.errors import BadData, MissingData

MINI_FOLDER = Path(__file__).parent / "data"
IN_MEMORY_BYTES = 64_000_000  # product files up to this size are read into memory; larger ones become a mapped store


@dataclass(frozen=True)
class Shop:
    """A catalogue and its tasks; never changes, and travels between processes by how it is opened."""

    tier: str
    catalogue: Catalogue
    tasks: dict[str, ShopTask]
    by_split: dict[str, tuple[str, ...]]
    opener: tuple[Callable[..., Shop], tuple[Any, ...]]

    def __deepcopy__(self, memo: dict[int, Any]) -> Shop:
        return self

    def __reduce__(self) -> tuple[Callable[..., Shop], tuple[Any, ...]]:
        return self.opener


def make_shop(tier: str, catalogue: Catalogue, tasks: list[ShopTask], opener: Callable[..., Shop], *arguments: Any) -> Shop:
    """A shop of these tasks."""
    by_split = {split: tuple(task.id for task in tasks if task.split == split) for split in SPLITS}
    return Shop(tier, catalogue, {task.id: task for task in tasks}, by_split, (opener, arguments))


def data_home() -> Path:
    """``$TSTAR_DATA/webshop``."""
    return Path(os.environ.get("TSTAR_DATA", "~/.cache/tstar")).expanduser() / "webshop"


def find_tier(data: str) -> tuple[str, Path]:
    """The tier and the folder that an environment's ``data`` option means."""
    full = data_home()
    if data == "auto":
        data = "full" if next(full.glob("items_shuffle*.json"), None) else "mini"
    return (data, {"mini": MINI_FOLDER, "full": full}[data]) if data in ("mini", "full") else ("path", Path(data))


@lru_cache(maxsize=8)
def load_shop(data: str, seed: int = 0) -> Shop:
    """Open a shop.

    Args:
        data: ``mini`` (shipped), ``full`` (``$TSTAR_DATA/webshop``), ``auto``, or a folder with ``items_shuffle*.json``,
            ``items_ins_v2*.json``, ``items_human_ins.json`` and, to fix the draws, ``goals.json`` and ``prices.json``.
        seed: of the drawn prices and price limits.

    Raises:
        MissingData: the folder or its product file is not there.
        BadData: a file cannot be used; file, line and field are named.
    """
    tier, folder = find_tier(data)
    if tier == "mini":
        return _mini(data, seed)
    path = _pick(folder, "items_shuffle")
    if path is None:
        raise MissingData(f"no items_shuffle*.json in {folder} (data={data!r}); data='mini' works without any files")
    extra = _pick(folder, "items_ins_v2")
    human, fixed, prices_file = (folder / name for name in ("items_human_ins.json", "goals.json", "prices.json"))
    attributes: dict[str, Any] = source_files.read_json(extra, dict) if extra else {}
    prices: dict[str, Any] = _fixed_prices(prices_file) if prices_file.is_file() else {}
    tagger = best_tagger()

    def price(product: Product) -> float:
        return float(prices[product["asin"]]) if product["asin"] in prices else draw_price(product, seed)

    catalogue = _catalogue(path, [p for p in (path, extra, prices_file) if p and p.is_file()], attributes, price, tagger, seed)
    if fixed.is_file():
        goals = [check_goal(goal, f"{fixed}, goal {n}") for n, goal in enumerate(source_files.read_json(fixed, list))]
    else:
        goals = shuffle_goals(list(_draw_goals(catalogue, attributes, human, seed)))

    def nouns(goal: dict[str, Any]) -> list[str]:
        number = catalogue.find(goal["asin"])
        product = catalogue.product(number) if number is not None else None
        same = product is not None and product["name"] == goal["name"]
        return list(product["nouns"]) if product is not None and same else tagger.nouns(goal["name"])

    return make_shop(tier, catalogue, make_tasks(goals, nouns), load_shop, data, seed)


def _pick(folder: Path, stem: str) -> Path | None:
    """The original's file of the whole set, else the only (or first) one with a number in its name."""
    whole = folder / f"{stem}.json"
    return whole if whole.is_file() else next(iter(sorted(folder.glob(f"{stem}*.json"))), None)


def _fixed_prices(path: Path) -> dict[str, Any]:
    prices: dict[str, Any] = source_files.read_json(path, dict)
    for asin, price in prices.items():
        if isinstance(price, bool) or not isinstance(price, int | float):
            raise BadData(f"{path}: field {asin!r} must be a number, found {price!r:.80}")
    return prices


def _catalogue(
    path: Path, sources: list[Path], attributes: dict[str, Any], price: Callable[[Product], float], tagger: Tagger, seed: int
) -> Catalogue:
    def products() -> Iterator[Product]:
        for product in source_files.read_products(path, attributes):
            product["nouns"] = tagger.nouns(product["name"])
            yield product

    if path.stat().st_size <= IN_MEMORY_BYTES:
        return building.collect(products(), price, tagger.name)
    stamp = repr([(str(p.resolve()), p.stat().st_size, p.stat().st_mtime_ns) for p in sources] + [seed, tagger.name, 1])
    folder = data_home() / "stores" / hashlib.blake2b(stamp.encode(), digest_size=8).hexdigest()
    if not folder.is_dir():
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}"), TextColumn("{task.completed} products"), TimeElapsedColumn())
        with Progress(*columns) as progress:
            shown = progress.add_task(f"indexing {path.name} (once, goes on if interrupted)", total=None)
            building.build_store(folder, products(), price, tagger, lambda done: progress.update(shown, completed=done))
    return Catalogue.open(folder)


def _draw_goals(catalogue: Catalogue, attributes: dict[str, Any], human: Path, seed: int) -> Iterator[dict[str, Any]]:
    """Human goals where the folder has them, else synthetic ones, in the order of the products."""
    written: dict[str, Any] = source_files.read_json(human, dict) if human.is_file() else {}
    numbered = sorted((number, asin) for asin in (written or attributes) if (number := catalogue.find(asin)) is not None)
    for number, asin in numbered:
        product, price = catalogue.product(number), catalogue.price(number)
        if written:
            yield from human_goals(product, written[asin], price, seed, str(human))
        else:
            yield from synthetic_goals(product, attributes[asin], price, seed)


def read_lines(path: Path) -> list[Any]:
    """The records of a shipped ``.jsonl.gz``."""
    with gzip.open(path, "rt", encoding="utf-8") as handle:
        return [json.loads(line) for line in handle]


def _mini(data: str, seed: int) -> Shop:
    products = read_lines(MINI_FOLDER / "products.jsonl.gz")
    tasks = [task_from_record(record) for record in read_lines(MINI_FOLDER / "goals.jsonl.gz")]
    catalogue = building.collect(products, lambda product: float(product["pricing"][0]), products[0]["tagger"])
    return make_shop("mini", catalogue, tasks, load_shop, data, seed)


def task_to_record(task: ShopTask) -> dict[str, Any]:
    """A task as a line of the shipped files."""
    return {"id": task.id, "split": task.split, "query": task.query, "nouns": list(task.nouns), "goal": dict(task.goal)}


def task_from_record(record: dict[str, Any]) -> ShopTask:
    """A task of the shipped files."""
    goal = record["goal"]
    return ShopTask(record["id"], record["split"], goal, tuple(record["nouns"]), record["query"], goal["instruction_text"])


def survey_mini() -> dict[str, int]:
    """How many tasks each shipped split has, without building the catalogue."""
    splits = [record["split"] for record in read_lines(MINI_FOLDER / "goals.jsonl.gz")]
    return {split: splits.count(split) for split in SPLITS}
