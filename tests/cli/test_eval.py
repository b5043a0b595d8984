"""``eval``: figures, records, resuming after a kill, and clear refusals."""

import json
import re
import resource
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from cli_process import COMMAND, ENVIRONMENT, Call, Run, call_main, require_one_line, run_here, run_process
from service_process import ServiceProcess

from tstar_envs import Episode, read_episodes
from tstar_envs.cli import main
from tstar_envs.envs.search_qa.service import HttpSearcher

SLOW_AGENT = """
import time
from tstar_envs.agents.builtin import RandomAgent

class Slow(RandomAgent):
    env_options = {"topk": 1}
    def act(self, observation, info):
        time.sleep(0.005)
        return super().act(observation, info)
"""

SLOW_ORACLE = """
import time
from tstar_envs.agents.builtin import OracleAgent

class Slow(OracleAgent):
    def act(self, observation, info):
        time.sleep(0.05)
        return super().act(observation, info)
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return partial(run_here, tmp_path, monkeypatch, capsys)


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    monkeypatch.chdir(tmp_path)
    return partial(call_main, capsys)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many tries of a service that does not answer, with shorter pauses between them."""
    searcher = partial(HttpSearcher, pause_seconds=0.01)
    monkeypatch.setattr("tstar_envs.envs.search_qa.service.HttpSearcher", searcher)


def base(*more: str) -> tuple[str, ...]:
    return ("eval", "--env", "hotpotqa", *more)


def test_figures_and_records(tmp_path: Path) -> None:
    done = run_process(
        tmp_path, *base("--agent", "oracle", "--tasks", "20", "--split", "valid", "--out", "runs/o.jsonl")
    )
    assert (done.returncode, done.stderr) == (0, "")
    header = "tstar/HotpotQA (mini, rules 4), split valid, agent oracle"
    for text in (header, "100.0%", "83.9% to 100.0%", "Wilson", "mean f1", "0.0% of steps"):
        assert text in done.stdout
    episodes = list(read_episodes(tmp_path / "runs" / "o.jsonl"))
    assert len(episodes) == 20 and all(
        e.success and e.ended == "terminated" and e.agent == "oracle" for e in episodes
    )
    config = json.loads((tmp_path / "runs" / "o.jsonl.config.json").read_text())
    assert config["env"] == "tstar/HotpotQA" and config["split"] == "valid" and config["seed"] == 0


def test_several_samples_get_an_interval_by_task(run: Run) -> None:
    done = run(*base("--agent", "random", "--tasks", "4", "--samples", "3"))
    assert done.returncode == 0 and "12 (4 tasks)" in done.stdout
    assert "Wilson, per episode" in done.stdout and "by task" in done.stdout


def test_a_service_that_goes_away_costs_no_score(run: Run, tmp_path: Path) -> None:
    """Killed in the middle of a run: what failed is listed, counts in no rate, and is played again once the service is back."""
    (tmp_path / "slow_agent.py").write_text(SLOW_ORACLE)
    with ServiceProcess() as service:
        command = base(
            "--agent",
            "slow_agent:Slow",
            "--tasks",
            "12",
            "--option",
            f"retriever={service.url}",
            "--out",
            "o.jsonl",
        )
        path = tmp_path / "o.jsonl"
        with subprocess.Popen(
            [*COMMAND, *command], cwd=tmp_path, env=ENVIRONMENT, stdout=-1, stderr=-1, text=True
        ) as process:
            while not path.exists() or path.read_bytes().count(b"\n") < 3:
                assert process.poll() is None, "it ended before the service did"
                time.sleep(0.01)
            service.kill()
            out, err = process.communicate(timeout=100)
        episodes = list(read_episodes(path))
        failed = [e for e in episodes if e.ended == "error"]
        good = len(episodes) - len(failed)
        assert process.returncode == 2 and len(failed) == 5 and "stopped after 5 episodes in a row" in err
        assert service.url in err and "python -m retriever serve" in err
        assert "100.0%" in out and f"{12 - len(episodes)} not played yet" in out
        assert all(
            e.error.startswith("RetrieverError: ") and e.reward == 0.0 and not e.success for e in failed
        )
        service.start()
        done = run(*command)
    assert done.returncode == 0 and f"resuming: {good} of 12" in done.stdout and "100.0%" in done.stdout
    latest = {e.task: e for e in read_episodes(path)}
    assert len(latest) == 12 and all(e.success and e.ended == "terminated" for e in latest.values())


