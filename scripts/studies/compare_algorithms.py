"""The table of all algorithms (docs/results/algorithms.md): runs that a plan names, what they measured, and paired comparisons.

    python scripts/studies/compare_algorithms.py --groups blocksworld hotpotqa --record own.jsonl   # make these runs, one after another
    python scripts/studies/compare_algorithms.py --collect --record own.jsonl                       # what is complete, into a record
    python scripts/studies/compare_algorithms.py --table                                            # the tables, from the record alone

The plan is docs/results/algorithms.toml, the record docs/results/algorithms.jsonl: a line a run, with the outcomes of every held-out task.
A run that is complete or in the record is not made again (all of the plan's are in that of the page), and one that was stopped goes on
where it was. Runs of a group share the measurement of the start they share, held-out tasks and evaluation noise, so that differences are
paired by task.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
import subprocess
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from rich.console import Console

from tstar_envs import UnknownOption, find_entry
from tstar_envs.utils import counted
from tstar_train.build import build, held_out_tasks, make_env
from tstar_train.cli import read_config
from tstar_train.config import Config, with_present_names
from tstar_train.distributed import SingleProcess
from tstar_train.evaluate import Measurement, measure_on
from tstar_train.ranks import all_ranks, run_on_all_ranks
from tstar_train.recipes.recipe import WarmStartRecipe, recipe_of
from tstar_train.run import resume_run, train
from tstar_train.warmstart import build_weights

try:
    from scripts.studies.compared_tables import (
        DYNAMICS,
        PHASES,
        TREE_STATISTICS,
        claims_table,
        comparison,
        costs_table,
        draw_curves,
        draw_dynamics_of,
        group_table,
        ratios_table,
    )
except ModuleNotFoundError:  # run as a script of this folder
    from compared_tables import (
        DYNAMICS,
        PHASES,
        TREE_STATISTICS,
        claims_table,
        comparison,
        costs_table,
        draw_curves,
        draw_dynamics_of,
        group_table,
        ratios_table,
    )

RESULTS = Path(__file__).parents[2] / "docs" / "results"
MOST_KINDS = 200  # tasks of which the record names each one's kind
STATISTICS = ("success", "entropy", "zero_variance_groups", *TREE_STATISTICS, "grafts")


@dataclass(frozen=True)
class Run:
    """One run of the plan.

    Attributes:
        group: whose runs share the held-out tasks.
        method: name in the plan.
        seed: of the run.
        env: environment, by short name.
        split: of the held-out tasks.
        tasks: how many of them.
        samples: episodes of each at temperature 1.
        also: further environments on which the trained policy is measured, with their numbers of tasks.
        options: of ``python -m tstar_train``; a key of ``STARTS`` stands for the folder of that start.
    """

    group: str
    method: str
    seed: int
    env: str
    split: str
    tasks: int
    samples: int
    options: tuple[str, ...]
    also: tuple[tuple[str, int], ...] = ()

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        return f"{self.group}-{self.method}-{self.seed}"

    @property
    def start(self) -> str:
        """The key of ``STARTS`` among its options; empty if it begins with the built-in policy."""
        return next((word for word in self.options if word in STARTS), "")


@dataclass(frozen=True)
class Options:
    """Make the runs of a plan, or tables of what they measured."""

    runs: Path = Path("runs/algorithms")
    """Folder of the runs."""
    groups: tuple[str, ...] = ()
    """Groups of the plan to run, in this order; default: none."""
    plan: Path = RESULTS / "algorithms.toml"
    """TOML file of the plan."""
    record: Path = RESULTS / "algorithms.jsonl"
    """JSON Lines file of the record of complete runs."""
    collect: bool = False
    """Add complete runs to the record."""
    table: bool = False
    """Print the tables of the record."""
    curves: Path | None = None
    """Draw the training curves of the record's groups that have turns into this SVG file (extra `notebook`)."""
    dynamics: Path | None = None
    """Draw success, coverage of grafts, reuse of anchors and spread of values of the paper's T-STAR into this SVG file."""
    compare: tuple[str, str, str] | None = None
    """Print how two methods of the record differ: GROUP FIRST SECOND."""


