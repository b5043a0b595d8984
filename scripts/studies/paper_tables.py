"""The paper's comparison rerun: ``scripts/reproduce.py tables``.

    python scripts/reproduce.py tables --dry-run                        # the runs that the record lacks, and the hours they take
    python scripts/reproduce.py tables --runs FOLDER --hours 3          # make them, one after another; the same command goes on
    python scripts/reproduce.py tables --print                          # the tables of the record, beside the paper's figures
    python scripts/reproduce.py tables --print --curves curves.svg      # and the training curves, with bands over the seeds
    python scripts/reproduce.py tables --print --dynamics dynamics.svg --groups webshop nq    # and what changes in training, of two groups
    python scripts/reproduce.py tables --model Qwen/Qwen2.5-3B-Instruct --options "--processes 4" --record own.jsonl --dry-run

The plan is docs/results/evidence.toml, the record docs/results/evidence.jsonl, the layout and the paper's figures docs/results/paper.toml.
Each run is recorded as soon as it ends. With ``--model`` the same grid runs at full scale, with the paper's preset and its 160 iterations,
into a record of its own; ``--options`` names public data as for ``python -m tstar_train``, group by group (``--groups``).
"""

from __future__ import annotations

import dataclasses
import re
import shlex
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from rich.console import Console

from scripts.studies.compare_algorithms import (
    RESULTS,
    Run,
    collect,
    config_of,
    make,
    planned,
    read,
    result,
)
from scripts.studies.compared_tables import (
    claims_table,
    costs_table,
    draw_dynamics_of,
    draw_plan_curves,
    dynamics_table,
    group_table,
    methods_of,
)
from tstar_envs import TStarError, UnknownOption
from tstar_envs.utils import counted
from tstar_train.config import Config
from tstar_train.config_check import check
from tstar_train.plan import Plan, load_model_config, operations, plan

# The paper's own number of iterations; its other hyperparameters are the preset's of a Hugging Face model.
PAPER_ITERATIONS = "--iterations 160"


@dataclass(frozen=True)
class Options:
    """Make the runs of the paper's comparison, or print its tables."""

    runs: Path | None = None
    """Folder of the runs; default: runs/evidence, with --model runs/evidence-MODEL."""
    groups: tuple[str, ...] = ()
    """Groups of the plan to run or to draw, in this order; default: all."""
    plan: Path = RESULTS / "evidence.toml"
    """TOML file of the plan."""
    record: Path = RESULTS / "evidence.jsonl"
    """JSON Lines file of the record of complete runs."""
    print: bool = False
    """Print the tables of the record and make no run."""
    curves: Path | None = None
    """Also draw the training curves of the record into this SVG file (extra `notebook`)."""
    dynamics: Path | None = None
    """Also draw grafting coverage, anchor reuse and spread of values of the paper's T-STAR into this SVG file."""
    dry_run: bool = False
    """Print which runs are missing and what they take, and make none."""
    hours: float | None = None
    """Begin no further run after so many hours."""
    model: str | None = None
    """Hugging Face model in place of the built-in policies, with the paper's preset."""
    options: str = ""
    """Further options of every run, in one string, such as "--processes 4 --engine vllm"."""
    tflops: float = 120.0
    """Sustained speed of a device in 10^12 operations per second, for the hours of a dry run with --model."""


def folder_of(options: Options) -> Path:
    """The folder of the runs: of one model only, as its runs have the same names for every model."""
    model = "" if options.model is None else "-" + re.sub(r"[^\w.-]+", "-", options.model).strip("-")
    return options.runs or Path(f"runs/evidence{model}")


def planned_runs(made: Mapping[str, Any], options: Options) -> Iterator[Run]:
    """The runs of the plan, with the options of the command line; with ``--model`` also the seeds that the plan cuts (``only``), without
    the groups that are about the built-in policies' own settings (``built_in``).

    Raises:
        UnknownOption: ``--options`` names a model, alone or by its preset: its runs would be recorded as another model's.
    """
    words = shlex.split(options.options)
    for word in words:
        if word.partition("=")[0] in ("--model", *(["--preset"] if options.model is None else [])):
            raise UnknownOption(
                f"--options has {word}, which names a model: name it before, --model MODEL, so that its runs have a record of their own"
            )
    names = options.groups or [
        group["name"] for group in made["groups"] if options.model is None or not group.get("built_in")
    ]
    whole = {"groups": [{key: group[key] for key in group if key != "only"} for group in made["groups"]]}
    for run in planned(dict(made) if options.model is None else whole, names):
        if options.model is None:
            yield dataclasses.replace(run, options=(*run.options, *words))
            continue
        own = next(group for group in made["groups"] if group["name"] == run.group)["methods"][run.method]
        given = (*shlex.split(f"{PAPER_ITERATIONS} {own}"), *words)
        yield dataclasses.replace(run, options=("--model", options.model, *given))


