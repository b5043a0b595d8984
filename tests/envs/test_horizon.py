"""Horizons as multiples of the optimum, and tasks by path that a horizon is too low for."""

import logging
import pickle
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tstar_envs
from tstar_envs import BadData, UnknownOption, make_group
from tstar_envs.agents.base import AgentEnv
from tstar_envs.envs.blocksworld.env import BlocksworldEnv
from tstar_envs.envs.sokoban.env import SokobanEnv
from tstar_envs.horizon import Reach, reach, read_factor, steps_of

IDS = ("tstar/Sokoban-medium", "tstar/Blocksworld-unstack")


def corridor(moves: int) -> str:
    """A level that is solved by so many pushes in one line."""
    wall = "#" * (moves + 4)
    return f"{wall}\n#@${' ' * (moves - 1)}.#\n{wall}\n"


def tower(blocks: int) -> str:
    """A problem whose optimal plan has two operators for every block: a tower turned over, its old bottom on the table."""
    names = [f"b{number}" for number in range(blocks)]
    on = [f"(on {above} {below})" for below, above in pairwise(names)]
    turned = [f"(on {below} {above})" for below, above in pairwise(names)]
    return (
        f"(define (problem t) (:domain blocksworld) (:objects {' '.join(names)})"
        f"(:init (handempty) (ontable b0) (clear {names[-1]}) {' '.join(on)}) (:goal (and {' '.join(turned)})))"
    )


@pytest.mark.parametrize(
    ("text", "factor"),
    [("optimal", 1), ("optimal*2", 2), (" optimal * 1.25 ", Fraction(5, 4)), ("optimal*1.0", 1)],
)
def test_factors(text: str, factor: Fraction) -> None:
    assert read_factor(text) == factor


@pytest.mark.parametrize(
    "wrong",
    [
        "optimal*0.99",
        "optimal*",
        "optimal*-2",
        "optimal*1e3",
        "optimal*inf",
        "twice",
        "",
        "40",
        "optimal*٣",
        "a" * 999,
    ],
)
def test_no_factors(wrong: str) -> None:
    with pytest.raises(UnknownOption, match="'optimal' or 'optimal\\*k'") as caught:
        gym.make(IDS[0], horizon=wrong)
    assert len(str(caught.value)) < 250


@given(st.integers(0, 10_000), st.integers(100, 100_000))
def test_steps_are_the_least_whole_number_that_is_enough(optimum: int, hundredths: int) -> None:
    steps = steps_of(Fraction(hundredths, 100), optimum, "a task")
    assert steps >= 1 and steps * 100 >= hundredths * optimum
    assert steps == 1 or (steps - 1) * 100 < hundredths * optimum


@pytest.mark.parametrize("env_id", IDS)
def test_every_task_has_its_own_and_the_expert_just_makes_it(env_id: str) -> None:
    env = gym.make(env_id, horizon="optimal")
    seen = set()
    for task in range(6):
        _, info = env.reset(options={"task": task})
        assert info["horizon"] == info["optimal_length"] == env.unwrapped.horizon
        seen.add(info["horizon"])
        over = False
        while not over:
            _, reward, terminated, truncated, info = env.step(env.unwrapped.oracle())
            over = terminated or truncated
        assert terminated and reward == 1 and info["step"] == info["horizon"]
        assert (
            " limited" in env.unwrapped.prompt()
            and str(info["horizon"]) not in env.unwrapped.prompt().splitlines()[-1]
        )
    assert len(seen) > 1


