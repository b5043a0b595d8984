"""Single keys from a terminal, each read as it is pressed."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tstar_envs.errors import UnknownOption

try:
    import termios
    import tty
except ImportError:  # Windows has neither
    termios = tty = None  # type: ignore[assignment]

ESCAPE, END_OF_INPUT = "\x1b", "\x04"
# Seconds; an arrow key sends three bytes at once, a person who presses Escape sends one.
_REST_OF_SEQUENCE = 0.05


def check_terminal() -> None:
    """Raise UnknownOption where single keys cannot be read: no terminal, or one of a system that has no ``termios``."""
    if termios is None or tty is None:
        raise UnknownOption("single keys need a terminal of Linux or macOS; type a line and Enter instead")
    if not sys.stdin.isatty():
        raise UnknownOption(
            "single keys need a terminal, but the input is a file or a pipe; write lines instead"
        )


@contextmanager
def single_keys() -> Iterator[Callable[[], str]]:
    """Read keys without Enter and without echo while the context lasts; Ctrl-C interrupts as always.

    Yields:
        A function that waits for the next key and gives what it sends: a character, or an escape sequence (the arrow keys);
        ``END_OF_INPUT`` where the input is over.

    Raises:
        UnknownOption: see ``check_terminal``.
    """
    check_terminal()
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal, termios.TCSADRAIN)  # what was typed ahead is kept
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
    # Bytes of a character in UTF-8.
    missing = 3 if first >= b"\xf0" else 2 if first >= b"\xe0" else 1 if first >= b"\xc0" else 0
    return (first + (os.read(terminal, missing) if missing else b"")).decode("utf-8", "replace")
