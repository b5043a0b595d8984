"""Speed of the planning environments beside Gymnasium's own, in CPU time, both sides interleaved in one process.

    python scripts/bench/bench_envs.py --out docs/results/envs_speed.md

All environments play through their public ``step`` (ours unwrapped: the reply is read, and text, admissible actions, tags and
state key are made), resets included. Sides, in turn within every round:

- CartPole: bare CartPole-v1, unwrapped, uniform random actions.
- long walk: uniform random moves (Sokoban) or admissible actions (else) on random tasks of the test split, beginning in a process
  that has seen none of them; the mean of all rounds, so it includes the first visits of all tasks.
- batch: the same on 32 of these tasks, as in one iteration of training; most states were seen before in the process.
- never seen: the same on tasks of the train split, each played once, so no task is cached when it starts.
- never seen, steps alone: the same plays without the time of reset() (CartPole's likewise).
- GroupEnv and SyncVectorEnv: 32 rows, random moves on random tasks of the test split, drawn in the same way for both; each starts
  finished rows anew in its own way.
"""

from __future__ import annotations

import argparse
import itertools
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
from spread import spread

import tstar_envs
from tstar_envs.envs.blocksworld.generate import fresh_problems
from tstar_envs.envs.sokoban import generate_level

ROWS = 32
BATCH = 32
WORDS = ("Up", "Down", "Left", "Right")


@dataclass(frozen=True)
class Bench:
    """One line of the table.

    Attributes:
        id: of the environment.
        target: ratio to CartPole that it must reach.
        words: what a random player draws from; empty for the admissible actions of each state.
        generate: makes one fresh task, None if that is not shown.
        most_milliseconds: what that may cost.
    """

    id: str
    target: float
    words: tuple[str, ...] = ()
    generate: Callable[[int], Any] | None = None
    most_milliseconds: float = 0.0


BENCHES = (
    Bench("tstar/Sokoban-easy", 0.25, WORDS, lambda n: generate_level(f"bench/{n}", "easy"), 1.0),
    Bench("tstar/Sokoban-medium", 0.25, WORDS, lambda n: generate_level(f"bench/{n}", "medium"), 3.0),
    Bench("tstar/Sokoban-hard", 0.25, WORDS, lambda n: generate_level(f"bench/{n}", "hard"), 30.0),
    Bench("tstar/Blocksworld-stack", 0.25, (), lambda n: next(fresh_problems(f"bench/{n}", "stack")), 5.0),
    Bench(
        "tstar/Blocksworld-unstack", 0.25, (), lambda n: next(fresh_problems(f"bench/{n}", "unstack")), 5.0
    ),
)


class Resets:
    """CPU seconds that resets took since it was last asked."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def __call__(self, env: Any, task: str | None = None) -> dict[str, Any]:
        """Reset an environment, timed; its info."""
        start = time.process_time()
        info: dict[str, Any] = env.reset(options=None if task is None else {"task": task})[1]
        self._seconds += time.process_time() - start
        return info

    def taken(self) -> float:
        seconds, self._seconds = self._seconds, 0.0
        return seconds


reset = Resets()


def cpu(work: Callable[[], int]) -> tuple[float, float]:
    """CPU microseconds per unit of work, and without the resets in it."""
    reset.taken()
    start = time.process_time()
    done = work()
    seconds = time.process_time() - start
    return seconds / done * 1e6, (seconds - reset.taken()) / done * 1e6


def cart_pole(steps: int) -> Callable[[], int]:
    env = gym.make("CartPole-v1").unwrapped
    env.reset(seed=0)
    actions = [random.Random(0).randrange(2) for _ in range(steps)]

    def play() -> int:
        for action in actions:
            if env.step(action)[2]:
                reset(env)
        return steps

    return play


def walk(env: Any, words: tuple[str, ...], draws: list[float], tasks: Iterator[str]) -> int:
    """Random actions until draws or tasks run out; the number of steps."""
    steps = 0
    for task in tasks:
        info = reset(env, task)
        over = False
        while not over:
            if steps == len(draws):
                return steps
            actions = words or info["admissible_actions"]
            _, _, terminated, truncated, info = env.step(actions[int(draws[steps] * len(actions))])
            steps += 1
            over = terminated or truncated
    return steps


def replies(
    words: tuple[str, ...], draws: Sequence[float], admissible: Sequence[Sequence[str] | None]
) -> list[str]:
    """What the rows play in a turn: one of the words, without words one of a row's admissible actions."""
    if words:
        return [words[int(draw * len(words))] for draw in draws]
    return [
        actions[int(draw * len(actions))] if actions else ""
        for draw, actions in zip(draws, admissible, strict=True)
    ]