def planned(plan: dict[str, Any], groups: Sequence[str]) -> Iterator[Run]:
    """The runs of some groups, seed by seed.

    Raises:
        UnknownOption: the plan has no such group.
    """
    known = {group["name"]: group for group in plan["groups"]}
    for name in groups:
        if name not in known:
            raise UnknownOption(f"the plan has no group {name!r}; it has: {', '.join(known)}")
        group = known[name]
        for seed in group["seeds"]:
            for method, own in group["methods"].items():
                if seed not in group.get("only", {}).get(method, [seed]):
                    continue
                words = tuple(shlex.split(f"{group['options']} {own}"))
                also = tuple(group.get("also", {}).items())
                yield Run(
                    name,
                    method,
                    seed,
                    group["env"],
                    group["split"],
                    group["tasks"],
                    group["samples"],
                    words,
                    also,
                )


def config_of(run: Run, folder: Path) -> Config:
    """What the command line makes of a run's options."""
    words = [str(folder / word.lower()) if word in STARTS else word for word in run.options]
    config = read_config(["--env", run.env, *words])
    evaluation = dataclasses.replace(config.evaluation, split=run.split, tasks=run.tasks, samples=run.samples)
    processes = config.processes if "--processes" in words else 1
    return dataclasses.replace(config, seed=run.seed, processes=processes, evaluation=evaluation)


def without_thoughts(recipe: WarmStartRecipe) -> WarmStartRecipe:
    """Demonstrations that are actions alone."""
    return dataclasses.replace(
        recipe, demonstrations=dataclasses.replace(recipe.demonstrations, no_thought=1.0)
    )


