"""What the benchmark harness itself costs: beside a bare loop over the same episodes, and with many episodes of a slow endpoint at once.

    python scripts/bench/bench_harness.py

Both sides of each comparison are interleaved in this run. The endpoint is a server on loopback that takes 200 ms for every answer.
"""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory

import tyro

from tstar_envs import TextEnv, append_episode, find_entry
from tstar_envs.agents import ModelOptions, load_agent, more_agents
from tstar_envs.agents.base import bind_agent
from tstar_envs.cli.console import make_env
from tstar_envs.evaluation.runner import Setting, Worker, play_missing


@dataclass(frozen=True)
class Options:
    """Measure the speed of the evaluation harness, with the oracle and with a local endpoint."""

    env: str = "sokoban-easy"
    """Environment id or short name of the oracle's episodes."""
    episodes: int = 1000
    """Number of episodes that the oracle plays."""
    rounds: int = 5
    """Measurements of each side."""
    at_once: int = 32
    """Episodes that use the endpoint at the same time."""
    latency: float = 0.2
    """Seconds that the endpoint takes for each answer."""


def main(options: Options) -> None:
    """Print both comparisons."""
    entry = find_entry(options.env)
    env = make_env(entry, {})
    ids = env.task_ids("test")
    keys = [(ids[n % len(ids)], n // len(ids)) for n in range(options.episodes)]
    bare, whole, wall, steps = [], [], [], 0
    for _ in range(options.rounds):
        began = time.process_time()
        steps = _bare(env, [task for task, _ in keys])
        bare.append(time.process_time() - began)
        agent = load_agent("oracle", env_id=entry.id, seed=0)
        bind_agent(agent, env)
        with TemporaryDirectory() as folder:
            clock, began = time.perf_counter(), time.process_time()
            for episode in play_missing([Worker(env, agent)], Setting(entry, "oracle"), keys, {}):
                append_episode(Path(folder, "episodes.jsonl"), episode)
            whole.append(time.process_time() - began)
            wall.append(time.perf_counter() - clock)
    loop, harness = statistics.median(bare), statistics.median(whole)
    print(
        f"{options.episodes} oracle episodes of {entry.id}, {steps} steps, medians of {options.rounds} rounds"
    )
    print(
        f"  bare loop {loop:.2f} s CPU, harness with a file {harness:.2f} s CPU, {statistics.median(wall):.2f} s by the clock"
    )
    print(
        f"  the harness adds {(harness - loop) / steps * 1e6:.0f} microseconds a step ({harness / loop:.2f} times the bare loop)"
    )
    _endpoint(options)


def _bare(env: TextEnv, tasks: list[str]) -> int:
    """The oracle without a harness; how many steps it took."""
    steps = 0
    for task in tasks:
        env.reset(options={"task": task})
        over = False
        while not over:
            _, _, terminated, truncated, _ = env.step(env.oracle() or "")
            over, steps = terminated or truncated, steps + 1
    return steps


def _endpoint(options: Options) -> None:
    with _slow_server(options.latency) as url:
        few = options.at_once // 8
        alone, requests = _play(url, 1, few)
        many, all_requests = _play(url, options.at_once, options.at_once)
    sequential = alone / few * options.at_once
    print(
        f"{options.at_once} episodes of 20 turns against an endpoint of {options.latency:g} s an answer ({all_requests} requests)"
    )
    share = f"1/{sequential / many:.0f}"
    print(
        f"  one after the other {sequential:.1f} s (from {few} episodes, {requests} requests), at once {many:.1f} s: {share}"
    )


def _play(url: str, at_once: int, tasks: int) -> tuple[float, int]:
    """Seconds by the clock, and requests."""
    entry = find_entry("sokoban-easy")
    first = load_agent("chat", env_id=entry.id, seed=0, model=ModelOptions("any", url))
    agents = more_agents(first, at_once, "chat", lambda: first)
    workers = [Worker(make_env(entry, {}), agent) for agent in agents]
    for worker in workers:
        bind_agent(worker.agent, worker.env)
    began = time.perf_counter()
    played = list(
        play_missing(
            workers,
            Setting(entry, "chat"),
            [(task, 0) for task in workers[0].env.task_ids("test")[:tasks]],
            {},
        )
    )
    return time.perf_counter() - began, sum(len(episode.calls) for episode in played)


@contextmanager
def _slow_server(latency: float) -> Iterator[str]:
    message = {"role": "assistant", "content": "Thought: I go up.\nAction: Up"}
    answer = {
        "id": "1",
        "object": "chat.completion",
        "created": 1,
        "model": "any",
        "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
    }
    body = json.dumps(answer).encode()
    head = (
        f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    )

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            """Wait, and answer."""
            self.rfile.read(int(self.headers["Content-Length"]))
            time.sleep(latency)
            self.wfile.write(head + body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        request_queue_size = 256
        daemon_threads = True

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()


if __name__ == "__main__":
    main(tyro.cli(Options))