def comparable(path: Path) -> list[str]:
    """The records without what the clock says."""
    return sorted(
        replace(e, steps=[replace(s, seconds=0.0) for s in e.steps]).to_json() for e in read_episodes(path)
    )


def test_killed_runs_go_on_where_they_stopped(run: Run, tmp_path: Path) -> None:
    (tmp_path / "slow_agent.py").write_text(SLOW_AGENT)
    command = base("--agent", "slow_agent:Slow", "--tasks", "30", "--seed", "3", "--out", "killed.jsonl")
    path = tmp_path / "killed.jsonl"
    with subprocess.Popen(
        [*COMMAND, *command], cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.DEVNULL
    ) as process:
        while not path.exists() or path.read_bytes().count(b"\n") < 5:
            assert process.poll() is None, "it ended before it could be killed"
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    before = path.read_bytes()
    assert 5 <= before.count(b"\n") < 30
    with path.open("ab") as handle:  # what a kill in the middle of a write leaves
        handle.write(b'{"env": "tstar/Hot')
    done = run(*command)
    assert done.returncode == 0 and f"resuming: {before.count(bytes([10]))} of 30" in done.stdout
    assert path.read_bytes().startswith(before), "what was written stays"
    whole = run(*base("--agent", "slow_agent:Slow", "--tasks", "30", "--seed", "3", "--out", "whole.jsonl"))
    assert comparable(path) == comparable(tmp_path / "whole.jsonl") and len(comparable(path)) == 30
    assert done.stdout.split("┌")[1].split("└")[0] == whole.stdout.split("┌")[1].split("└")[0], (
        "the same table"
    )
    assert "topk=1" in whole.stdout, "what the agent wishes of its environment is shown"
    finished = path.read_bytes()
    assert "resuming: 30 of 30" in run(*command).stdout and path.read_bytes() == finished
    more = run(
        *base(
            "--agent",
            "slow_agent:Slow",
            "--tasks",
            "31",
            "--samples",
            "2",
            "--seed",
            "3",
            "--out",
            "killed.jsonl",
        )
    )
    assert "resuming: 30 of 62" in more.stdout and len(comparable(path)) == 62, (
        "more tasks and samples extend a file"
    )


def test_ctrl_c_says_how_to_go_on(run: Run, tmp_path: Path) -> None:
    (tmp_path / "slow_agent.py").write_text(SLOW_AGENT)
    command = base("--agent", "slow_agent:Slow", "--tasks", "30", "--out", "o.jsonl")
    path = tmp_path / "o.jsonl"
    # A shell that starts the tests in the background makes them ignore SIGINT, and children inherit that.
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    started = subprocess.Popen(
        [*COMMAND, *command], cwd=tmp_path, env=ENVIRONMENT, stdout=-1, stderr=-1, text=True, preexec_fn=heard
    )
    with started as process:
        while not path.exists() or path.read_bytes().count(b"\n") < 2:
            assert process.poll() is None, "it ended before it could be interrupted"
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    played = path.read_bytes().count(b"\n")
    assert (process.returncode, err) == (130, "") and f"{30 - played} not played yet" in out
    assert "interrupted: run the same command again to resume" in out
    assert f"resuming: {played} of 30" in run(*command).stdout


def test_a_level_that_cannot_be_won_is_no_failure_of_the_expert(run: Run, tmp_path: Path) -> None:
    (tmp_path / "levels.txt").write_text("######\n#$ ..#\n# @$ #\n######\n\n#######\n# @$ .#\n#######\n")
    done = run("eval", "--env", "sokoban-easy", "--agent", "oracle", "--option", "levels=levels.txt")
    assert (
        done.returncode == 1
        and "the expert knows no way to win task 'levels.txt:0' from here: it cannot be won" in done.stdout
    )
    assert "1 (1 task)" in done.stdout and "100.0%" in done.stdout


