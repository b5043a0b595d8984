"""Whatever an environment or an agent does wrong in ``eval`` is one sentence, and what was whole is saved."""

import re
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import FrameType

import foreign_code
import pytest
from cli.cli_process import Call, call_main
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


@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_what_an_environment_does_wrong_is_said(name: str, at_once: int, call: Call) -> None:
    case = ENVIRONMENTS[name]
    agent = "foreign_code:Binding" if case.only_agents_that_bind else "foreign_code:Calm"
    require(call, case, f"foreign_code:mine/{name}", agent, at_once)


@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize("name", AGENTS)
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
