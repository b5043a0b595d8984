"""Measure what the benchmark harness itself costs, beside a bare loop, a bare HTTP client and another checkout.

    git worktree add ../before f093721
    python scripts/bench/bench_harness.py --other ../before

``oracle``: the harness beside a loop over the same episodes. ``endpoint``: many episodes at once against a server on loopback that takes
200 ms for every answer, in a process of its own. ``records``: commands on a large record file. All sides of a comparison run in turn in one
call, each in a process of its own. CPU seconds are those of the measured process; of several rounds the medians, of loop lags the lowest.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import tyro

ROOT = Path(__file__).resolve().parents[2]
HORIZON, SAMPLES, LEAST = 5, 2, 1000  # requests of an episode, episodes of a seat, and of all seats
BARE = "aiohttp alone"
CHILD = "--part"  # first argument of a process that this program starts


@dataclass(frozen=True)
class Options:
    """Measure the speed of the evaluation harness: with the oracle, with a local endpoint, and on large record files."""

    what: tuple[Literal["oracle", "endpoint", "records"], ...] = ("oracle", "endpoint", "records")
    """Comparisons to make."""
    other: Path | None = None
    """Another checkout to measure beside this one."""
    env: str = "sokoban-easy"
    """Environment id or short name."""
    episodes: int = 1000
    """Number of episodes that the oracle plays."""
    rounds: int = 3
    """Measurements of each side."""
    seats: tuple[int, ...] = (64, 256, 1000)
    """Episodes that use the endpoint at the same time."""
    latency: float = 0.2
    """Seconds that the endpoint takes for each answer."""
    recorded: int = 100_000
    """Episodes of the large record file."""


def main(options: Options) -> None:
    """Print the comparisons."""
    sides = {"now": ROOT} | ({"before": options.other.resolve()} if options.other else {})
    for what in options.what:
        {"oracle": _oracle, "endpoint": _endpoint, "records": _records}[what](options, sides)


def _child(root: Path, **given: Any) -> dict[str, Any]:
    """Run a part in a process that imports the packages of a checkout."""
    done = subprocess.run(
        [sys.executable, __file__, CHILD, json.dumps(given)],
        env={**os.environ, "PYTHONPATH": str(root), "OPENAI_API_KEY": "none"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{given} in {root} ended with status {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _middle(found: list[dict[str, Any]], name: str) -> float:
    return statistics.median(one[name] for one in found)


# The oracle


def _oracle(options: Options, sides: dict[str, Path]) -> None:
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
    for _ in range(options.rounds):
        for name, root in sides.items():
            found[name].append(_child(root, part="oracle", env=options.env, episodes=options.episodes))
    print(f"{options.episodes} oracle episodes of {options.env}, medians of {options.rounds} rounds")
    for name, those in found.items():
        bare, whole = _middle(those, "bare"), _middle(those, "whole")
        added = (whole - bare) / those[0]["steps"] * 1e6
        print(
            f"  {name}: bare loop {bare:.2f} s CPU, harness with a file {whole:.2f} s CPU, {_middle(those, 'clock'):.2f} s by the clock: "
            f"{added:.0f} microseconds a step more ({whole / bare:.2f} times the bare loop)"
        )


def _play_oracle(env: str, episodes: int) -> dict[str, float]:
    import tstar_envs

    entry = tstar_envs.find_entry(env)
    made = entry.make()
    ids = made.task_ids("test")
    tasks = [ids[n % len(ids)] for n in range(episodes)]
    steps, began = 0, time.process_time()
    for task in tasks:
        made.reset(options={"task": task})
        over = False
        while not over:
            _, _, terminated, truncated, _ = made.step(made.oracle() or "")
            over, steps = terminated or truncated, steps + 1
    bare = time.process_time() - began
    samples = -(-episodes // len(ids))
    with TemporaryDirectory() as folder:
        clock, began = time.perf_counter(), time.process_time()
        tstar_envs.evaluate(
            "oracle",
            env,
            tasks=min(len(ids), episodes),
            samples=samples,
            out=Path(folder) / "e.jsonl",
        )
        whole = time.process_time() - began
        return {"bare": bare, "whole": whole, "clock": time.perf_counter() - clock, "steps": steps}


# The endpoint


def _endpoint(options: Options, sides: dict[str, Path]) -> None:
    print(
        "\n| episodes at once | side | CPU ms a request | connections for requests | loop late by, p99 | latest | threads |\n"
        "|---|---|---|---|---|---|---|"
    )
    for seats in options.seats:
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in (*sides, BARE)}
        for _ in range(options.rounds):
            for name in found:
                root = sides.get(name, ROOT)
                with _server(options.latency) as url:
                    part = "bare" if name == BARE else "play"
                    one = _child(root, part=part, url=url, seats=seats, env=options.env)
                    one["connections"], one["requests"] = _counts(url)
                found[name].append(one)
        for name, those in found.items():
            each = statistics.median(one["cpu"] / one["requests"] * 1e3 for one in those)
            opened = f"{_middle(those, 'connections'):,.0f} for {those[0]['requests']:,}"
            late, most = (min(one[lag] for one in those) for lag in ("late", "most"))
            print(
                f"| {seats:,} | {name} | {each:.2f} | {opened} | {late:.2f} s | {most:.2f} s | {_middle(those, 'threads'):.0f} |",
                flush=True,
            )


def _counts(url: str) -> tuple[int, int]:
    """Ask the server for the connections and requests since the last time, this one left out."""
    with urllib.request.urlopen(f"{url}/count") as answer:
        connections, requests = json.load(answer)
    return connections - 1, requests


class _Lateness:
    """Lateness of an event loop, measured every 10 ms."""

    def __init__(self) -> None:
        self.found: list[float] = []
        self.threads = 0
        new = asyncio.new_event_loop

        def watched() -> asyncio.AbstractEventLoop:
            loop = new()
            loop.call_soon(self._tick, loop, time.perf_counter())
            return loop

        asyncio.new_event_loop = watched

    def _tick(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        import threading

        now = time.perf_counter()
        self.found.append(max(0.0, now - due))
        self.threads = max(self.threads, threading.active_count())
        loop.call_later(0.01, self._tick, loop, now + 0.01)

    def figures(self) -> dict[str, float]:
        found = sorted(self.found)
        return {"late": found[int(0.99 * (len(found) - 1))], "most": found[-1], "threads": self.threads}


def _play_endpoint(url: str, seats: int, env: str) -> dict[str, float]:
    import tstar_envs
    from tstar_envs.agents import ModelOptions

    late = _Lateness()
    ids = tstar_envs.find_entry(env).make().task_ids("test")
    with TemporaryDirectory() as folder:
        began = time.process_time()
        log = tstar_envs.evaluate(
            "chat",
            env,
            tasks=(tasks := min(len(ids), seats * SAMPLES)),
            samples=-(-max(LEAST, seats * SAMPLES) // tasks),
            concurrency=seats,
            options={"horizon": HORIZON},
            model=ModelOptions("any", url),
            out=Path(folder) / "e.jsonl",
        )
        cpu = time.process_time() - began
    if log.errors:
        raise SystemExit(log.errors[0].error)
    return {"cpu": cpu, **late.figures()}


def _play_bare(url: str, seats: int, env: str) -> dict[str, float]:
    """Send as many requests of about the same length without a harness."""
    import aiohttp

    late = _Lateness()
    sent = {"model": "any", "max_tokens": 1024, "temperature": 0.0}
    message = [{"role": "system", "content": "rules " * 400}, {"role": "user", "content": "a grid " * 100}]

    async def seat(session: Any) -> None:
        for _ in range(max(SAMPLES, -(-LEAST // seats)) * HORIZON):
            body = json.dumps({**sent, "messages": message}).encode()
            async with session.post(f"{url}/chat/completions", data=body) as response:
                json.loads(await response.read())

    async def all_seats() -> None:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            await asyncio.gather(*[seat(session) for _ in range(seats)])

    began = time.process_time()
    loop = asyncio.new_event_loop()
    loop.run_until_complete(all_seats())
    loop.close()
    return {"cpu": time.process_time() - began, **late.figures()}


@contextmanager
def _server(latency: float) -> Iterator[str]:
    server = subprocess.Popen(
        [sys.executable, __file__, CHILD, json.dumps({"part": "serve", "latency": latency})],
        stdout=subprocess.PIPE,
        text=True,
    )
    with server:
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline() if server.stdout else 0)}/v1"
        finally:
            server.kill()


def _serve(latency: float) -> None:
    """Answer every request after a time, and count requests and connections; ``GET .../count`` tells and clears them."""
    message = {"role": "assistant", "content": "Thought: I go up.\nAction: Up"}
    answer = {
        "id": "1",
        "object": "chat.completion",
        "created": 1,
        "model": "any",
        "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        "usage": {"prompt_tokens": 700, "completion_tokens": 10, "total_tokens": 710},
    }
    counts = [0, 0]

    def response(body: bytes) -> bytes:
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode() + body

    usual = response(json.dumps(answer).encode())

    class Connection(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            self.transport, self.received = transport, b""
            counts[0] += 1

        def data_received(self, data: bytes) -> None:
            self.received += data
            while (end := self.received.find(b"\r\n\r\n")) >= 0:
                head = self.received[:end]
                found = re.search(rb"content-length: (\d+)", head.lower())
                whole = end + 4 + (int(found[1]) if found else 0)
                if len(self.received) < whole:
                    return
                self.received = self.received[whole:]
                if head.startswith(b"GET "):
                    self.transport.write(response(json.dumps(counts).encode()))
                    counts[:] = [0, 0]
                else:
                    counts[1] += 1
                    asyncio.get_running_loop().call_later(latency, self.transport.write, usual)

    async def serve() -> None:
        made = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0, backlog=4096)
        print(made.sockets[0].getsockname()[1], flush=True)
        await made.serve_forever()

    asyncio.run(serve())


# Record files


def _records(options: Options, sides: dict[str, Path]) -> None:
    with TemporaryDirectory() as folder:
        print(
            f"\n| {options.recorded:,} episodes | agent | CPU s, {' | '.join(sides)} | peak memory, MB, {' | '.join(sides)} |\n"
            f"|{'---|' * (2 + 2 * len(sides))}"
        )
        for agent in ("random", "chat"):
            path = Path(folder) / f"{agent}.jsonl"
            size = _write_records(options, path, agent)
            print(
                f"{agent} on {options.env}: {size / options.recorded / 1e3:.1f} kB an episode",
                file=sys.stderr,
            )
            for command in ("report", "compare", "resume", "replay"):
                found: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
                for _ in range(options.rounds):
                    for name, root in sides.items():
                        found[name].append(
                            _child(root, part=command, path=str(path), env=options.env, agent=agent)
                        )
                cells = [f"{_middle(those, 'cpu'):.1f}" for those in found.values()]
                cells += [f"{_middle(those, 'memory'):,.0f}" for those in found.values()]
                print(f"| `{command}` | {agent} | {' | '.join(cells)} |", flush=True)
            path.unlink()


def _write_records(options: Options, path: Path, agent: str) -> int:
    """Write a large file: a hundred real episodes again and again, as further samples of their tasks."""
    source = path.with_name(f"some-{path.name}")
    with _server(0.0) as url:
        _child(ROOT, part="some", path=str(source), env=options.env, agent=agent, url=url)
    records = [json.loads(line) for line in source.read_text().splitlines()]
    with open(path, "w") as handle:
        for number in range(options.recorded):
            record = records[number % len(records)]
            handle.write(json.dumps({**record, "sample": number // len(records)}) + "\n")
    path.with_name(f"{path.name}.config.json").write_text(
        source.with_name(f"{source.name}.config.json").read_text()
    )
    return path.stat().st_size


TASKS = 100


def _play_some(path: str, env: str, agent: str, url: str) -> dict[str, int]:
    import tstar_envs

    tstar_envs.evaluate(agent, env, tasks=TASKS, out=path, model=_model(agent, url))
    return {}


def _model(agent: str, url: str = "http://127.0.0.1:9/v1") -> Any:
    from tstar_envs.agents import ModelOptions

    return ModelOptions("any", url) if agent == "chat" else None


def _spent() -> dict[str, float]:
    import resource

    return {"cpu": time.process_time(), "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def _report(path: str, env: str, agent: str) -> dict[str, float]:
    """Write the whole page."""
    from tstar_envs.evaluation.cost import read_prices
    from tstar_envs.evaluation.report import write_report

    write_report([Path(path)], Path(path).with_suffix(".html"), read_prices(None))
    return _spent()


def _compare(path: str, env: str, agent: str) -> dict[str, float]:
    """Read a file for a comparison."""
    from tstar_envs.evaluation.log import read_recorded

    read_recorded(Path(path))
    return _spent()


def _resume(path: str, env: str, agent: str) -> dict[str, float]:
    """Start an evaluation that the file resumes, until the first episode would be played."""
    import tstar_envs
    from tstar_envs.evaluation.evaluate import EvaluationRun

    class Stopped(BaseException):
        pass

    def started(run: EvaluationRun, episode: Any) -> None:
        raise Stopped

    try:
        tstar_envs.evaluate(
            agent,
            env,
            tasks=TASKS,
            samples=2_000,
            out=path,
            model=_model(agent),
            callback=started,
        )
    except Stopped:
        return _spent()
    raise SystemExit("the evaluation did not start")


def _replay(path: str, env: str, agent: str) -> dict[str, float]:
    """Start a replay of the file, until the first episode begins."""
    from tstar_envs import find_entry
    from tstar_envs.cli import main as command

    def reset(*_: Any, **__: Any) -> None:
        print(json.dumps(_spent()), flush=True)
        os._exit(0)

    find_entry(env).load_class().reset = reset
    command(["replay", path])
    raise SystemExit("the replay did not start")


PARTS: dict[str, Any] = {
    "oracle": _play_oracle,
    "play": _play_endpoint,
    "bare": _play_bare,
    "serve": _serve,
    "some": _play_some,
    "report": _report,
    "compare": _compare,
    "resume": _resume,
    "replay": _replay,
}

if __name__ == "__main__":
    if sys.argv[1:2] == [CHILD]:
        wanted = json.loads(sys.argv[2])
        print(json.dumps(PARTS[wanted.pop("part")](**wanted)))
    else:
        main(tyro.cli(Options))
