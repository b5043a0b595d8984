"""Whatever an environment or an agent does wrong in ``eval`` is one sentence, and what was whole is saved."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import foreign_code
import numpy as np
import pytest
from cli_process import Call, call_main
from foreign_code import AGENTS, ANOTHERS, ENVIRONMENTS, Wrong, is_said

from tstar_envs import read_episodes

SECONDS = 60  # after which a case hangs
TASKS = 3


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    """A case that hangs fails instead of holding up the suite."""

    def late(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"it hung for {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Call]:
    monkeypatch.chdir(tmp_path)
    foreign_code.forget()
    with foreign_code.registered():
        yield partial(call_main, capsys)


def require(call: Call, case: Wrong, env: str, agent: str, at_once: int, saved: bool = True) -> None:
    """The run ends with the sentence, another status than 0, whole records alone, and a way to go on."""
    code, out, err = call(
        *("eval", "--env", env, "--agent", agent, "--tasks", str(TASKS), "--out", "o.jsonl"),
        *("--concurrency", str(at_once)),
    )
    assert code in (1, 2), (code, out, err)
    assert is_said(case.said, f"{out} {err}"), (out, err)
    assert "Traceback" not in f"{out}{err}"
    assert err.count("\n") == (code == 2), "what stops a run is one line"
    file = Path("o.jsonl")
    episodes = list(read_episodes(file)) if file.exists() else []
    if case.at_start:
        assert code == 2 and not episodes
        return
    assert "the same command again" in " ".join(out.split()), "how to go on"
    whole = [episode for episode in episodes if episode.ended != "error"]
    assert len(whole) >= 1 or at_once > 1, "what was played before is saved"
    assert all(re.search(case.said, e.error) for e in episodes if e.ended == "error")
    names = {path.name for path in Path().iterdir()}
    assert names <= {"o.jsonl", "o.jsonl.config.json"}, "nothing else is left"


def alternating(names: Iterable[str]) -> list[Any]:
    """(name, episodes at once): every name with 1 or 2, the other number only where slow tests run."""
    return [
        pytest.param(name, at_once, marks=[] if n % 2 == at_once - 1 else pytest.mark.slow)
        for n, name in enumerate(names)
        for at_once in (1, 2)
    ]


@pytest.mark.parametrize(("name", "at_once"), alternating(ENVIRONMENTS))
def test_what_an_environment_does_wrong_is_said(name: str, at_once: int, call: Call) -> None:
    case = ENVIRONMENTS[name]
    agent = "foreign_code:Binding" if case.only_agents_that_bind else "foreign_code:Calm"
    require(call, case, f"foreign_code:mine/{name}", agent, at_once)


@pytest.mark.parametrize(("name", "at_once"), alternating(AGENTS))
def test_what_an_agent_does_wrong_is_said(name: str, at_once: int, call: Call) -> None:
    require(call, AGENTS[name], "foreign_code:mine/WellBehaved", f"foreign_code:{name}", at_once)


@pytest.mark.parametrize("name", ANOTHERS)
def test_what_makes_no_other_agent_is_named(name: str, call: Call) -> None:
    require(call, ANOTHERS[name], "foreign_code:mine/WellBehaved", f"foreign_code:{name}", 2)


@pytest.mark.parametrize("at", ["import", "factory"])
@pytest.mark.parametrize(
    "error",
    [
        "SystemExit(0)",
        "GeneratorExit()",
        "StopIteration()",
        "BaseException('odd')",
        "ValueError('x')",
        "MemoryError()",
    ],
)
def test_a_module_or_factory_that_raises_is_named(
    error: str, at: str, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is success: sys.exit() of a script's last line runs on import."""
    name = f"foreign_module_{at}"
    body = f"raise {error}" if at == "import" else f"def make():\n    raise {error}\n"
    (tmp_path / f"{name}.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)
    commands = [("--env", "foreign_code:mine/WellBehaved", "--agent", f"{name}:make")]
    if at == "import":
        commands.append(("--env", f"{name}:mine/Env", "--agent", "random"))
    for command in commands:
        code, out, err = call("eval", *command, "--out", "o.jsonl")
        said = f"{'importing' if at == 'import' else 'making it'}.* raised {error.partition('(')[0]}"
        assert (code, out) == (2, "") and is_said(said, err) and err.count("\n") == 1
    monkeypatch.delitem(sys.modules, name, raising=False)


async def _later(turn: int) -> str:
    await asyncio.sleep(0.001)
    return f"Action: flip {turn}"


class RunsItsOwnLoop(foreign_code.Playing):
    """As agents over a library that is all coroutines do."""

    def act(self, observation: str, info: dict[str, Any]) -> str:
        self.turn += 1
        if self.turn % 2:
            return asyncio.run(_later(self.turn))
        loop = asyncio.new_event_loop()
        try:
            return loop.run_until_complete(_later(self.turn))
        finally:
            loop.close()


class OddText(str):
    """A text with methods of its own."""

    def strip(self, *characters: Any) -> str:
        raise SystemExit(0)

    def __len__(self) -> int:
        return -1

    def encode(self, *how: Any) -> bytes:
        raise ValueError("not this one")


class SaysOddTexts(foreign_code.Playing):
    def act(self, observation: str, info: dict[str, Any]) -> Any:
        said = super().act(observation, info)
        return OddText(said) if self.turn % 2 else np.str_(said)


class Forks(foreign_code.Playing):
    """Its children end by leaving the function, which is called in them as it is in their parent."""

    def act(self, observation: str, info: dict[str, Any]) -> Any:
        child = os.fork()
        if not child:
            if self.turn % 2:
                sys.exit(3)
            raise KeyboardInterrupt
        self.turn += 1
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == (1 if self.turn % 2 else 3)
        return f"Action: flip {self.turn}"


@pytest.mark.parametrize("agent", [RunsItsOwnLoop, SaysOddTexts, Forks])
@pytest.mark.parametrize("at_once", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_what_is_odd_and_right_plays(agent: type[Any], at_once: int, call: Call) -> None:
    """As the same replies from a plain agent."""
    said = []
    for name in (f"{__name__}:{agent.__name__}", "foreign_code:Playing"):
        code, _, err = call(
            *("eval", "--env", "foreign_code:mine/WellBehaved", "--agent", name, "--tasks", "3"),
            *("--out", f"{name[-5:]}.jsonl", "--concurrency", str(at_once)),
        )
        assert not code, err
        played = sorted(read_episodes(Path(f"{name[-5:]}.jsonl")), key=lambda episode: episode.task)
        assert len(played) == 3
        said.append([[(step.reply, step.state_key) for step in one.steps] for one in played])
    assert said[0] == said[1]
