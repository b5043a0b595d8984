"""Lock-step with the original engine (TextWorld under ALFWorld's wrappers), and the files that its own code plays."""

import contextlib
import copy
import dataclasses
import io
import os
import pickle
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest
from alfworld_small_games import remembering_original

from scripts.studies.alfworld_explorer import HARD_TO_REACH
from scripts.studies.alfworld_lockstep import compare
from tstar_envs.envs.alfworld import engine
from tstar_envs.envs.alfworld.engine import main
from tstar_envs.envs.alfworld.env import ALFWorldEnv
from tstar_envs.envs.alfworld.game import Mirrored
from tstar_envs.envs.alfworld.generate import fresh_scenes
from tstar_envs.envs.alfworld.rooms import CLEAN, COOL, HEAT, LOOK, TASK_TYPES, Scene
from tstar_envs.envs.alfworld.tasks import Task, load_tasks, task_set
from tstar_envs.utils import StableRandom

if any(find_spec(package) is None for package in ("alfworld", "textworld", "fast_downward")):
    pytest.skip("the extra alfworld is not installed", allow_module_level=True)


def small_scenes(seed: str, types: tuple[str, ...], count: int) -> list[Scene]:
    """The smallest of some drawn games: the original takes time by the number of things."""
    drawn = [
        scene for scene, _ in zip(fresh_scenes(f"test/{seed}", types), range(12 * len(types)), strict=False)
    ]
    return [
        min((s for s in drawn if s.task == kind), key=lambda s: len(s.contents) * sum(map(len, s.contents)))
        for kind in types
    ][:count]


