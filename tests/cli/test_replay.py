"""``replay``: what was recorded is found again, and whatever differs is found at its first step, old and new."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cli_process import Call, call_main

from tstar_envs import read_episodes
from tstar_envs.envs.search_qa.service import HttpSearcher
from tstar_envs.envs.sokoban import level, rules

AGENTS = """
from tstar_envs.agents.builtin import OracleAgent
from tstar_envs.agents.builtin import RandomAgent

class Learns(OracleAgent):
    "Plays junk in its first attempt and then like the expert."
    def reset(self, observation, info):
        self.attempt = info["attempt"]
    def act(self, observation, info):
        return super().act(observation, info) if self.attempt else "junk"
    def again(self, observation, reward, info):
        return not info["success"]

class Tires(RandomAgent):
    "Fails after three replies."
    def act(self, observation, info):
        if info["step"] == 3:
            raise RuntimeError("tired")
        return super().act(observation, info)
"""
Edit = Callable[[list[dict[str, Any]]], None]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "some_agents.py").write_text(AGENTS)
    monkeypatch.syspath_prepend(tmp_path)
    return partial(call_main, capsys)


def edit(file: Path, change: Edit) -> None:
    """Change the records of a file."""
    records = [json.loads(line) for line in file.read_text().splitlines()]
    change(records)
    file.write_text("".join(json.dumps(record) + "\n" for record in records))


def different(call: Call, *arguments: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The report as JSON, and what differs in it."""
    code, out, err = call("replay", "o.jsonl", "--json", *arguments)
    report = json.loads(out)
    assert err == "" and code == (1 if report["different"] or report["failed"] else 0)
    return report, report["different"]


@pytest.mark.parametrize("env", ["hotpotqa", "webshop", "alfworld", "blocksworld-unstack", "sokoban-medium"])
def test_what_was_played_is_found_again(call: Call, env: str) -> None:
    assert (
        call("eval", "--env", env, "--agent", "random", "--tasks", "4", "--samples", "2", "--out", "o.jsonl")[
            0
        ]
        == 0
    )
    assert call("eval", "--env", env, "--agent", "oracle", "--tasks", "40", "--out", "expert.jsonl")[0] == 0
    report, changes = different(call)
    steps = sum(len(episode.steps) for episode in read_episodes(Path("o.jsonl")))
    assert not changes and (report["recordings"], report["as_recorded"], report["steps"]) == (8, 8, steps)
    code, out, _ = call("replay", "expert.jsonl")
    assert (
        code == 0
        and "40 of 40 recordings are unchanged" in out
        and "options: defaults (from expert.jsonl.config.json)" in out
    )


def test_the_recorded_options_are_played_and_others_where_they_are_given(call: Call) -> None:
    chosen = ("--option", "observation=grid_coords", "--option", "horizon=7")
    assert (
        call(
            "eval", "--env", "sokoban-hard", "--agent", "random", "--tasks", "3", *chosen, "--out", "o.jsonl"
        )[0]
        == 0
    )
    assert not different(call)[1]
    report, longer = different(call, "--option", "horizon=9")
    assert report["options"] == {"observation": "grid_coords", "horizon": 9}
    assert [(d["step"], d["changes"]) for d in longer] == [
        (7, [{"what": "ended", "old": "truncated", "new": "goes on"}])
    ] * 3
    _, shorter = different(call, "--option", "horizon=5")
    assert [(d["step"], d["changes"]) for d in shorter] == [
        (5, [{"what": "ended", "old": "goes on", "new": "truncated"}])
    ] * 3
    _, painted = different(call, "--option", "observation=coords")
    assert [(d["step"], d["reply"], [c["what"] for c in d["changes"]]) for d in painted] == [
        (0, "", ["first_observation"])
    ] * 3
    Path("o.jsonl.config.json").unlink()
    code, out, _ = call("replay", "o.jsonl", "--option", "horizon=7", "--show", "2")
    assert code == 1 and "no o.jsonl.config.json is beside the file" in out
    assert (
        out.count("differs at the reset") == 2
        and "and 1 more" in out
        and "first_observation (3)" in out.splitlines()[-1]
    )
    assert different(call, *chosen)[1] == []


FIELDS: dict[str, tuple[int, str, Any]] = {
    "observation": (1, "observation", "something else"),
    "action": (0, "action", "Sideways"),
    "validity": (2, "action_valid", False),
    "state key": (1, "state_key", "0" * 32),
    "tag": (0, "modifies_state", True),
    "thought": (3, "thought", "hm"),
}


