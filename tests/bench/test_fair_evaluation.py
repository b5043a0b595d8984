"""What agents see of their environment, measurements that fail, one evaluation a file, and damaged records."""

import json
from pathlib import Path
from typing import Any

import pytest

from tstar_envs import BadData, Episode, SolverLimit, TextEnv, find_entry, read_episodes
from tstar_envs.agents import load_agent, options_of
from tstar_envs.agents.base import AgentEnv, NotShown, bind_agent
from tstar_envs.envs.sokoban.env import SokobanEnv
from tstar_envs.evaluation.runner import play_episode
from tstar_envs.evaluation.stats import summarise


class Curious:
    """Keeps what it is bound to."""

    env: Any = None

    def bind(self, env: Any) -> None:
        self.env = env

    def act(self, observation: str, info: dict[str, Any]) -> str:
        return "Up"


def test_an_agent_is_shown_no_expert() -> None:
    env, agent = SokobanEnv(), Curious()
    assert not bind_agent(agent, env)
    assert (
        agent.env.prompt() == env.prompt()
        and agent.env.prompt("tags") == env.prompt("tags")
        and agent.env.horizon == env.horizon
    )
    assert (
        agent.env.demonstrations(1) == env.demonstrations(1) and agent.env.unwrapped.prompt() == env.prompt()
    )
    for name in (
        "oracle",
        "snapshot",
        "restore",
        "progress",
        "task",
        "state",
        "over",
        "_task",
        "_state",
        "step",
        "reset",
        "task_ids",
        "state_key",
        "_set",
        "env",
    ):
        with pytest.raises(NotShown, match=f"not shown '{name}'.*privileged"):
            getattr(agent.env, name)
    with pytest.raises(NotShown, match="no prompt style 'poem'; valid: 'react', 'tags'"):
        agent.env.prompt("poem")
    assert not any(isinstance(getattr(agent.env, name), TextEnv) for name in AgentEnv.__slots__)


def test_the_oracle_says_that_it_looks_inside() -> None:
    env = SokobanEnv()
    assert bind_agent(load_agent("oracle", env_id="tstar/Sokoban-easy", seed=0), env)
    agent = Curious()
    agent.privileged = True  # type: ignore[attr-defined]
    assert bind_agent(agent, env) and agent.env is env


class UnknownProgress(SokobanEnv):
    def progress(self) -> float:
        raise SolverLimit("the solver gave up")


def test_a_measurement_that_fails_costs_no_episode() -> None:
    entry, agent = find_entry("sokoban-easy"), load_agent("random", env_id="tstar/Sokoban-easy", seed=0)
    env, plain = UnknownProgress(horizon=3), SokobanEnv(horizon=3)
    lost = play_episode(env, entry, agent, name="random", task=env.task_ids()[0], progress=True)
    known = play_episode(plain, entry, agent, name="random", task=plain.task_ids()[1], progress=True)
    without = play_episode(plain, entry, agent, name="random", task=plain.task_ids()[0])
    assert (
        lost.ended == "truncated"
        and lost.extra.pop("progress_unknown") == "SolverLimit: the solver gave up"
        and lost == without
    )
    lost.extra["progress_unknown"] = "SolverLimit"
    summary = summarise([lost, known])
    assert (summary.episodes, summary.errors, summary.progress_unknown) == (2, 0, 1)
    assert summary.extra["progress"] == known.extra["progress"], "what is not known is not 0"


def test_the_length_of_a_solution_is_averaged_over_the_tasks_that_tell_it() -> None:
    def of(**extra: Any) -> Episode:
        return Episode("e", "mini", "t", "test", "1", "a", "", "", ended="terminated", extra=extra)

    assert summarise([of(optimal_length=10), of(), of(em=1.0)]).extra == {"optimal_length": 10.0, "em": 1 / 3}


@pytest.mark.parametrize("env_id", ["tstar/HotpotQA", "tstar/Sokoban-easy"])
def test_the_options_of_tiny_are_known_without_its_weights(env_id: str) -> None:
    pytest.importorskip("torch")
    assert options_of("tiny", env_id=env_id, seed=0) == load_agent("tiny", env_id=env_id, seed=0).env_options  # type: ignore[attr-defined]
    assert options_of("random", env_id=env_id, seed=0) == {}


WHOLE = Episode("e", "mini", "t", "test", "1", "a", "i", "o", ended="terminated").to_json()
CHANGES: list[tuple[str, Any]] = [
    ("steps", 3),
    ("steps", [3]),
    ("steps", [{}]),
    ("steps", None),
    ("reward", "1"),
    ("reward", True),
    ("success", 1),
    ("extra", []),
    ("task", None),
    ("sample", "0"),
    ("sample", 1.5),
    ("schema", "x"),
    ("schema", 99),
    ("surprise", 1),
    ("env", {}),
    ("seed", False),
    ("calls", [3]),
    ("calls", [{"purpose": "act"}]),
    ("calls", [{"purpose": "act", "seconds": 1, "tries": "2"}]),
    ("calls", [{"purpose": "act", "seconds": "1"}]),
    ("attempts", [{}]),
    ("attempts", [{"steps": ["x"]}]),
    ("attempts", ["x"]),
]


@pytest.mark.parametrize(("name", "value"), CHANGES)
def test_damaged_records_are_named(tmp_path: Path, name: str, value: Any) -> None:
    path = tmp_path / "e.jsonl"
    path.write_text(f"{WHOLE}\n{json.dumps({**json.loads(WHOLE), name: value})}\n")
    with pytest.raises(BadData, match=r"e\.jsonl, line 2"):
        list(read_episodes(path))


DIGITS = WHOLE.replace('"reward": 0.0', '"reward": ' + "1" * 5000)


@pytest.mark.parametrize("line", ["[" * 5000, "[]", "null", "{}", '{"env": "e"}', DIGITS, '"x"'])
def test_lines_that_are_no_record(tmp_path: Path, line: str) -> None:
    path = tmp_path / "e.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(BadData, match=r"e\.jsonl, line 1"):
        list(read_episodes(path))
