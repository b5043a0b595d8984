"""Many episodes at once: who plays them, what is shared, and what a failure costs."""

import asyncio
import gc
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tstar_envs import Episode, InfrastructureError, RetrieverError, UnknownOption, WriteFailed, find_entry
from tstar_envs.agents import load_agent, more_agents
from tstar_envs.agents.base import (
    AGENT,
    ENVIRONMENT,
    KINDS,
    SCORED,
    Call,
    FunctionAgent,
    bind_agent,
    failure,
    failure_of,
)
from tstar_envs.envs.search_qa.search import EmbeddedSearcher
from tstar_envs.envs.search_qa.tasks import load_set
from tstar_envs.envs.sokoban.env import SokobanEnv
from tstar_envs.evaluation import workers as workers_module
from tstar_envs.evaluation.runner import Setting, Worker, play_all, play_episode, play_missing

ENTRY = find_entry("sokoban-easy")


def workers(count: int, spec: str, env: type[SokobanEnv] = SokobanEnv, **options: Any) -> list[Worker]:
    load = lambda: load_agent(spec, env_id=ENTRY.id, seed=0)  # noqa: E731
    found = []
    for agent in more_agents(load(), count, spec, load):
        own = env(**options)
        bind_agent(agent, own)
        found.append(Worker(own, agent))
    return found


def keys(count: int, samples: int = 1) -> list[tuple[str, int]]:
    return [(task, sample) for task in SokobanEnv().task_ids()[:count] for sample in range(samples)]


OWN = ["own_agents:Full", "own_agents:function", "own_agents:Slow", "own_agents:SlowAsync"]


@pytest.mark.parametrize("spec", ["random", "oracle", pytest.param("tiny", marks=pytest.mark.slow), *OWN])
def test_episodes_are_the_same_however_many_are_played_at_once(spec: str) -> None:
    if spec == "tiny":
        pytest.importorskip("torch")
    wanted = keys(3, 2)
    alone = list(play_all(workers(1, spec, horizon=8), Setting(ENTRY, "n", seed=4), wanted))
    many = list(play_all(workers(5, spec, horizon=8), Setting(ENTRY, "n", seed=4), wanted))
    assert [(episode.task, episode.sample) for episode in alone] == wanted
    assert sorted(many, key=_key) == sorted(alone, key=_key) and len(alone) == len(wanted)


def _key(episode: Episode) -> tuple[str, int]:
    return episode.task, episode.sample


@pytest.mark.parametrize("spec", ["own_agents:Slow", "own_agents:SlowAsync"])
def test_agents_that_wait_wait_together(spec: str) -> None:
    """Each reply takes 20 ms: 8 episodes of 3 turns take 60 ms at once, and 480 one after the other."""
    began = time.perf_counter()
    assert len(list(play_all(workers(8, spec, horizon=3), Setting(ENTRY, "n"), keys(8)))) == 8
    assert time.perf_counter() - began < 0.3


def test_one_object_plays_one_episode_at_a_time() -> None:
    with pytest.raises(
        UnknownOption,
        match=r"'own_agents:instance' is one object.*concurrency is 2.*name its class or a factory",
    ):
        workers(2, "own_agents:instance")
    assert len({id(worker.agent) for worker in workers(3, "own_agents:Full")}) == 3


