"""Threads and event loops of a run: workers, batched steps, Ctrl-C, file handles."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from types import FrameType, TracebackType
from typing import Any, TypeVar

from tstar_envs.agents.base import Agent
from tstar_envs.agents.command import CommandAgent
from tstar_envs.agents.llm import ChatAgent
from tstar_envs.core import TextEnv
from tstar_envs.errors import TStarError, UnknownOption
from tstar_envs.foreign import StepResult, prepared, step_result

Result = TypeVar("Result")
_Job = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[..., Any], tuple[Any, ...]]


class ThreadPool:
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


Env = TextEnv[Any, Any]
Waiting = list[tuple[Env, str, "asyncio.Future[StepResult]"]]


class BatchedStepper:
    """Collects the replies that arrive while the environments are busy, and plays them in one go.

    Args:
        threads: where environments run.
    """

    def __init__(self, threads: ThreadPool) -> None:
        self._threads = threads
        self._waiting: Waiting = []
        self._busy: asyncio.Task[None] | None = None

    async def step(self, env: Env, reply: str) -> StepResult:
        """Play a reply.

        Raises:
            TStarError: what it rests on failed (``InfrastructureError``), or its code did (``EnvironmentFailed``).
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[StepResult] = loop.create_future()
        self._waiting.append((env, reply, answer))
        if self._busy is None or self._busy.done():
            self._busy = loop.create_task(self._play())
        return await answer

    async def _play(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            results = await self._threads.run(
                step_rows, [env for env, _, _ in batch], [reply for _, reply, _ in batch]
            )
            for (_, _, answer), result in zip(batch, results, strict=True):
                if answer.done():  # cancelled
                    continue
                if isinstance(result, StepResult):
                    answer.set_result(result)
                else:
                    answer.set_exception(result)


def step_rows(envs: list[Env], replies: list[str]) -> list[StepResult | TStarError]:
    """Step environments of one family, after what they share (``TextEnv.prepare_group_step``); what fails costs its own row."""
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


if sys.platform != "win32":
    import resource

# A program has three pipes and what starting it takes, an endpoint a connection and one that is just being closed.
_OF_A_PROGRAM, _OF_A_CONNECTION = 6, 2
_SPARE = 32  # data files, a search service, the record
_OPEN = Path("/proc/self/fd")


def require_handles(count: int, agent: Agent) -> None:
    """Raise this process's limit of open files as far as so many episodes at once need it.

    Args:
        count: episodes that are played at the same time.
        agent: who plays each of them.

    Raises:
        UnknownOption: the system does not let it have so many; the message holds the most that it does.
    """
    of_each = 0
    if isinstance(agent, CommandAgent):
        of_each = _OF_A_PROGRAM
    elif isinstance(agent, ChatAgent):
        of_each = _OF_A_CONNECTION
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
