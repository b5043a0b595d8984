"""``play``: play an environment yourself in a terminal."""

from __future__ import annotations

import difflib
import io
import os
import re
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from tstar_envs.cli.console import make_env, plain, say
from tstar_envs.core import TextEnv
from tstar_envs.errors import InfrastructureError, TStarError, UnknownOption
from tstar_envs.react import match_action, parse_reply, render_reply
from tstar_envs.registry import find_entry, parse_options
from tstar_envs.snapshot import Snapshot

try:
    import termios
    import tty
except ImportError:  # Windows has neither
    termios = tty = None  # type: ignore[assignment]

ESCAPE, END_OF_INPUT = "\x1b", "\x04"
# Seconds. An arrow key sends three bytes at once; the Escape key sends one.
_REST_OF_SEQUENCE = 0.05


def check_terminal() -> None:
    """Raise UnknownOption if single keys cannot be read: no terminal, or a system without ``termios``."""
    if termios is None or tty is None:
        raise UnknownOption("single keys need a terminal of Linux or macOS; type a line and Enter instead")
    if not sys.stdin.isatty():
        raise UnknownOption(
            "single keys need a terminal, but the input is a file or a pipe; write lines instead"
        )


@contextmanager
def single_keys() -> Iterator[Callable[[], str]]:
    """Read keys without Enter and echo inside the context; Ctrl-C interrupts as usual.

    Yields:
        A function that waits for the next key and returns a character, an escape sequence (arrow keys), or ``END_OF_INPUT``.

    Raises:
        UnknownOption: see ``check_terminal``.
    """
    check_terminal()
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal, termios.TCSADRAIN)  # keep keys that were typed ahead
    try:
        yield lambda: _read_key(terminal)
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _read_key(terminal: int) -> str:
    first = os.read(terminal, 1)
    if not first:
        return END_OF_INPUT
    if first == b"\x1b" and select.select([terminal], [], [], _REST_OF_SEQUENCE)[0]:
        return (first + os.read(terminal, 2)).decode("ascii", "replace")
    # Number of bytes of the UTF-8 character.
    missing = 3 if first >= b"\xf0" else 2 if first >= b"\xe0" else 1 if first >= b"\xc0" else 0
    return (first + (os.read(terminal, missing) if missing else b"")).decode("utf-8", "replace")


HELP = "type an action, or 'Thought: ...' and then an action; commands: hint, undo, restart, help, quit (or h, u, r, ?, q)"
KEYS_HELP = "u undo, h hint, r restart, ? rules, q quit, Enter back to lines"
COMMANDS = ("hint", "undo", "restart", "help", "quit", "keys")
SHORT = {"h": "hint", "u": "undo", "r": "restart", "?": "help", "q": "quit", "exit": "quit"}


