"""Shop loading: a store is built once by one process and memory-mapped by all."""

from __future__ import annotations

import json
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path

import numpy as np

from tstar_envs.data.faults import LeftOut, check_skip_bad
from tstar_envs.data.files import read_json, whole_file, write_whole
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
from tstar_envs.envs.webshop import search
from tstar_envs.envs.webshop.catalogue import (
    Blobs,
    Catalogue,
    Product,
    SortedKeys,
    asin_key,
    encode,
    indexed_text,
)
from tstar_envs.envs.webshop.search import Array, Batch, term_of, tokenize
from tstar_envs.envs.webshop.shop import (
    LEXICON,
    Plan,
    Shop,
    Tagger,
    Task,
    make_shop,
    store_folder,
    task_from_record,
    task_to_record,
    webshop_home,
)
from tstar_envs.errors import BadData, TStarError, WriteFailed
from tstar_envs.utils import SPLITS


def term_numbers(product: Product, numbers: dict[str, int]) -> Iterator[int]:
    """Convert a product to token numbers without stop words.

    New tokens get the next number, stop words a negative one.
    """
    for token in tokenize(indexed_text(product)):
        number = numbers.get(token)
        if number is None:
            number = numbers[token] = len(numbers) if term_of(token) else -1 - len(numbers)
        if number >= 0:
            yield number


def vocabulary_of(numbers: dict[str, int]) -> tuple[SortedKeys, Array]:
    """Build the sorted terms, and the map from token number to term.

    Several tokens may share a term.
    """
    terms = sorted({term.encode("utf-8", "surrogatepass") for term in map(term_of, numbers) if term})
    place = {term: number for number, term in enumerate(terms)}
    lookup = np.zeros(len(numbers) + 1, np.uint32)
    for token, number in numbers.items():
        if number >= 0:
            lookup[number] = place[term_of(token).encode("utf-8", "surrogatepass")]
    return SortedKeys(Blobs.collect(terms), np.arange(len(terms), dtype=np.int64)), lookup


def renumber(batch: Batch, lookup: Array) -> Batch:
    """Convert a batch over tokens to one over terms.

    Tokens of one term add up within a document.
    """
    keys = lookup[batch.terms].astype(np.uint64) << np.uint64(32) | batch.documents.astype(np.uint64)
    unique, where = np.unique(keys, return_inverse=True)
    counts = np.bincount(where, weights=batch.counts, minlength=len(unique)).astype(np.uint32)
    return Batch(
        (unique >> np.uint64(32)).astype(np.uint32),
        (unique & np.uint64(0xFFFFFFFF)).astype(np.uint32),
        counts,
        batch.lengths,
    )


BATCH = 20_000  # documents in memory; an interrupted build loses at most one batch
META = "meta.json"


def collect(
    products: Iterable[Product], price: Callable[[Product], float], tagger: str, by_asin: bool = False
) -> Catalogue:
    """Build a catalogue in memory from products that ``tagger`` has tagged."""
    kept = list(products)
    numbers: dict[str, int] = {}
    batch = search.make_batch((term_numbers(product, numbers) for product in kept), 0)
    terms, lookup = vocabulary_of(numbers)
    return Catalogue(
        Blobs.collect(map(encode, kept)),
        SortedKeys.collect({asin_key(product["asin"]): number for number, product in enumerate(kept)}),
        np.array([price(product) for product in kept], np.float64),
        terms,
        search.merge([renumber(batch, lookup)], len(terms.keys)),
        tagger,
        by_asin=by_asin,
    )


def build_store(
    folder: Path,
    products: Iterable[Product],
    price: Callable[[Product], float],
    tagger: Tagger,
    report: Callable[[int], None] = lambda _: None,
    beside: Callable[[Path], None] = lambda _: None,
) -> None:
    """Build a store for ``Catalogue.open``. An interrupted build resumes after its last complete batch.

    Args:
        folder: target; work in progress is in ``<folder>.partial``.
        products: products in order; the same on every call for one folder.
        price: draws the price of a product.
        tagger: tags titles of products without nouns.
        report: called after each batch with the number of products done.
        beside: called with the partial folder after all products were read. Its files are published together with the store.
    """
    partial = folder.with_name(folder.name + ".partial")
    partial.mkdir(parents=True, exist_ok=True)
    if not (partial / META).is_file():
        iterator = iter(products)
        numbers: dict[str, int] = {}
        asins: dict[bytes, int] = {}
        stems: list[Path] = []
        while chunk := list(islice(iterator, BATCH)):
            stems.append(partial / f"batch{len(stems):05d}")
            if not (done := stems[-1].with_suffix(".done")).is_file():
                _build_batch(stems[-1], chunk, len(asins), price, tagger, numbers)
            finished = json.loads(done.read_text(encoding="utf-8"))
            numbers.update(finished["tokens"])  # keep the token numbers of the first run
            for asin in finished["asins"]:
                asins[asin_key(asin)] = len(asins)
            report(len(asins))
        _join(partial, stems, numbers, asins)
        beside(partial)
        write_whole(partial / META, json.dumps({"products": len(asins), "tagger": tagger.name}))
    for path in partial.glob("batch*"):
        path.unlink()
    partial.rename(folder)