def test_searches_that_arrive_while_one_is_answered_are_one_request() -> None:
    from tstar_envs.envs.search_qa.env import SearchQAEnv

    asked: list[list[str]] = []
    first_is_asked, all_others_wait = threading.Event(), threading.Event()

    class Watched:
        """The searcher; its first answer comes when all other agents have replied."""

        def __init__(self, real: Any) -> None:
            self._real = real

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

        def search(self, queries: list[str], topk: int) -> Any:
            asked.append(list(queries))
            first_is_asked.set()
            assert all_others_wait.wait(20)
            return self._real.search(queries, topk)

    class Agent:
        others = 0

        def __init__(self, number: int) -> None:
            self.number, self.turn = number, 0

        async def act(self, observation: str, info: dict[str, Any]) -> str:
            self.turn += 1
            if self.turn > 1:
                return "finish[x]"
            while self.number and not first_is_asked.is_set():
                await asyncio.sleep(0.001)
            Agent.others += self.number > 0
            if Agent.others == 5:
                all_others_wait.set()
            return f"search[Torvan {self.number}]"

        def reset(self, observation: str, info: dict[str, Any]) -> None:
            self.turn = 0

    searcher = Watched(EmbeddedSearcher(load_set("hotpotqa", "mini").corpus))
    chairs = [Worker(SearchQAEnv(searcher=searcher), Agent(number)) for number in range(6)]
    tasks = chairs[0].env.task_ids()[:6]
    episodes = list(play_all(chairs, Setting(find_entry("hotpotqa"), "n"), [(task, 0) for task in tasks]))
    assert all(len(episode.steps) == 2 and episode.steps[0].action_valid for episode in episodes)
    assert (
        asked[0] == ["Torvan 0"]
        and sorted(asked[1]) == [f"Torvan {n}" for n in range(1, 6)]
        and len(asked) == 2
    )


class Breaking(SokobanEnv):
    """Raises on one task what no environment should."""

    def step(self, action: str) -> Any:
        if self.snapshot().task_id.endswith("0001"):
            raise ZeroDivisionError("a bug")
        return super().step(action)


class BreakingReset(SokobanEnv):
    def reset(self, **how: Any) -> tuple[str, dict[str, Any]]:
        observation, info = super().reset(**how)
        if info["task_id"].endswith("0001"):
            raise KeyError("a bug")
        return observation, info


@pytest.mark.parametrize("env", [Breaking, BreakingReset])
@pytest.mark.parametrize("count", [1, 3])
def test_a_fault_of_an_environment_costs_its_episode_and_is_reported_as_such(
    env: type[SokobanEnv], count: int
) -> None:
    done = {
        e.task[-1]: e
        for e in play_missing(workers(count, "own_agents:Full", env), Setting(ENTRY, "n"), keys(4), {})
    }
    assert [done[n].failure for n in "0123"] == ["unparsed", ENVIRONMENT, "unparsed", "unparsed"]
    assert (
        done["1"].ended == "error"
        and "the environment raised" in done["1"].error
        and "a bug" in done["1"].error
    )


def test_failures_have_kinds_and_old_records_too() -> None:
    def of(error: str) -> Episode:
        return Episode("e", "mini", "t", "test", "1", "a", "", "", ended="error", error=error)

    kinds = {
        "EndpointError: x": "endpoint",
        "AgentError: x": AGENT,
        "RetrieverError: x": ENVIRONMENT,
        "EnvironmentFailed: x": ENVIRONMENT,
    }
    assert {error: failure_of(of(error)) for error in kinds} == kinds
    assert failure(of(""), InfrastructureError("x")) == failure(of(""), RetrieverError("x")) == ENVIRONMENT
    solved = Episode("e", "mini", "t", "test", "1", "a", "", "", ended="terminated", success=True)
    assert (
        failure_of(solved) == ""
        and failure_of(Episode("e", "mini", "t", "test", "1", "a", "", "", ended="truncated")) == "model"
    )


def test_only_what_is_left_out_of_the_rates_is_said_to_have_failed() -> None:
    assert {kind for kind, label in KINDS.items() if "failed" in label} == KINDS.keys() - set(SCORED)


def test_an_agent_that_crashes_in_one_episode_plays_the_others() -> None:
    class Sometimes:
        def reset(self, observation: str, info: dict[str, Any]) -> None:
            self.bad = info["task_id"].endswith("2")

        async def act(self, observation: str, info: dict[str, Any]) -> str:
            await asyncio.sleep(0)
            if self.bad:
                raise OSError("my bug")
            return "Up"

    chairs = [Worker(SokobanEnv(horizon=2), Sometimes()) for _ in range(2)]
    done = {e.task[-1]: e for e in play_all(chairs, Setting(ENTRY, "n"), keys(4))}
    assert [done[n].failure for n in "0123"] == ["model", "model", AGENT, "model"]
    assert "the agent raised OSError: my bug" in done["2"].error and "test_runner.py" in done["2"].error