@pytest.mark.parametrize("env_id", IDS)
def test_one_step_too_many_is_cut_off_at_the_multiple(env_id: str) -> None:
    env = gym.make(env_id, horizon="optimal*1.5")
    _, info = env.reset(seed=5)
    steps = -(-3 * info["optimal_length"] // 2)
    ends = [env.step("nonsense")[3] for _ in range(steps)]
    assert ends == [False] * (steps - 1) + [True]


@pytest.mark.parametrize("env_id", IDS)
def test_a_restored_episode_has_the_horizon_of_its_task(env_id: str) -> None:
    env: Any = gym.make(env_id, horizon="optimal*2").unwrapped
    _, first = env.reset(options={"task": 0})
    env.step(env.oracle())
    kept = pickle.loads(pickle.dumps(env.snapshot()))
    other = next(
        task for task in range(1, 50) if env.reset(options={"task": task})[1]["horizon"] != first["horizon"]
    )
    env.restore(kept)
    assert env.horizon == first["horizon"] != env.reset(options={"task": other})[1]["horizon"]
    env.restore(kept)
    assert env.step("nonsense")[4]["horizon"] == first["horizon"]
    fixed: Any = gym.make(env_id).unwrapped  # how long an episode is, is no part of its state
    fixed.restore(kept)
    assert fixed.horizon == fixed.default_horizon


@pytest.mark.parametrize("env_id", IDS)
def test_an_agent_is_shown_no_number_that_is_not_its_own(env_id: str) -> None:
    assert AgentEnv(gym.make(env_id, horizon="optimal*2").unwrapped).horizon is None
    assert AgentEnv(gym.make(env_id, horizon=17).unwrapped).horizon == 17


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("env_id", IDS)
def test_in_vectors_and_groups(env_id: str, mode: str) -> None:
    vector = gym.make_vec(env_id, num_envs=2, vectorization_mode=mode, horizon="optimal*3")
    try:
        _, info = vector.reset(seed=3)
        np.testing.assert_array_equal(info["horizon"], 3 * info["optimal_length"])
        _, _, _, _, info = vector.step(["nonsense"] * 2)
        assert (info["horizon"] > 3).all()
    finally:
        vector.close()
    _, infos = make_group(env_id, [0, 3], 2, horizon="optimal").reset()
    assert [one["horizon"] for one in infos] == [one["optimal_length"] for one in infos]


def test_only_where_the_optimum_is_known(tmp_path: Path) -> None:
    for env_id in ("tstar/ALFWorld", "tstar/HotpotQA"):
        with pytest.raises(UnknownOption, match="the optimum is not known in .*give a whole number"):
            gym.make(env_id, horizon="optimal*2")
    (tmp_path / "lost.xsb").write_text("#######\n#@  $.#\n#  .  #\n#    $#\n#######\n")
    (tmp_path / "won.xsb").write_text(corridor(3))
    env = SokobanEnv(levels=tmp_path, horizon="optimal")
    assert env.reset(options={"task": "won.xsb:0"})[1]["horizon"] == 3
    with pytest.raises(UnknownOption, match=r"'lost\.xsb:0' cannot be won"):
        env.reset(options={"task": "lost.xsb:0"})
    assert env.step("Right")[4]["task_id"] == "won.xsb:0", "a reset that failed left the episode as it was"


def test_levels_by_path_that_the_default_is_too_low_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "few.txt").write_text("\n".join(map(corridor, (3, 20, 21, 40))))
    assert caplog.text == ""
    SokobanEnv(levels=tmp_path)
    assert "2 of the 4 tasks need more than 20 steps" in caplog.text and "horizon='optimal*2'" in caplog.text
    caplog.clear()
    for options in ({"horizon": 20}, {"horizon": "optimal"}, {"difficulty": "medium"}):
        SokobanEnv(levels=tmp_path, **options)
    assert caplog.text == "", "who names a horizon knows, and 40 steps are enough"
    found = reach(SokobanEnv(levels=tmp_path, horizon=20))
    assert found[:4] == (4, 4, 2, 0) and found.horizon == 20


def test_problems_by_path_that_the_default_is_too_low_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for blocks in (5, 20, 21, 22):
        (tmp_path / f"{blocks}.pddl").write_text(tower(blocks))
    with caplog.at_level(logging.WARNING, "tstar_envs"):
        env = BlocksworldEnv(problems=tmp_path)
    assert "2 of the 4 tasks need more than 40 steps" in caplog.text
    assert reach(env).over == 2
    assert env.reset(options={"task": "22.pddl"})[1]["optimal_length"] > 40
    assert (
        BlocksworldEnv(problems=tmp_path, horizon="optimal*2").reset(options={"task": "5.pddl"})[1]["horizon"]
        == 2 * 10
    )


def test_where_there_are_many_tasks_some_are_looked_at() -> None:
    env: Any = gym.make("tstar/Sokoban-hard", horizon=30).unwrapped
    found = reach(env, "train", most=50)
    assert (found.tasks, found.looked_at) == (1666, 50) and 10 < found.over < 50
    everything = reach(env, "test")
    lengths = [env.reset(options={"task": task})[1]["optimal_length"] for task in env.task_ids("test")]
    assert everything.over == sum(length > 30 for length in lengths) and everything.looked_at == 333
    assert "50 tasks looked at (of 1,666)" in str(found) and "cannot be won" in str(Reach(5, 5, 1, 2, 30))
    assert reach(env, "test", seconds=0).looked_at == 0


def test_faults_of_a_folder_go_with_the_error() -> None:
    with pytest.raises(BadData) as caught:
        BlocksworldEnv(problems=Path(__file__))
    assert caught.value.left_out.count == 1 and pickle.loads(pickle.dumps(caught.value)).left_out.count == 1
    assert tstar_envs.BadData("x").left_out is None
