"""``--option horizon=optimal*2`` on the command line."""

from pathlib import Path

import pytest
from cli_process import run_process

from tstar_envs import read_episodes

NEAR = "######\n#@$ .#\n######\n"


def test_a_task_beyond_the_solver_is_an_error_of_its_own(tmp_path: Path) -> None:
    """A multiple of what nobody knows: the episode has no result, those of the other tasks have."""
    hall = "\n".join(["#" * 14, *["#" + " " * 12 + "#"] * 9, "#  $ $ $ $   #", "#@ . . . .   #", "#" * 14])
    (tmp_path / "levels.txt").write_text(f"{hall}\n\n{NEAR}")
    done = run_process(
        tmp_path,
        "eval",
        "--env",
        "sokoban-easy",
        "--agent",
        "oracle",
        "--option",
        "levels=levels.txt",
        "--option",
        "horizon=optimal*2",
        "--option",
        "solver_states=5",
        "--out",
        "r.jsonl",
    )
    assert "Traceback" not in done.stdout + done.stderr and "solver_states" in done.stdout + done.stderr, done
    won = [
        (episode.task, episode.success)
        for episode in read_episodes(tmp_path / "r.jsonl")
        if not episode.error
    ]
    assert won == [("levels.txt:1", True)] and done.returncode == 1


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (("play", "sokoban-medium"), "The number of turns is limited."),
        (
            ("eval", "--env", "blocksworld-stack", "--agent", "oracle", "--tasks", "2"),
            "options: horizon=optimal*1.5",
        ),
    ],
    ids=["play", "eval"],
)
def test_on_the_command_line(tmp_path: Path, command: tuple[str, ...], shown: str) -> None:
    done = run_process(tmp_path, *command, "--option", "horizon=optimal*1.5", stdin="hint\nquit\n")
    assert done.returncode == 0 and "Traceback" not in done.stderr, done
    assert shown in done.stdout
    refused = run_process(tmp_path, *command, "--option", "horizon=optimal*.5")
    assert (
        refused.returncode == 2
        and "'optimal*k' with k from 1, got 'optimal*.5'" in refused.stdout + refused.stderr
    )