def _build_batch(
    stem: Path,
    chunk: list[Product],
    first: int,
    price: Callable[[Product], float],
    tagger: Tagger,
    numbers: dict[str, int],
) -> None:
    known = len(numbers)
    for product in chunk:
        add_nouns(product, tagger)
    search.make_batch((term_numbers(product, numbers) for product in chunk), first).save(
        stem.with_suffix(".npz")
    )
    Blobs.collect(map(encode, chunk)).save(stem.parent, stem.name)
    np.save(stem.with_suffix(".prices.npy"), np.array([price(product) for product in chunk], np.float64))
    new = dict(islice(numbers.items(), known, None))
    write_whole(
        stem.with_suffix(".done"),
        json.dumps({"tokens": new, "asins": [product["asin"] for product in chunk]}),
    )


def add_nouns(product: Product, tagger: Tagger) -> None:
    """Tag the nouns of a product's title, if not done yet."""
    if "nouns" not in product:
        product["nouns"] = tagger.nouns(product["name"])


def _join(partial: Path, stems: list[Path], numbers: dict[str, int], asins: dict[bytes, int]) -> None:
    """Merge the batches of a build."""
    SortedKeys.collect(asins).save(partial, "asins")
    terms, lookup = vocabulary_of(numbers)
    terms.save(partial, "terms")
    for stem in stems:
        renumber(Batch.load(stem.with_suffix(".npz")), lookup).save(stem.with_suffix(".terms.npz"))
    search.merge([stem.with_suffix(".terms.npz") for stem in stems], len(terms.keys), partial)
    np.save(
        partial / "prices.npy",
        np.concatenate([np.zeros(0), *(np.load(stem.with_suffix(".prices.npy")) for stem in stems)]),
    )
    starts = [np.zeros(1, np.int64)]
    with open(partial / "products.bin", "wb") as handle:
        for stem in stems:
            with open(stem.with_suffix(".bin"), "rb") as source:
                starts.append(np.load(stem.with_suffix(".starts.npy"))[1:] + starts[-1][-1])
                shutil.copyfileobj(source, handle)
    np.save(partial / "products.starts.npy", np.concatenate(starts))


TASKS = "tasks.jsonl"
LEFT_OUT = ("left_out_products.json", "left_out_goals.json")


def open_plan(plan: Plan) -> tuple[Catalogue, list[Task], LeftOut]:
    """Open the store of a plan, building it if needed.

    Returns catalogue, tasks and what was left out.

    Raises:
        BadData: the store's files are damaged.
        WriteFailed: a large store cannot be written. (A small one is built in memory instead, with a warning.)
    """
    if not (plan.store / TASKS).is_file():
        try:
            _build(plan)
        except TStarError:  # an error of the sources; some are OSErrors too
            raise
        except OSError as error:
            problem = f"WebShop's catalogue cannot be kept in {plan.store.parent} ({error})"
            if plan.large:
                raise WriteFailed(
                    f"{problem}. Free disk space and try again (the build resumes), or set TSTAR_DATA to another folder"
                ) from error
            warnings.warn(
                f"{problem}: every process holds its own copy. Set TSTAR_DATA to a folder that can be written",
                stacklevel=2,
            )
            return _in_memory(plan)
    try:
        with open(plan.store / TASKS, encoding="utf-8") as lines:
            tasks = [task_from_record(json.loads(line)) for line in lines]
        left_out = [
            LeftOut.from_record(json.loads((plan.store / name).read_text(encoding="utf-8")))
            for name in LEFT_OUT
        ]
        return Catalogue.open(plan.store, plan.by_asin), tasks, left_out[0].plus(left_out[1])
    except (OSError, EOFError, ValueError, KeyError) as error:
        raise BadData(
            f"WebShop's store {plan.store} is damaged ({error!r}); delete this folder to rebuild it"
        ) from error


