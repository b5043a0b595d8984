"""``eval`` of a model behind an endpoint: killed and resumed, with its costs estimated, on a panel, as a suite; people and programs."""

import json
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from chat_server import Raw, completion, serving
from cli_process import COMMAND, ENVIRONMENT, Call, Run, call_main, require_one_line, run_here, run_process

import tstar_envs
from tstar_envs import read_episodes

pytest.importorskip("aiohttp")
MOVE = "Thought: I go.\nAction: Up"
PROGRAM = """
import json, sys
for line in sys.stdin:
    if json.loads(line)["event"] != "start":
        print(json.dumps({"reply": "Up"}), flush=True)
"""
URL = ("--base-url", "http://x/v1")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return partial(run_here, tmp_path, monkeypatch, capsys)


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    return partial(call_main, capsys)


def chat(url: str, *more: str, agent: str = "chat", env: str = "sokoban-easy") -> tuple[str, ...]:
    return ("eval", "--env", env, "--agent", agent, "--model", "gpt-4o-mini", "--base-url", url, *more)


def test_killed_and_resumed_nothing_is_lost_or_played_twice(run: Run, tmp_path: Path) -> None:
    with serving(lambda body, number: MOVE, delay=0.01) as served:
        command = chat(
            served.url, "--tasks", "40", "--concurrency", "4", "--out", "k.jsonl", "--option", "horizon=4"
        )
        path = tmp_path / "k.jsonl"
        with subprocess.Popen(
            [*COMMAND, *command], cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.DEVNULL
        ) as process:
            while not path.exists() or path.read_bytes().count(b"\n") < 9:
                assert process.poll() is None, "it ended before it could be killed"
                time.sleep(0.005)
            process.send_signal(signal.SIGKILL)
        before = list(read_episodes(path))
        assert 9 <= len(before) < 40
        asked = len(served.requests)
        done = run(*command)
        assert done.returncode == 0 and f"resuming: {len(before)} of 40" in done.stdout
        assert len(served.requests) - asked == (40 - len(before)) * 4, "only what was missing is asked for"
    episodes = list(read_episodes(path))
    assert [e.to_json() for e in episodes[: len(before)]] == [e.to_json() for e in before]
    assert len({(e.task, e.sample) for e in episodes}) == len(episodes) == 40 and all(
        len(e.calls) == len(e.steps) == 4 for e in episodes
    )


SHOWING = """
import os, sys
import tstar_envs
from tstar_envs.agents import ModelOptions

def show(run, episode):
    if episode is not None:
        os.write(1, f"{episode.task}\\n".encode())

tstar_envs.evaluate("chat", "sokoban-easy", samples=1, concurrency=48, options={"horizon": 1}, out="k.jsonl",
                    model=ModelOptions("m", sys.argv[1]), callback=show)
"""


def test_what_was_shown_when_it_was_killed_is_on_disk(tmp_path: Path) -> None:
    """Episodes that end together are written together, and shown only then."""
    (tmp_path / "showing.py").write_text(SHOWING)
    with (
        serving(lambda body, number: MOVE, delay=0.02) as served,
        subprocess.Popen(
            [sys.executable, "showing.py", served.url], cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE
        ) as process,
    ):
        assert process.stdout is not None
        shown = [process.stdout.readline() for _ in range(60)]
        process.send_signal(signal.SIGKILL)
        shown += process.stdout.readlines()
    tasks = {line.decode().strip() for line in shown}
    assert len(tasks) >= 60 and tasks <= {episode.task for episode in read_episodes(tmp_path / "k.jsonl")}


def test_ctrl_c_ends_requests_that_never_answer(tmp_path: Path) -> None:
    with serving(lambda body, number: MOVE if number < 8 else Raw(hold=30.0)) as served:
        command = chat(
            served.url, "--tasks", "20", "--concurrency", "4", "--out", "c.jsonl", "--option", "horizon=1"
        )
        heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        started = subprocess.Popen(
            [*COMMAND, *command],
            cwd=tmp_path,
            env=ENVIRONMENT,
            stdout=-1,
            stderr=-1,
            text=True,
            preexec_fn=heard,
        )
        with started as process:
            while len(served.requests) < 12:
                time.sleep(0.01)
            began = time.monotonic()
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
            assert time.monotonic() - began < 10 and (process.returncode, err) == (130, "")
    assert (
        "12 not played yet" in out
        and "run the same command again to resume" in out
        and len(list(read_episodes(tmp_path / "c.jsonl"))) == 8
    )


