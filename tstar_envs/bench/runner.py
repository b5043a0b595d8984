"""Plays episodes of an agent, one or many at a time; a failure of the infrastructure is an ``error``, never a reward of 0.

Each seat, an environment and an agent of its own, plays one episode after another. Replies are waited for together, and whatever has
arrived is stepped together. With one seat nothing runs in threads.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

from tstar_envs.bench.agents.protocol import Agent
from tstar_envs.bench.failures import AgentError, EnvironmentFailed, failure, raised
from tstar_envs.bench.interrupts import Interrupts
from tstar_envs.bench.results import Key
from tstar_envs.bench.steps import StepsTogether
from tstar_envs.bench.workers import Workers
from tstar_envs.core import TextEnv
from tstar_envs.errors import TStarError
from tstar_envs.playing import new_episode, write_step
from tstar_envs.record import Episode
from tstar_envs.registry import EnvEntry

ERRORS_IN_A_ROW = 5  # beside those that were under way: then something is broken for good, and going on would only fill the file


class BrokenRun(TStarError):
    """Several episodes in a row ended in an error."""


class Seat(NamedTuple):
    """Where one episode at a time is played, and by whom."""

    env: TextEnv[Any, Any]
    agent: Agent


@dataclass(frozen=True)
class Setting:
    """What all episodes of a run share.

    Attributes:
        entry: the environment's entry in the table, for the records.
        name: how records call the agent.
        seed: with task and sample it gives ``info["agent_seed"]``, which ``agent.reset`` gets.
        progress: whether ``extra`` gets ``progress``, how far the episode came (``TextEnv.progress`` of its last state); where that
            cannot be determined (a solver gave up), the result stands and ``progress_unknown`` says why.
        panel: name and hash of the panel that the tasks are of, for the records.
    """

    entry: EnvEntry
    name: str
    seed: int = 0
    progress: bool = False
    panel: str = ""


def agent_seed(seed: int, task: str, sample: int) -> int:
    """A seed of 63 bits for one episode's sampling: the same whichever episodes were played before it."""
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
    """Play one episode to its end; the arguments are those of ``Setting`` and ``Seat``.

    Returns:
        The record. If the environment's infrastructure or the agent failed, ``ended`` is ``error`` and ``error`` says why.
    """
    return next(iter(play_all([Seat(env, agent)], Setting(entry, name, seed, progress), [(task, sample)])))


def play_missing(
    seats: Sequence[Seat], setting: Setting, wanted: Sequence[Key], done: dict[Key, Episode]
) -> Generator[Episode, None, None]:
    """Play what is wanted and not done (or ended in an error); yields each episode as it ends.

    Raises:
        BrokenRun: several episodes in a row ended in an error.
    """
    missing = [key for key in wanted if key not in done or done[key].ended == "error"]
    in_a_row = 0
    with closing(
        play_all(seats, setting, missing)
    ) as playing:  # what is under way ends with the run, not when Python tidies up
        for episode in playing:
            yield episode
            in_a_row = in_a_row + 1 if episode.ended == "error" else 0
            if in_a_row == ERRORS_IN_A_ROW + len(seats) - 1:
                raise BrokenRun(
                    f"stopped after {in_a_row} episodes in a row ended in an error, the last: {episode.error}"
                )


def play_all(
    seats: Sequence[Seat], setting: Setting, wanted: Sequence[Key]
) -> Generator[Episode, None, None]:
    """Play episodes side by side, as many as there are seats; yields each as it ends.

    Leaving the iteration ends what is under way: those episodes are not recorded.
    """
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(_report)
    with Interrupts(loop) as interrupts:
        table = _Table(setting, len(seats), interrupts)
        players: list[asyncio.Task[None]] = []
        try:
            ended: asyncio.Queue[Episode] = asyncio.Queue()
            left = iter(wanted)
            players = [loop.create_task(table.sit(seat, left, ended)) for seat in seats[: len(wanted)]]
            for _ in wanted:
                episode = loop.run_until_complete(_next(ended, players, interrupts))
                with interrupts.handing_over():
                    yield episode
                ended.task_done()
            loop.run_until_complete(_all(players))
        finally:
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            # Also asks those for their exceptions that are over.
            loop.run_until_complete(_all({*tasks, *players}))
            loop.run_until_complete(_close(seats))
            loop.run_until_complete(loop.shutdown_asyncgens())
            table.close()
            loop.close()


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Asyncio's own report of what no one waited for; Ctrl-C in a task has left the loop already and is no fault."""
    if not isinstance(context.get("exception"), KeyboardInterrupt):
        loop.default_exception_handler(context)


async def _next(
    ended: asyncio.Queue[Episode], players: Collection[asyncio.Task[None]], interrupts: Interrupts
) -> Episode:
    """The next episode that ends; a player that raised ends the run with what it raised."""
    waiting = asyncio.ensure_future(ended.get())
    while not waiting.done():
        interrupts.check()
        for player in players:
            if player.done():
                player.result()
        events: list[asyncio.Future[Any]] = [waiting, interrupts.asked]
        events += [player for player in players if not player.done()]
        await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
    return waiting.result()


