"""Speed and memory of WebShop: steps, resets, many environments, and a synthetic catalogue of the full size.

    python scripts/bench_webshop.py                                  # small catalogue
    python scripts/bench_webshop.py --large FOLDER --products 1180000  # builds the large store in FOLDER first (minutes)
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tstar_envs.envs.webshop.building import build_store
from tstar_envs.envs.webshop.catalogue import Catalogue
from tstar_envs.envs.webshop.env import WebShopEnv
from tstar_envs.envs.webshop.nouns import LEXICON
from tstar_envs.envs.webshop.shop import load_shop

ORIGINAL_STEPS = 20.4  # per second, of the original on 1,000 products (measured with Java search, random clicks, 2 cores)


def random_steps(observation: str, steps: int) -> tuple[float, float]:
    """Steps per second and mean milliseconds of a reset, under random searches and clicks as the original was measured."""
    env = WebShopEnv(data="mini", observation=observation, split="train", horizon=100)
    draw, tasks = random.Random(0), env.task_ids()
    queries = [env._shop.tasks[task].query for task in tasks]
    resets = spent = 0.0
    count, over = 0, True
    for _ in range(steps):
        start = time.process_time()
        if over:
            _, info = env.reset(options={"task": draw.choice(tasks)})
            resets += time.process_time() - start
            count += 1
            start = time.process_time()
        clicks = info["admissible_actions"]
        action = f"search[{draw.choice(queries)} {draw.choice(queries)}]" if info["search_available"] else draw.choice(clicks)
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


def synthetic(count: int) -> Iterator[dict[str, Any]]:
    """Products recombined from the mini tier's words and a long tail of made-up ones, in the real set's lengths."""
    shop = load_shop("mini")
    base = [shop.catalogue.product(number) for number in range(len(shop.catalogue))]
    draw = random.Random(1)
    letters = "abcdefghijklmnopqrstuvwxyz"
    tail = ["".join(draw.choices(letters, k=draw.randint(4, 9))) for _ in range(200_000)]
    for number in range(count):
        one, other = base[int(draw.random() * 1000)], base[int(draw.random() * 1000)]
        rare = [tail[int(200_000 * draw.random() ** 3)] for _ in range(12)]
        yield {
            **one, "asin": f"S{number:09d}", "name": f"{one['name']} {' '.join(rare[:6])}",
            "Description": f"{other['Description'][:400]} {' '.join(rare[6:])}", "options": other["options"],
        }  # fmt: skip


def build_large(folder: Path, count: int) -> None:
    start = time.time()
    build_store(
        folder, synthetic(count), lambda product: float(product["pricing"][0]), LEXICON,
        lambda done: print(f"{done} products, {time.time() - start:.0f} s", flush=True),
    )  # fmt: skip
    size = sum(path.stat().st_size for path in folder.iterdir()) / 1e9
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"built in {time.time() - start:.0f} s; {size:.1f} GB on disk; at most {most:.0f} MB resident", flush=True)


def measure_large(folder: Path) -> None:
    """Run in a process of its own: opening, private memory, searches."""

    def private() -> float:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024

    start = time.perf_counter()
    catalogue = Catalogue.open(folder)
    opened = time.perf_counter() - start
    draw = random.Random(2)
    shop = load_shop("mini")
    tasks = list(shop.tasks.values())
    queries = [task.instruction.partition(", and price")[0] for task in tasks] + [f"{t.query} {draw.choice(tasks).query}" for t in tasks]
    queries += [catalogue.product(draw.randrange(len(catalogue)))["name"] for _ in range(200)]
    times = []
    for query in draw.sample(sorted(set(queries)), 400):
        start = time.perf_counter()
        catalogue.search(query)
        times.append(1000 * (time.perf_counter() - start))
    mean, p50, p99 = float(np.mean(times)), *(float(q) for q in np.percentile(times, [50, 99]))
    print(f"| {len(catalogue)} products: open | {opened:.3f} s |")
    print(f"| search, 400 different queries: mean / p50 / p99 | {mean:.1f} / {p50:.1f} / {p99:.1f} ms |")
    print(f"| private memory after them | {private():.0f} MB |")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--large", type=Path, help="folder of the synthetic large store; made if it is not there")
    parser.add_argument("--products", type=int, default=1_180_000)
    parser.add_argument("--measure-only", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure_only:
        measure_large(arguments.large)
        return
    if arguments.large:
        if not arguments.large.is_dir():
            build_large(arguments.large, arguments.products)
        subprocess.run([sys.executable, __file__, "--large", str(arguments.large), "--measure-only"], check=True)
        return
    print("| measure | value |\n|---|---|")
    for observation in ("text", "text_rich", "text_options"):
        rate, reset = random_steps(observation, arguments.steps)
        print(f"| steps/s, {observation} | {rate:.0f} ({rate / ORIGINAL_STEPS:.0f} x the original's {ORIGINAL_STEPS}) |")
        print(f"| reset, {observation} | {reset:.3f} ms |")
    print(f"| 63 further environments | {memory_of_environments(64):.0f} kB |")


if __name__ == "__main__":
    main()