def ended_early(recipe: WarmStartRecipe) -> WarmStartRecipe:
    """Four fifths of the updates: a start that solves less and is less sure of what it does; half of them solves next to nothing."""
    return dataclasses.replace(
        recipe,
        stages=tuple(dataclasses.replace(stage, steps=stage.steps * 4 // 5) for stage in recipe.stages),
    )


STARTS = {"NO_THOUGHTS": without_thoughts, "EARLY_START": ended_early}


def build_start(name: str, out: Path, console: Console) -> None:
    """The built-in Sokoban policy by its recipe, changed as a start of ``STARTS`` says."""
    if (out / "training.json").is_file():
        return
    entry = find_entry("sokoban-easy")
    recipe = recipe_of(entry)
    recipe = dataclasses.replace(recipe, warm_start=STARTS[name](recipe.warm_start))
    build_weights(entry, out, 0, None, console, recipe)


def start_measurement(run: Run, config: Config, folder: Path) -> Measurement:
    """The start policy on the group's held-out tasks, measured once for all runs that begin with it."""
    path = folder / f"{run.group}-{run.start.lower() or 'start'}.json"
    if not path.is_file():
        with all_ranks(config) as world:
            measured: Measurement = run_on_all_ranks(
                build(config, world), "measure", held_out_tasks(make_env(config), config)
            )
        path.write_text(json.dumps(measured.report()))
    return Measurement.from_report(json.loads(path.read_text()))


def elsewhere(run: Run, config: Config, folder: Path) -> dict[str, dict[str, Measurement]]:
    """The start and the trained policy on the test tasks of the environments of ``Run.also``."""
    found: dict[str, dict[str, Measurement]] = {}
    for env, tasks in run.also:
        entry = find_entry(env)
        evaluation = dataclasses.replace(config.evaluation, split="test", tasks=tasks)
        of = dataclasses.replace(config, env=entry.id, evaluation=evaluation)
        ids = held_out_tasks(entry.load_class()(**entry.kwargs, **config.env_options, split="test"), of)
        trained = str(max((folder / run.name / "checkpoints").iterdir()))
        for when, model, path in (
            ("before", config.model, folder / f"{run.group}-start-{entry.name}.json"),
            ("after", trained, folder / run.name / f"measured-{entry.name}.json"),
        ):
            if not path.is_file():
                trainer = build(dataclasses.replace(config, model=model, processes=1), SingleProcess())
                path.write_text(json.dumps(measure_on(trainer, ids, "test", of).report()))
            measured = Measurement.from_report(json.loads(path.read_text()))
            found.setdefault(env, {})[when] = measured
    return found


def make(run: Run, folder: Path, console: Console) -> None:
    """A run, or the rest of one that was stopped, with the CPU seconds that it took."""
    path, begun = folder / run.name, time.process_time()
    console.rule(run.name)
    if run.start:
        build_start(run.start, folder / run.start.lower(), console)
    config = config_of(run, folder)
    before = start_measurement(run, config, folder)
    started = (path / "config.json").is_file()
    try:
        done = resume_run(path, console) if started else train(config, path, console, before=before)
    finally:
        if path.is_dir():
            file = path / "cpu.json"
            known = (
                json.loads(file.read_text()) if file.is_file() else {"cpu_seconds": 0.0, "commit": commit()}
            )
            file.write_text(
                json.dumps({**known, "cpu_seconds": known["cpu_seconds"] + time.process_time() - begun})
            )
    if not done.complete:
        raise SystemExit(f"stopped and saved in {path}; the same command goes on from there")
    elsewhere(run, config, folder)


def commit() -> str:
    """The commit of this checkout, with a plus sign if files that git knows were edited; empty where there is no git."""
    command = ["git", "-C", str(RESULTS), "describe", "--always", "--abbrev=10", "--dirty=+", "--exclude=*"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def check_model(run: Run, folder: Path) -> None:
    """Check that the folder of a run holds nothing of another model.

    Raises:
        UnknownOption: it does.
    """
    file = folder / run.name / "config.json"
    if file.is_file() and not run.start:  # a start of its own lies in the same folder
        model, stored = config_of(run, folder).model, json.loads(file.read_text())["model"]
        if model != stored:
            raise UnknownOption(
                f"{file.parent} is a run of the model {stored}, not of {model}: name another folder, --runs FOLDER"
            )


def result(run: Run, folder: Path) -> dict[str, Any] | None:
    """The line of a complete run; outcomes of tasks are in their order, at temperature 1 the sum over their episodes."""
    path = folder / run.name
    check_model(run, folder)
    if not (path / "summary.json").is_file() or not (path / "cpu.json").is_file():
        return None
    if not all((path / f"measured-{find_entry(env).name}.json").is_file() for env, _ in run.also):
        return None
    evaluation = json.loads((path / "evaluation.json").read_text())
    metrics = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    timings = [json.loads(line) for line in (path / "timings.jsonl").read_text().splitlines()]
    cpu = json.loads((path / "cpu.json").read_text())
    config = with_present_names(json.loads((path / "config.json").read_text()))
    rollout = config["rollout"]

    def mean(rows: list[dict[str, Any]], name: str) -> float | None:
        values = [row[name] for row in rows if row.get(name) is not None]
        return round(float(np.mean(values)), 4) if values else None

    also = {
        env: {when: outcomes_of(measured.report(), run.samples) for when, measured in parts.items()}
        for env, parts in elsewhere(run, config_of(run, folder), folder).items()
    }
    return {
        "group": run.group,
        "method": run.method,
        "seed": run.seed,
        "env": run.env,
        "split": run.split,
        "samples": run.samples,
        "options": shlex.join(run.options),
        "iterations": len(metrics),
        "episodes": rollout["group_size"]
        * sum(row.get("played_tasks", rollout["tasks_per_iteration"]) for row in metrics),
        **_turns_of(metrics),
        "cpu_seconds": round(cpu["cpu_seconds"]),
        **({"commit": cpu["commit"]} if "commit" in cpu else {}),
        "seconds": {name: mean(timings, name) for name in PHASES},
        "statistics": {name: mean(metrics, name) for name in STATISTICS if mean(metrics, name) is not None},
        **{when: outcomes_of(evaluation[when], run.samples) for when in ("before", "after")},
        **({"also": also} if also else {}),
    }


def outcomes_of(record: dict[str, Any], samples: int) -> dict[str, Any]:
    """Outcomes of a measurement's tasks; kinds where there are few tasks of each, success where the metric is another."""
    found: dict[str, Any] = {
        "sampled": [round(value * samples, 4) for value in record["per_task"]],
        "greedy": record["greedy_per_task"],
    }
    solved = [round(value * samples, 4) for value in record["solved_per_task"]]
    if solved != found["sampled"]:
        found["solved"], found["greedy_solved"] = solved, record["greedy_solved_per_task"]
    if len(set(record["kinds"])) > 1 and len(record["kinds"]) <= MOST_KINDS:
        found["kinds"] = record["kinds"]
    return found


def _turns_of(metrics: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Sampled turns and tokens of a run, and its success (and with grafts its dynamics) after each iteration's turns."""
    if not all("turns_sampled" in row for row in metrics):
        return {}
    turns = np.cumsum([row["turns_sampled"] for row in metrics])

    def curve(name: str) -> list[tuple[int, float]]:
        return [
            (int(t), round(row[name], 4))
            for t, row in zip(turns, metrics, strict=True)
            if row.get(name) is not None
        ]

    dynamics = {name: curve(name) for name in DYNAMICS}
    return {
        "turns": int(turns[-1]),
        "tokens": sum(row["tokens_sampled"] for row in metrics),
        "curve": curve("success"),
        **({"dynamics": dynamics} if all(dynamics.values()) else {}),
    }


def read(record: Path) -> list[dict[str, Any]]:
    """The lines of a record, none where there is no file."""
    return [json.loads(line) for line in record.read_text().splitlines()] if record.is_file() else []


def collect(runs: Sequence[Run], folder: Path, record: Path) -> None:
    """Write what complete runs measured, in their order, and keep what the record has of others."""
    known = {(line["group"], line["method"], line["seed"]): line for line in read(record)}
    for run in runs:
        if (line := result(run, folder)) is not None:
            known[run.group, run.method, run.seed] = line
    record.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in known.values()))


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    plan = tomllib.loads(options.plan.read_text())
    console = Console()
    torch.set_num_threads(1)
    every = list(planned(plan, [group["name"] for group in plan["groups"]]))
    recorded = {(line["group"], line["method"], line["seed"]) for line in read(options.record)}
    asked = list(planned(plan, options.groups))
    left = [run for run in asked if (run.group, run.method, run.seed) not in recorded]
    if len(left) < len(asked):
        print(
            f"{counted(len(asked) - len(left), 'run')} of {len(asked)} not made: in the record, {options.record}; "
            "--record FILE, a new one, makes them anew"
        )
    for run in left:
        if result(run, options.runs) is None:
            options.runs.mkdir(parents=True, exist_ok=True)
            make(run, options.runs, console)
        if options.collect:  # after each: what is recorded is not lost with the folder of the runs
            collect(every, options.runs, options.record)
    if options.collect:
        collect(every, options.runs, options.record)
    if options.table:
        lines = read(options.record)
        for group in plan["groups"]:
            print(group_table(lines, group), costs_table(lines, group["name"]), sep="\n\n", end="\n\n")
            if table := ratios_table(lines, group):
                print(table, end="\n\n")
        for number in sorted({claim.get("round", 1) for claim in plan["claims"]}):
            print(claims_table(lines, [c for c in plan["claims"] if c.get("round", 1) == number]), end="\n\n")
    if options.curves is not None:
        draw_curves(read(options.record), plan["groups"], options.curves)
    if options.dynamics is not None:
        groups = set(options.groups) or {group["name"] for group in plan["groups"]}
        shown = [line for line in read(options.record) if line["group"] in groups]
        draw_dynamics_of(shown, ("tstar-grpo", "tstar-paper"), options.dynamics)
    if options.compare is not None:
        print(comparison(read(options.record), *options.compare))


if __name__ == "__main__":
    main()
