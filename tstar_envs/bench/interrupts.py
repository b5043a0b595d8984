"""Ctrl-C while an event loop runs: it ends a blocking agent or environment at once, and anything else at its next ``await``."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType


class Interrupts:
    """For the time of a ``with`` block SIGINT raises KeyboardInterrupt only in places that expect it.

    Python raises it between any two instructions: also between the making of a coroutine and its start, of which Python then complains.
    A second signal is raised wherever it comes. Where SIGINT has another handler than Python's own, or outside the main thread,
    nothing changes.

    Args:
        loop: whose tasks are to learn of it.

    Attributes:
        asked: done as soon as a signal waits to be raised; for tasks to wait for.

    Raises:
        KeyboardInterrupt: at the end of the block at the latest.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.asked: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        self._heard_before = self._pending = self._expected = self._replaced = False

    def __enter__(self) -> Interrupts:
        own = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if own and threading.current_thread() is threading.main_thread():
            self._replaced = True
            signal.signal(signal.SIGINT, self._heard)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._replaced:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if kind is None:
            self.check()

    def check(self) -> None:
        """Raise what waits."""
        if self._pending:
            raise KeyboardInterrupt

    @contextmanager
    def handing_over(self) -> Iterator[None]:
        """Around a ``yield``: here it is raised at once, and what waited is raised after it, so that what is handed over is not lost."""
        self._expected = True
        try:
            yield
        finally:
            self._expected = False
        self.check()

    @contextmanager
    def welcome(self) -> Iterator[None]:
        """Around what must be begun though a signal waits, such as the closing of an agent: the next one is raised at once."""
        self._expected = True
        try:
            yield
        finally:
            self._expected = False

    @contextmanager
    def expected(self) -> Iterator[None]:
        """Around what may take long and is not ours: the same, but that what waited is raised before it."""
        with self.handing_over():
            self.check()
            yield

    def _heard(self, number: int, frame: FrameType | None) -> None:
        again, self._heard_before = self._heard_before, True
        if self._expected or again:
            raise KeyboardInterrupt
        self._pending = True
        with suppress(RuntimeError):  # the loop is closed: nothing waits any more
            self._loop.call_soon_threadsafe(self._ask)

    def _ask(self) -> None:
        if not self.asked.done():
            self.asked.set_result(None)
