"""Speed and memory of WebShop: steps, resets, many environments, and a synthetic catalogue of the full size.

    python scripts/bench/bench_webshop.py                                  # small catalogue
    python scripts/bench/bench_webshop.py --large FOLDER --products 1180000  # makes the large set and its store in FOLDER first (minutes)

An interrupted run of the second goes on when it is started again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from spread import spread

from tstar_envs.envs.webshop.env import WebShopEnv
from tstar_envs.envs.webshop.shop import webshop_home
from tstar_envs.envs.webshop.tasks import load_shop

# Per second, of the original on 1,000 products (measured with Java search, random clicks, 2 cores).
ORIGINAL_STEPS = 20.4
HUMAN_GOALS = 12_000
SEARCHES = 300  # of each kind
COMMON = ("gift", "home", "friends", "edition", "workshop", "guide", "parts", "season", "small", "black")


def random_steps(observation: str, steps: int) -> tuple[float, float]:
    """Steps per second and mean milliseconds of a reset, under random searches and clicks as the original was measured."""
    env = WebShopEnv(data="mini", observation=observation, split="train", horizon=100)
    rng, tasks = random.Random(0), env.task_ids()
    queries = [env.shop.tasks[task].query for task in tasks]
    resets = spent = 0.0
    count, over = 0, True
    for _ in range(steps):
        start = time.process_time()
        if over:
            _, info = env.reset(options={"task": rng.choice(tasks)})
            resets += time.process_time() - start
            count += 1
            start = time.process_time()
        clicks = info["admissible_actions"]
        action = (
            f"search[{rng.choice(queries)} {rng.choice(queries)}]"
            if info["search_available"]
            else rng.choice(clicks)
        )
        _, _, terminated, truncated, info = env.step(action)
        over = terminated or truncated
        spent += time.process_time() - start
    return steps / spent, 1000 * resets / count


def memory_of_environments(count: int) -> float:
    """Kilobytes that ``count - 1`` further environments take, each in the middle of an episode."""
    kept = [WebShopEnv(data="mini")]
    tracemalloc.start()
    kept += [WebShopEnv(data="mini") for _ in range(count - 1)]
    for env in kept:
        env.reset(options={"task": 0})
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return before / 1024


def synthetic(count: int) -> Iterator[tuple[dict[str, Any], dict[str, Any], dict[str, Any] | None]]:
    """Products in the original's format, their attributes and, of some, a person's instruction.

    Recombined from the mini tier's words and a long tail of made-up ones, in the real set's lengths.
    """
    shop = load_shop("mini")
    base = [shop.catalogue.product(number) for number in range(len(shop.catalogue))]
    wishes = {task.goal["asin"]: task for task in shop.tasks.values()}
    rng = random.Random(1)
    letters = "abcdefghijklmnopqrstuvwxyz"
    tail = ["".join(rng.choices(letters, k=rng.randint(4, 9))) for _ in range(200_000)]
    for number in range(count):
        one, other = base[int(rng.random() * 1000)], base[int(rng.random() * 1000)]
        rare = [tail[int(200_000 * rng.random() ** 3)] for _ in range(12)]
        product = {
            "asin": f"S{number:09d}",
            "name": f"{one['name']} {' '.join(rare[:6])}",
            "query": one["query"],
            "category": one["category"],
            "product_category": one["product_category"],
            "pricing": one["Price"].replace(" to ", " - "),
            "full_description": f"{other['Description'][:400]} {' '.join(rare[6:])}",
            "small_description": one["BulletPoints"],
            "customization_options": {
                name: [{"value": value} for value in values] for name, values in other["options"].items()
            },
            "images": [],
            "average_rating": 4.0,
            "total_reviews": 3,
        }
        goal = (
            wishes[one["asin"]].goal
            if number % (count // HUMAN_GOALS or 1) == 0 and one["asin"] in wishes
            else None
        )
        wish = goal and {
            "instruction": goal["instruction_text"].partition(", and price")[0],
            "instruction_attributes": goal["attributes"],
            "instruction_options": goal["goal_options"],
        }
        yield (
            product,
            {"attributes": one["Attributes"], "instruction": "", "instruction_attributes": []},
            wish,
        )


def write_large(source: Path, count: int) -> None:
    """The three files of the original, of a synthetic set."""
    partial = source.with_name(source.name + ".partial")
    partial.mkdir(parents=True, exist_ok=True)
    wishes: dict[str, list[dict[str, Any]]] = {}
    with (
        open(partial / "items_shuffle.json", "w") as products,
        open(partial / "items_ins_v2.json", "w") as attributes,
    ):
        for number, (product, extra, wish) in enumerate(synthetic(count)):
            products.write(f"{',' if number else '['}\n{json.dumps(product)}")
            attributes.write(f"{',' if number else '{'}\n{json.dumps(product['asin'])}: {json.dumps(extra)}")
            if wish:
                wishes[product["asin"]] = [wish]
        products.write("]")
        attributes.write("}")
    (partial / "items_human_ins.json").write_text(json.dumps(wishes))
    partial.rename(source)


def memory(*kinds: str) -> float:
    """Megabytes of this process, by the kernel's names."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(kinds)) / 1024


