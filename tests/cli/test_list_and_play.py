"""``list`` and ``play``: what a person sees, and that every way out is a clean one."""

import contextlib
import os
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest
from cli_process import COMMAND, ENVIRONMENT, Call, Run, call_main, require_one_line, run_here, run_process

from tstar_envs import list_envs

TASK = "hotpotqa-mini-test-0473"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return partial(run_process, tmp_path)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return partial(run_here, tmp_path, monkeypatch, capsys)


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    monkeypatch.chdir(tmp_path)
    return partial(call_main, capsys)


def test_list_shows_every_environment(here: Run) -> None:
    done = here("list")
    assert (done.returncode, done.stderr) == (0, "")
    for entry in list_envs():
        row = next(line for line in done.stdout.splitlines() if entry.id in line)
        tier, sizes = entry.load_class().survey(**entry.kwargs)
        splits = ", ".join(f"{split} {size:,}" for split, size in sizes.items())
        assert all(text in row for text in (entry.family, str(entry.horizon), entry.extra, splits, tier))
    assert (
        "train 2,000, valid 500, test 1,000" in done.stdout
        and "train 2,000, valid 200, test 400" in done.stdout
    )
    assert "train 1,667, valid 167, test 334" in done.stdout


@pytest.mark.parametrize("arguments", ["list", pytest.param("play --help", marks=pytest.mark.slow)])
def test_into_a_closed_pipe(arguments: str) -> None:
    shell = f"{' '.join(COMMAND)} {arguments} | true"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {shell}"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""


@pytest.mark.parametrize(
    "command", ["play", *(pytest.param(c, marks=pytest.mark.slow) for c in ("list", "eval"))]
)
def test_help_is_there_and_light(run: Run, command: str) -> None:
    done = run("--help")
    assert done.returncode == 0 and all(command in done.stdout for command in ("list", "play", "eval"))
    assert run(command, "--help").returncode == 0


def test_a_whole_game(here: Run) -> None:
    typed = [
        "hint",
        "Thought: first the person",
        "search[Torwick Hesbel]",
        "undo",
        "undo",
        "help",
        "nonsense",
        "finish[Ebsel]",
        "hint",
        "search[too late]",
        "undo",
        "restart",
        "Thought: I give up\tnow",
        "Action: finish[Bredra]",
        "quit",
        "never read",
    ]
    done = here("play", "hotpotqa", "--task", TASK, "--option", "topk=1", stdin="\n".join(typed))
    assert (done.returncode, done.stderr) == (0, "")
    shown = iter(done.stdout.splitlines())
    for expected in (
        "Answer the question by searching",
        f"task {TASK} (test)",
        "Question: What is the name of the country",
        "commands: hint",
        "Thought: I need to find Torwick Hesbel first.",
        "Action: search[Torwick Hesbel]",  # hint
        "Doc 1 (Title: Torwick Hesbel)",
        "Question: What is",
        "nothing to undo",
        "commands: hint",
        "Invalid action",
        "The answer is right.",
        "solved after 2 of 6 steps, score 1.00",
        "no hint",
        "the episode is over",
        "Invalid action",  # undo shows the observation before the answer
        "Question: What is",
        "The answer is wrong.",
        "not solved after 1 of 6 steps, score 0.00",
        "bye",
    ):
        assert any(expected in line for line in shown), (
            f"{expected!r} is missing, or out of order, in:\n{done.stdout}"
        )
    assert "Doc 2" not in done.stdout


def test_horizon_ends_a_game(here: Run) -> None:
    done = here("play", "hotpotqa", "--task", "3", "--option", "horizon=2", stdin="a\nb\n")
    assert "out of steps after 2 of 2 steps, score 0.00" in done.stdout and done.returncode == 0


@pytest.mark.parametrize(
    "typed",
    [
        "",
        "Thought: unfinished",
        b"\xff\xfe\x00\n",
        *(pytest.param(t, marks=pytest.mark.slow) for t in ("search[a]", "\n\n", "\x1b[31mred\n")),
    ],
)
def test_end_of_input_is_a_clean_end(run: Run, typed: str | bytes) -> None:
    done = run("play", "tstar/HotpotQA", "--seed", "1", stdin=typed)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.rstrip().endswith("bye")
    assert "\x1b" not in done.stdout


@pytest.mark.slow
def test_seed_draws_the_task(here: Run) -> None:
    first, second, third = (
        here("play", "hotpotqa", "--split", "valid", "--seed", seed).stdout for seed in ("1", "1", "2")
    )
    assert first == second != third and "(valid)" in first


def test_ctrl_c_is_a_clean_end(tmp_path: Path) -> None:
    command, pipe = [*COMMAND, "play", "hotpotqa"], subprocess.PIPE
    # A shell that starts the tests in the background makes them ignore SIGINT, and children inherit that.
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(
        command, cwd=tmp_path, env=ENVIRONMENT, stdin=pipe, stdout=pipe, stderr=pipe, preexec_fn=heard
    ) as game:
        assert game.stdout is not None and game.stdin is not None and game.stderr is not None
        shown = b""
        while b"action> " not in shown:
            shown += os.read(game.stdout.fileno(), 4096)
        # Again if need be: a signal between the prompt and the read is noticed only when the read returns.
        while game.poll() is None:
            time.sleep(0.3)
            game.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                game.wait(timeout=3)
        rest = game.stdout.read().decode()
        assert rest.rstrip().endswith("bye") and game.stderr.read() == b""
    assert game.returncode == 0


def test_a_game_survives_a_dead_search_service(here: Run) -> None:
    done = here(
        "play",
        "hotpotqa",
        "--task",
        TASK,
        "--option",
        "retriever=http://127.0.0.1:9",
        stdin="search[x]\nfinish[Ebsel]\n",
    )
    assert "python -m retriever serve" in done.stdout and "try again" in done.stdout
    assert "solved after 1 of 6 steps" in done.stdout and done.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("play", "hotpotq"), "unknown environment 'hotpotq'; did you mean hotpotqa? valid: hotpotqa"),
        (("play", "hotpotqa", "--task", "nope"), "no task 'nope'"),
        (("play", "hotpotqa", "--task", "1000"), "from 0 to 999"),
        (("play", "hotpotqa", "--split", "dev"), "'train', 'valid', 'test'"),
        (("play", "hotpotqa", "--option", "topk=0"), "topk must be"),
        (("play", "hotpotqa", "--option", "retriever=elastic"), "'hashed', 'bm25'"),
        (
            ("play", "hotpotqa", "--option", "colour=red"),
            "no option 'colour'; valid: data, explain_invalid, horizon, list_actions, normalizer",
        ),
        (("play", "hotpotqa", "--option", "topk"), "key=value"),
        (("play", "hotpotqa", "--option", "topk=many"), "topk must be a whole number"),
        (("play", "hotpotqa", "--option", "split=train"), "--split"),
        (("play", "hotpotqa", "--option", "data=/nowhere"), "data='mini' works"),
    ],
)
def test_bad_input_gives_one_line(call: Call, arguments: tuple[str, ...], message: str) -> None:
    require_one_line(call, arguments, message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("plya",), "play"), (("eval", "--env", "a", "--agent", "b", "--sede", "3"), "--seed"), ((), "list")],
)
def test_mistyped_commands_name_the_right_ones(run: Run, arguments: tuple[str, ...], message: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr
