"""Threads and event loop of a run: thread pool, batches of calls, Ctrl-C, file handles."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from types import FrameType, TracebackType
from typing import Any, Generic, TypeVar

from tstar_envs.agents.base import Agent
from tstar_envs.agents.command import CommandAgent
from tstar_envs.agents.connection import HANDLES
from tstar_envs.agents.llm import ChatAgent
from tstar_envs.core import TextEnv
from tstar_envs.errors import TStarError, UnknownOption
from tstar_envs.foreign import StepResult, prepared, reset_result, step_result

Item = TypeVar("Item")
Result = TypeVar("Result")
_PATIENCE = 0.005  # seconds that a call waits before a lazy pool starts more threads
_TURNS = 32  # tasks that go on in one turn of the event loop: a thousand at once would hold it up
_Job = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[..., Any], tuple[Any, ...]]


class ThreadPool:
    """Thread pool that runs calls from one queue, in order.

    Attributes:
        count: maximum number of concurrent calls.
        started: number of threads that run.

    Args:
        count: maximum number of concurrent calls; 0 runs calls in the calling thread.
        around: factory of the context manager around calls in the calling thread.
        lazy: start threads only for calls that wait, for callers that rarely call.

    Raises:
        UnknownOption: the system cannot start so many threads; for a lazy pool none at all, when one is called for.
    """

    def __init__(
        self, count: int, around: Callable[[], AbstractContextManager[None]], *, lazy: bool = False
    ) -> None:
        self._around = around
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._watched = False
        self.count = count
        if not lazy:
            try:
                self._start(count)
            except UnknownOption:
                self.close()
                raise

    @property
    def started(self) -> int:
        """Number of threads that run."""
        return len(self._threads)

    def _start(self, more: int) -> None:
        for _ in range(more):
            thread = threading.Thread(target=self._work, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                raise UnknownOption(
                    f"this machine starts no more than {self.started} threads ({error}), and {self.count} episodes at once need one each: "
                    "choose a lower --concurrency"
                ) from error
            self._threads.append(thread)

    async def run(self, function: Callable[..., Result], *args: Any) -> Result:
        """Call a function and wait for its result; its exceptions are raised here."""
        if not self.count:
            with self._around(), _no_loop():
                return function(*args)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Result] = loop.create_future()
        if not self.started:
            self._start(1)
        self._jobs.put((loop, answer, function, args))
        if self.started < self.count:
            self._watch(loop)
        return await answer

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._watched:
            self._watched = True
            loop.call_later(_PATIENCE, self._grow, loop)

    def _grow(self, loop: asyncio.AbstractEventLoop) -> None:
        """Double the threads while calls wait: those before them take long."""
        self._watched = False
        more = min(self._jobs.qsize(), self.started, self.count - self.started)
        if more > 0:
            with suppress(UnknownOption):  # those that run serve all calls, one after the other
                self._start(more)
            self._watch(loop)

    def close(self, *, wait: bool = False) -> None:
        """Let the threads exit after their current calls, and wait until they have if ``wait`` is set."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads if wait else ():
            thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            loop, answer, function, args = job
            try:
                result, error = function(*args), None
            except BaseException as raised:  # noqa: BLE001 - raised again where the result is awaited
                result, error = None, raised
            try:
                loop.call_soon_threadsafe(_settle, answer, result, error)
            except RuntimeError:  # the loop is closed: nobody waits any more
                return


@contextmanager
def _no_loop() -> Iterator[None]:
    """Allow a synchronous function to run its own loop here (``asyncio.run``), as it may in a thread."""
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
        # A future rejects StopIteration, and KeyboardInterrupt or SystemExit would end the awaiting task like a request to stop.
        answer.set_exception(
            RuntimeError(f"{type(error).__name__}: {error}").with_traceback(error.__traceback__)
        )
    else:
        answer.set_exception(error)


class Batches(Generic[Item, Result]):
    """Calls of one function with all that has arrived while it was busy.

    Args:
        threads: threads that run the calls.
        function: takes a list of items; returns a result or an error for each.
    """

    def __init__(
        self, threads: ThreadPool, function: Callable[[list[Item]], Sequence[Result | TStarError]]
    ) -> None:
        self._threads, self._function = threads, function
        self._waiting: list[tuple[Item, asyncio.Future[Result]]] = []
        self._busy: asyncio.Task[None] | None = None

    async def run(self, item: Item) -> Result:
        """Wait for the result of an item, in the next batch.

        Raises:
            Exception: the error returned for the item, or the one that the function raised.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Result] = loop.create_future()
        self._waiting.append((item, answer))
        if self._busy is None or self._busy.done():
            self._busy = loop.create_task(self._serve())
        return await answer

    async def _serve(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            results: Sequence[Result | Exception]
            try:
                results = await self._threads.run(self._function, [item for item, _ in batch])
            except Exception as error:  # noqa: BLE001 - raised again where the results are awaited
                results = [error] * len(batch)
            for number, ((_, answer), result) in enumerate(zip(batch, results, strict=True), start=1):
                if answer.done():  # cancelled
                    continue
                if isinstance(result, Exception):
                    answer.set_exception(result)
                else:
                    answer.set_result(result)
                if not number % _TURNS:
                    await asyncio.sleep(0)


Env = TextEnv[Any, Any]


def step_batch(rows: list[tuple[Env, str]]) -> list[StepResult | TStarError]:
    """Step environments, one for each pair of environment and reply; see ``step_rows``."""
    return step_rows([env for env, _ in rows], [reply for _, reply in rows])


def reset_batch(rows: list[tuple[Env, str]]) -> list[tuple[str, dict[str, Any]] | TStarError]:
    """Reset environments, one for each pair of environment and task; an error costs only its own row."""
    found: list[tuple[str, dict[str, Any]] | TStarError] = []
    for env, task in rows:
        try:
            found.append(reset_result(env, task))
        except TStarError as error:
            found.append(error)
    return found


def step_rows(envs: list[Env], replies: list[str]) -> list[StepResult | TStarError]:
    """Step environments of one family after ``TextEnv.prepare_group_step``; an error costs only its own row."""
    try:
        failed: dict[int, TStarError] = {**prepared(envs, replies)}
    except TStarError as error:
        failed = dict.fromkeys(range(len(envs)), error)
    return [
        failed[i] if i in failed else _step(env, reply)
        for i, (env, reply) in enumerate(zip(envs, replies, strict=True))
    ]


def _step(env: Env, reply: str) -> StepResult | TStarError:
    try:
        return step_result(env, reply)
    except TStarError as error:
        return error


class StopRequest:
    """Request to stop that one thread makes and the event loop of another hears.

    Attributes:
        asked: True once it was made.
    """

    def __init__(self) -> None:
        self.asked = False
        self._hearer: Callable[[], None] | None = None

    def ask(self) -> None:
        """Ask the running evaluation to stop as Ctrl-C does; may be called in any thread."""
        self.asked = True
        if self._hearer is not None:
            self._hearer()

    def heard_by(self, hearer: Callable[[], None] | None) -> None:
        """Set the function that is called on a request, None for none."""
        self._hearer = hearer
        if self.asked and hearer is not None:
            hearer()


class Interrupts:
    """Context manager that delays KeyboardInterrupt to places that expect it.

    Python raises it between any two instructions, even between the creation of a coroutine and its start, which causes warnings. A second
    signal is raised immediately. Nothing changes outside the main thread, or if SIGINT has a custom handler.

    Args:
        loop: event loop whose tasks are to be informed.
        stop: request of another thread, which counts as a signal.

    Attributes:
        asked: future that is done once a signal is pending; tasks can await it.

    Raises:
        KeyboardInterrupt: at the end of the block at the latest.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, stop: StopRequest | None = None) -> None:
        self.asked: asyncio.Future[None] = loop.create_future()
        self._loop, self._stop = loop, stop or StopRequest()
        self._heard_before = self._pending = self._expected = self._replaced = False

    def __enter__(self) -> Interrupts:
        own = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if own and threading.current_thread() is threading.main_thread():
            self._replaced = True
            signal.signal(signal.SIGINT, self._heard)
        self._stop.heard_by(self._tell)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.heard_by(None)
        if self._replaced:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if kind is None:
            self.check()

    def check(self) -> None:
        """Raise a pending interrupt."""
        if self._pending:
            raise KeyboardInterrupt

    @contextmanager
    def handing_over(self) -> Iterator[None]:
        """Raise interrupts during a ``yield`` immediately, and a pending one after it (no value is lost)."""
        self._expected = True
        try:
            yield
        finally:
            self._expected = False
        self.check()

    @contextmanager
    def welcome(self) -> Iterator[None]:
        """Raise the next interrupt immediately, not a pending one: for cleanup, such as closing agents."""
        self._expected = True
        try:
            yield
        finally:
            self._expected = False

    @contextmanager
    def expected(self) -> Iterator[None]:
        """Raise interrupts during long calls of user code immediately, and a pending one first."""
        with self.handing_over():
            self.check()
            yield

    def _heard(self, number: int, frame: FrameType | None) -> None:
        again, self._heard_before = self._heard_before, True
        if self._expected or again:
            raise KeyboardInterrupt
        self._tell()

    def _tell(self) -> None:
        self._pending = True
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._ask)

    def _ask(self) -> None:
        if not self.asked.done():
            self.asked.set_result(None)


if sys.platform != "win32":
    import resource

_OF_A_PROGRAM = 6  # three pipes and what its start takes
_SPARE = 32  # data files, a search service, the record file
_OPEN = Path("/proc/self/fd")


def require_handles(count: int, agent: Agent) -> None:
    """Raise the limit of open files of this process, if the concurrency needs it.

    Raises:
        UnknownOption: the system's limit is lower; the message gives the highest possible concurrency.
    """
    of_each = 0
    if isinstance(agent, CommandAgent):
        of_each = _OF_A_PROGRAM
    elif isinstance(agent, ChatAgent):
        of_each = HANDLES
    if sys.platform == "win32" or not of_each:  # pragma: no cover - no such limit there
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = len(list(_OPEN.iterdir())) if _OPEN.exists() else 64
    needed = count * of_each + opened + _SPARE
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        can = max(1, (hard - opened - _SPARE) // of_each)
        raise UnknownOption(
            f"--concurrency {count} needs {needed} open files, {of_each} for each episode, and this process may have {hard}: choose "
            f"--concurrency {can} or less, or raise the limit (ulimit -Hn)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
