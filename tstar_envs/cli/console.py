"""What the subcommands write to: rich consoles that are also readable in a pipe, and text made fit for a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from tstar_envs.foreign_text import printable

_PIPE_WIDTH = 200  # a pipe has no width; rich's 80 would cut tables


def make_console(stderr: bool = False) -> Console:
    """A console of the terminal's width, or wide where there is no terminal."""
    console = Console(stderr=stderr, highlight=False)
    return console if console.is_terminal else Console(stderr=stderr, highlight=False, width=_PIPE_WIDTH)


def plain(text: str, style: str = "") -> Text:
    """Foreign text as it is: no markup, no control sequences, no secrets, nothing that a UTF-8 terminal cannot show."""
    return Text(printable(text), style=style)


def say(console: Console, message: str, style: str = "") -> None:
    """One message: on a terminal broken between words only, so that paths in it can be copied, elsewhere one line."""
    if console.is_terminal:
        console.print(plain(message, style), overflow="ignore", crop=False)
    else:
        console.print(plain(message, style), soft_wrap=True)