def test_the_table_tells_what_it_cost_and_what_failed(run: Run, tmp_path: Path) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text(
        'currency = "EUR"\nas_of = "2026-11"\n[models]\n"gpt-4o-mini" = { input = 1000, output = 10000 }\n'
    )

    def answer(body: object, number: int) -> object:
        return completion("" if number % 2 else MOVE, given=1000)

    with serving(answer) as served:  # type: ignore[arg-type]
        command = (
            "--tasks",
            "2",
            "--concurrency",
            "1",
            "--option",
            "horizon=2",
            "--prices",
            str(prices),
            "--out",
            "o.jsonl",
        )
        done = run(*chat(served.url, *command))
    assert done.returncode == 0 and "the replies did not parse │ 2 episodes" in done.stdout
    # Four requests of 1,000 tokens, and answers of 5, 0, 5 and 0 words.
    assert (
        "4,000 in, 10 out" in done.stdout
        and "4.10 EUR (prices of 2026-11)" in done.stdout
        and "none was solved" in done.stdout
    )
    settings = json.loads((tmp_path / "o.jsonl.config.json").read_text())["agent_settings"]
    assert settings == {
        "model": "gpt-4o-mini",
        "temperature": 0.0,
        "max_tokens": 1024,
        "context_tokens": 24000,
        "tools": False,
    }
    with serving(answer) as served:  # type: ignore[arg-type]
        other = run(
            *chat(
                served.url, "--tasks", "2", "--max-tokens", "9", "--option", "horizon=2", "--out", "o.jsonl"
            )
        )
    assert other.returncode == 2 and "agent_settings.max_tokens was 1024, now 9" in other.stderr


def test_errors_of_an_endpoint_are_in_no_rate_and_are_repeated(run: Run, tmp_path: Path) -> None:
    broken = Raw(400, b"{}", {"Content-Type": "application/json"})
    command = (
        "--tasks",
        "6",
        "--concurrency",
        "1",
        "--option",
        "horizon=1",
        "--out",
        "o.jsonl",
        "--base-url",
    )
    with serving(lambda body, number: broken if number in (1, 4) else MOVE) as served:
        first = run(*chat(served.url, *command, served.url))
        assert (
            first.returncode == 1
            and "the endpoint failed" in first.stdout
            and "2 episodes (excluded from rates)" in first.stdout
        )
        assert "HTTP 400" in first.stdout and "4 (4 tasks)" in first.stdout
        again = run(*chat(served.url, *command, served.url))
    assert (
        again.returncode == 0
        and "resuming: 4 of 6" in again.stdout
        and "the endpoint failed" not in again.stdout
    )


@pytest.mark.parametrize("method", ["chat", "direct", "react", "reflexion", "search-o1"])
def test_a_dry_run_sends_nothing_and_its_estimate_holds(run: Run, method: str) -> None:
    env = "hotpotqa"
    with serving(lambda body, number: MOVE) as served:
        estimate = run(*chat(served.url, "--tasks", "7", "--dry-run", agent=method, env=env))
        assert (
            estimate.returncode == 0
            and not served.requests
            and "USD" in estimate.stdout
            and "nothing is sent" in estimate.stdout
        )
        rows = [
            line.replace(",", "").replace("│", " ").split()
            for line in estimate.stdout.splitlines()
            if line.startswith("│ ")
        ]
        expert, most = ([float(cell) for cell in row if cell.replace(".", "").isdigit()] for row in rows)
        run(*chat(served.url, "--tasks", "7", agent=method, env=env))
        asked = len(served.requests)
    assert expert[0] <= most[0] and expert[1] <= most[1] and asked <= most[0]
    assert method == "search-o1" or asked == most[0], (
        "a model that never answers takes all its turns and attempts"
    )


def test_a_dry_run_of_an_agent_without_requests(run: Run) -> None:
    estimate = run("eval", "--env", "sokoban-easy", "--agent", "random", "--tasks", "3", "--dry-run")
    assert (
        estimate.returncode == 0
        and "3 episodes of 20 turns at most; agent random sends no requests" in estimate.stdout
    )


def test_a_panel_is_named_in_table_settings_and_records(run: Run, tmp_path: Path) -> None:
    part = tstar_envs.panel("v1")["sokoban-easy"]
    done = run(
        "eval",
        "--env",
        "sokoban-easy",
        "--agent",
        "oracle",
        "--panel",
        "v1",
        "--tasks",
        "5",
        "--out",
        "o.jsonl",
    )
    assert done.returncode == 0 and f"v1 {part.hash} (the first 5 of 200 tasks)" in done.stdout
    episodes = list(read_episodes(tmp_path / "o.jsonl"))
    assert [e.task for e in episodes] == list(part.tasks[:5]) and {e.panel for e in episodes} == {
        f"v1 {part.hash}"
    }
    assert json.loads((tmp_path / "o.jsonl.config.json").read_text())["panel"] == f"v1 {part.hash}"
    other = run("eval", "--env", "sokoban-easy", "--agent", "oracle", "--panel", "v1", "--split", "valid")
    assert other.returncode == 2 and "panel v1 is made of test tasks: leave split valid out" in other.stderr
    unknown = run("eval", "--env", "sokoban-easy", "--agent", "oracle", "--panel", "v0")
    assert unknown.returncode == 2 and "v0" in unknown.stderr and "v1" in unknown.stderr