def group_steps(bench: Bench, draws: list[float]) -> Callable[[], int]:
    group = tstar_envs.make_group(bench.id, list(range(ROWS)), 1)
    numbers, tasks = random.Random(2), gym.make(bench.id).unwrapped.task_ids()

    def play() -> int:
        done = 0
        while done + ROWS <= len(draws):
            infos = group.reset([numbers.choice(tasks) for _ in range(ROWS)])[1]
            # All rows run, as they do in the other vector environment.
            while all(group.running) and done + ROWS <= len(draws):
                turn = draws[done : done + ROWS]
                infos = group.step(
                    replies(bench.words, turn, [info["admissible_actions"] for info in infos])
                )[4]
                done += ROWS
        return done

    return play


def sync_steps(bench: Bench, draws: list[float]) -> Callable[[], int]:
    vector = gym.vector.SyncVectorEnv(
        [lambda: gym.make(bench.id, disable_env_checker=True).unwrapped for _ in range(ROWS)]
    )
    infos = vector.reset(seed=0)[1]

    def play() -> int:
        nonlocal infos
        done = 0
        while done + ROWS <= len(draws):
            infos = vector.step(
                tuple(replies(bench.words, draws[done : done + ROWS], infos["admissible_actions"]))
            )[4]
            done += ROWS
        return done

    return play


@dataclass
class Line:
    """CPU microseconds per step of CartPole and ours (per row of GroupEnv), and ratios by round; of a long walk also that of means."""

    bench: Bench
    cart_pole: float
    group: float
    group_ratios: list[float]
    ratios: dict[str, list[float]]
    walk_ratio: float
    times: dict[str, float]
    milliseconds: float | None


def measure(bench: Bench, rounds: int, steps: int, levels: int) -> Line:
    """All sides of an id, interleaved."""
    test, train = gym.make(bench.id).unwrapped, gym.make(bench.id, split="train").unwrapped
    numbers = random.Random(1)
    draws = [numbers.random() for _ in range(steps)]
    long = iter(lambda: numbers.choice(test.task_ids()), None)
    batch = itertools.cycle(test.task_ids()[:BATCH])
    fresh = [iter(train.task_ids()[number::rounds]) for number in range(rounds)]
    cart, group, sync = cart_pole(steps), group_steps(bench, draws), sync_steps(bench, draws)
    found: dict[str, list[float]] = {}

    def take_turns(sides: dict[str, Callable[[], int]]) -> None:
        for name, work in sides.items():
            whole, steps_alone = cpu(work)
            found.setdefault(name, []).append(whole)
            found.setdefault(f"{name}, steps alone", []).append(steps_alone)

    # The long walk comes first and by itself: the other sides would make its tasks known, or push them out of what is remembered.
    for _ in range(rounds):
        numbers.shuffle(draws)
        take_turns({"cart beside long walk": cart, "long walk": lambda: walk(test, bench.words, draws, long)})
    for number in range(rounds):
        numbers.shuffle(draws)
        never_seen = fresh[number]
        sides = {
            "cart": cart,
            "batch": lambda: walk(test, bench.words, draws, batch),
            "never seen": lambda tasks=never_seen: walk(train, bench.words, draws, tasks),
            "group": group,
            "sync": sync,
        }
        take_turns(sides)
    mean, median = statistics.mean, statistics.median
    beside = {"batch": "cart", "never seen": "cart", "never seen, steps alone": "cart, steps alone"}
    times = {"long walk": mean(found["long walk"]), **{name: median(found[name]) for name in beside}}
    ratios = {
        name: [c / t for c, t in zip(found[cart_side], found[name], strict=True)]
        for name, cart_side in {**beside, "long walk": "cart beside long walk"}.items()
    }
    walk_ratio = mean(found["cart beside long walk"]) / mean(found["long walk"])
    group_ratios = [s / g for s, g in zip(found["sync"], found["group"], strict=True)]
    milliseconds = None
    if bench.generate is not None:
        make = bench.generate
        milliseconds = cpu(lambda: len([make(number) for number in range(levels)]))[0] / 1000
    return Line(
        bench,
        median(found["cart"]),
        median(found["group"]),
        group_ratios,
        ratios,
        walk_ratio,
        times,
        milliseconds,
    )


