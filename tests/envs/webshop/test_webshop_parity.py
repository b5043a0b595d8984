"""WebShop against what was recorded of the original: every score, and every step of its episodes."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from webshop_folder import own_stores as own_stores

from tstar_envs.envs.webshop import score
from tstar_envs.envs.webshop.env import WebShopEnv

RECORDED = Path(__file__).resolve().parents[2] / "data" / "webshop"
PARITY = json.loads((RECORDED / "reward_parity.json").read_text(encoding="utf-8"))
TRANSCRIPTS = json.loads((RECORDED / "transcripts.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", PARITY["cases"], ids=lambda case: f"{case['id']}: {case['tag']}")
def test_score(case: dict[str, Any]) -> None:
    got = score(
        PARITY["products"][case["product"]],
        case["goal"],
        case["purchased_options"],
        case["price"],
        case["purchased_title_nouns"],
        case["goal_title_nouns"],
    )
    if case["error"]:  # the original raised: ours is defined, and says what happened there
        assert (
            0.0 <= got.total <= 1.0
            and got.parts["original_error"].split(":")[0] == case["error"].split(":")[0]
        )
    else:
        assert got.total == pytest.approx(case["reward"], abs=1e-9)
        assert got.parts == pytest.approx(case["info"], abs=1e-9)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("webshop")
    for path in RECORDED.glob("items_*.json"):
        shutil.copy(path, target)
    (target / "goals.json").write_text(json.dumps(TRANSCRIPTS["goals"]), encoding="utf-8")
    (target / "prices.json").write_text(json.dumps(TRANSCRIPTS["product_prices"]), encoding="utf-8")
    return target


@pytest.mark.parametrize("episode", TRANSCRIPTS["episodes"], ids=lambda episode: episode["name"])
def test_transcript(folder: Path, episode: dict[str, Any]) -> None:
    env = WebShopEnv(data=str(folder), observation="text")
    observation, info = env.reset(options={"task": episode["goal_idx"]})
    assert observation == episode["reset_obs"] and info["search_available"]
    for step in episode["steps"]:
        observation, reward, terminated, _, info = env.step(step["action"])
        assert observation == step["obs"]
        assert (reward, terminated) == (pytest.approx(step["reward"], abs=1e-9), step["done"])
        clicks = [
            action.removeprefix("click[").removesuffix("]") for action in info["admissible_actions"] or []
        ]
        assert (
            clicks == step["avail"]["clickables"]
            and info["search_available"] == step["avail"]["has_search_bar"]
        )


def test_files_by_path_draw_the_same_goals_every_time(tmp_path: Path) -> None:
    for path in RECORDED.glob("items_*.json"):
        shutil.copy(path, tmp_path)
    first = WebShopEnv(data=str(tmp_path))
    texts = [first.reset(options={"task": task})[1]["instruction"] for task in first.task_ids("test")]
    other = tmp_path / "copy"
    shutil.copytree(tmp_path, other)
    second = WebShopEnv(data=str(other))
    assert texts == [
        second.reset(options={"task": task})[1]["instruction"] for task in second.task_ids("test")
    ]
    assert first.tier == "path" and len(texts) == len(TRANSCRIPTS["goals"])
    third = WebShopEnv(data=str(tmp_path), seed_prices=1)
    assert texts != [third.reset(options={"task": task})[1]["instruction"] for task in third.task_ids("test")]
