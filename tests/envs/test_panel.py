"""The fixed panel: it covers every environment, is made again from what ships, and refuses every other task, world and rule."""

import gzip
import json
import os
import pickle
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import tstar_envs
from tstar_envs import EnvEntry, PanelMismatch, TextEnv, UnknownOption, list_envs
from tstar_envs.data.tasks import ReadWhenAsked
from tstar_envs.envs.alfworld.tasks import load_tasks
from tstar_envs.envs.blocksworld import tasks as blocksworld
from tstar_envs.envs.search_qa.search import EmbeddedSearcher
from tstar_envs.envs.search_qa.tasks import MINI_FOLDER, load_set
from tstar_envs.envs.sokoban.tasks import load_shipped
from tstar_envs.envs.webshop.catalogue import Catalogue
from tstar_envs.envs.webshop.tasks import load_shop

ROOT = Path(__file__).resolve().parents[2]
FOR_EVERY_ENV = pytest.mark.parametrize("entry", list_envs(), ids=lambda entry: entry.name)
PANEL = tstar_envs.panel("v1")
OTHER_OPTIONS: dict[str, dict[str, Any]] = {
    "search_qa": {"retriever": "bm25", "topk": 1, "prompt_style": "search_r1"},
    "webshop": {"observation": "text", "page_size": 3},
    "blocksworld": {"observation": "compact", "names": "mystery", "horizon": "optimal"},
    "sokoban": {"observation": "grid_coords", "multi_action": True, "horizon": "optimal*2"},
    "alfworld": {"strict": True, "explain_invalid": True, "list_actions": True},
}


def make(name: str, **options: Any) -> TextEnv[Any, Any]:
    env = gym.make(name, disable_env_checker=True, **options).unwrapped
    assert isinstance(env, TextEnv)
    return env


def refused(env: TextEnv[Any, Any], *said: str) -> None:
    with pytest.raises(PanelMismatch, match=re.escape(said[0])) as raised:
        PANEL.check(env)
    assert all(part in str(raised.value) for part in said) and "panel v1" in str(raised.value)


def test_names_every_environment_and_the_suite_of_the_paper() -> None:
    assert list(PANEL) == [entry.id for entry in list_envs()] and len(PANEL) == 20
    assert PANEL["hotpotqa"] is PANEL["tstar/HotpotQA"] and PANEL["tstar/HotpotQA"].env == "tstar/HotpotQA"
    paper = PANEL.suite("paper")
    assert len(set(paper)) == 14 and set(paper) <= set(PANEL)
    assert Counter(tstar_envs.find_entry(id_).family for id_ in paper) == {
        "search_qa": 7,
        "webshop": 1,
        "alfworld": 1,
        "blocksworld": 2,
        "sokoban": 3,
    }
    assert len({part.hash for part in PANEL.values()}) == len(PANEL)
    assert pickle.loads(pickle.dumps(PANEL)).hash == PANEL.hash


def test_what_is_not_there_is_refused_with_what_is() -> None:
    with pytest.raises(UnknownOption, match="'v1'"):
        tstar_envs.panel("v0")
    with pytest.raises(UnknownOption, match="'paper'"):
        PANEL.suite("papers")
    with pytest.raises(UnknownOption, match="hotpotqa"):
        PANEL["hotpot"]
    with pytest.raises(UnknownOption, match="CartPole"):
        PANEL.check(gym.make("CartPole-v1"))


@FOR_EVERY_ENV
def test_tasks_represent_the_split(entry: EnvEntry) -> None:
    env, part = make(entry.id), PANEL[entry.id]
    ids = list(env.task_ids("test"))
    assert part.split == "test" and len(part.tasks) == min(200, len(ids))
    assert list(part.tasks) == [task for task in ids if task in set(part.tasks)], "in the order of the split"

    def kind(task: str) -> str:
        info = env.reset(options={"task": task})[1]
        return str(info.get("kind", info.get("task_type", info.get("optimal_length"))))

    whole, drawn = Counter(map(kind, ids)), Counter(map(kind, part.tasks))
    for name, size in whole.items():
        assert abs(drawn[name] - size * len(part.tasks) / len(ids)) < 1, name


@FOR_EVERY_ENV
def test_the_environment_as_shipped_passes_with_whatever_options(entry: EnvEntry) -> None:
    PANEL.check(gym.make(entry.id, disable_env_checker=True))
    PANEL.check(make(entry.id, **OTHER_OPTIONS[entry.family]))


@FOR_EVERY_ENV
def test_nothing_of_a_task_is_drawn_when_it_is_reset(entry: EnvEntry) -> None:
    env = make(entry.id)
    for task in PANEL[entry.id].tasks[:10]:
        first, *others = [env.reset(seed=seed, options={"task": task}) for seed in (0, 1, 2**31)]
        assert all(other == first for other in others)


def test_the_file_is_made_again_by_another_process_with_another_order_of_hashes(tmp_path: Path) -> None:
    out = tmp_path / "v1.json"
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONHASHSEED": "4242",
        "TSTAR_DATA": str(tmp_path),
    }
    command = [
        sys.executable,
        "-W",
        "error",
        str(ROOT / "scripts" / "make_panel.py"),
        "v1",
        "--out",
        str(out),
    ]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    shipped = ROOT / "tstar_envs" / "panels" / "v1.json"
    assert out.read_bytes() == shipped.read_bytes(), (
        "tasks or rules have changed: a released panel stays as it is, make a new version"
    )


