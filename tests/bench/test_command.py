"""Programs as agents: JSON lines over stdin and stdout, and whatever a program may do instead."""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tstar_envs import Episode, UnknownOption, find_entry
from tstar_envs.agents import load_agent, more_agents
from tstar_envs.agents.base import AGENT, bind_agent
from tstar_envs.agents.load import ModelOptions
from tstar_envs.envs.sokoban.env import SokobanEnv
from tstar_envs.evaluation.runner import Setting, Worker, play_all

ENTRY = find_entry("sokoban-easy")
HEAD = "import json, sys, os, time\nfor number, line in enumerate(sys.stdin):\n    event = json.loads(line)\n"
ANSWER = """    if event['event'] != 'start':
        print(json.dumps({'reply': 'Action: Up', 'input_tokens': 9, 'output_tokens': 2}), flush=True)
"""


def play(
    folder: Path, body: str, *, tasks: int = 2, at_once: int = 1, timeout: float = 20.0
) -> list[Episode]:
    (folder / "program.py").write_text(HEAD + body)
    spec = f"command:{sys.executable} '{folder}/program.py' --flag 'two words'"
    load = lambda: load_agent(spec, env_id=ENTRY.id, seed=0, model=ModelOptions(timeout=timeout))  # noqa: E731
    workers = []
    for agent in more_agents(load(), at_once, spec, load):
        env = SokobanEnv(horizon=3)
        bind_agent(agent, env)
        workers.append(Worker(env, agent))
    return list(
        play_all(workers, Setting(ENTRY, "program"), [(task, 0) for task in SokobanEnv().task_ids()[:tasks]])
    )


def test_a_program_plays_and_receives_what_an_agent_may_know(tmp_path: Path) -> None:
    log = f"    open({str(tmp_path / 'log')!r}, 'a').write(json.dumps([os.getpid(), sys.argv[1:], event]) + '\\n')\n"
    episodes = play(tmp_path, log + ANSWER)
    assert all(len(episode.steps) == 3 and episode.steps[0].action == "Up" for episode in episodes)
    assert [call["input_tokens"] for call in episodes[0].calls] == [9, 9, 9] and all(
        call["seconds"] > 0 for call in episodes[0].calls
    )
    received = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert len({pid for pid, _, _ in received}) == 1 and received[0][1] == ["--flag", "two words"], (
        "one process for all episodes of a worker"
    )
    start, *events = [event for _, _, event in received]
    assert start["event"] == "start" and start["prompt"] == SokobanEnv(horizon=3).prompt()
    assert start["tools"][0]["function"]["name"] == "move"
    assert [event["event"] for event in events] == ["reset", "step", "step"] * 2
    assert (
        events[0]["observation"] == episodes[0].first_observation
        and events[1]["observation"] == episodes[0].steps[0].observation
    )
    assert events[0]["info"]["task_id"] == episodes[0].task and "agent_seed" in events[0]["info"]


def test_several_at_once_have_a_process_each(tmp_path: Path) -> None:
    log = f"    open({str(tmp_path / 'log')!r}, 'a').write(str(os.getpid()) + '\\n')\n    time.sleep(0.05)\n"
    assert len(play(tmp_path, log + ANSWER, tasks=6, at_once=3)) == 6
    assert len(set((tmp_path / "log").read_text().split())) == 3


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "    sys.stderr.write('no\\nlicence here\\n'); sys.exit(7)\n",
            "ended with status 7; its last words: no | licence here",
        ),
        ("    print('hello', flush=True)\n", "failed: Expecting value"),
        (
            "    print(json.dumps({'answer': 'x'}), flush=True)\n",
            'it must answer {"reply": "..."} in one line',
        ),
        ("    print(json.dumps({'reply': 3}), flush=True)\n", "it must answer"),
        ("    time.sleep(60)\n", "gave no reply within 2 s (--timeout)"),
        ("    raise ValueError('my bug')\n", "ValueError: my bug"),
    ],
)
def test_a_program_that_fails_costs_its_episode_and_is_started_anew(
    tmp_path: Path, body: str, message: str
) -> None:
    first = f"    seen = {str(tmp_path / 'seen')!r}\n    if event['event'] == 'reset' and not os.path.exists(seen):\n"
    first += "        open(seen, 'w').close()\n" + body.replace("    ", "        ", 1)
    bad, good = play(tmp_path, first + ANSWER, timeout=2 if "sleep" in body else 20.0)
    assert bad.failure == AGENT and message in bad.error and "the program" in bad.error
    assert good.ended == "truncated" and len(good.steps) == 3


def test_a_chatty_program_is_not_blocked_by_its_own_stderr(tmp_path: Path) -> None:
    assert all(
        e.ended == "truncated"
        for e in play(tmp_path, "    sys.stderr.write('x' * 300_000 + '\\n')\n" + ANSWER)
    )