def test_a_fault_is_shown_at_the_agents_own_line_not_inside_the_library_it_called() -> None:
    class Unset:
        def reset(self, observation: str, info: dict[str, Any]) -> None:
            pass

        def act(self, observation: str, info: dict[str, Any]) -> str:
            return os.environ["A_VARIABLE_THAT_NOBODY_SETS"]

    (episode,) = play_all([Worker(SokobanEnv(), Unset())], Setting(ENTRY, "n"), keys(1))
    assert "the agent raised KeyError: 'A_VARIABLE_THAT_NOBODY_SETS'" in episode.error
    assert "test_runner.py" in episode.error and episode.error.endswith("in act)")


def test_what_an_agent_asked_of_a_model_is_recorded_though_it_fails() -> None:
    class Asking:
        def __init__(self) -> None:
            self.calls: list[Call] = []

        def reset(self, observation: str, info: dict[str, Any]) -> None:
            self.calls.append(Call("plan", 0.5, text="first up"))

        def act(self, observation: str, info: dict[str, Any]) -> str:
            self.calls.append(Call("act", 0.1, 7, 3))
            if info["step"] == 1:
                raise ValueError("gone")
            return "Up"

    episode = play_episode(SokobanEnv(), ENTRY, Asking(), name="n", task=keys(1)[0][0])
    assert episode.ended == "error" and len(episode.steps) == 1
    assert episode.calls == [
        {"purpose": "plan", "seconds": 0.5, "text": "first up", "step": 0},
        {"purpose": "act", "seconds": 0.1, "input_tokens": 7, "output_tokens": 3, "step": 0},
        {"purpose": "act", "seconds": 0.1, "input_tokens": 7, "output_tokens": 3, "step": 1},
    ]
    assert Episode.from_json(episode.to_json()) == episode


def test_leaving_early_ends_what_is_under_way() -> None:
    before = threading.active_count()
    playing = play_all(workers(4, "own_agents:SlowAsync"), Setting(ENTRY, "n"), keys(30))
    next(playing)
    playing.close()
    for _ in range(50):
        if threading.active_count() <= before:
            break
        time.sleep(0.02)
    assert threading.active_count() <= before


