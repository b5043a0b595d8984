"""Real shop folders: what cannot be used is reported at once or left out, causes are named at `make`, and changes are seen."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from webshop_folder import PRODUCT, open_folder, own_stores  # noqa: F401 - the fixture keeps stores off the machine

from tstar_envs.envs.webshop.env import WebShopEnv
from tstar_envs.errors import BadData, MissingData, UnknownOption

WISH = [{"instruction": "a red mug", "instruction_attributes": ["big"], "instruction_options": []}]


def products(*asins: str, **change: Any) -> list[dict[str, Any]]:
    return [{**PRODUCT, "asin": asin, **change} for asin in asins]


def write(folder: Path, **files: Any) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(
            content if isinstance(content, str) else json.dumps(content), encoding="utf-8"
        )
    return folder


@pytest.mark.parametrize(
    ("files", "cause"),
    [
        ({"items_shuffle": products("B01")}, "products, but no goals: add items_human_ins.json"),
        ({"items_shuffle_1000": products("B01")}, "products, but no goals"),
        (
            {"items_shuffle": products("B01"), "items_human_ins": {}},
            "no goal in items_human_ins.json is for one of its products",
        ),
        (
            {"items_shuffle": products("B01"), "items_human_ins": {"B02": WISH}},
            "no goal in items_human_ins.json",
        ),
        (
            {"items_shuffle": products("B01"), "items_ins_v2": {"B01": {"attributes": ["big"]}}},
            "no goal in items_ins_v2.json",
        ),
        ({"items_shuffle": products("B01"), "goals": []}, "no goal in goals.json"),
        (
            {"items_shuffle": products("B0123456789X"), "items_human_ins": {"B0123456789X": WISH}},
            "longer than 10 characters (the first",
        ),
        ({"items_shuffle": products("", "nan"), "items_human_ins": {}}, "skips every product"),
        ({"items_shuffle": []}, "an empty list"),
    ],
)
def test_what_resets_would_lack_is_reported_at_make(
    files: dict[str, Any], cause: str, tmp_path: Path
) -> None:
    write(tmp_path, **files)
    for _ in range(2):  # the second time a store of the products may be there
        with pytest.raises((MissingData, BadData)) as caught:
            WebShopEnv(data=tmp_path)
        assert cause in str(caught.value) and str(tmp_path) in str(caught.value)
    with pytest.raises((MissingData, BadData), match=r"."):
        WebShopEnv(data=tmp_path, skip_bad=True)


BAD = {
    "pricing": {"pricing": "$ten"},
    "name": {"name": 3},
    "options": {"customization_options": {"Color": "red"}},
    "bullets": {"small_description": {"a": 1}},
}


def test_all_faults_at_once_or_left_out_and_counted(tmp_path: Path) -> None:
    good = products("B01", "B02", "B03")
    bad = [{**PRODUCT, "asin": f"C{number}", **change} for number, change in enumerate(BAD.values())]
    mixed = [good[0], *bad, good[1], "no product", good[2]]
    wishes = dict.fromkeys(("B01", "B02"), WISH) | {"B03": [{"instruction": 4, "instruction_attributes": []}]}
    folder = write(
        tmp_path / "shop",
        items_shuffle=json.dumps(mixed, indent=0),
        items_human_ins=json.dumps(wishes, indent=0),
    )
    with pytest.raises(BadData) as caught:
        WebShopEnv(data=folder)
    lines = str(caught.value).splitlines()
    assert "5 of 8 products cannot be used; skip_bad=True" in lines[0] and len(lines) == 6
    assert all("items_shuffle.json, line " in line for line in lines[1:])
    for _ in range(2):
        env = WebShopEnv(data=folder, skip_bad=True)
        assert env.left_out.count == 6 and len(env.task_ids("test")) == 2, "five products and one goal"
        env.reset(seed=0)
    write(folder, goals=[{"asin": "B01"}, 3])
    with pytest.raises(BadData, match="left out|cannot be used|must"):
        WebShopEnv(data=folder, skip_bad=True)


def test_changed_folders_are_seen_in_one_process(tmp_path: Path) -> None:
    folder = write(tmp_path / "shop", items_shuffle=products("B01"), items_human_ins={"B01": WISH})
    first = WebShopEnv(data=folder)
    assert WebShopEnv(data=folder).shop is first.shop
    write(folder, items_shuffle=products("B01", "B02"), items_human_ins={"B01": WISH, "B02": WISH})
    second = WebShopEnv(data=folder)
    assert len(second.task_ids()) == 2 and len(first.task_ids()) == 1
    write(
        folder,
        goals=[
            {
                "asin": "B02",
                "query": "mugs",
                "name": "Red Mug",
                "product_category": "",
                "instruction_text": "another",
                "attributes": ["big"],
                "price_upper": 10.0,
                "goal_options": [],
            }
        ],
    )
    assert WebShopEnv(data=folder).reset(seed=0)[1]["instruction"] == "another"
    (folder / "items_shuffle.json").unlink()
    with pytest.raises(MissingData, match="no items_shuffle"):
        WebShopEnv(data=folder)


@pytest.mark.parametrize(
    "name", ["items_shuffle.json", "items_human_ins.json", "items_ins_v2.json", "prices.json"]
)
def test_pipes_and_folders_are_no_files(name: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "shop", items_shuffle=products("B01"), items_human_ins={"B01": WISH})
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises((BadData, MissingData), match="a pipe|no items_shuffle"):
        WebShopEnv(data=folder)
    (folder / name).unlink()
    (folder / name).mkdir()
    with pytest.raises((BadData, MissingData), match="a folder|no items_shuffle"):
        WebShopEnv(data=folder)


def test_paths_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(UnknownOption, match="data=''"):
        WebShopEnv(data="")
    for path in (tmp_path / "nowhere", "a" * 5000, "nul\0byte"):
        with pytest.raises((BadData, MissingData)):
            WebShopEnv(data=path)
    assert open_folder(tmp_path, [PRODUCT]).left_out.count == 0