def test_how_far_episodes_came(run: Run, tmp_path: Path) -> None:
    """One move each: one of two pushes to the target, and one to the wall, away from which no push leads."""
    (tmp_path / "agents.py").write_text(
        "def half(o, i):\n    return 'Right'\ndef lost(o, i):\n    return 'Up'\n"
    )
    (tmp_path / "half.txt").write_text("#######\n#     #\n#@$ . #\n#     #\n#######\n")
    (tmp_path / "lost.txt").write_text("#######\n#     #\n# $ . #\n# @   #\n#######\n")
    command = ("eval", "--env", "sokoban-easy", "--option", "horizon=1", "--out")
    for name, expected in (("half", 0.5), ("lost", 0.0)):
        done = run(
            *command,
            f"{name}.jsonl",
            "--agent",
            f"agents:{name}",
            "--option",
            f"levels={name}.txt",
            "--progress",
        )
        assert done.returncode == 0 and f"mean progress │ {expected:.3f}" in " ".join(done.stdout.split())
        (episode,) = read_episodes(tmp_path / f"{name}.jsonl")
        assert episode.extra == {"progress": expected}, (
            "the shortest solution of a level by path is not known"
        )
    refused = run(*command, "half.jsonl", "--agent", "agents:half", "--option", "levels=half.txt")
    assert refused.returncode == 2 and "progress was true, now not set" in refused.stderr
    done = run("eval", "--env", "sokoban-easy", "--agent", "oracle", "--tasks", "3", "--progress")
    assert "mean progress │ 1.000" in " ".join(done.stdout.split()) and "mean optimal_length" in done.stdout


def test_user_options_stand_above_the_agents(run: Run, tmp_path: Path) -> None:
    (tmp_path / "slow_agent.py").write_text(SLOW_AGENT)
    done = run(
        *base(
            "--agent",
            "slow_agent:Slow",
            "--tasks",
            "1",
            "--option",
            "topk=2",
            "--option",
            "horizon=3",
            "--out",
            "o.jsonl",
        )
    )
    assert "options: topk=2, horizon=3" in done.stdout
    (episode,) = read_episodes(tmp_path / "o.jsonl")
    assert (
        "Doc 2" in episode.steps[0].observation
        and "Doc 3" not in episode.steps[0].observation
        and len(episode.steps) <= 3
    )


def test_errors_are_counted_apart_and_played_again(run: Run, tmp_path: Path) -> None:
    agent = "calls = 0\ndef act(observation, info):\n    global calls\n    calls += 1\n    assert calls % 3\n    return 'finish[no]'\n"
    (tmp_path / "flaky.py").write_text(agent)
    command = base("--agent", "flaky:act", "--tasks", "9", "--out", "f.jsonl")
    first = run(*command)
    assert (
        first.returncode == 1
        and "3 episodes ended in an error" in first.stdout
        and "6 (6 tasks)" in first.stdout
    )
    assert [e.ended for e in read_episodes(tmp_path / "f.jsonl")].count("error") == 3
    run(*command)
    third = run(*command)
    assert third.returncode == 0 and "9 (9 tasks)" in third.stdout
    last: dict[str, Episode] = {e.task: e for e in read_episodes(tmp_path / "f.jsonl")}
    assert len(last) == 9 and all(e.ended == "terminated" for e in last.values())


def test_unreachable_service_is_no_failure_of_the_agent(run: Run, tmp_path: Path, hurried: None) -> None:
    done = run(
        *base(
            "--agent",
            "oracle",
            "--tasks",
            "50",
            "--option",
            "retriever=http://127.0.0.1:9",
            "--out",
            "d.jsonl",
        )
    )
    assert done.returncode == 2 and done.stderr.startswith("error: stopped after 5 episodes in a row")
    assert "python -m retriever serve" in done.stderr and "success" not in done.stdout
    assert {e.ended for e in read_episodes(tmp_path / "d.jsonl")} == {"error"}