def test_long_lines_and_any_text_go_both_ways(tmp_path: Path) -> None:
    reply: Any = "Thought: " + "\u2028\ud800\U0001f600 long " * 20_000 + "\nAction: Up"
    body = f"    reply = json.loads({json.dumps(json.dumps(reply))})\n" + ANSWER.replace(
        "'Action: Up'", "reply"
    )
    (episode,) = play(tmp_path, body, tasks=1)
    assert episode.steps[0].reply == reply and episode.steps[0].action == "Up"


NONE = [
    ("command:", "needs a program"),
    ("command", "needs a program"),
    ("command:'x", "No closing quotation"),
]


@pytest.mark.parametrize(("spec", "message"), NONE)
def test_commands_that_are_none(spec: str, message: str) -> None:
    with pytest.raises(UnknownOption, match=message):
        load_agent(spec, env_id=ENTRY.id, seed=0)


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    agent = load_agent("command:/no/such/program", env_id=ENTRY.id, seed=0)
    bind_agent(agent, env := SokobanEnv())
    (episode,) = play_all([Worker(env, agent)], Setting(ENTRY, "x"), [(env.task_ids()[0], 0)])
    assert episode.failure == AGENT and "No such file" in episode.error


# Each leaves a child that would hold its pipes for a minute, whose number it writes down.
LEAVES = """    child = subprocess.Popen(['sleep', '60'])
    open(sys.argv[0] + '.child', 'w').write(str(child.pid))
"""
AFTER_RESET = "    if event['event'] != 'reset':\n        continue\n    import subprocess, signal\n"


@pytest.mark.parametrize(
    ("does", "message"),
    [
        ("    sys.exit(3)\n", "ended with status 3"),
        ("    os.kill(os.getpid(), 9)\n", "ended with status -9"),
        ("    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n    time.sleep(60)\n", "no reply within 1 s"),
        ("    os.kill(os.getpid(), signal.SIGSTOP)\n", "no reply within 1 s"),
        ("    print('[' * 100_000, flush=True)\n", "failed"),
        ("    print(json.dumps({'reply': 'Up', 'input_tokens': -4}), flush=True)\n", "input_tokens must be"),
        (
            "    print(json.dumps({'reply': 'Up', 'output_tokens': 10**300}), flush=True)\n",
            "output_tokens must",
        ),
        ("    while True:\n        print('x' * 100_000, end='')\n", "failed"),
    ],
)
def test_a_program_with_a_child_at_its_pipes_is_ended_with_it(
    tmp_path: Path, does: str, message: str
) -> None:
    began = time.monotonic()
    timeout = 1.0 if "within 1 s" in message else 20.0
    found = play(tmp_path, AFTER_RESET + LEAVES + does, tasks=1, timeout=timeout)
    assert [e.failure for e in found] == [AGENT] and message in found[0].error
    assert time.monotonic() - began < 45, "it waited for the child"
    child = int((tmp_path / "program.py.child").read_text())
    for _ in range(200):
        if not _runs(child):
            break
        time.sleep(0.02)
    else:
        os.kill(child, signal.SIGKILL)
        pytest.fail("its child outlived it")


@pytest.mark.parametrize("closed", [(1,), (0, 1), (0, 1, 2)])
def test_a_program_that_closes_its_output_and_lives_on(tmp_path: Path, closed: tuple[int, ...]) -> None:
    closes = "".join(f"    os.close({number})\n" for number in closed)
    body = f"{AFTER_RESET}    open(sys.argv[0] + '.pid', 'w').write(str(os.getpid()))\n{closes}    time.sleep(60)\n"
    (episode,) = play(tmp_path, body, tasks=1)
    assert episode.failure == AGENT
    assert "closed its output without an answer, and is still running" in episode.error
    assert not _runs(int((tmp_path / "program.py.pid").read_text()))


def _runs(process: int) -> bool:
    """Whether a process is there, and not only its exit status, which nobody here asks for."""
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[:1]
    except FileNotFoundError:
        return False


def test_a_child_in_a_session_of_its_own_holds_nobody_up(tmp_path: Path) -> None:
    leaves = LEAVES.replace("['sleep', '60']", "['sleep', '60'], start_new_session=True")
    first = f"{AFTER_RESET}{leaves}    sys.exit(4)\n"
    try:
        bad, again = play(tmp_path, first, tasks=2, timeout=20)
    finally:
        os.kill(int((tmp_path / "program.py.child").read_text()), signal.SIGKILL)
    assert "ended with status 4" in bad.error and "ended with status 4" in again.error


def test_what_a_program_that_ends_has_said_still_counts(tmp_path: Path) -> None:
    body = (
        f"{AFTER_RESET}{LEAVES}"
        + "    print(json.dumps({'reply': 'Action: Up'}), flush=True)\n    sys.exit(0)\n"
    )
    (episode,) = play(tmp_path, body, tasks=1)
    assert [step.action for step in episode.steps] == ["Up"] and episode.failure == AGENT
