"""CPU time to come back to a state: by a snapshot, and by reset and replay, both sides interleaved in one process.

    python scripts/bench/bench_restore.py

An expert plays an episode; the state is that before its last turn.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

from spread import spread

from tstar_envs import find_entry

FAMILIES = ("sokoban-hard", "blocksworld-stack", "alfworld", "webshop", "hotpotqa", "musique")


def microseconds(work: Callable[[], object], times: int) -> float:
    """Mean CPU microseconds of a call."""
    began = time.process_time()
    for _ in range(times):
        work()
    return 1e6 * (time.process_time() - began) / times


def line(name: str, rounds: int, times: int) -> str:
    """A row of the table: turns before the state, microseconds of both sides, and their ratio over the rounds."""
    env = find_entry(name).make().unwrapped
    task = env.task_ids()[0]
    env.reset(options={"task": task})
    said: list[str] = []
    snapshot = env.snapshot()
    while not env.over:
        snapshot = env.snapshot()
        said.append(env.oracle())
        env.step(said[-1])

    def replay() -> None:
        env.reset(options={"task": task})
        for reply in said[:-1]:
            env.step(reply)

    sides: dict[str, list[float]] = {"restore": [], "replay": []}
    for _ in range(rounds):
        sides["restore"].append(microseconds(lambda: env.restore(snapshot), times))
        sides["replay"].append(microseconds(replay, max(1, times // 20)))
    ratios = [slow / fast for slow, fast in zip(sides["replay"], sides["restore"], strict=True)]
    cells = [f"{statistics.median(sides[side]):,.1f}" for side in ("restore", "replay")]
    return f"| {name} | {len(said) - 1} | {cells[0]} | {cells[1]} | {spread(ratios)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--envs", nargs="+", default=list(FAMILIES), help="environments (default: one or two a family)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default: %(default)s)")
    parser.add_argument("--times", type=int, default=400, help="restores in a round (default: %(default)s)")
    options = parser.parse_args()
    print(
        "| environment | turns before | restore, us | reset and replay, us | ratio (least to most) |\n|---|---|---|---|---|"
    )
    for name in options.envs:
        print(line(name, options.rounds, options.times), flush=True)


if __name__ == "__main__":
    main()
