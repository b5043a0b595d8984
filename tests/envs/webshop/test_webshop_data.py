"""Where WebShop's catalogues come from: stores shared by processes, the original's files, the mini tier beside the real one."""

import json
import os
import shutil
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts.studies import webshop_statistics
from tstar_envs import BadData, MissingExtra
from tstar_envs.envs.webshop import original, score, tasks
from tstar_envs.envs.webshop import shop as stores
from tstar_envs.envs.webshop.env import WebShopEnv
from tstar_envs.envs.webshop.original import make_tasks, stream_array, stream_object
from tstar_envs.envs.webshop.shop import Shop
from tstar_envs.envs.webshop.tasks import load_shop, open_shop
from tstar_envs.errors import WriteFailed

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def own_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TSTAR_DATA", str(tmp_path / "data"))
    open_shop.cache_clear()
    yield tmp_path / "data" / "webshop" / "stores"
    open_shop.cache_clear()


def write_originals(folder: Path, count: int = 230) -> Path:
    """The original's three files, cut from the mini tier's products."""
    folder.mkdir()
    catalogue = load_shop("mini").catalogue
    products, attributes, wishes = [], {}, {}
    for number in range(count):
        product = catalogue.product(number)
        products.append(
            {
                "asin": product["asin"],
                "name": product["name"],
                "query": product["query"],
                "category": product["category"],
                "product_category": product["product_category"],
                "pricing": product["Price"].replace(" to ", " - "),
                "full_description": product["Description"],
                "small_description": product["BulletPoints"],
                "customization_options": {
                    name: [{"value": v, "image": None} for v in vs] for name, vs in product["options"].items()
                },
            }
        )
        attributes[product["asin"]] = {
            "attributes": product["Attributes"],
            "instruction": "x",
            "instruction_attributes": ["y"],
        }
        if number % 3 == 0:
            wishes[product["asin"]] = [
                {
                    "instruction": f"i want a {product['query']}.",
                    "instruction_attributes": product["Attributes"][:2],
                    "instruction_options": [values[0] for values in product["options"].values()],
                }
            ]
    for name, value in (
        ("items_shuffle", products),
        ("items_ins_v2", attributes),
        ("items_human_ins", wishes),
    ):
        (folder / f"{name}.json").write_text(json.dumps(value, indent=1), encoding="utf-8")
    return folder


def contents(shop: Shop) -> list[Any]:
    catalogue = shop.catalogue
    products = [(catalogue.product(number), catalogue.price(number)) for number in range(len(catalogue))]
    return [products, list(shop.tasks.values()), catalogue.search("floor lamp gift"), catalogue.tagger]


