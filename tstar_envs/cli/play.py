"""``play``: a person plays an environment in a terminal; what is shown of a task is in ``game``."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass
from typing import Annotated, Any

import tyro
from rich.console import Console

from tstar_envs.cli.console import say
from tstar_envs.cli.game import SHORT, Game
from tstar_envs.cli.options import make_env, parse_options
from tstar_envs.core import TextEnv
from tstar_envs.errors import UnknownOption
from tstar_envs.react import parse_reply, render_reply
from tstar_envs.registry import find_entry


@dataclass(frozen=True)
class PlayCommand:
    """Play one task yourself. Besides actions you can type hint (shows the expert's next step), undo, restart, help and quit."""

    env: tyro.conf.Positional[str]
    """Environment id or short name, for example tstar/HotpotQA or hotpotqa."""
    task: str | None = None
    """Task to play, by id or by index within the split; default: a random one."""
    split: str = "test"
    """Split that the task comes from: train, valid or test."""
    seed: int | None = None
    """Seed that selects the random task; default: a different task each time."""
    keys: bool = False
    """Play by single keys without Enter, on a screen that is redrawn after each; only where keys stand for actions (Sokoban)."""
    option: tyro.conf.UseAppendAction[Annotated[tuple[str, ...], tyro.conf.arg(metavar="KEY=VALUE")]] = ()
    """Option of the environment, for example topk=1 or retriever=http://127.0.0.1:8000; may be repeated."""


def run(command: PlayCommand, console: Console) -> int:
    """Play until quit, the end of the input or Ctrl-C."""
    entry = find_entry(command.env)
    options = parse_options(entry, command.option, {"split": "--split"})
    env = make_env(entry, {"split": command.split, **options})
    game = Game(env, console)
    if command.keys:
        game.check_keys()
    game.start(command.seed, _task(env, command.task))
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    try:
        if not command.keys or game.play_keys():
            _loop(game, console)
    except (EOFError, KeyboardInterrupt):
        console.print()
    say(console, "bye", "dim")
    return 0


def _task(env: TextEnv[Any, Any], wanted: str | None) -> str | int | None:
    """An id as it is, digits that are no id as an index."""
    return (
        int(wanted) if wanted is not None and wanted.isdecimal() and wanted not in env.task_ids() else wanted
    )


def _loop(game: Game, console: Console) -> None:
    thought = ""
    while True:
        line = input("action> " if thought else "thought and action> ").strip()
        if not sys.stdin.isatty():
            console.print()  # a terminal shows the line break that a person types
        word = SHORT.get(line.lower(), line.lower())
        if word == "quit":
            return
        if word == "keys":
            try:
                if not game.play_keys():
                    return
            except UnknownOption as error:
                say(console, str(error), "red")
            continue
        if not line or game.command(word):
            continue
        if not thought and (meant := game.meant(line)):
            say(
                console,
                f"did you mean {meant}? nothing was played (as an action it is written: Action: {line})",
                "yellow",
            )
            continue
        reply = parse_reply(line)
        if not reply.action and reply.thought and not game.over:
            thought = reply.thought
            continue
        for action in game.actions(reply.action if thought else line):
            game.act(render_reply(thought, action) if thought else action)
            thought = ""
            if game.over:
                break
