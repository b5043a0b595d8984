"""What an endpoint may do to a benchmark: refuse, break, dawdle, answer nonsense. Each is survived, and counted apart from the model."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import pytest
from chat_server import Body, Raw, Served, completion, serving

from tstar_envs import Episode, UnknownOption, find_entry
from tstar_envs.agents import ModelOptions, load_agent, more_agents
from tstar_envs.agents.base import ENDPOINT, MODEL, UNPARSED, bind_agent
from tstar_envs.agents.endpoint import FIRST_WAIT, Backoff, Endpoint
from tstar_envs.envs.sokoban.env import SokobanEnv
from tstar_envs.evaluation.runner import BrokenRun, Setting, Worker, play_missing
from tstar_envs.evaluation.stats import summarise

pytest.importorskip("aiohttp")
ENTRY = find_entry("sokoban-easy")
MOVE = "Thought: I go.\nAction: Up"
UNAVAILABLE = Raw(503, b'{"error": {"message": "overloaded"}}', {"Content-Type": "application/json"})


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tstar_envs.agents.endpoint.FIRST_WAIT", 0.01)


def play(
    served: Served, *, tasks: int = 1, at_once: int = 1, horizon: int = 3, method: str = "chat", **model: Any
) -> list[Episode]:
    options = ModelOptions("m", served.url, **{"timeout": 5.0, "retries": 2, **model})
    first = load_agent(method, env_id=ENTRY.id, seed=0, model=options)
    agents = more_agents(first, at_once, method, lambda: first)
    envs = [SokobanEnv(horizon=horizon) for _ in agents]
    for env, agent in zip(envs, agents, strict=True):
        bind_agent(agent, env)
    keys = [(task, 0) for task in envs[0].task_ids()[:tasks]]
    return list(
        play_missing(
            [Worker(*pair) for pair in zip(envs, agents, strict=True)], Setting(ENTRY, method), keys, {}
        )
    )


def answers(*given: str | Raw) -> Callable[[Body, int], str | Raw]:
    """These, one after the other; the last one for ever."""
    return lambda body, number: given[min(number, len(given) - 1)]


HALF = Raw(body=b'{"choices": [{"mess', announced=500, headers={"Content-Type": "application/json"})
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (Raw(429, b'{"error": {"message": "slow down"}}', JSON), "HTTP 429: slow down"),
        (Raw(500, b"<h1>Internal</h1>", {"Content-Type": "text/html"}), "HTTP 500"),
        (UNAVAILABLE, "HTTP 503: overloaded"),
        (Raw(body=b"<html>garbage</html>", headers={"Content-Type": "text/html"}), "an unreadable answer"),
        (Raw(body=b"{not json", headers=JSON), "an unreadable answer"),
        (Raw(body=b"[]", headers=JSON), "an unreadable answer"),
        (Raw(body=b'{"choices": []}', headers=JSON), "an unreadable answer"),
        (Raw(body=b'{"choices": [{"message": {"content": 3}}]}', headers=JSON), "an unreadable answer"),
        (HALF, "the connection failed"),
        (Raw(body=b"", hold=2.0), "no answer within 0.3 s"),
    ],
)
def test_what_an_endpoint_does_wrong_is_survived_and_counted_apart(bad: Raw, message: str) -> None:
    timeout = 0.3 if bad.hold else 5.0
    with serving(answers(bad, MOVE)) as served:  # once: the episode is played as if nothing had been
        (episode,) = play(served, timeout=timeout)
        assert episode.ended == "truncated" and episode.failure == MODEL and len(episode.steps) == 3
        assert [call.get("tries", 1) for call in episode.calls] == [2, 1, 1]
    with serving(answers(bad)) as served:  # for ever: no score, and the reason is given
        (episode,) = play(served, timeout=timeout)
        assert (episode.ended, episode.failure, episode.success) == ("error", ENDPOINT, False)
        assert message in episode.error and "(3 tries in" in episode.error and len(served.requests) == 3
        summary = summarise([episode])
        assert (summary.episodes, summary.errors, summary.failures) == (0, 1, {ENDPOINT: 1})


def test_an_endpoint_that_is_not_there() -> None:
    with serving(answers(MOVE)) as served:
        pass
    (episode,) = play(served)
    assert episode.failure == ENDPOINT and "the connection failed" in episode.error


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_what_no_further_try_would_change_is_not_tried_again(status: int) -> None:
    with serving(answers(Raw(status, b'{"error": {"message": "no such model"}}', JSON))) as served:
        (episode,) = play(served)
        assert (
            f"HTTP {status}: no such model" in episode.error
            and len(served.requests) == 1
            and "tries" not in episode.error
        )


def test_a_server_gets_the_patience_it_asks_for_and_no_more() -> None:
    with serving(answers(Raw(429, b"", {"Retry-After": "1"}), MOVE)) as served:
        began = time.perf_counter()
        (episode,) = play(served)
        assert time.perf_counter() - began > 1.0 and episode.failure == MODEL, (
            "asked for a second, and our own pause is a hundredth"
        )
    with serving(answers(Raw(429, b"", {"Retry-After": "3600"}))) as served:
        (episode,) = play(served)
        assert (
            "asks to wait 3600 s, and 300 are waited at most" in episode.error and len(served.requests) == 1
        )


def test_pauses_double_and_are_spread() -> None:
    pauses = Backoff()
    waits = [[pauses.after(tries, None) for _ in range(200)] for tries in (1, 3)]
    assert FIRST_WAIT == 0.5, "the fixture changes the module's, not this one"
    for found, whole in zip(waits, (0.01, 0.04), strict=True):
        assert whole / 2 <= min(found) < max(found) <= whole and len(set(found)) > 100


def test_a_reply_that_does_not_parse_is_the_models_and_counted_apart() -> None:
    with serving(answers("")) as served:
        (episode,) = play(served)
        assert (episode.ended, episode.failure) == ("truncated", UNPARSED)
    with serving(answers("Action: Up", "", MOVE)) as served:
        (episode,) = play(served)
        assert episode.failure == MODEL, "one of three replies without an action is not what failed"


def test_a_dead_endpoint_ends_the_run_soon() -> None:
    with serving(answers(UNAVAILABLE)) as served, pytest.raises(BrokenRun, match="overloaded"):
        play(served, tasks=40, at_once=4)
    assert len(served.requests) <= 3 * (8 + 4)


def test_requests_of_all_seats_are_in_flight_together_and_no_more() -> None:
    with serving(answers(MOVE), delay=0.2) as served:
        episodes = play(served, tasks=32, at_once=32, horizon=20)
    assert len(episodes) == 32 and len(served.requests) == 640 and max(served.at_once) <= 32
    # All along, not at the start alone; one worker after another would be 1. A busy machine has fewer in flight than workers.
    assert statistics.median(served.at_once) > 4


def test_newer_models_take_the_limit_under_another_name() -> None:
    refusal = (
        b'{"error": {"message": "Unsupported parameter: use max_completion_tokens instead of max_tokens"}}'
    )
    with serving(lambda body, number: Raw(400, refusal, JSON) if "max_tokens" in body else MOVE) as served:
        (episode,) = play(served, max_tokens=77)
        assert episode.failure == MODEL and [
            request.get("max_completion_tokens") for request in served.requests
        ] == [None, 77, 77, 77]


def test_fields_of_the_user_stand_above_and_null_leaves_one_out() -> None:
    with serving(answers(MOVE)) as served:
        play(served, request={"temperature": None, "reasoning_effort": "low", "max_tokens": 5})
        (body, *_) = served.requests
        assert "temperature" not in body and (
            body["reasoning_effort"],
            body["max_tokens"],
            body["model"],
        ) == ("low", 5, "m")
    with serving(answers(MOVE)) as served:
        play(served)
        assert served.requests[0]["temperature"] == 0.0, "greedy unless the user says otherwise"


def test_a_model_that_takes_no_temperature_gets_an_error_that_says_how_to_leave_it_out() -> None:
    refusal = Raw(400, b'{"error": {"message": "Unsupported value: temperature must be 1"}}', JSON)
    with serving(lambda body, number: refusal if "temperature" in body else MOVE) as served:
        (episode,) = play(served)
        assert episode.failure == ENDPOINT and "--request temperature=null leaves it out" in episode.error
        assert play(served, request={"temperature": None})[0].failure == MODEL


def test_a_name_and_password_in_the_address_stay_out_of_records() -> None:
    with serving(answers(UNAVAILABLE)) as served:
        served.url = served.url.replace("://", "://me:secret@")
        (episode,) = play(served)
    assert "HTTP 503" in episode.error and "secret" not in episode.to_json() and "127.0.0.1" in episode.error


def test_tokens_are_counted_as_the_endpoint_tells_and_unknown_is_not_zero() -> None:
    with serving(answers(completion(MOVE, given=50), completion(MOVE, usage=False))) as served:
        (episode,) = play(served)
        counts = [(call.get("input_tokens"), call.get("output_tokens")) for call in episode.calls]
        assert counts == [(50, 5), (None, None), (None, None)] and all(
            call["seconds"] > 0 for call in episode.calls
        )
        assert [call["step"] for call in episode.calls] == [0, 1, 2] and all(
            step.seconds > 0 for step in episode.steps
        )


def test_missing_settings_are_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UnknownOption, match="set OPENAI_API_KEY, or name your own endpoint"):
        Endpoint("m")
    with pytest.raises(UnknownOption, match="--model NAME"):
        Endpoint("", "http://x/v1")
    with pytest.raises(UnknownOption, match=r"must begin with http:// or https://, got 'localhost:8000'"):
        Endpoint("m", "localhost:8000")
    with pytest.raises(UnknownOption, match="agent 'random' takes no --model"):
        load_agent("random", env_id=ENTRY.id, seed=0, model=ModelOptions("m"))
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    assert "127.0.0.1:9" in Endpoint("m").shown_url
