"""Sampling ahead beside sampling in turn: trajectories a minute on two cores (docs/results/sampling.md).

    python scripts/bench/bench_ahead.py --rounds 2        # about 8 minutes on two cores with nothing else to do

Runs of a few iterations, one after another and interleaved; wall-clock seconds of their iterations, without the first two.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SIDES = {
    "in turn, one process": ["--processes", "1"],
    "ahead, one process and its sampler": ["--processes", "1", "--rollout.ahead", "1"],
    "in turn, two processes": ["--processes", "2"],
}
PHASES = ("waiting", "rollout", "tree", "grafting", "update")


def measured(options: list[str], iterations: int) -> tuple[float, dict[str, float]]:
    """Run the trainer; return trajectories a minute, and mean seconds of each phase."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "tstar_train", *options, "--iterations", str(iterations)]
        command += [*"--tree.nodes depth --evaluation.tasks 2 --evaluation.samples 1 --out".split(), str(out)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        config = json.loads((out / "config.json").read_text())["rollout"]
        lines = [json.loads(line) for line in (out / "timings.jsonl").read_text().splitlines()][2:]
    episodes = config["tasks_per_iteration"] * config["group_size"]
    # Lines hold the run's seconds up to them.
    each = [after["seconds"] - before["seconds"] for before, after in itertools.pairwise(lines)]
    phases = {name: statistics.fmean(line.get(name, 0.0) for line in lines) for name in PHASES}
    return 60 * episodes / statistics.fmean(each), phases


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--env", default="hotpotqa", help="environment (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each side (default: %(default)s)")
    parser.add_argument("--iterations", type=int, default=8, help="iterations a run (default: %(default)s)")
    options = parser.parse_args()
    found: dict[str, list[tuple[float, dict[str, float]]]] = {name: [] for name in SIDES}
    for number in range(options.rounds):
        for name, own in SIDES.items():
            found[name].append(measured(["--env", options.env, *own], options.iterations))
            print(
                f"round {number + 1}, {name}: {found[name][-1][0]:.0f} trajectories a minute", file=sys.stderr
            )
    base = [rate for rate, _ in found[next(iter(SIDES))]]
    print(
        f"| {options.env} | trajectories a minute | over the first | {' | '.join(f'{p}, s' for p in PHASES)} |"
    )
    print("|---" * (3 + len(PHASES)) + "|")
    for name, runs in found.items():
        ratios = [rate / first for (rate, _), first in zip(runs, base, strict=True)]
        seconds = [f"{statistics.fmean(phases[p] for _, phases in runs):.2f}" for p in PHASES]
        rates = statistics.fmean(rate for rate, _ in runs)
        print(
            f"| {name} | {rates:,.0f} | {statistics.fmean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) | {' | '.join(seconds)} |"
        )


if __name__ == "__main__":
    main()