@pytest.mark.parametrize("name", FIELDS)
def test_the_first_step_that_differs_is_named_with_old_and_new(call: Call, name: str) -> None:
    assert (
        call("eval", "--env", "sokoban-easy", "--agent", "random", "--tasks", "3", "--out", "o.jsonl")[0] == 0
    )
    number, what, value = FIELDS[name]

    def change(records: list[dict[str, Any]]) -> None:
        for step in records[1]["steps"][number:]:  # a later difference is not the first
            step[what] = value

    was = [getattr(step, what) for step in list(read_episodes(Path("o.jsonl")))[1].steps]
    wanted = next(at for at in range(number, len(was)) if was[at] != value)
    edit(Path("o.jsonl"), change)
    report, (found,) = different(call)
    assert (found["line"], found["step"], found["attempt"]) == (2, wanted + 1, 0) and report[
        "as_recorded"
    ] == 2
    assert found["changes"] == [{"what": what, "old": value, "new": was[wanted]}]
    code, out, _ = call("replay", "o.jsonl")
    assert (
        code == 1
        and f"differs at step {wanted + 1}, after" in out
        and f"{what} was {value!r}" in out
        and repr(was[wanted])[:60] in out
    )


def test_rewards_success_and_ends_are_compared_at_the_end(call: Call) -> None:
    assert call("eval", "--env", "hotpotqa", "--agent", "oracle", "--tasks", "5", "--out", "o.jsonl")[0] == 0

    def change(records: list[dict[str, Any]]) -> None:
        records[0]["reward"] = 0.5
        records[1]["success"] = False
        records[2]["ended"] = "truncated"
        records[3]["extra"]["f1"] = 0.25
        records[4]["reward"] = 1.0 - 1e-15
        records[4]["extra"]["something older"] = 1.0

    edit(Path("o.jsonl"), change)
    _, found = different(call)
    steps = [len(episode.steps) for episode in read_episodes(Path("o.jsonl"))]
    assert [(d["line"], d["step"], d["changes"][0]["what"]) for d in found] == [
        (1, steps[0], "reward"),
        (2, steps[1], "success"),
        (3, steps[2], "ended"),
        (4, steps[3], "f1"),
    ]
    assert found[3]["changes"] == [{"what": "f1", "old": 0.25, "new": 1.0}]