def test_other_settings_are_refused(run: Run, tmp_path: Path) -> None:
    run(*base("--agent", "random", "--tasks", "2", "--out", "r.jsonl"))
    before = (tmp_path / "r.jsonl").read_bytes()
    done = run(
        *base("--agent", "random", "--tasks", "2", "--out", "r.jsonl", "--seed", "1", "--option", "topk=2")
    )
    assert done.returncode == 2 and "options.topk was not set, now 2; seed was 0, now 1" in done.stderr
    assert (tmp_path / "r.jsonl").read_bytes() == before


def test_damage_behind_a_head_is_named_at_the_end_and_nothing_is_lost(run: Run, tmp_path: Path) -> None:
    """To resume a file its heads are enough, which are read fast; the table of results needs its steps."""
    assert run(*base("--agent", "random", "--tasks", "2", "--out", "o.jsonl")).returncode == 0
    path = tmp_path / "o.jsonl"
    lines = path.read_text().splitlines()
    record = json.loads(lines[0])
    record["steps"][0]["action_valid"] = "yes"
    path.write_text(f"{json.dumps(record)}\n{lines[1]}\n")
    done = run(*base("--agent", "random", "--tasks", "4", "--out", "o.jsonl"))
    assert done.returncode == 2 and "o.jsonl, line 1: not a step record: 'action_valid'" in done.stderr
    assert done.stderr.count("\n") == 1 and "resuming: 2 of 4" in done.stdout
    assert path.read_text().splitlines()[1] == lines[1] and path.read_text().count("\n") == 4


def test_full_disk_loses_nothing(run: Run, tmp_path: Path) -> None:
    (tmp_path / "limited.py").write_text(
        "def act(observation, info):\n    return 'finish[' + 'x' * 900 + ']'\n"
    )
    command = base("--agent", "limited:act", "--tasks", "20", "--out", "full.jsonl")
    limit = 20_000  # bytes per file: from there on every write fails, as on a full disk
    done = subprocess.run(
        [*COMMAND, *command],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY)),
    )
    assert (
        done.returncode == 2
        and done.stderr.startswith("error: full.jsonl cannot be written: ")
        and "make room" in done.stderr
    )
    assert "Traceback" not in done.stderr
    written = len(list(read_episodes(tmp_path / "full.jsonl")))
    assert 0 < written < 20
    again = run(*command)
    assert again.returncode == 0 and f"resuming: {written} of 20" in again.stdout
    assert len(comparable(tmp_path / "full.jsonl")) == 20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("eval", "--env", "sokobann", "--agent", "random"),
            "unknown environment 'sokobann'; did you mean sokoban-",
        ),
        (
            base("--agent", "gpt"),
            "random, oracle, oracle:KIND, tiny, tiny:PATH (a trained policy), or module:object",
        ),
        (base("--agent", "nowhere:x"), "no module 'nowhere'"),
        (base("--agent", "random", "--tasks", "0"), "tasks must be from 1 to 1000"),
        (base("--agent", "random", "--tasks", "5000"), "tasks must be from 1 to 1000"),
        (base("--agent", "random", "--samples", "0"), "samples must be at least 1"),
        (base("--agent", "random", "--split", "dev"), "'train', 'valid', 'test'"),
        (
            base("--agent", "random", "--option", "topkk=1"),
            "no option 'topkk'; valid: data, explain_invalid, horizon, list_actions",
        ),
        (base("--agent", "random", "--option", "split=train"), "--split"),
        (base("--agent", "random", "--out", "/"), "not a regular file"),
        (base("--agent", "random", "--option", "horizon=0"), "horizon must be"),
        (base("--agent", "random", "--temperature", "0.5"), "agent 'random' takes no temperature, got 0.5"),
        (base("--agent", "tiny", "--temperature", "-1"), "temperature must be a number of 0 or more, got -1"),
        (
            base("--agent", "tiny", "--temperature", "nan"),
            "temperature must be a number of 0 or more, got nan",
        ),
    ],
)
def test_bad_input_gives_one_line(call: Call, arguments: tuple[str, ...], message: str) -> None:
    require_one_line(call, arguments, message)


