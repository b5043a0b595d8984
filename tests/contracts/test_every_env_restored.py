"""``restore`` takes what ``snapshot`` gave, of the same data and options, and leaves the running episode alone where it refuses."""

import pickle
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from contract_walk import FOR_EVERY_ENV, make

from tstar_envs import EnvEntry, Snapshot, TextEnv, UnknownOption, UnknownTask
from tstar_envs.envs.sokoban.env import SokobanEnv

OPTIONS: dict[str, dict[str, Any]] = {
    "sokoban": {"observation": "coords"},
    "blocksworld": {"names": "mystery"},
    "alfworld": {"go_modifies": False},
    "webshop": {"page_size": 3},
    "search_qa": {"topk": 1},
}


def untouched(env: TextEnv[Any, Any], snapshot: Any, error: type[Exception], message: str) -> None:
    """The refusal, and that the episode that runs goes on."""
    before = env.snapshot()
    with pytest.raises(error, match=message):
        env.restore(snapshot)
    assert env.snapshot() == before and env.step("x")[4]["step"] == before.step + 1


@FOR_EVERY_ENV
def test_a_damaged_snapshot_is_refused_and_the_episode_goes_on(entry: EnvEntry) -> None:
    env = make(entry.id, horizon=50)
    env.reset(seed=1)
    good = env.snapshot()
    for state in (None, "x", 3, (), (1, 2), [1], object(), (good.state, good.state)):
        untouched(env, replace(good, state=state), UnknownOption, "damaged")
    for name, value in {"step": -1, "observation": b"x", "over": 0, "score": 2.0, "success": None}.items():
        untouched(env, replace(good, **{name: value}), UnknownOption, "damaged")
    untouched(env, replace(good, task_id="no such task"), UnknownTask, "no such task")
    untouched(env, replace(good, task_id=["list"]), UnknownOption, "task id")


@FOR_EVERY_ENV
def test_options_that_a_state_depends_on_must_be_the_same(entry: EnvEntry) -> None:
    env, other, same = (
        make(entry.id),
        make(entry.id, **OPTIONS[entry.family]),
        make(entry.id, horizon=99, prompt_style="tags"),
    )
    for player in (env, other, same):
        player.reset(options={"task": 0})
    name, value = next(iter(OPTIONS[entry.family].items()))
    said = f"other options .*{name}=.* there and {value} here"
    untouched(other, env.snapshot(), UnknownOption, said)
    assert same.restore(pickle.loads(pickle.dumps(env.snapshot())))[1]["horizon"] == 99, (
        "how long it may take is no part of a state"
    )
    assert "origin" in {f.name for f in fields(Snapshot)}


def test_a_task_of_the_same_name_in_another_folder_is_another_task(tmp_path: Path) -> None:
    for folder, level in (
        ("a", "######\n#@$ .#\n######\n"),
        ("b", "######\n#@ $.#\n######\n"),
        ("c", "######\n#@$ .#\n######\n"),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "one.txt").write_text(level)
    a, b, c = (SokobanEnv(levels=tmp_path / folder) for folder in "abc")
    for env in (a, b, c):
        env.reset(options={"task": "one.txt:0"})
    a.step("Right")
    untouched(b, a.snapshot(), UnknownOption, "task 'one.txt:0' has other data there than here")
    assert c.restore(a.snapshot())[0] == a.snapshot().observation, (
        "equal data are the same task, wherever they stand"
    )


def test_a_snapshot_of_another_family_is_named() -> None:
    shop, room = make("tstar/WebShop"), make("tstar/Sokoban-easy")
    shop.reset(seed=0)
    room.reset(seed=0)
    borrowed = replace(shop.snapshot(), task_id=room.snapshot().task_id)
    untouched(room, borrowed, UnknownOption, "taken in WebShopEnv, and this is SokobanEnv")