def missing(made: Mapping[str, Any], options: Options) -> list[Run]:
    """The planned runs that the record lacks.

    Raises:
        UnknownOption: the record has runs of other models than ``--model``.
    """
    record = read(options.record)
    others = [line for line in record if model_of(line) != options.model]
    if others:
        raise UnknownOption(
            f"{options.record} has {counted(len(others), 'run')} of another model than {options.model or 'the built-in policies'}: "
            "name a record of its own, --record FILE"
        )
    known = {(line["group"], line["method"], line["seed"]) for line in lines_of(made, record, options.model)}
    return [run for run in planned_runs(made, options) if (run.group, run.method, run.seed) not in known]


def forecast(made: Mapping[str, Any], options: Options) -> Iterator[str]:
    """Lines that say what the missing runs take: CPU hours, or hours and memory of a device at full scale.

    At full scale all replies are counted at their full length, and at the speed of matrix products: sampling is slower, and the
    environments, the reference's values and the start's measurement come on top.

    Raises:
        UnknownOption: an option is not valid, as in the run itself.
    """
    minutes = {group["name"]: float(group["minutes"]) for group in made["groups"]}
    left, total = missing(made, options), 0.0
    for name in dict.fromkeys(run.group for run in left):
        runs = [run for run in left if run.group == name]
        of_group = f"{name}: {counted(len(runs), 'run')} ({', '.join(sorted({run.method for run in runs}))})"
        if options.model is None:
            total += len(runs) * minutes[name] / 60
            yield f"{of_group}, {len(runs) * minutes[name] / 60:.1f} CPU-hours"
            continue
        peak, hours = 0, 0.0
        for run in {run.method: run for run in runs}.values():
            config = config_of(run, folder_of(options))
            check(config)
            needs = plan(config, load_model_config(config), config.processes or 1)
            computed = config.iterations * operations(needs, config) + measuring(needs, config, run)
            taken = computed / options.tflops / 3.6e15
            peak, hours = max(peak, needs.peak), hours + taken * sum(one.method == run.method for one in runs)
        total += hours
        yield (
            f"{of_group}, {peak / 2**30:.1f} GiB a device, some {hours / len(runs):.1f} hours a run on "
            f"{counted(config.processes or 1, 'device')}"
        )
    unit = "CPU-hours" if options.model is None else f"hours at {options.tflops:g} TFLOP/s"
    yield f"{counted(len(left), 'run')} missing, {total:.1f} {unit} in all"


def measuring(needs: Plan, config: Config, run: Run) -> float:
    """Floating-point operations of a process for a run's measurements after training; the start is measured once for a group."""
    episodes = (run.tasks + sum(tasks for _, tasks in run.also)) * (run.samples + config.evaluation.greedy)
    of_training = config.rollout.tasks_per_iteration * config.rollout.group_size
    # Both are shared among the processes, and an episode has as many tokens at most.
    return 2 * needs.parameters * needs.sampled_tokens * episodes / of_training


def model_of(line: Mapping[str, Any]) -> str | None:
    """The Hugging Face model of a recorded run; None for a built-in policy."""
    words = shlex.split(line.get("options", ""))
    return words[words.index("--model") + 1] if "--model" in words else None


def lines_of(
    made: Mapping[str, Any], record: Sequence[dict[str, Any]], model: str | None = None
) -> list[dict[str, Any]]:
    """The record with the runs that earlier rounds made under the same rules, under this plan's names.

    Those are of the built-in policies: a record of another model stays alone.
    """
    found = list(record)
    if model or any(model_of(line) for line in record):
        return found
    for earlier in made.get("recorded", []):
        names = {theirs: ours for ours, theirs in earlier["methods"].items()}
        found += [
            {**line, "group": earlier["name"], "method": names[line["method"]]}
            for line in read(RESULTS / earlier["record"])
            if line["group"] == earlier["group"] and line["method"] in names
        ]
    return found


def percent(lines: Sequence[dict[str, Any]], column: Mapping[str, str], method: str | None) -> str:
    """A cell: mean over tasks and seeds at temperature 1 in percent, with a star if it is of one seed; empty without runs.

    Args:
        lines: the record.
        column: of the paper's table: its group and what is read of it.
        method: None for the start policy.
    """
    methods = methods_of(list(lines), column["group"])
    if method is not None and method not in methods:
        return ""
    of_method = methods[method].lines if method is not None else [m.lines[0] for m in methods.values()][:1]
    when, means = "after" if method is not None else "before", []
    for line in of_method:
        parts = line["also"][column["also"]] if "also" in column else line
        outcomes, figure = parts[when], column.get("figure", "sampled")
        values = np.array(outcomes.get(figure, outcomes["sampled"])) / line["samples"]
        if "kind" in column:
            values = values[np.array(outcomes["kinds"]) == column["kind"]]
        means.append(values.mean())
    if not means:
        return ""
    return f"{100 * np.mean(means):.1f}" + "*" * (method is not None and len(means) == 1)