class Game:
    """Game of one task: the environment, and snapshots for undo."""

    def __init__(self, env: TextEnv[Any, Any], console: Console) -> None:
        self._env = env
        self._console = console
        self._name = env.spec.id if env.spec else type(env).__name__
        self._task = ""
        self._past: list[Snapshot[Any]] = []
        self._admissible: list[str] = []
        self.over = False
        self.draws_anew = False  # True to clear the screen before each state

    def start(self, seed: int | None, task: str | int | None) -> None:
        """Reset the environment and show the first observation."""
        observation, info = self._env.reset(seed=seed, options=None if task is None else {"task": task})
        self._past, self.over = [], False
        self._task = f"task {info['task_id']} ({info['split']})"
        self._rules()
        self._console.print(plain(self._task, "dim"))
        self._show(observation, info)
        self.command("help")

    def actions(self, line: str) -> list[str]:
        """Convert a line to actions: by number, by keys, or verbatim."""
        if line.isdecimal() and self._admissible and line not in self._admissible:
            if 0 < int(line) <= len(self._admissible):
                return [self._admissible[int(line) - 1]]
            say(
                self._console,
                f"there is no action {line}: valid numbers are 1 to {len(self._admissible)}",
                "red",
            )
            return []
        keys, typed = self._env.keys, "".join(line.lower().split())
        one = "|".join(map(re.escape, sorted(keys, key=len, reverse=True)))
        if keys and re.fullmatch(f"(?:{one})+", typed):
            return [keys[key] for key in re.findall(one, typed)]
        return [line]

    def meant(self, line: str) -> str:
        """Suggest the command for a misspelled word; "" for commands and possible actions."""
        word = line.lower()
        if not word.isalpha() or word in COMMANDS or match_action(word, self._admissible) is not None:
            return ""
        if word in {name.lower() for name in self._env.keys.values()}:
            return ""
        return next(iter(difflib.get_close_matches(word, COMMANDS, n=1, cutoff=0.75)), "")

    def command(self, word: str) -> bool:
        """Run hint, undo, restart or help; return False for any other word."""
        if word == "help":
            say(self._console, HELP, "dim")
            if self._env.keys:
                say(
                    self._console,
                    f"keys: {self._letters()}, then Enter; several in one line are played one after the other",
                    "dim",
                )
                say(self._console, "type the word keys to play them without Enter", "dim")
            if self._admissible:
                say(self._console, "an action that is shown with a number can be typed as that number", "dim")
        elif word == "hint":
            self._hint()
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

    def _rules(self) -> None:
        """Print the rules as an agent reads them."""
        self._console.print(Panel(plain(self._env.prompt()), title=self._name))

    def _letters(self) -> str:
        """Describe the keys and their actions."""
        letters = ", ".join(f"{key} {action}" for key, action in self._env.keys.items() if key.isalnum())
        return letters + (", or the arrow keys" if "↑" in self._env.keys else "")

    def _hint(self) -> None:
        """Print the expert's thought and action."""
        try:
            reply = self._env.oracle()
        except TStarError as error:
            say(self._console, f"no hint: {error}", "red")
            return
        if reply is None:
            lost = (
                "this state cannot be won any more: undo or restart"
                if self._past
                else "this task cannot be won"
            )
            why = "the episode is over" if self.over else lost
            say(self._console, f"no hint: {why}", "yellow")
            return
        thought, action, _ = parse_reply(reply)
        say(self._console, render_reply(thought, action), "yellow")

    def _expert_steps(self) -> str:
        """Describe how many steps the expert needs from the start, without changing the episode."""
        now, steps, success = self._env.snapshot(), 0, False
        try:
            self._env.restore(self._past[0])
            while (reply := self._env.oracle()) is not None:
                success = self._env.step(reply)[4]["success"]
                steps += 1
        except TStarError as error:
            return f"what the expert needs is not known: {error}"
        finally:
            self._env.restore(now)
        return (
            f"the expert needs {steps} step{'s' * (steps != 1)}"
            if success
            else "the expert does not solve it in that many steps either"
        )

    def act(self, reply: str) -> None:
        """Play one reply. If the environment's service fails, nothing is lost and the reply can be retried."""
        if self.over:
            say(self._console, "the episode is over: undo, restart or quit", "dim")
            return
        before = self._env.snapshot()
        try:
            observation, reward, terminated, truncated, info = self._env.step(reply)
        except TStarError as error:
            again = "; try again" if isinstance(error, InfrastructureError) else ""
            say(self._console, f"{error}\n(nothing was played{again})", "red")
            return
        self._past.append(before)
        self.over = terminated or truncated
        self._show(observation, info)
        if reward and not self.over:
            say(self._console, f"reward {reward:+.2f}", "dim")
        if self.over:
            verdict = "solved" if info["success"] else "out of steps" if truncated else "not solved"
            style = "bold green" if info["success"] else "bold red"
            say(
                self._console,
                f"{verdict} after {info['step']} of {info['horizon']} steps, score {reward:.2f}",
                style,
            )
            if terminated and not info["success"]:
                say(self._console, "the last step ended it: undo takes it back", "dim")
                self._tell_right(info)
            say(self._console, self._expert_steps(), "dim")

    def _tell_right(self, info: dict[str, Any]) -> None:
        """Print the correct answer and the components of the score, if the environment gives them at the end."""
        if answers := info.get("golden_answers"):
            say(self._console, f"right would be: {' or '.join(map(repr, answers[:5]))}", "dim")
        if parts := info.get("reward_parts"):
            shown = ", ".join(
                f"{name} {value:.2f}" for name, value in parts.items() if isinstance(value, float)
            )
            say(self._console, f"parts of the score: {shown}", "dim")

    def _coloured(self, text: str) -> Text:
        """Colour a text by the family's highlights, or in one colour."""
        highlights = self._env.highlights(text)
        coloured = plain(text, "" if highlights else "cyan")
        for start, end, colour in highlights:
            coloured.stylize(colour, start, end)
        return coloured

    def _show(self, observation: str, info: dict[str, Any]) -> None:
        if self.draws_anew:
            self._console.clear()
            self._console.print(plain(f"{self._name}, {self._task}", "dim"))
        text = self._coloured(observation)
        text.highlight_regex(r"(?m)^(Doc \d+ \(Title: .*?\)(?= )|Question:)", "bold")
        if not info.get("action_valid", True):
            text.stylize("red", 0, len(observation.partition("\n")[0]))
        # The goal is in the first observation, which has scrolled off the screen by now.
        if info["step"] or self.draws_anew:
            self._console.print(
                plain(f"step {info['step']} of {info['horizon']}. {info['instruction']}", "dim")
            )
        self._console.print(text)
        reason = info.get("invalid_reason", "")
        # For the player only: some originals tell the agent just that nothing happens.
        if reason and reason not in observation:
            say(self._console, f"({reason})", "red")
        if picture := self._env.picture():
            self._console.print(self._coloured(f"\n{picture}\n"), no_wrap=True, overflow="ignore", crop=False)
        if info.get("dead"):
            say(
                self._console,
                "lost: no solution is left from here" + (" (undo or restart)" if self._past else ""),
                "bold red",
            )
        self._admissible = info["admissible_actions"] or []
        if self.draws_anew:
            say(self._console, f"{self._letters()}; {KEYS_HELP}", "dim")
        elif self._admissible:
            listed = ", ".join(
                f"{number} {action}" for number, action in enumerate(self._admissible, start=1)
            )
            self._console.print(plain(f"actions: {listed}", "dim"))

    def check_keys(self) -> None:
        """Raise UnknownOption if the environment has no single keys."""
        if not self._env.keys:
            raise UnknownOption(f"{self._name} has no keys: type its actions")
        check_terminal()

    def play_keys(self) -> bool:
        """Play single keys until Enter or Escape; return False to end the game. UnknownOption: see ``check_keys``."""
        self.check_keys()
        with single_keys() as read:
            self.draws_anew = True
            try:
                self._show(*self._env.restore(self._env.snapshot()))
                while (key := read().lower()) not in ("q", END_OF_INPUT):
                    if key in (ESCAPE, "\n", "\r"):
                        return True
                    if key in self._env.keys:
                        self.act(self._env.keys[key])
                    elif key == "?":
                        self._rules()
                    else:
                        self.command(SHORT.get(key, key))
            finally:
                self.draws_anew = False
        return False


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
    """Play by single keys without Enter, on a screen that is redrawn after each; only for environments with keys (Sokoban)."""
    option: tyro.conf.UseAppendAction[Annotated[tuple[str, ...], tyro.conf.arg(metavar="KEY=VALUE")]] = ()
    """Option of the environment, for example topk=1 or retriever=http://127.0.0.1:8000; may be repeated."""


def run(command: PlayCommand, console: Console) -> int:
    """Play until quit, end of input or Ctrl-C."""
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
    """Parse the task: an id, or digits as an index if they are not an id."""
    return (
        int(wanted) if wanted is not None and wanted.isdecimal() and wanted not in env.task_ids() else wanted
    )


def _loop(game: Game, console: Console) -> None:
    thought = ""
    while True:
        line = input("action> " if thought else "thought and action> ").strip()
        if not sys.stdin.isatty():
            console.print()  # the line break that Enter gives at a terminal
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
