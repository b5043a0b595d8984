"""Threads for what blocks: environments, and agents that are no coroutines. Daemons, so that none of them holds up the end of a program."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from queue import SimpleQueue
from typing import Any, TypeVar

from tstar_envs.errors import UnknownOption

Result = TypeVar("Result")
_Job = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[..., Any], tuple[Any, ...]]


class Workers:
    """A number of threads that take calls off one queue, in order.

    Attributes:
        count: how many calls may run at the same time.

    Args:
        count: how many calls may run at the same time; 0 runs them where they are made.
        around: makes the ``with`` block in which a call runs that is run where it is made.

    Raises:
        UnknownOption: the system starts no more threads.
    """

    def __init__(self, count: int, around: Callable[[], AbstractContextManager[None]]) -> None:
        self._around = around
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self.count = count
        for started in range(count):
            try:
                threading.Thread(target=self._work, daemon=True).start()
            except RuntimeError as error:
                self.count = started
                self.close()
                raise UnknownOption(
                    f"this machine starts no more than {started} threads ({error}), and {count} episodes at once need one each: "
                    "choose a lower --concurrency"
                ) from error

    async def run(self, function: Callable[..., Result], *args: Any) -> Result:
        """Call a function and wait for it; what it raises is raised."""
        if not self.count:
            with self._around(), _no_loop():
                return function(*args)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Result] = loop.create_future()
        self._jobs.put((loop, answer, function, args))
        return await answer

    def close(self) -> None:
        """Let the threads end when their present calls do."""
        for _ in range(self.count):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            loop, answer, function, args = job
            try:
                result, error = function(*args), None
            except BaseException as raised:  # noqa: BLE001 - it is raised again where the result is waited for
                result, error = None, raised
            try:
                loop.call_soon_threadsafe(_settle, answer, result, error)
            except RuntimeError:  # the loop has been closed: nobody waits any more
                return


@contextmanager
def _no_loop() -> Iterator[None]:
    """Let a function that is no coroutine run a loop of its own here too (``asyncio.run``), as it may in a thread."""
    loop = asyncio.get_running_loop()
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(loop)


def _settle(answer: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if answer.done():  # cancelled meanwhile
        return
    if error is None:
        answer.set_result(result)
    elif isinstance(error, StopIteration | GeneratorExit | asyncio.CancelledError):
        # A future takes no StopIteration, and the others would end who waits as if somebody had asked for it.
        answer.set_exception(
            RuntimeError(f"{type(error).__name__}: {error}").with_traceback(error.__traceback__)
        )
    else:
        answer.set_exception(error)