def test_an_interrupted_build_of_large_files_goes_on(
    tmp_path: Path, own_stores: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_originals(tmp_path / "files")
    whole = contents(load_shop(str(folder)))
    open_shop.cache_clear()
    shutil.rmtree(own_stores)
    monkeypatch.setattr(tasks, "BATCH", 50)
    monkeypatch.setattr(
        original, "LARGE_BYTES", 1000
    )  # as for the full set: attributes are streamed, progress is shown
    draw_price, drawn = original.draw_price, 0

    def interrupted(product: dict[str, Any], seed: int) -> float:
        nonlocal drawn
        drawn += 1
        if drawn == 170:
            raise KeyboardInterrupt
        return draw_price(product, seed)

    monkeypatch.setattr(original, "draw_price", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load_shop(str(folder))
    assert contents(load_shop(str(folder))) == whole
    assert drawn == 170 + 80, "three batches of 50 were not done again"
    assert [path.suffix for path in own_stores.iterdir()].count("") == 1 and len(
        list(own_stores.iterdir())
    ) == 2, "the store and the lock"


def test_the_order_of_goals_and_the_ranges_are_the_originals() -> None:
    goal = {"query": "q", "name": "n", "instruction_text": "i"}
    tasks = make_tasks([{**goal, "asin": str(n)} for n in range(12_087)], lambda goal: [])
    sizes = {split: sum(task.split == split for task in tasks) for split in ("test", "valid", "train")}
    assert sizes == {"test": 500, "valid": 1000, "train": 10_587}
    assert [task.split for task in tasks[498:502]] == ["test", "test", "valid", "valid"] and tasks[
        1500
    ].split == "train"


def test_equally_good_products_come_by_asin_as_the_originals_search_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than a search gives, in a file that has them in another order; in a store and in memory."""
    folder = tmp_path / "files"
    folder.mkdir()
    asins = [f"B{number * 37 % 101:03d}" for number in range(101)]
    products = [
        {"asin": asin, "name": "Red Mug" if asin != "B077" else "Mug mug", "query": "mug"} for asin in asins
    ]
    (folder / "items_shuffle.json").write_text(json.dumps(products), encoding="utf-8")
    goal = {
        "asin": "B077",
        "query": "mug",
        "name": "Mug mug",
        "product_category": "",
        "instruction_text": "a mug",
        "attributes": [],
        "price_upper": 10.0,
        "goal_options": [],
    }
    (folder / "goals.json").write_text(json.dumps([goal]), encoding="utf-8")
    expected = ["B077", *(asin for asin in sorted(asins) if asin != "B077")][:50]
    stored = load_shop(str(folder)).catalogue
    open_shop.cache_clear()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TSTAR_DATA", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="every process holds its own copy"):
        in_memory = load_shop(str(folder)).catalogue
    for catalogue in (stored, in_memory):
        assert [catalogue.product(number)["asin"] for number in catalogue.search("mug")] == expected
        assert catalogue.find("B037") == 1, "numbers stay the file's: goals are in their order"


def test_prices_are_drawn_once_and_kept(tmp_path: Path, own_stores: Path) -> None:
    folder = write_originals(tmp_path / "files")
    first = contents(load_shop(str(folder)))
    open_shop.cache_clear()
    assert contents(load_shop(str(folder))) == first
    other = contents(load_shop(str(folder), 1))
    assert [product for product, _ in other[0]] == [product for product, _ in first[0]] and other != first
    assert len([path for path in own_stores.iterdir() if path.is_dir()]) == 3, "mini, and one of each seed"


def test_changed_files_are_built_anew_and_the_old_store_goes(tmp_path: Path, own_stores: Path) -> None:
    folder = write_originals(tmp_path / "files")
    assert len(load_shop(str(folder)).catalogue) == 230
    before = {path.name for path in own_stores.iterdir() if path.is_dir()}
    products = json.loads((folder / "items_shuffle.json").read_text(encoding="utf-8"))
    (folder / "items_shuffle.json").write_text(json.dumps(products[:30]), encoding="utf-8")
    open_shop.cache_clear()
    assert len(load_shop(str(folder)).catalogue) == 30
    after = {path.name for path in own_stores.iterdir() if path.is_dir()}
    assert len(before) == len(after) == 2 and len(before & after) == 1


SHARED = """
import sys
from tstar_envs.envs.webshop.tasks import load_shop
shop = load_shop(sys.argv[1])
shop.catalogue.search("floor lamp gift")
lines, at, copied = open("/proc/self/smaps").read().splitlines(), "", 0
for line in lines:
    if "-" in line.split()[0]:
        at = line
    elif line.startswith("Anonymous:") and "/stores/" in at:
        copied += int(line.split()[1])
print(len(shop.catalogue), copied, sum("/stores/" in line for line in lines) > 10)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("data", ["mini", "files"])
def test_processes_share_one_store(tmp_path: Path, own_stores: Path, data: str) -> None:
    """Three at once: one builds, the others wait; what is mapped is never copied."""
    if data == "files":
        data = str(write_originals(tmp_path / "files"))
        shutil.rmtree(own_stores)
    command = [sys.executable, "-c", SHARED, data]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(3)
    ]
    answers = [process.communicate()[0] for process in running]
    assert set(answers) == {f"{1000 if data == 'mini' else 230} 0 True\n"}
    assert len([path for path in own_stores.iterdir() if path.is_dir()]) == 1


def test_64_environments_take_less_than_one_more_megabyte(tmp_path: Path) -> None:
    for data in ("mini", str(write_originals(tmp_path / "files"))):
        first = WebShopEnv(data=data)
        first.reset(options={"task": 0})
        tracemalloc.start()
        others = [WebShopEnv(data=data) for _ in range(63)]
        for env in others:
            env.reset(options={"task": 0})
        taken = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert taken < 1_000_000


def test_a_damaged_store_is_named(tmp_path: Path, own_stores: Path) -> None:
    folder = write_originals(tmp_path / "files", 20)
    load_shop(str(folder))
    for path in own_stores.glob("*/starts.npy"):
        path.write_bytes(b"")
    open_shop.cache_clear()
    with pytest.raises(BadData, match=r"damaged.*delete this folder"):
        load_shop(str(folder))


def test_without_a_folder_for_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_originals(tmp_path / "files")
    open_shop.cache_clear()
    expected = contents(load_shop(str(folder)))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TSTAR_DATA", str(tmp_path / "file"))
    open_shop.cache_clear()
    with pytest.warns(UserWarning, match="every process holds its own copy. Set TSTAR_DATA"):
        assert contents(load_shop(str(folder))) == expected
    open_shop.cache_clear()
    monkeypatch.setattr(original, "LARGE_BYTES", 1000)
    with pytest.raises(WriteFailed, match="Free disk space"):
        load_shop(str(folder))


def test_without_rapidfuzz(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rapidfuzz", None)
    message = r"needs the package 'rapidfuzz'.*pip install.*\[webshop\]"
    with pytest.raises(MissingExtra, match=message):
        WebShopEnv(data="mini")
    product = {
        "query": "",
        "product_category": "",
        "Attributes": ["never seen"],
        "Title": "",
        "BulletPoints": [],
        "Description": "",
    }
    goal = {
        "query": "",
        "product_category": "",
        "attributes": ["not seen ever"],
        "goal_options": [],
        "price_upper": 5.0,
    }
    with pytest.raises(MissingExtra, match=message):
        score(product, goal, {}, 1.0, ["a"], ["a"])


def test_without_spacy_the_bundled_tagger_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "spacy", None)
    assert stores.best_tagger() is stores.LEXICON
    env = WebShopEnv(data=str(write_originals(tmp_path / "files")))
    info = env.reset(options={"task": 0})[1]
    while (reply := env.oracle()) is not None:
        assert info["tagger"] == "lexicon-1"
        info = env.step(reply)[4]
    assert info["tagger"] == info["reward_parts"]["tagger"] == "lexicon-1"


def test_an_installed_model_is_taken_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package made like spaCy's models, whose tagger knows one word; it is loaded when the first title is read."""
    spacy = pytest.importorskip("spacy")
    pipeline = spacy.blank("en")
    pipeline.add_pipe("attribute_ruler").add([[{"LOWER": "lamp"}]], {"POS": "NOUN"})
    package = tmp_path / "en_core_web_sm"
    package.mkdir()
    pipeline.to_disk(package / "en_core_web_sm-9.9.9")
    meta = {**pipeline.meta, "name": "core_web_sm", "version": "9.9.9"}
    (package / "meta.json").write_text(json.dumps(meta))
    (package / "__init__.py").write_text(
        "from spacy.util import load_model_from_init_py\ndef load(**options):\n    return load_model_from_init_py(__file__, **options)\n"
    )
    (tmp_path / "en_core_web_sm-9.9.9.dist-info").mkdir()
    (tmp_path / "en_core_web_sm-9.9.9.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: en_core_web_sm\nVersion: 9.9.9\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(stores, "spacy_pipeline", stores.spacy_pipeline.__wrapped__)
    tagger = stores.best_tagger()
    assert tagger.name == "spacy-en_core_web_sm-9.9.9"
    assert tagger.nouns("A green Lamp and a lamp") == ["lamp", "lamp"]


def test_streams_read_what_json_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces of every size, so that every value is cut somewhere."""
    path = tmp_path / "values.json"
    values = ["a\nb", 12.5, 1234567, {"k": [None, True]}, [], "\u203a\U0001f600"]
    for size in range(1, 40):
        monkeypatch.setattr("tstar_envs.envs.webshop.original.CHUNK", size)
        path.write_text("\ufeff" + json.dumps(values, indent=1), encoding="utf-8")
        assert [value for _, value in stream_array(path)] == values
        path.write_text(json.dumps(dict(zip("abcdef", values, strict=True)), indent=1), encoding="utf-8")
        assert dict(stream_object(path)) == dict(zip("abcdef", values, strict=True))
    path.write_text('{"a": 1,\n3: 4}', encoding="utf-8")
    with pytest.raises(BadData, match=r"values\.json, line 2: a key must be a string"):
        dict(stream_object(path))


# How far a figure of the mini tier may be from the real one: as a factor, or, of a share, in points.
FACTOR, POINTS = 1.7, 8.0


def test_mini_tier_looks_like_the_real_one() -> None:
    catalogue = load_shop("mini").catalogue
    figures = webshop_statistics.statistics([catalogue.product(number) for number in range(len(catalogue))])
    for name, real in webshop_statistics.REAL.items():
        if name.endswith("%"):
            assert abs(figures[name] - real) <= POINTS, name
        else:
            assert real / FACTOR <= figures[name] <= real * FACTOR, name
    page = (ROOT / "docs" / "results" / "webshop.md").read_text(encoding="utf-8")
    for name, figure in figures.items():
        assert f"| {name} | {webshop_statistics.REAL[name]:g} | {figure:.3g} |" in page, (
            "docs/results/webshop.md shows other figures"
        )


def test_public_products_that_cannot_be_used_name_the_shipped_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TSTAR_DATA", str(tmp_path))
    (tmp_path / "webshop").mkdir()
    for name in ("items_shuffle.json", "items_ins_v2.json", "items_human_ins.json"):
        (tmp_path / "webshop" / name).write_text("{broken")
    with pytest.raises(BadData, match="not JSON .*\ndata='mini' plays the shipped tasks instead"):
        load_shop("auto")
    assert load_shop("mini").tier == "mini"
