"""Runner: plays the episodes of an agent, one at a time or concurrently."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from tstar_envs.agents.base import Agent, AgentError, Call, FunctionAgent, failure
from tstar_envs.core import TextEnv
from tstar_envs.errors import EnvironmentFailed, TStarError
from tstar_envs.evaluation.log import Key
from tstar_envs.evaluation.workers import (
    Batches,
    Interrupts,
    StopRequest,
    ThreadPool,
    reset_batch,
    step_batch,
)
from tstar_envs.foreign import as_bool, as_number, awaited, called, raised, said, shown
from tstar_envs.record import CALL, Episode, fault
from tstar_envs.record_files import Head
from tstar_envs.registry import EnvEntry
from tstar_envs.rollout import new_episode, write_step

LONGEST_REPLY = 4_000_000  # characters, the limit for programs too
MOST_ATTEMPTS = (
    100  # at one task in one episode: an agent whose ``again`` never says no would play it for ever
)
CLOSE_SECONDS = 10.0  # timeout for an agent to close, and for its tasks to end
ERRORS_IN_A_ROW = (
    5  # besides the concurrent ones: something is broken for good, and more episodes would only fill the file
)


class BrokenRun(TStarError):
    """Several episodes in a row that ended in an error."""


Record = Callable[[list[Episode]], None]
AT_ONCE = 64  # episodes handed over before the event loop goes on


class Worker(NamedTuple):
    """Worker that plays one episode at a time: an environment and an agent."""

    env: TextEnv[Any, Any]
    agent: Agent


@dataclass(frozen=True)
class Setting:
    """Settings that all episodes of a run share.

    Attributes:
        entry: registry entry of the environment, for the records.
        name: name of the agent in the records.
        seed: seed of the run; with task and sample it gives ``info["agent_seed"]`` for ``agent.reset``.
        progress: True to record ``extra["progress"]``, ``TextEnv.progress`` of the last state. If it cannot be computed (a solver gave
            up), the result is kept and ``progress_unknown`` has the reason.
        panel: name and hash of the evaluation set, for the records.
    """

    entry: EnvEntry
    name: str
    seed: int = 0
    progress: bool = False
    panel: str = ""


def agent_seed(seed: int, task: str, sample: int) -> int:
    """Derive a 63-bit seed for one episode's sampling, independent of the episodes played before."""
    digest = hashlib.blake2b(
        f"{seed}\0{task}\0{sample}".encode("utf-8", "surrogatepass"), digest_size=8
    ).digest()
    return int.from_bytes(digest, "big") >> 1


def play_episode(
    env: TextEnv[Any, Any],
    entry: EnvEntry,
    agent: Agent,
    *,
    name: str,
    task: str,
    seed: int = 0,
    sample: int = 0,
    progress: bool = False,
) -> Episode:
    """Play one episode to its end. For the arguments see ``Setting`` and ``Worker``.

    Returns:
        Record of the episode. If the environment's infrastructure or the agent failed, ``ended`` is ``error`` and ``error`` has the reason.
    """
    return next(iter(play_all([Worker(env, agent)], Setting(entry, name, seed, progress), [(task, sample)])))


def play_missing(
    workers: Sequence[Worker],
    setting: Setting,
    wanted: Sequence[Key],
    done: Mapping[Key, Episode | Head],
    stop: StopRequest | None = None,
    record: Record | None = None,
) -> Generator[Episode, None, None]:
    """Play the wanted episodes that are missing or ended in an error; yield each as it ends.

    Args:
        workers: see ``play_all``, as for ``setting``, ``stop`` and ``record``.
        wanted: task and sample of every episode.
        done: finished episodes, or their heads, by task and sample.

    Raises:
        BrokenRun: several episodes in a row ended in an error.
    """
    missing = [key for key in wanted if key not in done or done[key].ended == "error"]
    in_a_row = 0
    with closing(
        play_all(workers, setting, missing, stop, record)
    ) as playing:  # running episodes stop with the run, not at garbage collection
        for episode in playing:
            yield episode
            in_a_row = in_a_row + 1 if episode.ended == "error" else 0
            if in_a_row == ERRORS_IN_A_ROW + len(workers) - 1:
                raise BrokenRun(
                    f"stopped after {in_a_row} episodes in a row ended in an error, the last: {episode.error}"
                )


