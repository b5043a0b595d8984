"""Ctrl-C at any instruction of a run ends it with KeyboardInterrupt, and Python has nothing to complain of afterwards."""

import asyncio
import gc
import signal
import sys
import threading
import time
import warnings
from collections.abc import Generator, Iterator
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any

import pytest

from tstar_envs import Episode, find_entry
from tstar_envs.agents import load_agent, more_agents
from tstar_envs.agents.base import AgentError
from tstar_envs.envs.sokoban.env import SokobanEnv
from tstar_envs.evaluation import runner
from tstar_envs.evaluation.runner import Setting, Worker, play_all
from tstar_envs.evaluation.workers import Interrupts

ENTRY = find_entry("sokoban-easy")
TRACED = (runner.__file__, asyncio.queues.__file__, asyncio.base_events.__file__)


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    """A shell that starts the tests in the background makes them ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def episodes(count: int, spec: str = "own_agents:Full", horizon: int = 1) -> Generator[Episode, None, None]:
    load = partial(load_agent, spec, env_id=ENTRY.id, seed=0)
    found = [Worker(SokobanEnv(horizon=horizon), agent) for agent in more_agents(load(), count, spec, load)]
    wanted = [(task, 0) for task in SokobanEnv().task_ids()[:2]]
    return play_all(found, Setting(ENTRY, "n"), wanted)


class Signal:
    """Sends SIGINT before the n-th instruction of the traced modules under ``Interrupts``; 0 sends none and counts."""

    def __init__(self, at: int) -> None:
        self.at, self.count = at, 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename not in TRACED:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            self.count += 1
            if self.count == self.at:
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)
        return self


def traced(trace: Signal, workers: int) -> int:
    """How many episodes were handed over."""
    got, before = 0, sys.gettrace()
    sys.settrace(trace)
    try:
        for _ in episodes(workers):
            got += 1
    finally:
        sys.settrace(before)
    return got


@pytest.mark.parametrize("workers", [1, 2])
def test_at_any_instruction_it_ends_the_run_and_nothing_is_torn(workers: int) -> None:
    whole = Signal(0)
    assert traced(whole, workers) == 2 and whole.count > 1_000
    reported: list[Any] = []
    hook, sys.unraisablehook = sys.unraisablehook, reported.append
    gc.collect()
    gc.freeze()  # what other tests of this process have made is not gone through forty times
    try:
        for at in range(1, whole.count + 1, whole.count // 40):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                sent = Signal(at)
                with suppress(KeyboardInterrupt):
                    traced(sent, workers)
                    # A run has now more, now fewer instructions, many beside threads; the last place may come too late.
                    assert sent.count < at and (workers > 1 or at > 0.95 * whole.count)
                gc.collect()
            assert not reported, (at, [str(said.exc_value) for said in reported])
    finally:
        sys.unraisablehook = hook
        gc.unfreeze()


def test_what_blocks_and_what_waits_is_ended_at_once() -> None:
    for spec in ("own_agents:Sleeping", "own_agents:AsleepAsync"):
        timer = threading.Timer(0.3, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
        began = time.monotonic()
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            list(episodes(1, spec))
        assert time.monotonic() - began < 10, spec


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("spec", ["Deaf", "Sleeping"])
def test_an_agent_that_will_not_be_ended_is_given_up(
    spec: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "CLOSE_SECONDS", 0.3)
    timer = threading.Timer(0.3, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    began = time.monotonic()
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        list(episodes(workers, f"own_agents:{spec}"))
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    ("spec", "workers"),
    [
        ("ClosesForEver", 2),
        ("ClosesForEverAsync", 1),
        ("ClosesForEverAsync", 2),
        ("ClosesDeaf", 1),
        ("ClosesDeaf", 2),
    ],
)
def test_an_agent_that_does_not_close_is_named_once_all_is_played(
    spec: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "CLOSE_SECONDS", 0.3)
    played = []
    with pytest.raises(AgentError, match=r"close\(\) did not end within 0.3 s"):
        for episode in episodes(workers, f"own_agents:{spec}"):
            played.append(episode)
    assert len(played) == 2


def test_ctrl_c_ends_an_agent_that_closes_for_ever() -> None:
    timer = threading.Timer(1.0, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    began = time.monotonic()
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        list(episodes(1, "own_agents:ClosesForEver"))
    assert time.monotonic() - began < 20


def test_who_handles_an_episode_is_interrupted_as_ever() -> None:
    playing = episodes(1)
    next(playing)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert len(list(playing)) == 1, "who goes on all the same can"


def test_another_handler_stays_and_so_does_every_other_thread() -> None:
    loop, got = asyncio.new_event_loop(), []
    signal.signal(signal.SIGINT, lambda *_: got.append(1))
    with Interrupts(loop):
        signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    played: list[int] = []
    thread = threading.Thread(target=lambda: played.append(len(list(episodes(2)))))
    thread.start()
    thread.join(60)
    loop.close()
    assert got == [1] and played == [2]


def test_a_second_signal_does_not_wait() -> None:
    loop = asyncio.new_event_loop()
    with pytest.raises(KeyboardInterrupt), Interrupts(loop) as interrupts:
        signal.raise_signal(signal.SIGINT)
        loop.run_until_complete(interrupts.asked)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    loop.close()