def test_a_suite_is_one_table_and_a_file_for_each_environment(run: Run, tmp_path: Path) -> None:
    command = ("eval", "--suite", "paper", "--agent", "oracle", "--tasks", "2", "--out", "all")
    done = run(*command)
    ids = tstar_envs.panel("v1").suite("paper")
    assert done.returncode == 0 and all(f"│ {env_id} " in done.stdout for env_id in ids)
    average = next(line for line in done.stdout.splitlines() if f"│ average of {len(ids)} " in line)
    assert "│  100.0% │" in average and f"│       {2 * len(ids)} │" in average
    files = sorted(path.name for path in (tmp_path / "all").glob("*.jsonl"))
    assert files == sorted(f"{env_id.partition('/')[2].lower()}.jsonl" for env_id in ids)
    assert f"panel v1 {tstar_envs.panel('v1').hash}, the first 2 tasks of each" in done.stdout
    assert done.stdout.count("resuming") == 0 and run(*command).stdout.count("resuming: 2 of 2") == len(ids)


def test_a_person_plays_line_by_line(tmp_path: Path) -> None:
    command = (
        "eval",
        "--env",
        "sokoban-easy",
        "--agent",
        "human",
        "--tasks",
        "1",
        "--option",
        "horizon=3",
        "--out",
        "me.jsonl",
    )
    done = run_process(tmp_path, *command, stdin="Up\nThought: hm\nLeft\n")
    assert (
        done.returncode == 0
        and "You are the player in a Sokoban room" in done.stderr
        and "[turn 3 of 3]" in done.stderr
    )
    (episode,) = read_episodes(tmp_path / "me.jsonl")
    assert [step.reply for step in episode.steps] == ["Up", "Thought: hm", "Left"] and all(
        step.seconds > 0 for step in episode.steps
    )
    left = run_process(tmp_path, *command[:-1], "left.jsonl", stdin="Up\n")
    assert left.returncode == 1 and "the person left: the input has ended" in left.stdout


def test_a_program_plays(run: Run, tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(PROGRAM)
    agent = f"command:{sys.executable} {tmp_path}/p.py"
    done = run("eval", "--env", "sokoban-easy", "--agent", agent, "--tasks", "2", "--concurrency", "2")
    assert done.returncode == 0 and "2 (2 tasks)" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--agent", "random"), "say what to play: --env ID"),
        (("--agent", "random", "--suite", "paper", "--env", "nq"), "leave --env nq out"),
        (("--agent", "random", "--suite", "thesis"), "'paper'"),
        (("--env", "nq", "--agent", "chat"), "--model NAME"),
        (("--env", "nq", "--agent", "chat", "--model", "m"), "set OPENAI_API_KEY"),
        (("--env", "nq", "--agent", "random", "--model", "m"), "takes no --model"),
        (
            ("--env", "nq", "--agent", "random", "--concurrency", "0"),
            "concurrency must be 1 or more, got 0",
        ),
        (("--env", "nq", "--agent", "human", "--concurrency", "2"), "a person plays one episode at a time"),
        (
            ("--env", "nq", "--agent", "chat", "--model", "m", *URL, "--request", "x"),
            "--request takes KEY=VALUE, got 'x'",
        ),
        (
            ("--env", "nq", "--agent", "react", "--model", "m", *URL, "--tools"),
            "react writes its actions as text",
        ),
        (
            ("--env", "sokoban-easy", "--agent", "search-o1", "--model", "m", *URL),
            "search-o1 plays question sets only",
        ),
        (("--env", "nq", "--agent", "random", "--prices", "no.toml"), "no.toml"),
        (
            ("--env", "nq", "--agent", "chat", "--model", "m", *URL, "--max-tokens", "0"),
            "must be 1 or more, got 0",
        ),
        (
            ("--env", "nq", "--agent", "chat", "--model", "m", *URL, "--timeout", "0"),
            "timeout must be above 0",
        ),
    ],
)
def test_bad_input_gives_one_line(call: Call, arguments: tuple[str, ...], message: str) -> None:
    require_one_line(call, ("eval", *arguments), message)