def test_other_rules_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    env = make("tstar/Sokoban-easy")
    monkeypatch.setattr(env, "metadata", {**env.metadata, "rules_version": "99"})
    refused(env, "rules version is 99, the panel's is 7")


def test_other_answers_and_other_passages_are_refused() -> None:
    shipped = load_set("nq", "mini")
    last = PANEL["nq"].tasks[-1]
    for change in ({"golden_answers": ("42",)}, {"question": "who?"}, {"kind": "spouse"}):
        tasks = {**shipped.tasks, last: replace(shipped.tasks[last], **change)}
        refused(
            make("tstar/NQ", task_set=replace(shipped, tasks=tasks)),
            f"1 of 200 tasks have other contents, the first is {last!r}",
        )
    fewer = {**shipped.by_split, "test": tuple(task for task in shipped.by_split["test"] if task != last)}
    refused(
        make("tstar/NQ", task_set=replace(shipped, by_split=fewer)),
        f"1 of 200 tasks are not in its split 'test', the first is {last!r}",
    )
    lines = gzip.decompress(shipped.corpus.read_bytes()).decode().splitlines()
    documents = [(record["id"], record["contents"]) for record in map(json.loads, lines)]
    PANEL.check(make("tstar/NQ", searcher=EmbeddedSearcher(documents)))
    documents[-1] = (documents[-1][0], documents[-1][1] + " And more.")
    refused(make("tstar/NQ", searcher=EmbeddedSearcher(documents)), "the corpus")


def test_equal_data_by_path_are_the_same_tasks_and_other_data_are_not(tmp_path: Path) -> None:
    same, other = tmp_path / "same", tmp_path / "other"
    for folder in (same, other):
        folder.mkdir()
        for name in ("corpus", "hotpotqa.test"):
            (folder / f"{name}.jsonl").write_bytes(
                gzip.decompress((MINI_FOLDER / f"{name}.jsonl.gz").read_bytes())
            )
    corpus = (other / "corpus.jsonl").read_text()
    (other / "corpus.jsonl").write_text(corpus.replace("river", "stream", 1))
    for retriever in ("hashed", "http://127.0.0.1:9"):  # nothing is asked of a service
        PANEL.check(make("tstar/HotpotQA", data=str(same), retriever=retriever))
        refused(
            make("tstar/HotpotQA", data=str(other), retriever=retriever), "data tier 'path'", "the corpus"
        )
    (tmp_path / "one.xsb").write_text("######\n#@$ .#\n######\n")
    refused(
        make("tstar/Sokoban-easy", data=str(tmp_path / "one.xsb")),
        "200 of 200 tasks are not in its split 'test'",
    )


def test_other_levels_problems_and_games_are_refused() -> None:
    levels = load_shipped("easy")
    first, second = PANEL["sokoban-easy"].tasks[:2]
    turned = (
        levels.tasks.texts[first][0],
        "\n".join(levels.tasks.texts[first][1].split("\n")[::-1]),
        *levels.tasks.texts[first][2:],
    )
    texts = {**levels.tasks.texts, first: turned}
    changed = replace(levels, tasks=ReadWhenAsked(texts, levels.tasks.read))
    refused(
        make("tstar/Sokoban-easy", task_set=changed),
        f"1 of 200 tasks have other contents, the first is {first!r}",
    )

    blocks = blocksworld.load_shipped("stack")
    first, second = PANEL["blocksworld-stack"].tasks[:2]
    task = blocks.tasks[first]
    for change in (
        {"start": blocks.tasks[second].problem.start},
        {"goal": replace(task.problem.goal, facts=task.problem.goal.facts[:-1])},
        {"names": task.problem.names[::-1]},
    ):
        swapped = {
            **{task: blocks.tasks[task] for task in blocks.tasks},
            first: replace(task, problem=replace(task.problem, **change)),
        }
        refused(
            make("tstar/Blocksworld-stack", task_set=replace(blocks, tasks=swapped)),
            f"the first is {first!r}",
        )

    houses = load_tasks("all", "mini")
    first, second = PANEL["alfworld"].tasks[:2]
    moved = {**houses.tasks, first: replace(houses.tasks[second], id=first)}
    refused(
        make("tstar/ALFWorld", task_set=replace(houses, tasks=moved)),
        "1 of 140 tasks have other contents",
        repr(first),
    )


def test_other_prices_and_products_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    env = make("tstar/WebShop")
    shop = load_shop("mini")
    first = PANEL["webshop"].tasks[0]
    goal = {**shop.tasks[first].goal, "price_upper": 1.0}
    cheap = replace(shop, tasks={**shop.tasks, first: replace(shop.tasks[first], goal=goal)})
    refused(make("tstar/WebShop", shop=cheap), f"1 of 80 tasks have other contents, the first is {first!r}")
    price = Catalogue.price
    monkeypatch.setattr(Catalogue, "price", lambda self, number: price(self, number) + (number == 999))
    refused(env, "the shop")


def test_an_environment_that_was_not_made_by_gymnasium_must_be_named() -> None:
    env = tstar_envs.make_group("nq", [0], 1).envs[0]
    with pytest.raises(UnknownOption, match="say which id it plays"):
        PANEL.check(env)
    PANEL.check(env, "nq")
    with pytest.raises(PanelMismatch, match="200 of 200 tasks are not in its split"):
        PANEL.check(env, "hotpotqa")
