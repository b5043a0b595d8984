"""Tables of a record of runs, for ``compare_algorithms.py``: methods of a group beside the first, with differences paired by task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tstar_envs import UnknownOption, cluster_bootstrap
from tstar_envs.evaluation.stats import holm, minimal_detectable_effect, sign_flip_p

try:
    from scripts.studies.compared_curves import draw, draw_dynamics, turns_ratio
except ModuleNotFoundError:  # beside a script of this folder
    from compared_curves import draw, draw_dynamics, turns_ratio

TREE_STATISTICS = (
    "tree_nodes_before",
    "tree_nodes_after",
    "tree_merge_ratio",
    "tree_divergent_nodes",
    "tree_p_div",
    "grafting_coverage",
)
DYNAMICS = ("grafting_coverage", "anchor_reuse", "tree_mean_spread")  # of the paper's figure, by iteration
ALGORITHMS = {"ppo": "PPO", "grpo": "GRPO", "dapo": "DAPO", "gigpo": "GiGPO"}
# By the part of a method's name before the algorithm's.
PARTS = {"": "alone", "tstar": "T-STAR", "graph": "T-STAR on the graph"}
PHASES = ("rollout", "tree", "valuation", "grafting", "update")


@dataclass
class Method:
    """The runs of a method in the record; arrays are (seeds, tasks)."""

    lines: list[dict[str, Any]] = field(default_factory=list)

    def outcomes(self, when: str, how: str, seeds: Sequence[int] | None = None) -> np.ndarray:
        """Mean reward of each task."""
        chosen = [line for line in self.lines if seeds is None or line["seed"] in seeds]
        return np.array([line[when][how] for line in chosen]) / (
            chosen[0]["samples"] if how == "sampled" else 1
        )

    @property
    def seeds(self) -> list[int]:
        """The seeds of the recorded runs."""
        return [line["seed"] for line in self.lines]


def common(first: Method, second: Method) -> list[int]:
    """The seeds that two methods share."""
    return [seed for seed in first.seeds if seed in second.seeds]


def paired(first: Method, second: Method, how: str) -> np.ndarray:
    """Per task, the difference of the means over the seeds that both have: one at least."""
    seeds = common(first, second)
    return first.outcomes("after", how, seeds).mean(axis=0) - second.outcomes("after", how, seeds).mean(
        axis=0
    )


def interval(differences: np.ndarray) -> str:
    """A mean with its 95 % interval over tasks."""
    low, high = cluster_bootstrap([[value] for value in differences.tolist()])
    return f"{differences.mean():+.3f} ({low:+.3f} to {high:+.3f})"


def methods_of(lines: list[dict[str, Any]], group: str) -> dict[str, Method]:
    """The methods of a group that have been run, in the record's order."""
    found: dict[str, Method] = {}
    for line in lines:
        if line["group"] == group:
            found.setdefault(line["method"], Method()).lines.append(line)
    return found


def group_table(lines: list[dict[str, Any]], group: dict[str, Any]) -> str:
    """Markdown: a row a method, compared with the group's first, and T-STAR on an algorithm with that algorithm too."""
    methods = methods_of(lines, group["name"])
    if not methods:
        return f"{group['name']}: no run is complete"
    base = group.get("against", next(iter(group["methods"])))
    alone = {name: name.removeprefix("tstar-").removeprefix("graph-") for name in methods}
    stands_on = {
        name: other
        for name, other in alone.items()
        if other != name and other in methods and common(methods[name], methods[other])
    }
    further = " minus its algorithm alone |" if stands_on else ""
    by_turns = all("turns" in line for method in methods.values() for line in method.lines)
    counted = "turns" if by_turns else "episodes"
    compared = f"minus {base} | by seed | greedy | minus start | minus {base} | CPU-min a run |"
    rows = [f"| {group['name']} | seeds | {counted} | T=1 | minus start | {compared}{further}"]
    rows.append("|---" * (11 + bool(further)) + "|")
    for name, method in methods.items():
        sampled, greedy = method.outcomes("after", "sampled"), method.outcomes("after", "greedy")
        cells = ["", "", ""]
        if name != base and base in methods and (seeds := common(method, methods[base])):
            each = method.outcomes("after", "sampled", seeds).mean(axis=1) - methods[base].outcomes(
                "after", "sampled", seeds
            ).mean(axis=1)
            by_seed = " ".join(f"{value:+.3f}" for value in each)
            cells = [
                interval(paired(method, methods[base], "sampled")),
                by_seed,
                interval(paired(method, methods[base], "greedy")),
            ]
        episodes = round(np.mean([line["turns" if by_turns else "episodes"] for line in method.lines]))
        minutes = np.mean([line["cpu_seconds"] for line in method.lines]) / 60
        gained, greedily = (
            interval((method.outcomes("after", how) - method.outcomes("before", how)).mean(axis=0))
            for how in ("sampled", "greedy")
        )
        rows.append(
            f"| {name} | {len(method.seeds)} | {episodes:,} | {sampled.mean():.3f} | {gained} | {cells[0]} | {cells[1]} | "
            f"{greedy.mean():.3f} | {greedily} | {cells[2]} | {minutes:.1f} |"
        )
        if name in stands_on:
            rows[-1] += f" {interval(paired(method, methods[stands_on[name]], 'sampled'))} |"
        elif further:
            rows[-1] += " |"
    before = next(iter(methods.values()))
    start = f"start {before.outcomes('before', 'sampled').mean():.3f} (greedy {before.outcomes('before', 'greedy').mean():.3f})"
    tasks = len(before.lines[0]["after"]["greedy"])
    told = [
        minimal_detectable_effect(paired(method, methods[base], "sampled").std(ddof=1), tasks)
        for name, method in methods.items()
        if name != base and base in methods and tasks > 1 and set(method.seeds) >= {*methods[base].seeds}
    ]
    least = (
        f"; differences from {base} of {min(told):.3f} to {max(told):.3f} can be told apart (power .8)"
        if told
        else ""
    )
    return (
        f"{group['env']}, {tasks} tasks of {group['split']} x {before.lines[0]['samples']}: {start}{least}\n\n"
        + "\n".join(rows)
    )