def _in_memory(plan: Plan) -> tuple[Catalogue, list[Task], LeftOut]:
    products = list(plan.products())
    for product in products:
        add_nouns(product, plan.tagger)
    catalogue = collect(products, plan.price, plan.tagger.name, plan.by_asin)
    tasks = plan.tasks(catalogue)
    return catalogue, tasks, plan.faults[0].so_far().plus(plan.faults[1].so_far())


def _build(plan: Plan) -> None:
    origin, now, _ = plan.store.name.split("-")
    plan.store.parent.mkdir(parents=True, exist_ok=True)
    with _only_one(plan.store.with_name(f"{origin}.lock")):
        if not plan.store.is_dir():
            with _shown(plan) as report:
                beside = partial(_write_left_out, plan, 0)
                build_store(plan.store, plan.products(), plan.price, plan.tagger, report, beside)
        if not (plan.store / TASKS).is_file():
            tasks = plan.tasks(Catalogue.open(plan.store, plan.by_asin))
            _write_left_out(plan, 1, plan.store)
            with whole_file(plan.store / TASKS) as handle:
                handle.writelines(f"{json.dumps(task_to_record(task))}\n".encode() for task in tasks)
        for other in plan.store.parent.glob(f"{origin}-*"):
            if not other.name.startswith(f"{origin}-{now}-"):
                # On some systems a folder that another process has open cannot be removed.
                shutil.rmtree(other, ignore_errors=True)


def _write_left_out(plan: Plan, number: int, folder: Path) -> None:
    write_whole(folder / LEFT_OUT[number], json.dumps(plan.faults[number].so_far().to_record()))


@contextmanager
def _only_one(path: Path) -> Iterator[None]:
    """Lock out other processes, which wait. The lock is released when its process ends."""
    with open(path, "ab") as handle:
        if sys.platform != "win32":
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextmanager
def _shown(plan: Plan) -> Iterator[Callable[[int], None]]:
    """Show progress on the terminal for a long build."""
    if not plan.large:
        yield lambda done: None
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TextColumn("{task.completed} products"),
        TimeElapsedColumn(),
    )
    with Progress(*columns) as progress:
        shown = progress.add_task("WebShop: indexing (once; goes on if interrupted)", total=None)
        yield lambda done: progress.update(shown, completed=done)


MINI_FOLDER = Path(__file__).parent / "data"
PRODUCTS, GOALS = MINI_FOLDER / "products.jsonl.gz", MINI_FOLDER / "goals.jsonl.gz"


def _products_in(folder: Path) -> Path | None:
    return next(folder.glob("items_shuffle*.json"), None)


def published_products() -> Published:
    """Describe the original's product files; ``auto`` uses them if they exist."""
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
    """Resolve an environment's ``data`` option to tier and folder.

    Raises:
        UnknownOption: the path is empty.
        MissingData: the path does not exist.
        BadData: the path is a pipe, a device, or an invalid name.
    """
    tier = choose_tier(data, lambda: published_products().found is not None)
    if tier == "path":
        return tier, existing(data, "data", "a folder of the original's files, 'mini' or 'full'")
    return tier, MINI_FOLDER if tier == "mini" else webshop_home()


def load_shop(data: PathLike, seed: int = 0, skip_bad: bool = False) -> Shop:
    """Open a shop, cached in the process until its files change.

    >>> shop = load_shop("mini")
    >>> len(shop.catalogue)
    1000

    Args:
        data: ``mini`` (shipped), ``full`` (``$TSTAR_DATA/webshop``), ``auto``, or a folder with ``items_shuffle*.json``,
            ``items_ins_v2*.json``, ``items_human_ins.json`` and, to fix the draws, ``goals.json`` and ``prices.json``.
        seed: seed of the drawn prices and price limits.
        skip_bad: skip unusable products and goals; ``left_out`` tells how many and why.

    Raises:
        UnknownOption: the path is empty.
        MissingData: the folder, its product file, or goals for its products are missing.
        BadData: a file or an entry is unusable; the message lists file, line and field of each.
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
    """Open a shop whose files are known."""
    catalogue, tasks, left_out = open_plan(_plan(tier, folder, seed, skip_bad))
    return make_shop(tier, catalogue, tasks, load_shop, data, seed, skip_bad, left_out=left_out)


def _plan(tier: str, folder: Path, seed: int, skip_bad: bool) -> Plan:
    """Create the build plan of a shop.

    The reader of the original's files is imported only if needed.
    """
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
    """Count the tasks of each shipped split, without building the catalogue."""
    splits = [record["split"] for record in read_shipped_records(GOALS)]
    return {split: splits.count(split) for split in SPLITS}