def test_tiny_plays_or_says_what_is_missing(run: Run) -> None:
    done = run(*base("--agent", "tiny", "--tasks", "2"))
    if done.returncode == 2:
        assert done.stderr.startswith("error: ") and "pip install" in done.stderr
    else:
        assert done.returncode == 0 and "topk=1" in done.stdout and "2 (2 tasks)" in done.stdout


def test_a_temperature_is_printed_kept_and_part_of_the_settings(run: Run, tmp_path: Path) -> None:
    (tmp_path / "warm.py").write_text(
        "class Warm:\n    def __init__(self, temperature=1.0):\n        self.temperature = temperature\n"
        "    def act(self, observation, info):\n        return f'finish[{self.temperature}]'\n"
    )
    command = base("--agent", "warm:Warm", "--tasks", "1", "--out", "w.jsonl")
    done = run(*command, "--temperature", "0.25")
    assert done.returncode == 0 and "agent warm:Warm (temperature 0.25)" in done.stdout
    (episode,) = read_episodes(tmp_path / "w.jsonl")
    assert episode.steps[0].action == "finish[0.25]"
    refused = run(*command)
    assert refused.returncode == 2 and "temperature was 0.25, now not set" in refused.stderr


def test_few_episodes_with_a_dead_service_say_why(call: Call, hurried: None) -> None:
    code, out, _ = call(
        *base("--agent", "oracle", "--tasks", "2", "--option", "retriever=http://127.0.0.1:9")
    )
    assert code == 1 and "2 episodes ended in an error" in out
    assert (
        "the last one, on hotpotqa-mini-test-0001: RetrieverError" in out
        and "python -m retriever serve" in out
    )


def test_a_full_disk_at_the_start_is_reported_with_path_and_remedy(call: Call, tmp_path: Path) -> None:
    command = base("--agent", "oracle", "--tasks", "1", "--out", "o.jsonl")
    whole = resource.getrlimit(resource.RLIMIT_FSIZE)
    for longest, said in (
        (0, ".o.jsonl.lock' cannot be written: File too large. Choose another place for"),
        (120, "o.jsonl.config.json cannot be written: File too large. Make room"),
    ):
        resource.setrlimit(resource.RLIMIT_FSIZE, (longest, whole[1]))
        try:
            code, out, err = call(*command)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, whole)
        assert (code, out) == (2, "") and said in err and err.count("\n") == 1
        assert list(tmp_path.iterdir()) == [], "a start that fails leaves nothing"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            base("--agent", "random", "--bogus", "3"),
            "'--bogus' is not an option or argument of this command; valid: --env, --agent, --split",
        ),
        (("list", "--bogus"), "'--bogus'"),
    ],
)
def test_an_unknown_option_names_the_valid_ones(call: Call, arguments: tuple[str, ...], message: str) -> None:
    code, out, err = call(*arguments)
    assert (code, out) == (2, "") and message in err and err.count("\n") == 1


def test_one_evaluation_a_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "slow_agent.py").write_text(SLOW_ORACLE)
    command = base("--agent", "slow_agent:Slow", "--tasks", "200", "--out", "o.jsonl")
    path = tmp_path / "o.jsonl"
    with subprocess.Popen(
        [*COMMAND, *command], cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.DEVNULL
    ) as process:
        while not path.exists() or path.read_bytes().count(b"\n") < 2:
            assert process.poll() is None, "it ended before a second one could start"
            time.sleep(0.01)
        second = run(*command)
        assert (
            second.returncode == 2
            and f"o.jsonl is being written by process {process.pid} on" in second.stderr
        )
        assert "choose another --out" in second.stderr and second.stderr.count("\n") == 1
        process.kill()
    lines = len(list(read_episodes(path)))
    third = run(*base("--agent", "slow_agent:Slow", "--tasks", str(lines + 1), "--out", "o.jsonl"))
    assert third.returncode == 0 and f"resuming: {lines} of {lines + 1}" in third.stdout, (
        "the lock of a dead process is taken over"
    )
    assert sorted(p.name for p in tmp_path.iterdir() if "o.jsonl" in p.name) == [
        "o.jsonl",
        "o.jsonl.config.json",
    ]


