"""WebShop by files: hostile text loads, and what cannot be read is reported with file, line and field."""

import json
from pathlib import Path
from typing import Any

import pytest
from webshop_folder import PRODUCT, open_folder
from webshop_folder import own_stores as own_stores

from tstar_envs import BadData, MissingData
from tstar_envs.envs.webshop.env import WebShopEnv
from tstar_envs.envs.webshop.original import stream_array
from tstar_envs.envs.webshop.text import OBSERVATIONS

PAGES = {
    f"click[{button}]"
    for button in ("back to search", "< prev", "description", "features", "reviews", "buy now")
}


@pytest.mark.parametrize(
    "field",
    ["name", "full_description", "query", "category", "product_category", "small_description", "options"],
)
@pytest.mark.parametrize(
    "value", ["<b>&amp; [SEP] </b>", "\x00\x07\u202e\n\n", "x" * 300_000, "", "\ud83d", "\u2028]\u0130["]
)
def test_hostile_text_loads(tmp_path: Path, field: str, value: str) -> None:
    change = (
        {"customization_options": {value: [{"value": value}, {"value": "y"}]}}
        if field == "options"
        else {field: value}
    )
    open_folder(tmp_path, [{**PRODUCT, **change}, PRODUCT, {**PRODUCT, "asin": "nan"}])
    for observation in OBSERVATIONS:
        env = WebShopEnv(data=str(tmp_path), observation=observation)
        env.reset(options={"task": 0})
        for action in (
            "search[mug big y]",
            "click[b01]",
            "click[description]",
            "click[< prev]",
            "click[features]",
            "click[< prev]",
        ):
            observed, _, _, _, info = env.step(action)
            assert observed in env.observation_space
        for action in (
            *[action for action in info["admissible_actions"] if action not in PAGES][:2],
            "click[buy now]",
        ):
            observed, _, _, _, info = env.step(action)
            assert observed in env.observation_space and info["action_valid"]


@pytest.mark.parametrize(
    "field",
    ["full_description", "small_description", "pricing", "customization_options", "category", "images"],
)
@pytest.mark.parametrize("missing", ["absent", "null", "empty"])
def test_fields_that_may_be_missing(tmp_path: Path, field: str, missing: str) -> None:
    product = {name: value for name, value in PRODUCT.items() if name != field}
    open_folder(
        tmp_path,
        [
            product
            if missing == "absent"
            else {**product, field: None if missing == "null" else type(PRODUCT[field])()}
        ],
    )
    env = WebShopEnv(data=str(tmp_path), horizon=30)
    env.reset(options={"task": 0})
    read = [step for page in ("description", "features") for step in (f"click[{page}]", "click[< prev]")]
    for action in ("search[mug]", "click[b01]", *read, "click[buy now]"):
        info = env.step(action)[4]
        assert info["action_valid"]
    assert 0 < info["score"] <= 1


@pytest.mark.parametrize("field", ["asin", "name", "query"])
def test_fields_that_must_be_there(tmp_path: Path, field: str) -> None:
    with pytest.raises(BadData, match=rf"items_shuffle\.json, line 2: field '{field}' must be a string"):
        open_folder(tmp_path, [{name: value for name, value in PRODUCT.items() if name != field}])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": None}, r"line 2: field 'name'"),
        ({"pricing": "cheap"}, "field 'pricing'"),
        ({"pricing": "$1.2.3"}, "field 'pricing'"),
        ({"customization_options": {"Size": [{"image": 1}]}}, "customization_options.Size"),
        ({"small_description": 3}, "small_description"),
        ({"query": 5}, "field 'query'"),
        ({"asin": 7}, "field 'asin'"),
    ],
)
def test_bad_fields_are_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadData, match=message) as caught:
        open_folder(tmp_path, [{**PRODUCT, **change}])
    assert "items_shuffle.json" in str(caught.value)


@pytest.mark.parametrize("text", ["{}", "", "[", '[{"asin": "B01"', "[1]", "[[", "nonsense"])
def test_broken_files_are_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadData, match=r"items_shuffle\.json, line 1"):
        open_folder(tmp_path, text)


@pytest.mark.parametrize("size", [1, 7, 1 << 22])
@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b'[{"asin": "B01",\n"name": B}]', 2),
        (b'[\n{},\n{"asin":\n"B01",, }]', 4),
        ("[\n{},\n\u00e9".encode()[:-1], 3),
        (b'[\n\n{"asin": "B01",\n"name": "\xff\n"}]', 4),
        (b'[\n{"asin": "B01"}\n,', 3),
    ],
)
def test_the_line_of_broken_text_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes, line: int, size: int
) -> None:
    """However much of the file is held at a time."""
    monkeypatch.setattr("tstar_envs.envs.webshop.original.CHUNK", size)
    path = tmp_path / "items_shuffle.json"
    path.write_bytes(text)
    with pytest.raises(BadData, match=rf"items_shuffle\.json, line {line}: not "):
        list(stream_array(path))
    # A file that is read whole says the same through the reader of all families.
    open_folder(tmp_path, [PRODUCT])
    (tmp_path / "goals.json").write_bytes(text)
    with pytest.raises(
        BadData, match=rf"goals\.json(, line {line}: not UTF-8|: not JSON .* at line {line}, )"
    ):
        WebShopEnv(data=str(tmp_path))