@pytest.mark.parametrize("where", ["reset", "act", "again"])
@pytest.mark.parametrize("count", [1, 3])
def test_ctrl_c_in_an_agent_leaves_the_run_and_is_not_reported_twice(
    where: str, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    found = workers(count, "own_agents:Full")
    for worker in found:
        setattr(worker.agent, where, stop)
    leave(play_all(found, Setting(ENTRY, "n"), keys(count)), caplog)


@pytest.mark.parametrize("where", ["reset", "step", "prepare_group_step", "progress"])
def test_ctrl_c_in_an_environment_leaves_the_run_and_is_not_reported_twice(
    where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(SokobanEnv, where, stop)
    leave(play_all(workers(1, "own_agents:Full"), Setting(ENTRY, "n", progress=True), keys(1)), caplog)


def leave(playing: Iterator[Episode], caplog: pytest.LogCaptureFixture) -> None:
    """A run is left by what Ctrl-C raises, and nothing that it started is reported when Python tidies up."""
    with pytest.raises(KeyboardInterrupt):
        list(playing)
    del playing
    gc.collect()
    assert not caplog.records


def test_a_measurement_that_raises_anything_costs_no_episode() -> None:
    class Unmeasurable(SokobanEnv):
        def progress(self) -> float:
            raise RecursionError("too deep")

    agent = load_agent("own_agents:Full", env_id=ENTRY.id, seed=0)
    episode = play_episode(Unmeasurable(horizon=2), ENTRY, agent, name="n", task=keys(1)[0][0], progress=True)
    assert episode.ended == "truncated" and episode.extra["progress_unknown"] == "RecursionError: too deep"


def test_privileged_agents_and_environments_share_a_thread() -> None:
    seen: set[int] = set()

    class Spying(SokobanEnv):
        def step(self, action: str) -> Any:
            seen.add(threading.get_ident())
            return super().step(action)

        def oracle(self, paraphrase: int = 0, kind: str = "expert") -> str | None:
            seen.add(threading.get_ident())
            return super().oracle(paraphrase, kind)

    assert all(
        episode.success for episode in play_all(workers(3, "oracle", Spying), Setting(ENTRY, "n"), keys(6))
    )
    assert len(seen) == 1 and threading.get_ident() not in seen


class Waiting:
    """Waits on the event loop for its replies, and notes the threads of the process."""

    most = 0

    def reset(self, observation: str, info: dict[str, Any]) -> None:
        Waiting.most = max(Waiting.most, threading.active_count())

    async def act(self, observation: str, info: dict[str, Any]) -> str:
        await asyncio.sleep(0.005)
        Waiting.most = max(Waiting.most, threading.active_count())
        return "Left"


@pytest.mark.parametrize("kind", ["an agent", "a function"])
def test_agents_that_wait_on_the_loop_need_no_thread_each(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread for the environments, one for the records, and one for calls of their methods that are no coroutines."""
    monkeypatch.setattr(
        workers_module, "_PATIENCE", 5.0
    )  # on a busy machine a call may wait, and get a thread
    before, Waiting.most = threading.active_count(), 0
    agents = [Waiting() if kind == "an agent" else FunctionAgent(Waiting().act) for _ in range(60)]
    found = [Worker(SokobanEnv(horizon=3), agent) for agent in agents]
    written: list[Episode] = []
    played = list(play_all(found, Setting(ENTRY, "n"), keys(60), record=written.extend))
    assert len(played) == len(written) == 60
    assert Waiting.most <= before + (3 if kind == "an agent" else 2)


class BlocksAtReset:
    """Waits on the loop, but its reset blocks."""

    def reset(self, observation: str, info: dict[str, Any]) -> None:
        time.sleep(0.1)

    async def act(self, observation: str, info: dict[str, Any]) -> str:
        return "Left"


def test_methods_that_block_get_as_many_threads_as_they_need() -> None:
    found = [Worker(SokobanEnv(horizon=1), BlocksAtReset()) for _ in range(32)]
    began = time.perf_counter()
    assert len(list(play_all(found, Setting(ENTRY, "n"), keys(32)))) == 32
    assert time.perf_counter() - began < 1.6, "one after the other takes 3.2 s"


def test_an_episode_is_handed_over_once_it_is_written_and_groups_are_written_together() -> None:
    written: list[str] = []
    groups: list[int] = []

    def record(episodes: list[Episode]) -> None:
        time.sleep(0.03)
        assert threading.current_thread() is not threading.main_thread()
        groups.append(len(episodes))
        written.extend(episode.task for episode in episodes)

    found = workers(12, "own_agents:SlowAsync", horizon=1)
    for episode in play_all(found, Setting(ENTRY, "n"), keys(48), record=record):
        assert episode.task in written
    assert sum(groups) == len(set(written)) == 48 and len(groups) < 24


@pytest.mark.parametrize("count", [1, 4])
def test_a_record_that_cannot_be_written_ends_the_run(count: int) -> None:
    written: list[Episode] = []

    def record(episodes: list[Episode]) -> None:
        if len(written) > 5:
            raise WriteFailed("no room")
        written.extend(episodes)

    played = []
    with pytest.raises(WriteFailed, match="no room"):
        for episode in play_all(
            workers(count, "own_agents:Full", horizon=1), Setting(ENTRY, "n"), keys(30), record=record
        ):
            played.append(episode)
    assert 5 < len(written) < 12 and {e.task for e in played} <= {e.task for e in written}


def test_a_record_that_raises_anything_ends_the_run_at_once() -> None:
    def record(episodes: list[Episode]) -> None:
        raise TypeError("not JSON")

    with pytest.raises(TypeError, match="not JSON"):
        list(play_all(workers(3, "own_agents:Full"), Setting(ENTRY, "n"), keys(6), record=record))
