"""What optimal solutions of 10x10 Sokoban levels with four boxes cost, from empty halls to rooms full of walls.

    python scripts/bench/bench_solver.py --out docs/results/solver_speed.md

Levels are random: walls on so many of the 64 inner cells, then four boxes, four targets and the player anywhere. Levels whose boxes have
no way to the targets even one by one (a box in a corner) are drawn again; others that are lost stay.
"""

from __future__ import annotations

import argparse
import platform
import random
import statistics
import time
from pathlib import Path

from tstar_envs import BadData, SolverLimit
from tstar_envs.envs.sokoban.level import SOLVER_STATES, Room, State, parse_level
from tstar_envs.envs.sokoban.solver import LOST, PushBound, Search, push_distances

SIZE = 10
WALLS = (0, 6, 12, 24)


def draw_level(walls: int, boxes: int, seed: int) -> tuple[Room, State]:
    """A random level; all of its boxes within the player's reach if there were no others."""
    rng = random.Random(f"{walls}/{boxes}/{seed}")
    inner = [(row, column) for row in range(1, SIZE - 1) for column in range(1, SIZE - 1)]
    while True:
        rows = [["#"] * SIZE for _ in range(SIZE)]
        places = rng.sample(inner, len(inner))[walls:]
        for place, (row, column) in enumerate(places):
            rows[row][column] = (
                "$" if place < boxes else "." if place < 2 * boxes else "@" if place == 2 * boxes else " "
            )
        try:
            room, start = parse_level("\n".join("".join(row) for row in rows))
        except BadData:
            continue  # a box or a target that the player can never reach
        if start[0].bit_count() == boxes and PushBound(push_distances(room)[0])(start[0]) < LOST:
            return room, start


def line(walls: int, boxes: int, levels: int, most_states: int) -> tuple[str, list[float]]:
    """A line of the table, and the CPU seconds of each level."""
    seconds, states, lost, given_up = [], [], 0, 0
    for seed in range(levels):
        room, start = draw_level(walls, boxes, seed)
        search = Search(room, start, most_states)
        begun = time.process_time()
        try:
            lost += search.run() is None
        except SolverLimit:
            given_up += 1
        seconds.append(time.process_time() - begun)
        states.append(search.states)
    ninth = statistics.quantiles(seconds, n=10)[-1] if levels > 1 else seconds[0]
    row = (
        f"| {walls} | {levels} | {lost} | {given_up} | {statistics.median(seconds):.2f} | {ninth:.2f} | {max(seconds):.2f} "
        f"| {statistics.median(states):,.0f} | {max(states):,} |"
    )
    return row, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--levels", type=int, default=100, help="number of levels of each kind (default: %(default)s)"
    )
    parser.add_argument("--boxes", type=int, default=4, help="boxes per level (default: %(default)s)")
    parser.add_argument(
        "--most-states",
        type=int,
        default=SOLVER_STATES,
        help="maximum number of states that a search visits (default: the environment's)",
    )
    parser.add_argument("--out", type=Path, help="file to write the table to")
    options = parser.parse_args()
    head = f"python scripts/bench/bench_solver.py --levels {options.levels} --boxes {options.boxes} --most-states {options.most_states}"
    if options.out:
        head += f" --out {options.out}"
    rows = [
        "# Optimal solutions of 10x10 Sokoban levels",
        "",
        f"Made by `{head}` (Python {platform.python_version()}; x86-64 server CPU, one core).",
        f"CPU seconds and stored states (the search gives up at {options.most_states:,}), by the number of walls on the 64 inner",
        "cells. Levels are random. A level in which some box cannot reach a target even alone (a box in a corner) is drawn again; other",
        "unsolvable levels are kept.",
        "",
        "| inner walls | levels | of them lost | given up | median s | 90 % s | most s | median states | most states |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    print("\n".join(rows), flush=True)
    medians, worst = [], 0.0
    for walls in WALLS:
        row, seconds = line(walls, options.boxes, options.levels, options.most_states)
        medians.append(statistics.median(seconds))
        worst = max(worst, *seconds)
        rows.append(row)
        print(row, flush=True)
    rows[2:2] = [
        f"Half of the levels of each kind take at most {max(medians):.2f} CPU seconds, and the worst took {worst:.1f}.",
        "",
    ]
    if options.out:
        options.out.write_text("\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
