"""``play``: a person plays an environment in a terminal, with hints, undo and restart."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.panel import Panel

from tstar_envs.cli.console import plain, say
from tstar_envs.cli.options import make_env, parse_options
from tstar_envs.core import Snapshot, TextEnv
from tstar_envs.errors import TStarError, UnknownOption
from tstar_envs.react import parse_reply, render_reply
from tstar_envs.registry import find_entry

HELP = "type an action, or 'Thought: ...' and then an action; commands: hint, undo, restart, help, quit"


@dataclass(frozen=True)
class PlayCommand:
    """Play one task yourself. Besides actions you can type: hint (the expert's next step), undo, restart, help, quit."""

    env: tyro.conf.Positional[str]
    """Environment id or short name, for example tstar/HotpotQA or hotpotqa."""
    task: str | None = None
    """Task by id, or by index within the split; default: drawn with --seed."""
    split: str = "test"
    """Where the task is drawn from: train, valid or test."""
    seed: int | None = None
    """Draws the task; default: another one each time."""
    topk: int | None = None
    """Search environments: passages per search (the same as --option topk=N)."""
    retriever: str | None = None
    """Search environments: hashed, bm25, or the address of a search service."""
    option: tyro.conf.UseAppendAction[Annotated[tuple[str, ...], tyro.conf.arg(metavar="KEY=VALUE")]] = ()
    """Further option of the environment; may be repeated."""


class _Game:
    """One task being played: the environment, and what undo needs."""

    def __init__(self, env: TextEnv[Any, Any], console: Console) -> None:
        self._env = env
        self._console = console
        self._past: list[Snapshot[Any]] = []
        self.over = False

    def start(self, seed: int | None, task: str | int | None) -> None:
        """Reset and show the question."""
        observation, info = self._env.reset(seed=seed, options=None if task is None else {"task": task})
        self._past, self.over = [], False
        self._console.print(Panel(plain(self._env.prompt()), title=self._env.spec.id if self._env.spec else None))
        self._console.print(plain(f"task {info['task_id']} ({info['split']})", "dim"))
        self._show(observation, info)

    def command(self, word: str) -> bool:
        """Run hint, undo, restart or help; False if ``word`` is none of them."""
        if word == "help":
            say(self._console, HELP, "dim")
        elif word == "hint":
            say(self._console, self._env.oracle() or "no hint: the episode is over, or this state cannot be won any more", "yellow")
        elif word == "undo" and not self._past:
            say(self._console, "nothing to undo", "dim")
        elif word in ("undo", "restart"):
            snapshot = self._past.pop() if word == "undo" else (self._past or [self._env.snapshot()])[0]
            self._past = [] if word == "restart" else self._past
            observation, info = self._env.restore(snapshot)
            self.over = False
            self._show(observation, info)
        else:
            return False
        return True

    def act(self, reply: str) -> None:
        """Play one reply; where the environment's service fails nothing is lost and the same can be tried again."""
        if self.over:
            say(self._console, "the episode is over: undo, restart or quit", "dim")
            return
        before = self._env.snapshot()
        try:
            observation, reward, terminated, truncated, info = self._env.step(reply)
        except TStarError as error:
            say(self._console, f"{error}\n(nothing was played; try again)", "red")
            return
        self._past.append(before)
        self.over = terminated or truncated
        self._show(observation, info)
        if self.over:
            verdict = "solved" if info["success"] else "out of steps" if truncated else "not solved"
            style = "bold green" if info["success"] else "bold red"
            say(self._console, f"{verdict} after {info['step']} of {info['horizon']} steps, score {reward:.2f}", style)

    def _show(self, observation: str, info: dict[str, Any]) -> None:
        text = plain(observation, "cyan" if info.get("action_valid", True) else "red")
        text.highlight_regex(r"(?m)^(Doc \d+ \(Title: .*?\)(?= )|Question:)", "bold")
        self._console.print(text)
        if info["admissible_actions"]:
            self._console.print(plain("actions: " + ", ".join(info["admissible_actions"]), "dim"))


def run(command: PlayCommand, console: Console) -> int:
    """Play until quit, the end of the input or Ctrl-C."""
    entry = find_entry(command.env)
    pairs = [f"{name}={value}" for name, value in (("topk", command.topk), ("retriever", command.retriever)) if value is not None]
    if any(pair.partition("=")[0] == "split" for pair in command.option):
        raise UnknownOption("the split is named by --split")
    env = make_env(entry, {"split": command.split, **parse_options(entry, [*pairs, *command.option])})
    game = _Game(env, console)
    game.start(command.seed, _task(env, command.task))
    say(console, HELP, "dim")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    try:
        _loop(game, console)
    except (EOFError, KeyboardInterrupt):
        console.print()
    say(console, "bye", "dim")
    return 0


def _task(env: TextEnv[Any, Any], wanted: str | None) -> str | int | None:
    """An id as it is, digits that are no id as an index."""
    return int(wanted) if wanted is not None and wanted.isdecimal() and wanted not in env.task_ids() else wanted


def _loop(game: _Game, console: Console) -> None:
    thought = ""
    while True:
        line = input("action> " if thought else "thought and action> ").strip()
        if not sys.stdin.isatty():
            console.print()  # a terminal shows the line break that a person types
        word = line.lower()
        if word in ("quit", "exit"):
            return
        if not line or game.command(word):
            continue
        reply = parse_reply(line)
        if not reply.action and reply.thought and not game.over:
            thought = reply.thought
            continue
        game.act(render_reply(thought, reply.action) if thought else line)
        thought = ""