async def _close(seats: Sequence[Seat]) -> None:
    """Agents may hold connections or programs."""
    for seat in seats:
        close = getattr(seat.agent, "close", None)
        if close is not None and inspect.isawaitable(result := close()):
            await result


async def _all(tasks: Collection[asyncio.Task[Any]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)


class _Table:
    """The seats' common part: threads for what blocks, and the steps taken together."""

    def __init__(self, setting: Setting, seats: int, interrupts: Interrupts) -> None:
        several = seats > 1
        self._setting = setting
        # One thread for all environments: families share caches and connections that know of no other.
        self._environments = Workers(1 if several else 0, interrupts.expected)
        self._agents = Workers(seats if several else 0, interrupts.expected)
        self._steps = StepsTogether(self._environments)

    def close(self) -> None:
        self._environments.close()
        self._agents.close()

    async def sit(self, seat: Seat, left: Iterator[Key], ended: asyncio.Queue[Episode]) -> None:
        """Play one episode after another until none is left."""
        for task, sample in left:
            await ended.put(await self._episode(seat, task, sample))
            await ended.join()  # what was played is recorded before more is

    async def _episode(self, seat: Seat, task: str, sample: int) -> Episode:
        setting = self._setting
        episode = new_episode(seat.env, setting.entry, setting.name, task, sample=sample, seed=setting.seed)
        episode.panel = setting.panel
        error: TStarError | None = None
        try:
            while await self._attempt(seat, episode):
                _keep_attempt(episode)
        except TStarError as raised_error:
            error = raised_error
            episode.fail(error)
        episode.failure = failure(episode, error)
        if setting.progress and error is None:
            await self._measure(seat.env, episode)
        return episode

    async def _attempt(self, seat: Seat, episode: Episode) -> bool:
        """Play the task once; whether the agent wants to try again."""
        env, agent = seat
        observation, info = await self._environments.run(_reset, env, episode.task)
        episode.begin(observation, info)
        seed = agent_seed(episode.seed or 0, episode.task, episode.sample)
        message = {"agent_seed": seed, "sample": episode.sample, "attempt": len(episode.attempts)}
        await self._ask(seat, episode, agent.reset, observation, {**info, **message})
        while True:
            began = time.perf_counter()
            reply = await self._ask(seat, episode, agent.act, observation, info)
            seconds = time.perf_counter() - began
            if not isinstance(reply, str):
                raise AgentError(f"act(observation, info) must return a str, returned {type(reply).__name__}")
            result = await self._steps.step(env, reply)
            write_step(episode, reply, result)
            episode.steps[-1].seconds = round(seconds, 6)
            observation, info = result.observation, result.info
            if result.over:
                break
        again: Callable[..., Any] | None = getattr(agent, "again", None)
        return again is not None and bool(
            await self._ask(seat, episode, again, observation, result.reward, info)
        )

    async def _ask(self, seat: Seat, episode: Episode, function: Callable[..., Any], *args: Any) -> Any:
        """Call an agent; what it asked of its model meanwhile is recorded, whether it succeeds or not."""
        try:
            if inspect.iscoroutinefunction(function):
                return await function(*args)
            workers = self._environments if getattr(seat.agent, "privileged", False) is True else self._agents
            result = await workers.run(function, *args)
            return await result if inspect.isawaitable(result) else result
        except TStarError:
            raise
        except Exception as error:  # an agent is foreign code: its crash costs this episode, not the run
            raise AgentError(raised("the agent", error)) from error
        finally:
            calls = getattr(seat.agent, "calls", [])
            for call in calls:
                call.step, call.attempt = len(episode.steps), len(episode.attempts)
                episode.calls.append(call.record())
            calls.clear()

    async def _measure(self, env: TextEnv[Any, Any], episode: Episode) -> None:
        try:
            episode.extra["progress"] = await self._environments.run(env.progress)
        except Exception as error:  # noqa: BLE001 - a measurement that fails says nothing about the episode, which was played
            episode.extra["progress_unknown"] = f"{type(error).__name__}: {error}"


def _reset(env: TextEnv[Any, Any], task: str) -> tuple[str, dict[str, Any]]:
    try:
        return env.reset(options={"task": task})
    except TStarError:
        raise
    except Exception as error:
        raise EnvironmentFailed(raised("the environment", error)) from error


def _keep_attempt(episode: Episode) -> None:
    """Put an attempt aside and clear the record for the next."""
    steps = [{name: getattr(step, name) for name in step.__slots__} for step in episode.steps]
    facts = {"reward": episode.reward, "success": episode.success, "ended": episode.ended, "steps": steps}
    episode.attempts.append(facts)
    episode.steps, episode.reward, episode.success, episode.extra = [], 0.0, False, {}