def test_lock_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Feedback, admissible commands and won, after every command. scripts/studies/parity_alfworld.py does the same on 20,000 states."""
    remembering_original(monkeypatch)
    verbs: Counter[str] = Counter()
    for number, scene in enumerate(small_scenes("lockstep", (LOOK, CLEAN), 2)):
        assert compare(engine.game_data(scene, f"test-{number}"), f"test-{number}", 110, 1, verbs) == []
    assert {
        "go",
        "open",
        "close",
        "take",
        "move",
        "use",
        "clean",
        "look",
        "inventory",
        "help",
        "invalid",
    } <= set(verbs)


def cut(scene: Scene, number: int) -> Scene:
    """A drawn game with few places left, since the original takes time by the number of things: tools, lamps and some others stay."""
    draw = StableRandom(f"cut/{number}")
    kinds = [receptacle.kind for receptacle in scene.house.receptacles]
    lamps = [
        n for n, inside in enumerate(scene.contents) if scene.receptacle in inside
    ]  # only lamps stand in anything
    tools = [
        kinds.index(kind) for kind in ("SinkBasin", "Microwave", "Fridge", "CounterTop") if kind in kinds
    ]
    goal = [n for n, kind in enumerate(kinds) if kind == scene.receptacle]
    others = draw.shuffled([n for n in range(len(kinds)) if n not in {*lamps, *tools}])
    kept = sorted(
        {*lamps[:1], *tools, *goal[:1], *others[:2]}
    )  # the original does not load a game that cannot be won
    contents = [tuple(dict.fromkeys(scene.contents[n]))[: 2 if n not in lamps else None] for n in kept]
    table = kept.index(tools[-1] if tools else others[0])
    contents[table] = tuple(
        dict.fromkeys(["Knife", "Apple", "Mug", scene.object] if tools else [scene.object, *contents[table]])
    )
    house = dataclasses.replace(scene.house, receptacles=tuple(scene.house.receptacles[n] for n in kept))
    return dataclasses.replace(scene, house=house, contents=tuple(contents))


@pytest.mark.slow
def test_lock_step_reaches_every_verb_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """At least 200 steps of each verb that takes a way to get to."""
    remembering_original(monkeypatch)
    verbs: Counter[str] = Counter()
    for number, scene in enumerate(fresh_scenes("test/coverage", (HEAT, COOL, CLEAN, LOOK))):
        data, name = engine.game_data(cut(scene, number), f"coverage-{number}"), f"coverage-{number}"
        assert compare(data, name, 80, 1, verbs, eager=0.4) == []
        if number == 60 or min(verbs[verb] for verb in HARD_TO_REACH) >= 200:
            break
    assert min(verbs[verb] for verb in HARD_TO_REACH) >= 200, verbs


@pytest.fixture(scope="module")
def both() -> tuple[ALFWorldEnv, ALFWorldEnv]:
    scene = small_scenes("face", (LOOK,), 1)[0]
    tasks = task_set("test", [Task("one", "test", scene.task, scene)])
    return ALFWorldEnv(task_set=tasks), ALFWorldEnv(task_set=tasks, backend="textworld")


def test_both_backends_have_one_face(both: tuple[ALFWorldEnv, ALFWorldEnv]) -> None:
    own, original = both
    argv, stdout, data = list(sys.argv), sys.stdout, os.environ.get("ALFWORLD_DATA")
    assert own.reset(options={"task": 0}) == original.reset(options={"task": 0})
    assert (sys.argv, sys.stdout, os.environ.get("ALFWORLD_DATA")) == (argv, stdout, data)
    replies = ["help", "look", "dance", "Go to nowhere 1", own.mistake(1), own.mistake(2), own.mistake(3)]
    for reply in replies:
        assert own.step(reply) == original.step(reply)
    snapshot = original.snapshot()
    mirrored = snapshot.state.mirrored
    assert (
        isinstance(mirrored, Mirrored)
        and len(mirrored.history) == len(replies)
        and own.snapshot().state.mirrored is None
    )
    twins = [copy.deepcopy(original), pickle.loads(pickle.dumps(original))]
    reply = own.oracle()
    expected = own.step(str(reply))
    assert original.oracle() == reply and original.step(str(reply)) == expected
    assert twins[0].step(str(reply)) == expected and twins[1].state_key() == snapshot_key(original, snapshot)
    original.restore(snapshot)
    assert original.step(str(reply)) == expected
    while (reply := own.oracle()) is not None:
        last = own.step(reply)
        assert original.step(reply) == last
    assert last[2] and last[4]["success"]


def snapshot_key(env: ALFWorldEnv, snapshot: object) -> str:
    after = env.snapshot()
    env.restore(snapshot)  # type: ignore[arg-type]
    key = env.state_key()
    env.restore(after)
    return key


def test_stock_code_finds_and_plays_an_exported_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    assert main(["--out", str(tmp_path), "--split", "valid_unseen", "--tasks", "8"]) == 0
    from alfworld.agents.environment.alfred_tw_env import AlfredTWEnv

    config = {
        "env": {
            "goal_desc_human_anns_prob": 0,
            "task_types": [1, 2, 3, 4, 5, 6],
            "domain_randomization": False,
            "expert_type": "handcoded",
        },
        "dataset": {"eval_ood_data_path": str(tmp_path / "json_2.1.1" / "valid_unseen"), "num_eval_games": 0},
        "general": {"training_method": "dqn"},
        "rl": {"training": {"max_nb_steps_per_episode": 30}},
    }
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        stock = AlfredTWEnv(config, train_eval="eval_out_of_distribution")
    assert stock.num_games == 8
    own = ALFWorldEnv(data=str(tmp_path / "json_2.1.1"), split="valid_unseen")
    mini = load_tasks("all", "mini")
    assert len(own.task_ids()) == 8 and {
        own.reset(options={"task": i})[1]["task_type"] for i in own.task_ids()
    } <= set(TASK_TYPES.values())
    for task, shipped in zip(
        sorted(own.task_ids(), key=lambda i: i.split("/trial_")[1]),
        mini.by_split["valid_unseen"],
        strict=False,
    ):
        assert shipped in task
        twin = ALFWorldEnv(data="mini", split="valid_unseen")
        assert own.reset(options={"task": task})[0] == twin.reset(options={"task": shipped})[0]
        assert own.oracle() == twin.oracle()