def test_changed_rules_are_found_where_they_change_the_game(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (
        call("eval", "--env", "sokoban-easy", "--agent", "oracle", "--tasks", "20", "--out", "o.jsonl")[0]
        == 0
    )
    play = level.transition
    monkeypatch.setattr(
        rules,
        "transition",
        lambda room, state, direction: (state, -1) if direction == 3 else play(room, state, direction),
    )
    report, found = different(call)
    goes_right = [
        any(step.action == "Right" for step in episode.steps) for episode in read_episodes(Path("o.jsonl"))
    ]
    assert [d["line"] for d in found] == [
        line for line, does in enumerate(goes_right, start=1) if does
    ] and 0 < len(found) < 20
    first = next(d for d in found)
    episode = list(read_episodes(Path("o.jsonl")))[first["line"] - 1]
    assert first["step"] == next(n for n, step in enumerate(episode.steps, start=1) if step.action == "Right")
    assert {"observation", "state_key"} <= {
        change["what"] for change in first["changes"]
    } and "Right" in first["reply"]

    def crash(room: Any, state: Any, direction: int) -> Any:
        if direction == 0:
            raise ZeroDivisionError("oops")
        return play(room, state, direction)

    monkeypatch.setattr(rules, "transition", crash)
    report, found = different(call)
    assert (
        not found and 0 < len(report["failed"]) < 20 and len(report["failed"]) + report["as_recorded"] == 20
    )
    assert "ZeroDivisionError: oops" in report["failed"][0]["error"]


def test_another_rules_version_tier_or_panel_is_said_first(call: Call) -> None:
    play = (
        "eval",
        "--env",
        "sokoban-easy",
        "--agent",
        "random",
        "--tasks",
        "2",
        "--panel",
        "v1",
        "--out",
        "o.jsonl",
    )
    assert call(*play)[0] == 0
    assert call("replay", "o.jsonl")[1].startswith("o.jsonl: 2 episodes of tstar/Sokoban-easy by random")

    def change(records: list[dict[str, Any]]) -> None:
        records[0].update(rules_version="5", tier="full", panel="v1 0123")

    edit(Path("o.jsonl"), change)
    code, out, _ = call("replay", "o.jsonl")
    first, second, third, fourth = out.splitlines()[:4]
    assert code == 0, "what is played is as it was"
    assert (first, second) == (
        "rules version: recorded under 5 and 7, here it is 7",
        "tier: recorded under full and mini, here it is mini",
    )
    assert third.startswith("panel: recorded under v1 0123 and v1 ") and fourth.startswith(
        "o.jsonl: 2 episodes"
    )
    report, _ = different(call)
    assert report["recorded"]["rules version"] == {"recorded": ["5", "7"], "here": "7"}


def test_earlier_attempts_are_replayed_too(call: Call) -> None:
    assert (
        call(
            "eval",
            "--env",
            "sokoban-easy",
            "--agent",
            "some_agents:Learns",
            "--tasks",
            "2",
            "--out",
            "o.jsonl",
        )[0]
        == 0
    )
    report, found = different(call)
    episodes = list(read_episodes(Path("o.jsonl")))
    assert (
        not found
        and report["recordings"] == 4
        and all(len(episode.attempts) == 1 and episode.success for episode in episodes)
    )
    assert report["steps"] == sum(
        len(episode.steps) + len(episode.attempts[0]["steps"]) for episode in episodes
    )

    def change(records: list[dict[str, Any]]) -> None:
        records[1]["attempts"][0]["steps"][4]["invalid_reason"] = "no reason"

    edit(Path("o.jsonl"), change)
    _, (one,) = different(call)
    assert (one["line"], one["attempt"], one["step"], one["changes"][0]["what"]) == (
        2,
        0,
        5,
        "invalid_reason",
    )
    edit(Path("o.jsonl"), lambda records: records[0]["attempts"][0].pop("reward"))
    code, _, err = call("replay", "o.jsonl")
    assert code == 2 and "line 1: attempt 1 is damaged" in err


def test_an_episode_that_ended_in_an_error_is_played_as_far_as_it_goes(call: Call) -> None:
    assert (
        call("eval", "--env", "alfworld", "--agent", "some_agents:Tires", "--tasks", "3", "--out", "o.jsonl")[
            0
        ]
        == 1
    )
    assert [len(episode.steps) for episode in read_episodes(Path("o.jsonl"))] == [3, 3, 3]
    report, found = different(call)
    assert not found and report["steps"] == 9 and report["as_recorded"] == 3
    edit(Path("o.jsonl"), lambda records: records[2]["steps"][2].update(observation="Nothing."))
    assert [(d["line"], d["step"]) for d in different(call)[1]] == [(3, 3)]


def test_an_episode_that_the_trainer_cut_is_not_expected_to_end(call: Call) -> None:
    assert (
        call(
            "eval",
            "--env",
            "nq",
            "--agent",
            "random",
            "--tasks",
            "2",
            "--option",
            "horizon=3",
            "--out",
            "o.jsonl",
        )[0]
        == 0
    )
    Path("o.jsonl.config.json").unlink()

    def cut(records: list[dict[str, Any]]) -> None:
        for record in records:
            record.update(steps=record["steps"][:1], ended="truncated", reward=0.0)
            record["extra"] = {"overlong": True}

    edit(Path("o.jsonl"), cut)
    report, found = different(call)
    assert not found and report["steps"] == 2
    edit(Path("o.jsonl"), lambda records: records[0].update(extra={}))
    assert [d["changes"] for d in different(call)[1]] == [
        [{"what": "ended", "old": "truncated", "new": "goes on"}]
    ]


def test_options_of_a_training_run_come_from_its_folder(call: Call) -> None:
    options = ("--option", "horizon=3", "--option", "topk=1")
    assert (
        call("eval", "--env", "nq", "--agent", "random", "--tasks", "20", *options, "--out", "o.jsonl")[0]
        == 0
    )
    Path("o.jsonl").rename("episodes.jsonl")
    settings: dict[str, Any] = {"env_options": {"topk": 1}, "training_options": {}, "rollout": {"horizon": 3}}
    Path("config.json").write_text(json.dumps(settings))
    assert call("replay", "episodes.jsonl")[0] == 0
    settings["rollout"]["horizon"] = 99  # never longer than the environment's own
    Path("config.json").write_text(json.dumps(settings))
    code, out, _ = call("replay", "episodes.jsonl")
    assert code == 1 and "topk=1, horizon=4" in out
    Path("config.json").write_text("{}")
    code, _, err = call("replay", "episodes.jsonl")
    assert code == 2 and "not the settings of a training run" in err


def test_a_training_run_on_several_environments_is_replayed_by_environment(call: Call) -> None:
    for env, topk in (("nq", "1"), ("hotpotqa", "2")):
        options = (
            "--option",
            "horizon=3",
            "--option",
            f"topk={topk}",
            "--tasks",
            "4",
            "--out",
            f"{env}.jsonl",
        )
        assert call("eval", "--env", env, "--agent", "random", *options)[0] == 0
    Path("episodes.jsonl").write_text(Path("nq.jsonl").read_text() + Path("hotpotqa.jsonl").read_text())
    further = {"tstar/HotpotQA": {"env_options": {"topk": 2}, "training_options": {}}}
    settings: dict[str, Any] = {"env_options": {"topk": 1}, "training_options": {}, "rollout": {"horizon": 3}}
    Path("config.json").write_text(json.dumps({**settings, "mix_options": further}))
    code, _, err = call("replay", "episodes.jsonl")
    assert code == 2 and "one of them by --env" in err
    for env, topk in (("nq", "1"), ("hotpotqa", "2")):
        code, out, _ = call("replay", "episodes.jsonl", "--env", env)
        assert code == 0 and f"topk={topk}, horizon=3" in out and "4 of 4 recordings" in out
    code, _, err = call("replay", "episodes.jsonl", "--env", "webshop")
    assert code == 2 and "holds no episode of tstar/WebShop" in err
    settings["rollout"]["horizon_growth"] = 2
    Path("config.json").write_text(json.dumps({**settings, "mix_options": further}))
    code, _, err = call("replay", "episodes.jsonl", "--env", "nq")
    assert code == 2 and "the horizon grew in this run" in err
    assert call("replay", "episodes.jsonl", "--env", "nq", "--option", "horizon=3")[0] == 0


def test_what_cannot_be_played_is_listed_apart_from_what_differs(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call("eval", "--env", "hotpotqa", "--agent", "oracle", "--tasks", "3", "--out", "o.jsonl")[0] == 0
    edit(Path("o.jsonl"), lambda records: records[1].update(task="gone"))
    report, found = different(call)
    assert not found and report["as_recorded"] == 2 and [f["task"] for f in report["failed"]] == ["gone"]
    assert "UnknownTask: no task 'gone'" in report["failed"][0]["error"]
    monkeypatch.setattr(
        "tstar_envs.envs.search_qa.service.HttpSearcher",
        partial(HttpSearcher, tries=1, pause_seconds=0.0),
    )
    code, out, _ = call("replay", "o.jsonl", "--option", "retriever=http://127.0.0.1:9")
    assert code == 1 and out.count("could not be played beyond step 0: RetrieverError") == 2
    assert out.splitlines()[-1] == "0 of 3 recordings are unchanged (0 steps played); 3 could not be played"


def test_one_episode_is_replayed_alone(call: Call) -> None:
    assert (
        call("eval", "--env", "sokoban-easy", "--agent", "random", "--tasks", "4", "--out", "o.jsonl")[0] == 0
    )
    edit(Path("o.jsonl"), lambda records: records[2]["steps"][1].update(observation="another"))
    report, found = different(call, "--episode", "3")
    assert (report["recordings"], [one["line"] for one in found]) == (1, [3])
    lines = Path("o.jsonl").read_text().splitlines()
    Path("o.jsonl").write_text("\n".join(["damaged", *lines[1:]]) + "\n")
    report, found = different(call, "--episode", "2")
    assert report["recordings"] == 1 and not found, "the others are not read"
    for said, number in (("at least 1", "0"), ("no line 5", "5"), ("line 1: not an episode", "1")):
        code, _, err = call("replay", "o.jsonl", "--episode", number)
        assert code == 2 and said in err and err.count("\n") == 1
    code, _, err = call("replay", "o.jsonl", "--episode", "2", "--env", "hotpotqa")
    assert code == 2 and "o.jsonl, line 2 holds no episode of tstar/HotpotQA" in err


def test_lines_are_those_of_the_file_where_one_environment_is_chosen(call: Call) -> None:
    for env in ("blocksworld-stack", "sokoban-easy"):
        out = f"{env}.jsonl"
        assert call("eval", "--env", env, "--agent", "random", "--tasks", "2", "--out", out)[0] == 0
    edit(Path("sokoban-easy.jsonl"), lambda records: records[1]["steps"][0].update(observation="another"))
    whole = Path("blocksworld-stack.jsonl").read_text() + Path("sokoban-easy.jsonl").read_text()
    Path("o.jsonl").write_text(whole)
    report, found = different(call, "--env", "sokoban-easy")
    assert report["recordings"] == 2 and [one["line"] for one in found] == [4]


def test_refusals(call: Call) -> None:
    def refused(said: str, *arguments: str) -> None:
        code, _, err = call("replay", *arguments)
        assert code == 2 and said in err, err

    refused("there is no such file", "nothing.jsonl")
    Path("o.jsonl").write_text("")
    refused("holds no episode", "o.jsonl")
    Path("o.jsonl").write_text("junk\n")
    refused("line 1: not an episode record", "o.jsonl")
    for env in ("sokoban-easy", "blocksworld-stack"):
        assert (
            call("eval", "--env", env, "--agent", "random", "--tasks", "1", "--out", f"{env}.jsonl")[0] == 0
        )
    Path("o.jsonl").write_text(
        Path("sokoban-easy.jsonl").read_text() + Path("blocksworld-stack.jsonl").read_text()
    )
    refused("mixes episodes of tstar/Sokoban-easy and tstar/Blocksworld-stack", "o.jsonl")
    refused("no option 'topk'", "sokoban-easy.jsonl", "--option", "topk=1")
    refused("--show must be at least 0", "sokoban-easy.jsonl", "--show", "-1")