BEGIN, END = "<!-- bench: envs -->", "<!-- /bench -->"
SIDES = ("long walk", "batch", "never seen", "never seen, steps alone")


def ratio(line: Line, side: str) -> float:
    """CartPole's time over ours: the median of the rounds; of a long walk that of the means, as its rounds see ever fewer new states."""
    return line.walk_ratio if side == "long walk" else statistics.median(line.ratios[side])


def report(lines: list[Line], command: str) -> str:
    """What stands between the comments of the page, in Markdown."""
    head = [
        "id",
        "CartPole, us",
        *(f"{side}: us, ratio" for side in SIDES),
        "wanted",
        "GroupEnv, us a row",
        "SyncVectorEnv : GroupEnv",
        "wanted",
    ]
    slowest, fastest = (pick(ratio(line, side) for line in lines for side in SIDES) for pick in (min, max))
    together = min(statistics.median(line.group_ratios) for line in lines)
    text = [
        f"Bare CartPole takes {slowest:.2f} to {fastest:.2f} times the CPU time of a step here, by environment and by how much is known of",
        f"a task; 32 rows stepped together take at most 1/{together:.1f} of what SyncVectorEnv takes.",
        "",
        f"Made by `{command}` (Python {platform.python_version()}, gymnasium {gym.__version__}; x86-64 server CPU, one core).",
        "CPU microseconds per step: medians of the rounds, and ratios with minimum and maximum. A ratio above 1 means that ours",
        "takes less CPU time per step than bare CartPole (or than SyncVectorEnv over the same environment); the two sides are measured in",
        "turn in one process. What each column plays:",
        "",
        *[
            line
            for line in (__doc__ or "").splitlines()
            if line.startswith(("- ", "  ")) and "python" not in line
        ],
        "",
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
    ]
    for line in lines:
        cells = [line.bench.id, f"{line.cart_pole:.2f}"]
        cells += [
            f"{line.times[side]:.2f}, {spread(line.ratios[side], 2, ratio(line, side))}" for side in SIDES
        ]
        cells += [f"{line.bench.target:.2f}", f"{line.group:.2f}", spread(line.group_ratios, 1), "2.0"]
        text.append("| " + " | ".join(cells) + " |")
    missed = [
        f"{line.bench.id} {side} {ratio(line, side):.2f} of {line.bench.target:.2f}"
        for line in lines
        for side in SIDES
        if ratio(line, side) < line.bench.target
    ]
    if missed:
        text += ["", f"Below what is wanted: {'; '.join(missed)}."]
    text += [
        "",
        f"- A task never seen is read, set up and dropped after one episode. A batch has {BATCH} tasks.",
        "- Steps are random, so many are invalid or repeated. A policy's episodes have fewer states that were seen before.",
        "- CartPole's episodes are short (some 20 steps), so its time includes many resets; ours end at the horizon.",
        "- Absolute times are of one machine and vary with its load; the range of a ratio is over rounds, not over machines.",
    ]
    text += ["", "| fresh tasks | CPU ms per task | at most |", "|---|---|---|"]
    text += [
        f"| {e.bench.id} | {e.milliseconds:.2f} | {e.bench.most_milliseconds:g} |"
        for e in lines
        if e.milliseconds is not None
    ]
    return "\n".join(text) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds", type=int, default=7, help="measurements of each side (default: %(default)s)"
    )
    parser.add_argument(
        "--steps", type=int, default=40_000, help="environment steps per measurement (default: %(default)s)"
    )
    parser.add_argument(
        "--levels", type=int, default=200, help="unseen tasks per environment (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, help="also write the tables to this page, between its comments")
    arguments = parser.parse_args()
    benches = [bench for bench in BENCHES if bench.id in gym.registry]
    lines = [measure(bench, arguments.rounds, arguments.steps, arguments.levels) for bench in benches]
    text = report(lines, f"python {' '.join(['scripts/bench/bench_envs.py', *sys.argv[1:]])}")
    print(text, end="")
    if arguments.out is not None:
        page = f"# Speed of the planning environments\n\n{BEGIN}\n{END}\n"
        if arguments.out.exists():
            page = arguments.out.read_text(encoding="utf-8")
        head, _, rest = page.partition(BEGIN)
        written = f"{head}{BEGIN}\n{text}{END}{rest.partition(END)[2]}"
        arguments.out.write_text(written, encoding="utf-8")


if __name__ == "__main__":
    main()
