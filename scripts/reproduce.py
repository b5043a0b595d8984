"""The tables of docs/results: T-STAR, plain GRPO and more imitation at equal CPU, from one start, on several seeds.

    python scripts/reproduce.py --env hotpotqa --out runs/reproduce            # all of it, over an hour on two cores
    python scripts/reproduce.py --env hotpotqa --out runs/reproduce --table    # only print the table of what is there
    python scripts/reproduce.py --env hotpotqa --out runs/rates --methods imitation --split valid --rates 0.01 1.5e-3 --seconds 700

Every run leaves its folder; runs that are complete are not repeated, and one that was stopped (Ctrl-C) goes on where it was when
the command is given again. The held-out questions, their evaluation noise and the start policy are the same for all, so every
difference is paired by question.

    python scripts/reproduce.py tables --help       # the paper's comparison on all families: studies/paper_tables.py
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from tstar_envs import cluster_bootstrap, find_entry, parse_options
from tstar_train.build import build, held_out_tasks, make_env, trainer_of
from tstar_train.config import Config
from tstar_train.distributed import SingleProcess
from tstar_train.evaluate import Measurement, differences, measure, paired_difference
from tstar_train.policy.model import load_policy
from tstar_train.presets import tiny, with_nodes
from tstar_train.ranks import all_ranks, run_on_all_ranks
from tstar_train.recipes.recipe import ImitationSchedule, recipe_of
from tstar_train.run import resume_run, train
from tstar_train.warmstart import PracticeMix, imitate, practice_rows, shuffled

METHODS = ("tstar", "grpo", "imitation")
# Of the control's practice; far from the seeds of the stages of a warm start (1,000 apart), whose demonstrations the policy has seen.
FRESH_PRACTICE = 1_000_000


def measured(path: Path) -> dict[str, Measurement]:
    """The measurements of a run's folder."""
    record = json.loads((path / "evaluation.json").read_text())
    return {k: Measurement.from_report(record[k]) for k in ("before", "after") if k in record}


def preset(options: argparse.Namespace, seed: int = 0) -> Config:
    """The environment's preset, measured as the command line says."""
    config = tiny(find_entry(options.env))
    config = with_nodes(config, options.nodes or config.tree.nodes)
    own = parse_options(find_entry(options.env), options.env_option, {"split": "--split"})
    wanted = {"split": options.split, "tasks": options.tasks, "samples": options.samples}
    said = {name: value for name, value in wanted.items() if value is not None}
    evaluation = dataclasses.replace(config.evaluation, **said)
    env_options = {**config.env_options, **own}
    return dataclasses.replace(
        config, seed=seed, processes=options.processes, evaluation=evaluation, env_options=env_options
    )


def held_out(config: Config) -> Measurement:
    """The start policy on the held-out tasks."""
    with all_ranks(config) as world:
        measured: Measurement = run_on_all_ranks(
            build(config, world), "measure", held_out_tasks(make_env(config), config)
        )
    return measured


def start_measurement(config: Config, out: Path, console: Console) -> Measurement:
    """The start policy, measured once for all."""
    path = out / "start.json"
    if not path.is_file():
        console.print("measuring the start policy ...")
        path.write_text(json.dumps(held_out(config).report()))
    return Measurement.from_report(json.loads(path.read_text()))


def reinforce(method: str, config: Config, path: Path, before: Measurement, console: Console) -> None:
    """One run of T-STAR or GRPO, or the rest of one that was stopped."""
    begun = (path / "config.json").is_file()
    method_config = dataclasses.replace(config, tstar=method == "tstar")
    done = resume_run(path, console) if begun else train(method_config, path, console, before=before)
    if not done.complete:
        raise SystemExit(f"stopped and saved in {path}; the same command goes on from there")
    last = json.loads((path / "timings.jsonl").read_text().splitlines()[-1])
    # Training alone, without the measurements; every process is busy all the time.
    (path / "cpu.json").write_text(json.dumps({"cpu_seconds": last["seconds"] * (config.processes or 1)}))


def more_imitation(
    config: Config,
    path: Path,
    seconds: float,
    rates: tuple[float, float],
    before: Measurement,
    console: Console,
) -> None:
    """Go on imitating fresh demonstrations for the same CPU seconds, with rates that fall to zero."""
    entry = find_entry(config.env)
    recipe = recipe_of(entry)
    policy = load_policy("tiny", recipe.name)
    torch.set_num_threads(1)
    # The control may specialise on this environment, as the other methods do.
    practice = PracticeMix(recipe, entry, only=True)
    rows = practice_rows(
        practice, policy.codec, FRESH_PRACTICE + config.seed, recipe.warm_start.demonstrations, recipe.env
    )
    # The rates fall with the seconds: a number of steps planned from the speed of the first ones missed them by a fifth.
    # Batches as in the warm start, or the control would learn worse than it did.
    last = recipe.warm_start.stages[-1]
    schedule = ImitationSchedule(
        seconds=seconds,
        decay=1.0,
        warmup=50,
        matrix_rate=rates[0],
        other_rate=rates[1],
        alike=last.alike,
        held=last.held,
    )
    rows = shuffled(rows, schedule.held, config.seed)
    begun = time.process_time()
    steps = imitate(policy.model, rows, schedule, policy.codec.pad, lambda *_: None)
    used = time.process_time() - begun
    console.print(f"imitation, seed {config.seed}: {steps} steps in {used:.0f} CPU-seconds")
    after = measure(trainer_of(config, policy, SingleProcess()), held_out_tasks(make_env(config), config))
    path.mkdir(parents=True, exist_ok=True)
    (path / "evaluation.json").write_text(json.dumps({"before": before.report(), "after": after.report()}))
    (path / "cpu.json").write_text(json.dumps({"cpu_seconds": used, "steps": steps, "rates": rates}))


