"""scripts/studies/measure_turns.py: what it calls best, a detour, unchanged and lost, and the table that it prints."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import gymnasium as gym
import pytest

import tstar_envs  # noqa: F401  registers the environments

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "studies" / "measure_turns.py"
# The box goes down twice; pushed right or up it stands at a wall without a target.
LEVEL = "######\n# @  #\n#  $ #\n#    #\n#  . #\n######\n"


@pytest.fixture
def env(tmp_path):
    (tmp_path / "level.xsb").write_text(LEVEL)
    made = gym.make("tstar/Sokoban-easy", levels=str(tmp_path / "level.xsb"), multi_action=True).unwrapped
    made.reset(options={"task": 0})
    return made


def test_replies_are_judged_by_the_state_they_lead_to(env):
    judge = runpy.run_path(str(SCRIPT))["judge"]
    here = env.snapshot()
    env.step(env.oracle())
    expert = env.progress()
    assert expert > 0
    replies = {
        "Right || Down || Down": "best",
        "Right": "unchanged",
        "no action at all": "unchanged",
        "Down || Right": "loses",
        "Right || Right || Down || Left": "detour",
        "Right || Down": "detour",  # right, but not all of the expert's turn
    }
    for action, wanted in replies.items():
        assert judge(env, here, f"Thought: .\nAction: {action}", expert) == wanted, action


def test_the_table_counts_every_state_of_the_experts_episodes(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--env", "sokoban-easy", "--tasks", "3"])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    name, model, tasks, states, *shares = (
        cell.strip() for cell in capsys.readouterr().out.splitlines()[-1].strip("|").split("|")
    )
    assert (name, model, tasks) == ("sokoban-easy", "tiny", "3 of valid")
    env = gym.make("tstar/Sokoban-easy", split="valid").unwrapped
    assert int(states) == sum(env.reset(options={"task": task})[1]["optimal_length"] for task in range(3))
    assert abs(sum(map(float, shares)) - 1) < 0.01