def paper_table(lines: Sequence[dict[str, Any]], table: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """Markdown: a table in the paper's layout, each of our rows followed by the paper's of the same method.

    Raises:
        UnknownOption: a row of the paper has another number of figures than the table has columns.
    """
    columns = table["columns"]
    rows = [
        "| method | " + " | ".join(column["name"] for column in columns) + " |",
        "|---" * (1 + len(columns)) + "|",
    ]
    start = [percent(lines, column, None) for column in columns]
    if any(start):
        rows.append("| start policy | " + " | ".join(start) + " |")
    for method, name in names.items():
        cells = [percent(lines, column, method) for column in columns]
        if any(cells):
            rows.append(f"| **{name}** | " + " | ".join(cells) + " |")
        for model, figures in table["paper"].items():
            if method not in figures:
                continue
            if len(figures[method]) != len(columns):
                raise UnknownOption(
                    f"{table['name']}: the paper's row of {method} has {len(figures[method])} figures for {len(columns)} columns"
                )
            rows.append(
                f"| {name}, the paper's {model} | " + " | ".join(f"{x:.1f}" for x in figures[method]) + " |"
            )
    return f"{table['title']} (%; *: one seed)\n\n" + "\n".join(rows)


def measured_on(lines: Sequence[dict[str, Any]], group: str, env: str) -> list[dict[str, Any]]:
    """What the runs of a group measured on an environment that they did not train on, as lines of a group with its name."""
    of_group = [line for line in lines if line["group"] == group and env in line.get("also", {})]
    return [{**line, "group": env, **line["also"][env]} for line in of_group]


def all_tables(made: Mapping[str, Any], lines: Sequence[dict[str, Any]]) -> str:
    """Markdown: the paper's tables, each group's comparisons, the named ones with Holm's correction, trees and seconds."""
    paper = tomllib.loads((RESULTS / "paper.toml").read_text())
    lines = list(lines)
    parts = [paper_table(lines, table, paper["methods"]) for table in paper["tables"]]
    for group in made["groups"]:
        parts.append(group_table(lines, group))
        for env in group.get("also", {}):
            parts.append(
                group_table(measured_on(lines, group["name"], env), {**group, "name": env, "env": env})
            )
    parts.append(claims_table(lines, made["claims"]))
    parts += [
        costs_table(lines, group["name"]) for group in made["groups"] if methods_of(lines, group["name"])
    ]
    return "\n\n".join(parts)


def joined(words: Sequence[str]) -> list[str]:
    """Write ``--options`` and its value as one word: the value begins with dashes, as an option does."""
    found: list[str] = []
    for word in words:
        if found and found[-1] == "--options":
            found[-1] = f"--options={word}"
        else:
            found.append(word)
    return found


def main(words: Sequence[str]) -> None:
    """Run the command line; ``words`` are those after ``tables``."""
    try:
        run(tyro.cli(Options, description=__doc__, args=joined(words)))
    except TStarError as error:
        raise SystemExit(f"error: {error}") from error


def run(options: Options) -> None:
    """Make the missing runs, or print what the options ask for.

    Raises:
        UnknownOption: there is no such group, or an option of the runs is not valid.
    """
    made = tomllib.loads(options.plan.read_text())
    folder, groups = folder_of(options), {group["name"]: group for group in made["groups"]}
    for name in options.groups:
        if name not in groups:
            raise UnknownOption(f"the plan has no group {name!r}; it has: {', '.join(groups)}")
    if options.dry_run:
        print(*forecast(made, options), sep="\n")
    elif not options.print:
        torch.set_num_threads(1)
        began, console = time.monotonic(), Console()
        folder.mkdir(parents=True, exist_ok=True)
        for run in missing(made, options):
            if options.hours is not None and time.monotonic() - began > 3600 * options.hours:
                console.print(f"{options.hours:g} hours are over; the same command makes the rest")
                break
            if result(run, folder) is None:
                make(run, folder, console)
            collect(list(planned_runs(made, options)), folder, options.record)
    lines = lines_of(made, read(options.record), options.model)
    if not options.dry_run:
        print(all_tables(made, lines))
    drawn = [groups[name] for name in options.groups or groups]
    if options.curves is not None:
        draw_plan_curves(lines, drawn, options.curves)
    if options.dynamics is not None:
        of_groups = [line for group in drawn for line in lines if line["group"] == group["name"]]
        draw_dynamics_of(of_groups, ["tstar-grpo"], options.dynamics)
        print("", dynamics_table(of_groups, ["tstar-grpo"]), sep="\n")