def build_large(source: Path) -> None:
    """Run in a process of its own: build the store, and watch what it takes."""
    most, whole = [0.0], threading.Event()

    def watch() -> None:
        while not whole.wait(0.5):
            most[0] = max(most[0], memory("Anonymous:"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.time()
    try:
        load_shop(str(source))
    finally:
        whole.set()
        watcher.join()
    size = sum(path.stat().st_size for path in webshop_home().rglob("*") if path.is_file()) / 1e9
    print(f"| store built in | {time.time() - start:.0f} s, {size:.1f} GB | |")
    print(
        f"| memory while building, without the pages of its files | at most {most[0]:.0f} MB | |", flush=True
    )


def measure_large(source: Path) -> None:
    """Run in a process of its own: opening, private memory, searches."""
    start = time.perf_counter()
    env = WebShopEnv(data=str(source))
    opened = time.perf_counter() - start
    catalogue, tasks = env.shop.catalogue, list(env.shop.tasks.values())
    rng = random.Random(2)
    kinds = {
        "goals' instructions": [task.instruction.partition(", and price")[0] for task in tasks],
        "titles": [catalogue.product(rng.randrange(len(catalogue)))["name"] for _ in range(500)],
        "two products' names": [f"{rng.choice(tasks).query} {rng.choice(tasks).query}" for _ in range(2000)],
        "two to four of the most common words": [
            " ".join(words) for size in (2, 3, 4) for words in itertools.combinations(COMMON, size)
        ],
    }
    print(f"| open, goals included | {opened:.2f} s | < 2 s |")
    most, every = 0.0, []
    for kind, queries in kinds.items():
        times = []
        for number, query in enumerate(rng.sample(sorted(set(queries)), SEARCHES)):
            start = time.perf_counter(), time.process_time()
            catalogue.search(query)
            times.append((time.perf_counter() - start[0], time.process_time() - start[1]))
            if number % 10 == 0:
                most = max(most, memory("Private_"))
        every += times
        print(f"| {SEARCHES} searches by {kind} | {percentiles(times)} | |")
    print(f"| all {len(every):,} searches | {percentiles(every)} | mean < 50 ms, p99 < 250 ms |")
    print(
        f"| private memory meanwhile (`Private_*` of smaps, sampled every ten searches) | at most {most:.0f} MB | < 300 MB |"
    )


def percentiles(times: list[tuple[float, float]]) -> str:
    """Mean, median and 99th percentile in milliseconds, by the clock and of the processor."""
    message = []
    for kind, seconds in zip(("clock", "CPU"), zip(*times, strict=True), strict=True):
        p50, p99 = np.percentile(seconds, (50, 99))
        message.append(
            f"{kind}: mean {1000 * np.mean(seconds):.1f}, p50 {1000 * p50:.1f}, p99 {1000 * p99:.1f} ms"
        )
    return "; ".join(message)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--steps", type=int, default=50_000, help="environment steps to measure (default: %(default)s)"
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="measurements of steps and resets (default: %(default)s)"
    )
    parser.add_argument(
        "--large", type=Path, help="folder of the synthetic large store, which is created if missing"
    )
    parser.add_argument(
        "--products", type=int, default=1_180_000, help="products of the large store (default: %(default)s)"
    )
    parser.add_argument("--part", choices=("build", "measure"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    source = arguments.large and arguments.large / "source"
    if arguments.part:
        {"build": build_large, "measure": measure_large}[arguments.part](source)
        return
    if source:
        print("| measure | value | wanted |\n|---|---|---|", flush=True)
        if not source.is_dir():
            write_large(source, arguments.products)
        built = any((arguments.large / "webshop" / "stores").glob("*/tasks.jsonl"))
        for part in ("measure",) if built else ("build", "measure"):
            command = [sys.executable, __file__, "--large", str(arguments.large), "--part", part]
            done = subprocess.run(
                command,
                check=True,
                env={**os.environ, "TSTAR_DATA": str(arguments.large)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for line in done.stdout.splitlines():  # the build's progress does not belong into the table
                print(line, file=sys.stdout if line.startswith("|") else sys.stderr, flush=True)
        return
    print("| measure | value |\n|---|---|", flush=True)
    for observation in ("text", "text_rich", "text_options"):
        rates, resets = zip(
            *(random_steps(observation, arguments.steps) for _ in range(arguments.rounds)), strict=True
        )
        times = f"{median(rates) / ORIGINAL_STEPS:.0f} x the original's {ORIGINAL_STEPS}"
        print(f"| steps/s, {observation} | {spread(rates, 0)}; {times} |")
        print(f"| reset, {observation}, ms | {spread(resets, 3)} |")
    print(f"| 63 further environments | {memory_of_environments(64):.0f} kB |")


if __name__ == "__main__":
    main()