@pytest.mark.parametrize("name", ["goals", "prices", "items_human_ins", "items_ins_v2"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[" * 300 + b"]" * 300, "brackets within one another"),
        (b"{\x00}", "not a text file"),
        (b"7", "is expected, found"),
    ],
)
def test_files_read_whole_are_refused_as_everywhere(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    open_folder(tmp_path, [PRODUCT])
    if name.startswith("items"):
        (tmp_path / "goals.json").unlink()  # else they are not asked
    (tmp_path / f"{name}.json").write_bytes(content)
    with pytest.raises(BadData, match=rf"{name}\.json: .*{message}"):
        WebShopEnv(data=str(tmp_path))


def test_control_characters_need_not_be_escaped(tmp_path: Path) -> None:
    """Python's reader refuses them; a file that another program wrote may hold them."""
    text = json.dumps([{**PRODUCT, "name": "Mug A B"}]).replace("Mug A B", "Mug\x07\tA\nB")
    goal = json.dumps(
        [
            {
                **PRODUCT,
                "instruction_text": "a mug",
                "attributes": ["x"],
                "price_upper": 1,
                "goal_options": ["p q"],
            }
        ]
    )
    open_folder(tmp_path, text)
    (tmp_path / "goals.json").write_text(goal.replace("p q", "p\x01q"), encoding="utf-8")
    env = WebShopEnv(data=str(tmp_path))
    env.reset(options={"task": 0})
    assert "b01: Mug\x07\tA\nB (" in env.step("search[mug]")[0]


def test_missing_and_broken_goals(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match="items_shuffle"):
        WebShopEnv(data=str(tmp_path))
    with pytest.raises(BadData, match=r"goal 0: field 'asin'"):
        open_folder(tmp_path, [PRODUCT], goals=[{}])


# Laid out so that the entry in question starts on line 4 and nothing else does.
@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("items_ins_v2", '"attributes": [3]', r"line 4: B01: field 'attributes' must be .* found \[3\]"),
        (
            "items_ins_v2",
            '"instruction": 5, "instruction_attributes": ["big"]',
            "line 4: B01: field 'instruction' .* found 5",
        ),
        (
            "items_ins_v2",
            '"instruction": "a mug", "instruction_attributes": [null]',
            r"line 4: B01: field 'instruction_attributes' must be a list of strings, found \[None\]",
        ),
        (
            "items_human_ins",
            '"instruction": 5',
            r"line 4: B01\[0\]: field 'instruction' must be a string, found 5",
        ),
        (
            "items_human_ins",
            '"instruction": "a mug", "instruction_attributes": [[]], "instruction_options": []',
            r"line 4: B01\[0\]: field 'instruction_attributes' must be a list of strings, found \[\[\]\]",
        ),
        (
            "items_human_ins",
            '"instruction": "a mug", "instruction_attributes": ["big"], "instruction_options": [3]',
            r"line 4: B01\[0\]: field 'instruction_options' must be a list of strings, found \[3\]",
        ),
        ("goals", '"asin": 7', "line 4, goal 1: field 'asin' must be str, found 7"),
        ("prices", '"5"', "line 4: B01 must hold a number, found '5'"),
        ("prices", "1" + "0" * 400, "line 4: B01 must hold a number, found 100"),
        ("prices", "NaN", "line 4: B01 must hold a number, found nan"),
    ],
)
def test_files_beside_the_products_name_file_line_and_field(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    first = {
        "asin": "B00",
        "query": "",
        "name": "",
        "product_category": "",
        "instruction_text": "",
        "attributes": [],
        "price_upper": 1,
        "goal_options": [],
    }
    before, after = {
        "items_ins_v2": ('{\n"B00": {},\n\n"B01": {', "}\n}"),
        "items_human_ins": ('{\n"B00": [],\n\n"B01": [{', "}]\n}"),
        "goals": (f"[\n{json.dumps(first)},\n\n{{", "}\n]"),
        "prices": ('{\n"B00": 3.0,\n\n"B01": ', "\n}"),
    }[name]
    (tmp_path / "items_shuffle.json").write_text(json.dumps([PRODUCT]), encoding="utf-8")
    (tmp_path / f"{name}.json").write_text(f"{before}{text}{after}", encoding="utf-8")
    with pytest.raises(BadData, match=rf"{name}\.json, {message}"):
        WebShopEnv(data=str(tmp_path))


def test_an_asin_may_hold_half_a_character(tmp_path: Path) -> None:
    """As a name may; its price lies between two bounds, so that the ASIN seeds a draw."""
    env = open_folder(tmp_path, [{**PRODUCT, "asin": "B\ud83d"}])
    env.reset(options={"task": 0})
    assert "click[b\ud83d]" in env.step("search[mug]")[4]["admissible_actions"]
