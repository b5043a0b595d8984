"""Steps a second through the OpenEnv server, beside the same scripted steps through what ``eval`` plays with, in this process.

    scripts/test_adapters.sh openenv                                        # makes .venv-adapters/openenv
    .venv-adapters/openenv/bin/python scripts/bench/bench_adapters.py

The replies are the expert's, collected before; resets are in the time of both sides. The server is a process of its own on loopback, as
``python -m tstar_envs serve`` starts it, the clients are OpenEnv's own, in one event loop of this process. Rounds of the sides alternate.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from openenv.core import GenericEnvClient
from spread import spread

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tstar_envs import find_entry, task_set
from tstar_envs.evaluation.runner import Setting, Worker, play_all


@dataclass(frozen=True)
class Options:
    """Measure the speed of the OpenEnv server beside the same environments in process."""

    env: tuple[str, ...] = ("sokoban-easy", "blocksworld-stack", "hotpotqa", "webshop", "alfworld")
    """Environment ids."""
    episodes: int = 320
    """Episodes per side and round."""
    rounds: int = 5
    """Measurements of each side."""
    sessions: int = 32
    """Number of concurrent sessions, measured in addition to a single one."""


@dataclass(frozen=True)
class Script:
    """A task and the expert's replies to it."""

    task: str
    replies: tuple[str, ...]


class Scripted:
    """The agent of the side in process: knows every reply before."""

    def __init__(self, scripts: Sequence[Script]) -> None:
        self._scripts = {script.task: script.replies for script in scripts}

    def reset(self, observation: str, info: dict[str, Any]) -> None:
        """Begin the script of a task."""
        self._left = iter(self._scripts[info["task_id"]])

    def act(self, observation: str, info: dict[str, Any]) -> str:
        """Return the next reply of the script."""
        return next(self._left)


def main(options: Options) -> None:
    """Print a table in Markdown: medians of the rounds, and the least and most of them."""
    print(
        f"| environment | steps an episode | in process, steps/s | OpenEnv, 1 session | {options.sessions} sessions "
        "| a step more, 1 session, ms |"
    )
    print("|---|---|---|---|---|---|")
    for name in options.env:
        scripts = _scripts(name, options.episodes)
        steps = sum(len(script.replies) for script in scripts)
        times: dict[int, list[float]] = {0: [], 1: [], options.sessions: []}
        with _serving(name, options.sessions) as url:
            for _ in range(options.rounds):
                for sessions, of in times.items():
                    of.append(
                        asyncio.run(_through_openenv(url, scripts, sessions))
                        if sessions
                        else _in_process(name, scripts)
                    )
        rates = [spread([steps / seconds for seconds in of], 0) for of in times.values()]
        more = [(one - alone) / steps * 1e3 for alone, one in zip(times[0], times[1], strict=True)]
        print(f"| {name} | {steps / len(scripts):.1f} | {' | '.join(rates)} | {spread(more)} |", flush=True)


def _scripts(name: str, number: int) -> list[Script]:
    found = task_set(name)
    env = found.make()
    scripts = {}
    for task in found.ids[:number]:
        env.reset(options={"task": task})
        replies, over = [], False
        while not over:
            replies.append(env.oracle() or "")
            _, _, terminated, truncated, _ = env.step(replies[-1])
            over = terminated or truncated
        scripts[task] = Script(task, tuple(replies))
    # Small splits are played several times.
    return [scripts[found.ids[n % len(scripts)]] for n in range(number)]


def _in_process(name: str, scripts: Sequence[Script]) -> float:
    worker = Worker(task_set(name, limit=1).make(), Scripted(scripts))
    began = time.perf_counter()
    played = list(
        play_all(
            [worker], Setting(find_entry(name), "scripted"), [(s.task, n) for n, s in enumerate(scripts)]
        )
    )
    seconds = time.perf_counter() - began
    _check(scripts, [(len(episode.steps), episode.reward) for episode in played])
    return seconds


async def _through_openenv(url: str, scripts: Sequence[Script], sessions: int) -> float:
    clients = [GenericEnvClient(base_url=url) for _ in range(sessions)]
    try:
        for client in clients:
            await client.connect()
        began = time.perf_counter()
        shares = [scripts[n::sessions] for n in range(sessions)]
        played = await asyncio.gather(
            *[_play(client, share) for client, share in zip(clients, shares, strict=True)]
        )
        seconds = time.perf_counter() - began
    finally:
        for client in clients:
            await client.close()
    _check(scripts, [outcome for of in played for outcome in of])
    return seconds


async def _play(client: Any, scripts: Sequence[Script]) -> list[tuple[int, float]]:
    outcomes = []
    for script in scripts:
        result = await client.reset(task=script.task)
        for reply in script.replies:
            result = await client.step({"reply": reply})
        if not result.done:
            raise RuntimeError(f"the episode of {script.task} did not end")
        outcomes.append((len(script.replies), result.reward))
    return outcomes


def _check(scripts: Sequence[Script], outcomes: Sequence[tuple[int, float]]) -> None:
    """Require that both sides have played everything, with the expert's reward."""
    steps, reward = sum(n for n, _ in outcomes), sum(reward for _, reward in outcomes)
    if steps != sum(len(script.replies) for script in scripts) or reward < len(scripts) - 1e-6:
        raise RuntimeError(
            f"{len(outcomes)} episodes of {steps} steps with a reward of {reward:g} in all are not what was to be played"
        )


@contextmanager
def _serving(name: str, sessions: int) -> Iterator[str]:
    command = [
        sys.executable,
        "-u",
        "-m",
        "tstar_envs",
        "serve",
        "--env",
        name,
        "--port",
        "0",
        "--sessions",
        str(sessions),
    ]
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True)
    try:
        said = process.stdout.readline() if process.stdout is not None else ""
        found = re.search(r"http://[\d.:]+", said)
        if found is None:
            raise RuntimeError(f"the server did not start: {said}")
        yield found[0]
    finally:
        process.terminate()
        process.communicate()


if __name__ == "__main__":
    main(tyro.cli(Options))