@pytest.mark.parametrize(
    "by", [*(pytest.param(by, marks=pytest.mark.slow) for by in ("file", "folder")), "both"]
)
def test_through_a_link_it_is_the_same_file(run: Run, tmp_path: Path, by: str) -> None:
    (tmp_path / "slow_agent.py").write_text(SLOW_ORACLE)
    real, path = tmp_path / "real" / "o.jsonl", tmp_path / "link.jsonl"
    real.parent.mkdir()
    if by == "file":
        path.symlink_to(real)
    else:
        (tmp_path / "folder").symlink_to(real.parent, target_is_directory=True)
        path = tmp_path / "folder" / "o.jsonl"
    if by == "both":
        (tmp_path / "again.jsonl").symlink_to(path)
        path = tmp_path / "again.jsonl"
    command = base("--agent", "slow_agent:Slow", "--tasks", "200", "--out")
    with subprocess.Popen(
        [*COMMAND, *command, str(real)], cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.DEVNULL
    ) as process:
        while not real.exists() or real.read_bytes().count(b"\n") < 2:
            assert process.poll() is None, "it ended before a second one could start"
            time.sleep(0.01)
        second = run(*command, str(path))
        assert second.returncode == 2 and f"is being written by process {process.pid} on" in second.stderr
        process.kill()
    lines = len(list(read_episodes(real)))
    wanted = str(lines + 1)
    third = run(*base("--agent", "slow_agent:Slow", "--tasks", wanted, "--out", str(path)))
    assert third.returncode == 0 and f"resuming: {lines} of {wanted}" in " ".join(third.stdout.split())
    assert len(list(read_episodes(real))) == lines + 1
    assert run("report", str(path), "--out", "page.html").returncode == 0, "its settings are found"
    names = {p.name for p in [*tmp_path.iterdir(), *real.parent.iterdir()] if "jsonl" in p.name}
    assert names - {path.name} <= {"o.jsonl", "o.jsonl.config.json", ".o.jsonl.lock"}


@pytest.mark.parametrize(
    ("agent", "at_once", "most"),
    [
        (("command:cat",), 60, 20),
        (("chat", "--model", "m", "--base-url", "http://127.0.0.1:9/v1"), 200, 64),
    ],
)
def test_more_episodes_at_once_than_file_handles(
    tmp_path: Path, agent: tuple[str, ...], at_once: int, most: int
) -> None:
    """The soft limit is raised as far as needed; a hard one is said, with how many go."""
    command = base("--tasks", "60", "--samples", "4", "--concurrency", str(at_once), "--agent", *agent)
    done = subprocess.run(
        [*COMMAND, *command],
        cwd=tmp_path,
        env={**ENVIRONMENT, "OPENAI_API_KEY": "k"},
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (128, 160)),
    )
    found = re.search(
        r"--concurrency \d+ needs \d+ open files.*may have 160: choose --concurrency (\d+) or less",
        done.stderr,
    )
    assert done.returncode == 2 and found is not None and done.stderr.count("\n") == 1, done.stderr
    assert most / 2 < int(found[1]) <= most


def test_programs_that_need_the_soft_limit_raised_play(tmp_path: Path) -> None:
    (tmp_path / "answers.py").write_text(
        "import json, sys\nfor line in sys.stdin:\n    if json.loads(line)['event'] != 'start':\n"
        "        print(json.dumps({'reply': 'finish[x]'}), flush=True)\n"
    )
    command = base("--tasks", "24", "--concurrency", "24", "--agent", f"command:{sys.executable} answers.py")
    done = subprocess.run(
        [*COMMAND, *command],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 1024)),
    )
    assert done.returncode == 0 and "24 (24 tasks)" in done.stdout, done.stdout + done.stderr