def comparison(lines: list[dict[str, Any]], group: str, first: str, second: str) -> str:
    """How two methods of a group differ, at temperature 1 and greedy.

    Raises:
        UnknownOption: the record has no such method in that group, or no seed of both.
    """
    methods = methods_of(lines, group)
    for name in (first, second):
        if name not in methods:
            raise UnknownOption(
                f"no runs of {name!r} in group {group!r}; it has: {', '.join(methods) or 'none'}"
            )
    if not common(methods[first], methods[second]):
        raise UnknownOption(f"no seed of both {first!r} and {second!r} in group {group!r}")
    sampled, greedy = (
        interval(paired(methods[first], methods[second], how)) for how in ("sampled", "greedy")
    )
    return f"{group}: {first} - {second}: T=1 {sampled}, greedy {greedy}"


def claims_table(lines: list[dict[str, Any]], claims: list[dict[str, str]]) -> str:
    """Markdown: the comparisons named in the plan, with sign-flip p values corrected by Holm for all of them.

    One that has not been run counts in the correction with a p of 1, so that the others' only fall when it is.
    """
    made = []
    for claim in claims:
        methods = methods_of(lines, claim["group"])
        first, second = (methods.get(claim[name], Method()) for name in ("first", "second"))
        if seeds := common(first, second):
            made.append((claim, len(seeds), paired(first, second, "sampled")))
    values = [sign_flip_p(differences.tolist()) for _, _, differences in made]
    rows = [
        "| comparison at T=1 | seeds | difference (95 % interval) | p | p by Holm |",
        "|---|---|---|---|---|",
    ]
    adjusted_values = holm([*values, *[1.0] * (len(claims) - len(made))])
    for (claim, seeds, differences), p, adjusted in zip(made, values, adjusted_values, strict=False):
        named = f"{claim['group']}: {claim['first']} - {claim['second']}"
        rows.append(f"| {named} | {seeds} | {interval(differences)} | {p:.4f} | {adjusted:.4f} |")
    return "\n".join(rows)


def costs_table(lines: list[dict[str, Any]], group: str) -> str:
    """Markdown: seconds by phase and tree statistics, means over iterations and seeds."""
    rows = [
        f"| {group} | "
        + " | ".join((*PHASES, *(name.removeprefix("tree_") for name in TREE_STATISTICS)))
        + " |"
    ]
    rows.append("|---" * (1 + len(PHASES) + len(TREE_STATISTICS)) + "|")
    for name, method in methods_of(lines, group).items():
        phases = [np.mean([line["seconds"][phase] or 0 for line in method.lines]) for phase in PHASES]
        figures = [
            [line["statistics"][n] for line in method.lines if n in line["statistics"]]
            for n in TREE_STATISTICS
        ]
        cells = [f"{value:.2f}" for value in phases] + [
            f"{np.mean(values):.3g}" if values else "" for values in figures
        ]
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def ratios_table(lines: list[dict[str, Any]], group: dict[str, Any]) -> str:
    """Markdown: the share of the sampled turns that each method needs to reach the base's final success; empty without curves."""
    methods = {
        name: [line["curve"] for line in method.lines]
        for name, method in methods_of(lines, group["name"]).items()
        if all("curve" in line for line in method.lines)
    }
    base = group.get("against", next(iter(group["methods"])))
    if base not in methods or len(methods) < 2:
        return ""
    budget = _budget(lines, group["name"])
    rows = [f"| {group['name']} | share of the turns to reach {base}'s end (95 % interval) |", "|---|---|"]
    for name, curves in methods.items():
        if name != base:
            share, low, high = (
                f"{value:.2f}" if value < np.inf else "more"
                for value in turns_ratio(curves, methods[base], budget)
            )
            rows.append(f"| {name} | {share} ({low} to {high}) |")
    return "\n".join(rows)