def cpu_seconds(path: Path) -> float:
    """What a run's training took."""
    return float(json.loads((path / "cpu.json").read_text())["cpu_seconds"])


def finished(out: Path, method: str, seed: int) -> dict[str, Measurement] | None:
    """The measurements of a run, None if it is not there or not at its end."""
    path = out / f"{method}-{seed}"
    found = measured(path) if (path / "evaluation.json").is_file() else {}
    return found if "after" in found else None


def table(out: Path, seeds: list[int]) -> str:
    """Markdown: a row per run, and means over seeds."""
    rows = [
        "| method | seed | T=1 before | T=1 after | difference (95 % interval) | greedy before | greedy after | training core-s |"
    ]
    rows.append("|---|---|---|---|---|---|---|---|")
    for method in METHODS:
        gains = []
        for seed in seeds:
            if (found := finished(out, method, seed)) is None:
                continue
            before, after = found["before"], found["after"]
            difference, low, high = paired_difference(before, after)
            gains.append(differences(before, after))
            rows.append(
                f"| {method} | {seed} | {before.mean:.3f} | {after.mean:.3f} | {difference:+.3f} ({low:+.3f} to {high:+.3f}) "
                f"| {before.greedy:.3f} | {after.greedy:.3f} | {cpu_seconds(out / f'{method}-{seed}'):.0f} |"
            )
        if gains:
            rows.append(f"| **{method}** | mean of {len(gains)} | | | {mean_cell(gains)} | | | |")
    for other in METHODS[1:]:
        pairs = [(finished(out, other, s), finished(out, "tstar", s)) for s in seeds]
        between = [differences(base["after"], tstar["after"]) for base, tstar in pairs if base and tstar]
        if between:
            rows.append(f"| **tstar - {other}** | mean of {len(between)} | | | {mean_cell(between)} | | | |")
    return "\n".join(rows)


def mean_cell(per_seed: list[np.ndarray]) -> str:
    """The mean over seeds of differences per task, with its interval over tasks."""
    mean = np.mean(per_seed, axis=0)
    mean = mean[~np.isnan(mean)]  # tasks that infrastructure kept one of the runs from
    low, high = cluster_bootstrap([[gain] for gain in mean.tolist()])
    return f"**{mean.mean():+.3f}** ({low:+.3f} to {high:+.3f})"


def kinds_table(out: Path, seeds: list[int]) -> str:
    """Markdown: success per kind of task, means over seeds."""
    found = {m: [run for s in seeds if (run := finished(out, m, s))] for m in METHODS}
    first = next((runs[0] for runs in found.values() if runs), None)
    if first is None or not first["before"].by_kind():
        return ""  # nothing there yet, or tasks of one kind
    rows = ["| kind | tasks | start T=1 (greedy) |" + "".join(f" {m} T=1 (greedy) |" for m in METHODS)]
    rows.append("|---|---|---|" + "---|" * len(METHODS))
    for kind, row in first["before"].by_kind().items():
        cells = [f"{row['mean']:.2f} ({row['greedy']:.2f})"]
        for method in METHODS:
            after = [run["after"].by_kind()[kind] for run in found[method]]
            cells.append(
                f"{np.mean([a['mean'] for a in after]):.2f} ({np.mean([a['greedy'] for a in after]):.2f})"
                if after
                else ""
            )
        rows.append(f"| {kind} | {row['tasks']} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--env", default="hotpotqa", help="environment id or short name (default: %(default)s)"
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="folder of the runs; finished ones are not repeated"
    )
    parser.add_argument(
        "--env-option",
        action="append",
        default=[],
        help="environment option KEY=VALUE, in addition to the preset's; may be repeated",
    )
    parser.add_argument(
        "--split",
        default="test",
        help="split to measure on: valid to choose settings, test for results (default: %(default)s)",
    )
    parser.add_argument("--tasks", type=int, help="number of held-out tasks (default: the preset's)")
    parser.add_argument(
        "--samples", type=int, help="episodes per task at temperature 1 (default: the preset's)"
    )
    parser.add_argument(
        "--nodes",
        choices=("depth", "state"),
        help="what makes a node of T-STAR's tree (default: the preset's)",
    )
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds of the runs (default: 0 1 2)"
    )
    parser.add_argument(
        "--methods", nargs="+", choices=METHODS, default=list(METHODS), help="methods to run (default: all)"
    )
    parser.add_argument(
        "--rates",
        type=float,
        nargs=2,
        default=(0.0013, 2e-4),
        help="peak learning rates of the imitation control, chosen on valid",
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=2,
        help="processes per run; imitation uses one",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        help="CPU seconds of the imitation control (default: as long as T-STAR's run with that seed took)",
    )
    parser.add_argument("--table", action="store_true", help="only print the tables of the finished runs")
    options = parser.parse_args()
    console = Console()
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.table:
        before = start_measurement(preset(options), options.out, console)
        for seed in options.seeds:
            for method in options.methods:
                path = options.out / f"{method}-{seed}"
                if (path / "cpu.json").is_file():
                    continue
                console.rule(f"{method}, seed {seed}")
                if method == "imitation":
                    seconds = options.seconds or cpu_seconds(options.out / f"tstar-{seed}")
                    more_imitation(
                        preset(options, seed), path, seconds, tuple(options.rates), before, console
                    )
                else:
                    reinforce(method, preset(options, seed), path, before, console)
    print(table(options.out, options.seeds), kinds_table(options.out, options.seeds), sep="\n\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["tables"]:
        sys.path.insert(0, str(Path(__file__).parents[1]))
        from scripts.studies.paper_tables import main as tables

        tables(sys.argv[2:])
    else:
        main()