def test_an_agent_that_changes_the_folder_takes_the_records_nowhere_else(run: Run, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "wanders.py").write_text(
        "import os\ndef act(o, i):\n    os.chdir('elsewhere' if os.path.isdir('elsewhere') else '.')\n    return 'finish[x]'\n"
    )
    assert run(*base("--agent", "wanders:act", "--tasks", "2", "--out", "o.jsonl")).returncode == 0
    assert len(list(read_episodes(tmp_path / "o.jsonl"))) == 2
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_an_agents_own_options_are_said_loudly_and_can_be_taken_by_all(run: Run, tmp_path: Path) -> None:
    (tmp_path / "wishes.py").write_text(
        "class Wishes:\n    env_options = {'topk': 1}\n    def act(self, o, i):\n        return 'finish[x]'\n"
        "def plain(o, i):\n    return 'finish[x]'\n"
    )
    done = run(*base("--agent", "wishes:Wishes", "--tasks", "1"))
    printed = " ".join(done.stdout.split())
    assert (
        "agent wishes:Wishes requests its own options (topk=1)" in printed
        and "--options-of wishes:Wishes" in printed
    )
    same = run(*base("--agent", "wishes:plain", "--tasks", "1", "--options-of", "wishes:Wishes"))
    assert "options: topk=1" in same.stdout and "of its own" not in same.stdout
    overridden = run(*base("--agent", "wishes:Wishes", "--tasks", "1", "--option", "topk=3"))
    assert "options: topk=3" in overridden.stdout and "of its own" not in overridden.stdout


def test_an_agent_that_asks_for_the_expert_gets_an_error_that_says_what_it_may_know(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "cheat.py").write_text(
        "class Cheat:\n    def bind(self, env):\n        self.env = env\n"
        "    def act(self, o, i):\n        return self.env.unwrapped.oracle()\n"
        "class Open(Cheat):\n    privileged = True\n"
    )
    done = run(*base("--agent", "cheat:Cheat", "--tasks", "1"))
    assert done.returncode == 1 and "an agent is not shown 'oracle' of its environment" in " ".join(
        done.stdout.split()
    )
    said = run(*base("--agent", "cheat:Open", "--tasks", "1"))
    assert said.returncode == 0 and "privileged" in said.stdout and "100.0%" in said.stdout


def test_a_mistyped_option_or_environment_is_guessed(run: Run) -> None:
    for arguments, said in (
        (("--env", "nq", "--task", "3"), "did you mean --tasks?"),
        (("--env", "nq", "--base_urls", "x"), "did you mean --base-url?"),
        (
            (
                "--env",
                "mine/Guess",
            ),
            "name a custom environment with the module that registers it: my_module:mine/Guess",
        ),
        (("--env", "hotpot"), "did you mean hotpotqa?"),
    ):
        done = run("eval", "--agent", "random", *arguments)
        assert done.returncode == 2 and said in done.stderr, done.stderr
        assert "_" not in done.stderr.partition("valid:")[2].partition(";")[0]


def test_a_reader_that_goes_changes_neither_the_status_nor_the_records(tmp_path: Path) -> None:
    command = f"{sys.executable} -m tstar_envs eval --env sokoban-easy --agent random --tasks 3 --out e.jsonl"
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -c 1; exit ${{PIPESTATUS[0]}}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len((tmp_path / "e.jsonl").read_text().splitlines()) == 3


def test_an_option_given_twice_is_refused(call: Call) -> None:
    """The last would count and the other be lost; an option that a script's is overruled by may come again."""
    for name, other in [("--env", "nq"), ("--agent", "random"), ("--out", "b.jsonl")]:
        arguments = (*base("--agent", "oracle", "--out", "a.jsonl", "--tasks", "1"), name, other)
        require_one_line(call, arguments, f"{name} is given twice")
    assert call(*base("--agent", "oracle", "--tasks", "9", "--tasks", "1"))[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evl"], "no command 'evl'; did you mean eval?"),
        (["eval", "--agnet", "random"], "'--agnet' is not an option"),
        (["eval", "--agnet=random"], "did you mean --agent?"),
        (["compare", "a", "b", "--overlp"], "did you mean --overlap?"),
        (["eval", "--agent", "random", "--no-progres"], "did you mean --progress?"),
        (["list", "--env"], "'--env' is not an option or argument of this command"),
    ],
)
def test_a_misspelt_name_is_named_even_if_another_is_missing_for_it(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1
