"""One task being played in a terminal: what is shown, hint, undo and restart, keys.

What depends on the family is its own: ``TextEnv.keys`` (single keys for actions), ``TextEnv.highlights`` (what is coloured) and
``TextEnv.picture`` (what is drawn).
"""

from __future__ import annotations

import difflib
import re
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from tstar_envs.cli.console import plain, say
from tstar_envs.cli.keyboard import END_OF_INPUT, ESCAPE, check_terminal, single_keys
from tstar_envs.core import TextEnv
from tstar_envs.errors import InfrastructureError, TStarError, UnknownOption
from tstar_envs.react import match_action, parse_reply, render_reply
from tstar_envs.snapshot import Snapshot

HELP = "type an action, or 'Thought: ...' and then an action; commands: hint, undo, restart, help, quit (or h, u, r, ?, q)"
KEYS_HELP = "u undo, h hint, r restart, ? rules, q quit, Enter back to lines"
COMMANDS = ("hint", "undo", "restart", "help", "quit", "keys")
SHORT = {"h": "hint", "u": "undo", "r": "restart", "?": "help", "q": "quit", "exit": "quit"}


class Game:
    """One task being played: the environment, and what undo needs."""

    def __init__(self, env: TextEnv[Any, Any], console: Console) -> None:
        self._env = env
        self._console = console
        self._name = env.spec.id if env.spec else type(env).__name__
        self._task = ""
        self._past: list[Snapshot[Any]] = []
        self._admissible: list[str] = []
        self.over = False
        self.draws_anew = False  # whether a state is shown on an empty screen

    def start(self, seed: int | None, task: str | int | None) -> None:
        """Reset and show the question."""
        observation, info = self._env.reset(seed=seed, options=None if task is None else {"task": task})
        self._past, self.over = [], False
        self._task = f"task {info['task_id']} ({info['split']})"
        self._rules()
        self._console.print(plain(self._task, "dim"))
        self._show(observation, info)
        self.command("help")

    def actions(self, line: str) -> list[str]:
        """What is played for a line that is no command: an action by its number or its keys, else the line as it is."""
        if line.isdecimal() and self._admissible and line not in self._admissible:
            if 0 < int(line) <= len(self._admissible):
                return [self._admissible[int(line) - 1]]
            say(
                self._console,
                f"there is no action {line}: they have the numbers 1 to {len(self._admissible)}",
                "red",
            )
            return []
        keys, typed = self._env.keys, "".join(line.lower().split())
        one = "|".join(map(re.escape, sorted(keys, key=len, reverse=True)))
        if keys and re.fullmatch(f"(?:{one})+", typed):
            return [keys[key] for key in re.findall(one, typed)]
        return [line]

    def meant(self, line: str) -> str:
        """The command that a word nearly is, "" if it is one or may be an action: a slip of the finger should not cost a turn."""
        word = line.lower()
        if not word.isalpha() or word in COMMANDS or match_action(word, self._admissible) is not None:
            return ""
        if word in {name.lower() for name in self._env.keys.values()}:
            return ""
        return next(iter(difflib.get_close_matches(word, COMMANDS, n=1, cutoff=0.75)), "")

    def command(self, word: str) -> bool:
        """Run hint, undo, restart or help; False if ``word`` is none of them."""
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
        """Print the rules as the agent reads them."""
        self._console.print(Panel(plain(self._env.prompt()), title=self._name))

    def _letters(self) -> str:
        """Which keys stand for which actions."""
        letters = ", ".join(f"{key} {action}" for key, action in self._env.keys.items() if key.isalnum())
        return letters + (", or the arrow keys" if "↑" in self._env.keys else "")

    def _hint(self) -> None:
        """The expert's thought and action."""
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
        """How long the expert takes from the start, in a sentence; the episode stays as it is."""
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
        """Play one reply; where the environment's service fails nothing is lost and the same can be tried again."""
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
        """Print the right answer and the parts of the score where the environment gives them at the end."""
        if answers := info.get("golden_answers"):
            say(self._console, f"right would be: {' or '.join(map(repr, answers[:5]))}", "dim")
        if parts := info.get("reward_parts"):
            shown = ", ".join(
                f"{name} {value:.2f}" for name, value in parts.items() if isinstance(value, float)
            )
            say(self._console, f"parts of the score: {shown}", "dim")

    def _coloured(self, text: str) -> Text:
        """The text in the family's colours, or in one colour where the family has none."""
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
        # The first observation says what is wanted; later it has scrolled away.
        if info["step"] or self.draws_anew:
            self._console.print(
                plain(f"step {info['step']} of {info['horizon']}. {info['instruction']}", "dim")
            )
        self._console.print(text)
        reason = info.get("invalid_reason", "")
        # An agent does not read it: some originals only say that nothing happens.
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
        """Raise UnknownOption where no single keys can be played."""
        if not self._env.keys:
            raise UnknownOption(f"{self._name} has no keys: type its actions")
        check_terminal()

    def play_keys(self) -> bool:
        """Play single keys until Enter or Escape; False if the game is to end. UnknownOption: see ``check_keys``."""
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
