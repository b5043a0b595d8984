"""Consoles: readable on a terminal and in a pipe; environments made from options."""

from __future__ import annotations

import os
import sys
from typing import Any

from rich.console import Console
from rich.text import Text

from tstar_envs.core import TextEnv
from tstar_envs.redaction import printable
from tstar_envs.registry import EnvEntry, parse_options

_PIPE_WIDTH = 200  # a pipe has no width; rich's 80 would cut tables


class _PipedConsole(Console):
    """A console that goes on, in silence, when whoever reads its pipe has had enough (``| head``): the exit status stays the command's."""

    def on_broken_pipe(self) -> None:
        """See rich, which would end the program with status 1."""
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, (sys.stderr if self.stderr else sys.stdout).fileno())
        os.close(nowhere)


def make_console(stderr: bool = False) -> Console:
    """A console of the terminal's width, or wide where there is no terminal."""
    console = _PipedConsole(stderr=stderr, highlight=False)
    return (
        console if console.is_terminal else _PipedConsole(stderr=stderr, highlight=False, width=_PIPE_WIDTH)
    )


def plain(text: str, style: str = "") -> Text:
    """Foreign text as it is: no markup, no control sequences, no secrets, nothing that a UTF-8 terminal cannot show."""
    return Text(printable(text), style=style)


def say(console: Console, message: str, style: str = "") -> None:
    """One message: on a terminal broken between words only, so that paths in it can be copied, elsewhere one line."""
    if console.is_terminal:
        console.print(plain(message, style), overflow="ignore", crop=False)
    else:
        console.print(plain(message, style), soft_wrap=True)


__all__ = ["make_env", "parse_options"]


def make_env(entry: EnvEntry, options: dict[str, Any]) -> TextEnv[Any, Any]:
    """The environment of an entry; see ``EnvEntry.make``."""
    return entry.make(**options)