def draw_curves(lines: list[dict[str, Any]], groups: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the curves of all groups on test tasks that have them."""
    panels = {
        group["name"]: {
            name: [line["curve"] for line in method.lines]
            for name, method in methods_of(lines, group["name"]).items()
            if all("curve" in line for line in method.lines)
        }
        for group in groups
        if group["split"] == "test"
    }
    panels = {name: methods for name, methods in panels.items() if methods}
    draw(panels, {name: _budget(lines, name) for name in panels}, path)


def draw_plan_curves(lines: list[dict[str, Any]], groups: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the curves of the runs of a plan: a panel for each group and algorithm X, with ``X``, ``tstar-X`` and ``graph-X``.

    Args:
        lines: the record.
        groups: of the plan; those without a complete run are left out, and methods of other names.
        path: of the SVG file.

    Raises:
        UnknownOption: the record has no curve of these groups.
    """
    panels: dict[str, dict[str, list[Any]]] = {}
    for group in groups:
        for name, method in methods_of(lines, group["name"]).items():
            part, _, algorithm = name.rpartition("-")
            curves = [line["curve"] for line in method.lines if "curve" in line]
            if part in PARTS and algorithm in ALGORITHMS and curves:
                panels.setdefault(f"{group['name']}, {ALGORITHMS[algorithm]}", {})[PARTS[part]] = curves
    if not panels:
        raise UnknownOption("the record has no curve of the plan's groups: make their runs first")
    draw(panels, {panel: _budget(lines, panel.rsplit(", ", 1)[0]) for panel in panels}, path)


def dynamics_of(lines: list[dict[str, Any]], methods: Sequence[str]) -> dict[str, dict[str, list[Any]]]:
    """Find success, coverage of grafts, reuse of anchors and spread of values by iteration.

    Args:
        lines: the record.
        methods: of them the first that a group has is taken.

    Returns:
        By group and by statistic, a curve for each seed.

    Raises:
        UnknownOption: the record has these figures of no run.
    """
    panels: dict[str, dict[str, list[Any]]] = {}
    for group in dict.fromkeys(line["group"] for line in lines):
        found = methods_of(lines, group)
        of_method = next((found[name].lines for name in methods if name in found), [])
        if kept := [line for line in of_method if "dynamics" in line]:
            panels[group] = {
                "success": [line["curve"] for line in kept],
                **{name: [line["dynamics"][name] for line in kept] for name in DYNAMICS},
            }
    if not panels:
        raise UnknownOption(
            f"no recorded run of {', '.join(methods)} has figures by iteration: make one with --groups"
        )
    return panels


def draw_dynamics_of(lines: list[dict[str, Any]], methods: Sequence[str], path: Path) -> None:
    """Draw what ``dynamics_of`` finds."""
    draw_dynamics(dynamics_of(lines, methods), path)


def dynamics_table(lines: list[dict[str, Any]], methods: Sequence[str]) -> str:
    """Markdown: means over the first and the last quarter of the iterations, and over the seeds, of what ``dynamics_of`` finds."""
    rows = [
        "| first quarter, last quarter | seeds | success | coverage | anchor reuse | spread of values |",
        "|---|---|---|---|---|---|",
    ]
    for group, statistics in dynamics_of(lines, methods).items():
        cells = []
        for curves in statistics.values():
            values = [[value for _, value in curve] for curve in curves if len(curve)]
            quarter = [(each[: (len(each) + 3) // 4], each[-((len(each) + 3) // 4) :]) for each in values]
            cells.append(
                ", ".join(
                    f"{np.mean([np.mean(part) for part in parts]):.3f}"
                    for parts in zip(*quarter, strict=True)
                )
            )
        rows.append(f"| {group} | {len(statistics['success'])} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def _budget(lines: list[dict[str, Any]], group: str) -> float:
    return float(min(line["turns"] for line in lines if line["group"] == group and "turns" in line))