def play_all(
    workers: Sequence[Worker],
    setting: Setting,
    wanted: Sequence[Key],
    stop: StopRequest | None = None,
    record: Record | None = None,
) -> Generator[Episode, None, None]:
    """Play episodes concurrently, one per worker; yield each as it ends.

    Closing the generator cancels the running episodes; they are not recorded.

    Args:
        workers: an environment and an agent for each concurrent episode.
        setting: settings of the run.
        wanted: task and sample of every episode.
        stop: request of another thread to stop, which raises KeyboardInterrupt here.
        record: writes episodes that have ended, a group at a time, in a thread of its own if there are several workers. An episode is
            yielded once it is written. An exception ends the run.
    """
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(_report)
    with Interrupts(loop, stop) as interrupts:
        pool = _WorkerPool(setting, workers, interrupts, record)
        players: list[asyncio.Task[None]] = []
        try:
            ended = _Ended(loop, interrupts)
            left = iter(wanted)
            players = [
                loop.create_task(pool.run_worker(worker, left, ended)) for worker in workers[: len(wanted)]
            ]
            for player in players:
                player.add_done_callback(ended.stopped)
            handed_over = 0
            while handed_over < len(wanted):
                for episode, taken in loop.run_until_complete(ended.next()):
                    with interrupts.handing_over():
                        yield episode
                    handed_over += 1
                    taken.set_result(None)
            loop.run_until_complete(_all(players))
        except SystemExit as error:  # from a task started by an agent; asyncio does not catch it
            raise AgentError(raised("a task that the agent started", error)) from error
        except asyncio.CancelledError as error:  # from agent code that cancels every task
            raise AgentError("the agent cancelled tasks of the event loop that are not its own") from error
        except RuntimeError as error:
            if str(error).startswith("Event loop stopped before"):  # asyncio's message
                raise AgentError("the agent stopped the event loop, which is not its own") from error
            raise
        finally:
            # Each part has a timeout of ``CLOSE_SECONDS``: an agent may ignore cancellation and fail to close.
            try:
                _end(loop, players)
                close_error = loop.run_until_complete(pool.close_agents(workers))
                _end(loop, [loop.create_task(loop.shutdown_asyncgens())], cancelled=False)
                _end(loop, ())
            finally:
                pool.close()
                loop.close()
        if close_error is not None:
            raise close_error


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report exceptions that nobody awaited; Ctrl-C and sys.exit() in a task have left the loop already."""
    error = context.get("exception")
    if isinstance(error, KeyboardInterrupt | SystemExit) or (
        error is None and isinstance(context.get("task"), asyncio.Task)
    ):
        return  # a task that does not end is abandoned (``_end``)
    loop.default_exception_handler(context)


def _end(
    loop: asyncio.AbstractEventLoop, players: Collection[asyncio.Task[None]], cancelled: bool = True
) -> None:
    """Cancel the running tasks, and retrieve the exceptions of finished ones."""
    tasks = asyncio.all_tasks(loop) if cancelled else set()
    for task in tasks:
        task.cancel()
    if waited := {*tasks, *players}:
        ended, _ = loop.run_until_complete(asyncio.wait(waited, timeout=CLOSE_SECONDS))
        for task in ended:
            if not task.cancelled():
                task.exception()


class _Ended:
    """Episodes that have ended and wait to be handed over."""

    def __init__(self, loop: asyncio.AbstractEventLoop, interrupts: Interrupts) -> None:
        self._loop, self._interrupts = loop, interrupts
        self._queue: asyncio.Queue[tuple[Episode, asyncio.Future[None]]] = asyncio.Queue()
        self._failed: asyncio.Future[asyncio.Task[None]] = loop.create_future()

    async def hand_over(self, episode: Episode) -> None:
        """Wait until an episode has been handed over: the next one starts only then."""
        taken: asyncio.Future[None] = self._loop.create_future()
        await self._queue.put((episode, taken))
        await taken

    def stopped(self, player: asyncio.Task[None]) -> None:
        """Note that a worker has stopped with an exception."""
        if not self._failed.done() and (player.cancelled() or player.exception() is not None):
            self._failed.set_result(player)

    async def next(self) -> list[tuple[Episode, asyncio.Future[None]]]:
        """Wait for the next episodes; an exception in a worker ends the run."""
        waiting = asyncio.ensure_future(self._queue.get())
        while not waiting.done():
            self._interrupts.check()
            if self._failed.done():
                self._failed.result().result()
            events: list[asyncio.Future[Any]] = [waiting, self._interrupts.asked, self._failed]
            await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
        found = [waiting.result()]
        while len(found) < AT_ONCE and not self._queue.empty():
            found.append(self._queue.get_nowait())
        return found


async def _all(tasks: Collection[asyncio.Task[Any]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)


class _WorkerPool:
    """Workers of a run: threads for blocking calls, and batched steps."""

    def __init__(
        self,
        setting: Setting,
        workers: Sequence[Worker],
        interrupts: Interrupts,
        record: Record | None,
    ) -> None:
        count = len(workers) if len(workers) > 1 else 0
        self._setting, self._interrupts = setting, interrupts
        # One thread for all environments: families share caches and connections that are not thread-safe.
        self._environments = ThreadPool(min(1, count), interrupts.expected)
        waits_here = all(_is_async(worker.agent) for worker in workers)
        self._agents = ThreadPool(count, interrupts.expected, lazy=waits_here)
        self._resets = Batches(self._environments, reset_batch)
        self._steps = Batches(self._environments, step_batch)
        self._writer = ThreadPool(min(1, count), interrupts.expected, lazy=True)
        self._record = record
        self._records = Batches(self._writer, self._write)

    def close(self) -> None:
        self._environments.close()
        self._agents.close()
        self._writer.close(
            wait=True
        )  # the file may be read again, or another process may write it, once this returns

    def _write(self, episodes: list[Episode]) -> list[None]:
        if self._record is not None:
            self._record(episodes)
        return [None] * len(episodes)

    async def close_agents(self, workers: Sequence[Worker]) -> AgentError | None:
        """Close every agent, which may hold connections or programs; return the first error after closing all."""
        failed: AgentError | None = None
        for worker in workers:
            try:
                await self._close_agent(worker.agent)
            except TStarError as error:
                failed = failed or (error if isinstance(error, AgentError) else AgentError(f"{said(error)}"))
            except TimeoutError:
                failed = failed or AgentError(f"the agent's close() did not end within {CLOSE_SECONDS:g} s")
        return failed

    async def _close_agent(self, agent: Agent) -> None:
        close = _trait(agent, "close")
        if close is None:
            return
        if self._agents.count and not inspect.iscoroutinefunction(close):
            async with asyncio.timeout(CLOSE_SECONDS):
                result = await self._agents.run(called, "the agent", AgentError, close)
        else:
            with self._interrupts.welcome():
                result = called("the agent", AgentError, close)
        if inspect.isawaitable(result):
            closing = asyncio.ensure_future(awaited("the agent", AgentError, "close", result))
            ended, _ = await asyncio.wait({closing}, timeout=CLOSE_SECONDS)
            if not ended:
                raise TimeoutError
            closing.result()

    async def run_worker(self, worker: Worker, left: Iterator[Key], ended: _Ended) -> None:
        """Play one episode after another until none is left."""
        for task, sample in left:
            episode = await self._episode(worker, task, sample)
            if self._record is not None:
                await self._records.run(episode)
            await ended.hand_over(episode)

    async def _episode(self, worker: Worker, task: str, sample: int) -> Episode:
        setting = self._setting
        episode: Episode = called(
            "the environment",
            EnvironmentFailed,
            new_episode,
            worker.env,
            setting.entry,
            setting.name,
            task,
            sample=sample,
            seed=setting.seed,
        )
        episode.panel = setting.panel
        error: TStarError | None = None
        try:
            while await self._attempt(worker, episode):
                _keep_attempt(episode)
        except TStarError as raised_error:
            error = raised_error
            episode.fail(error)
        episode.failure = failure(episode, error)
        if setting.progress and error is None:
            await self._measure(worker.env, episode)
        return episode

    async def _attempt(self, worker: Worker, episode: Episode) -> bool:
        """Play the task once; return True if the agent wants another attempt."""
        env, agent = worker
        observation, info = await self._resets.run((env, episode.task))
        episode.begin(observation, info)
        seed = agent_seed(episode.seed or 0, episode.task, episode.sample)
        message = {"agent_seed": seed, "sample": episode.sample, "attempt": len(episode.attempts)}
        await self._ask(worker, episode, agent.reset, observation, {**info, **message})
        while True:
            began = time.perf_counter()
            reply = await self._ask(worker, episode, agent.act, observation, info)
            seconds = time.perf_counter() - began
            if not isinstance(reply, str):
                raise AgentError(f"act(observation, info) must return a str, returned {type(reply).__name__}")
            reply = str.__str__(reply)  # a subclass of str (NumPy's too) may override methods
            if len(reply) > LONGEST_REPLY:
                raise AgentError(
                    f"act(observation, info) must return at most {LONGEST_REPLY:,} characters, returned {len(reply):,}"
                )
            result = await self._steps.run((env, reply))
            write_step(episode, reply, result)
            episode.steps[-1].seconds = round(seconds, 6)
            observation, info = result.observation, result.info
            if result.over:
                break
        again: Callable[..., Any] | None = _trait(agent, "again")
        if again is None:
            return False
        answer = await self._ask(worker, episode, again, observation, result.reward, info)
        wanted = False if answer is None else as_bool(answer)
        if wanted is None:
            raise AgentError(
                f"again(observation, reward, info) must return True or False, found {shown(answer)}"
            )
        if wanted and len(episode.attempts) + 1 >= MOST_ATTEMPTS:
            raise AgentError(
                f"again(observation, reward, info) returned True after attempt {MOST_ATTEMPTS} at one task: it must say False in the end"
            )
        return wanted

    async def _ask(self, worker: Worker, episode: Episode, function: Callable[..., Any], *args: Any) -> Any:
        """Call an agent (user code) and record its model requests, whether it succeeds or fails.

        Raises:
            AgentError: it raised; this costs the episode, not the run.
        """
        try:
            if _returns_at_once(worker.agent, function):
                result = called("the agent", AgentError, function, *args)
            else:
                threads = self._environments if _trait(worker.agent, "privileged") is True else self._agents
                result = await threads.run(called, "the agent", AgentError, function, *args)
            if inspect.isawaitable(result):
                result = await awaited("the agent", AgentError, getattr(function, "__name__", ""), result)
        except BaseException:
            with suppress(AgentError):  # the agent's own exception is more informative
                _take_calls(worker.agent, episode)
            raise
        _take_calls(worker.agent, episode)
        return result

    async def _measure(self, env: TextEnv[Any, Any], episode: Episode) -> None:
        # A failed measurement does not invalidate the episode.
        try:
            found = await self._environments.run(called, "progress", EnvironmentFailed, env.progress)
        except TStarError as error:
            cause = error.__cause__ if isinstance(error, EnvironmentFailed) and error.__cause__ else error
            episode.extra["progress_unknown"] = f"{type(cause).__name__}: {said(cause)}"
            return
        number = as_number(found)
        if number is None or not 0 <= number <= 1:
            episode.extra["progress_unknown"] = (
                f"progress() must return a number from 0 to 1, found {shown(found)}"
            )
        else:
            episode.extra["progress"] = number


def _returns_at_once(agent: Agent, function: Callable[..., Any]) -> bool:
    """Check whether a method of an agent can be called on the event loop: a coroutine, or marked by ``never_waits``."""
    if getattr(function, "never_waits", False) is True or inspect.iscoroutinefunction(function):
        return True
    return isinstance(agent, FunctionAgent) and inspect.iscoroutinefunction(agent.function)


def _is_async(agent: Agent) -> bool:
    """Check whether an agent waits for its replies on the event loop; it needs no thread then."""
    act = agent.function if isinstance(agent, FunctionAgent) else getattr(type(agent), "act", None)
    return inspect.iscoroutinefunction(act)


def _trait(agent: Agent, name: str) -> Any:
    """Read an optional attribute of an agent, None if it has none. May run the agent's code."""
    return called("the agent", AgentError, getattr, agent, name, None)


def _take_calls(agent: Agent, episode: Episode) -> None:
    """Move the requests noted in ``agent.calls`` to the record.

    Raises:
        AgentError: ``calls`` is not a list of valid ``Call`` objects.
    """
    calls = _trait(agent, "calls")
    if calls is None:
        return
    if not isinstance(calls, list) or not all(isinstance(call, Call) for call in calls):
        raise AgentError(
            f"the agent's calls must be a list of tstar_envs.agents.base.Call, found {shown(calls)}"
        )
    taken = calls[:]
    calls.clear()
    for call in taken:
        call.step, call.attempt = len(episode.steps), len(episode.attempts)
        record = call.record()
        if found := fault(record, CALL):
            raise AgentError(
                f"the agent's calls hold one whose {found.name!r} must be {found.must}, found {shown(found.value)}"
            )
        episode.calls.append(record)


def _keep_attempt(episode: Episode) -> None:
    """Store an attempt and clear the record for the next one."""
    steps = [{name: getattr(step, name) for name in step.__slots__} for step in episode.steps]
    facts = {"reward": episode.reward, "success": episode.success, "ended": episode.ended, "steps": steps}
    episode.attempts.append(facts)
    episode.steps, episode.reward, episode.success, episode.extra = [], 0.0, False, {}
