"""The line that moves while episodes are played says what is known so far, and nothing that is not."""

import pytest

from tstar_envs import Episode
from tstar_envs.agents.base import Call
from tstar_envs.cli import console as module
from tstar_envs.cli.console import Live
from tstar_envs.evaluation.cost import Price


def episode(success: bool, *calls: Call, ended: str = "terminated") -> Episode:
    return Episode(
        "e",
        "mini",
        "t",
        "test",
        "1",
        "a",
        "",
        "",
        success=success,
        ended=ended,
        calls=[call.record() for call in calls],
    )


def test_success_errors_speed_and_money(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    live = Live(10, [episode(True)], Price(1.0, 1.0, 2.0), "USD")
    assert live.text() == "success 100.0%"
    clock[0] += 10.0
    live.add(episode(False, Call("act", 1.0, 1_000_000, 500)))
    assert live.text() == "success 50.0%, 50 tokens/s, 1.00 USD, 8.01 USD left"
    live.add(episode(False, Call("act", 1.0, 1_000_000, 500), ended="error"))
    assert live.text() == "success 50.0%, 1 errors, 100 tokens/s, 2.00 USD, 7.01 USD left", "errors cost too"
    live.add(episode(True, Call("act", 1.0)))
    assert live.text() == "success 66.7%, 1 errors, 100 tokens/s", (
        "what one request cost is not known, so neither is the sum"
    )


def test_an_agent_that_asks_nobody_has_no_tokens() -> None:
    live = Live(3, [], None, "USD")
    assert live.text() == "playing"
    live.add(episode(False))
    assert live.text() == "success 0.0%"


def test_what_is_cut_is_told_while_it_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.time, "monotonic", lambda: 1.0)
    live = Live(3, [], None, "USD")
    live.add(episode(False, Call("act", 1.0, 9, 9, finish="length"), Call("act", 1.0, 9, 9, finish="stop")))
    assert live.text() == "success 0.0%, 1 reply cut"
    live.add(episode(False, Call("act", 1.0, 9, 9, finish="length", miscounted=True)))
    assert live.text() == "success 0.0%, 2 replies cut, the messages of 1 request cut by the endpoint"


def test_a_pipe_gets_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    live = Live(100, [], None, "USD")
    for _ in range(10):
        clock[0] += 10.0
        live.add(episode(True))
    out, err = capsys.readouterr()
    assert out == "" and err.splitlines() == [
        f"{count} of 100 episodes, success 100.0%" for count in (3, 6, 9)
    ]
