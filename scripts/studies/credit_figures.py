"""Figures of measured credit, for ``measure_credit.py``: credits beside the true advantages, with intervals over tasks, and the tables.

All figures are ratios of sums over tasks, so that a bootstrap draw is a weighted sum: no step is looked at twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

DEPTHS = ("first third", "middle third", "last third")
VISITS = ("1 visit", "2-3 visits", "4+ visits")
LEAST = 0.01  # true advantages nearer to 0 have no sign to agree with
_TINY = 1e-12
_DIGITS = 9  # of values that are ranked
_FEWEST = 1_000  # steps with an equal step in another group, for figures of noise


@dataclass(frozen=True)
class Steps:
    """All measured steps; every array has shape (steps,).

    Attributes:
        task: number of the task.
        group: number of the group, over all tasks.
        key: number of the (state, action, steps left), over all tasks: steps with the same one have the same true advantage.
        truth: true advantage, in units of reward.
        error: its standard error; 0 if it is exact.
        differs: True in groups whose rewards differ.
        depth: third of its episode, 0 to 2.
        visits: 0 for a state that the group visited once, 1 for two or three visits, 2 for more.
        credit: credits by name.
    """

    task: Ints
    group: Ints
    key: Ints
    truth: Floats
    error: Floats
    differs: NDArray[np.bool_]
    depth: Ints
    visits: Ints
    credit: dict[str, Floats]


def steps_of(lines: Sequence[Mapping[str, Any]]) -> Steps:
    """Join the lines of ``measure_credit.measure_task``, one a task; groups and keys are numbered on from task to task."""
    columns: dict[str, list[Any]] = {
        name: [] for name in ("task", "group", "key", "truth", "error", "differs", "depth", "visits")
    }
    credit: dict[str, list[float]] = {name: [] for name in lines[0]["credit"]}
    groups = keys = 0
    for number, line in enumerate(lines):
        differs = [max(r) - min(r) > _TINY for r in line["rewards"]]
        columns["task"] += [number] * len(line["truth"])
        columns["group"] += [groups + g for g in line["group"]]
        columns["key"] += [keys + k for k in line["key"]]
        columns["differs"] += [differs[g] for g in line["group"]]
        for name in ("truth", "error", "depth", "visits"):
            columns[name] += line[name]
        for name, values in credit.items():
            values += line["credit"][name]
        groups += len(line["rewards"])
        keys += max(line["key"], default=-1) + 1
    return Steps(
        **{name: np.array(values) for name, values in columns.items()},
        credit={name: np.array(values, dtype=np.float64) for name, values in credit.items()},
    )


def matched(credit: Floats, truth: Floats, error: Floats, group: Ints) -> Floats:
    """Scale the credit of each group to the size of its true advantages: the same root mean square, less the noise of the truth.

    Algorithms divide by different things, and the size of a group's credit says nothing of how it is shared out among its steps. The truth
    stays in units of reward: dividing it by a size that holds its own noise would bias every correlation.
    """
    steps = np.maximum(np.bincount(group), 1)
    size = np.sqrt(np.maximum(np.bincount(group, truth * truth - error * error) / steps, 0.0))
    own = np.sqrt(np.bincount(group, credit * credit) / steps)
    return np.asarray(credit * (size / np.where(own > _TINY, own, 1.0))[group], dtype=np.float64)


def ranks(values: Floats) -> Floats:
    """Compute ranks from 1; equal values share their mean rank."""
    _, inverse, counts = np.unique(np.round(values, _DIGITS), return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts - 1) / 2
    return np.asarray(middle[inverse], dtype=np.float64)


class Bootstrap:
    """Bootstrap over tasks (Efron 1979): weights of the tasks in each draw; the first row is the sample itself.

    Args:
        tasks: number of tasks.
        draws: number of draws.
        seed: of the draws (Philox: the same on every machine).
    """

    def __init__(self, tasks: int, draws: int = 2_000, seed: int = 12345) -> None:
        generator = np.random.Generator(np.random.Philox(key=seed))
        drawn = [np.bincount(generator.integers(0, tasks, tasks), minlength=tasks) for _ in range(draws)]
        self.weights = np.stack([np.ones(tasks), *drawn])

    def sums(self, task: Ints, *columns: Floats) -> list[Floats]:
        """Sum each column, shape (rows,), in the sample and in each draw: shape (1 + draws,)."""
        count = self.weights.shape[1]
        return [self.weights @ np.bincount(task, column, minlength=count) for column in columns]


def correlation(
    bootstrap: Bootstrap, task: Ints, x: Floats, y: Floats, noise: Floats, excess: Floats | None = None
) -> Floats:
    """Compute Pearson's correlation of x with the truth behind y, in the sample and each draw; NaN where one of them is constant.

    Spearman's correction for attenuation: the mean of the noise is taken off the variance of y.

    Args:
        bootstrap: over tasks.
        task: number of the task of each row.
        x: credit.
        y: measured truth.
        noise: squared standard error of y.
        excess: variance of x that is noise too, in the sample and each draw.
    """
    one, sx, sy, sxx, syy, sxy, sn = bootstrap.sums(task, np.ones(len(x)), x, y, x * x, y * y, x * y, noise)
    with np.errstate(divide="ignore", invalid="ignore"):
        of_x = sxx / one - (sx / one) ** 2 - (0.0 if excess is None else excess)
        of_y = syy / one - (sy / one) ** 2 - sn / one
        both = np.where((of_x > _TINY) & (of_y > _TINY), of_x * of_y, np.nan)
        return np.asarray((sxy / one - sx * sy / one**2) / np.sqrt(both), dtype=np.float64)


def reliability(bootstrap: Bootstrap, task: Ints, y: Floats, noise: Floats) -> Floats:
    """Compute the share of the variance of the measured truth that is not its noise: 1 if it is exact."""
    one, sy, syy, sn = bootstrap.sums(task, np.ones(len(y)), y, y * y, noise)
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = syy / one - (sy / one) ** 2
        return np.where(spread > _TINY, 1 - sn / one / spread, np.nan)


def sign_agreement(bootstrap: Bootstrap, task: Ints, x: Floats, truth: Floats, error: Floats) -> Floats:
    """Compute how often x has the sign of the truth, over steps where that is clear; an x of 0 counts one half."""
    clear = np.abs(truth) > np.maximum(2 * error, LEAST)
    right = np.where(np.abs(x) < _TINY, 0.5, np.sign(x) == np.sign(truth))
    number, agreed = bootstrap.sums(task, clear.astype(float), np.where(clear, right, 0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(number > 0, agreed / number, np.nan)


def noise_figures(
    bootstrap: Bootstrap, steps: Steps, x: Floats, y: Floats, noise: Floats
) -> tuple[Floats, Floats, Floats]:
    """Compute what of a credit is the luck of its group, over equal steps of the groups of a task.

    The credit of equal (state, action, steps left) is averaged within each group; only those that two groups have count.

    Returns:
        The variance between groups at equal steps; its share of the whole variance; and the correlation of the truth with the credit's
        mean over groups without end, which is what bias costs. Each in the sample and in each draw; NaN for few steps.
    """
    pairs, pair = np.unique(np.stack([steps.key, steps.group]), axis=1, return_inverse=True)
    pair = pair.reshape(-1)
    size = np.bincount(pair)
    mean = [np.bincount(pair, column) / size for column in (x, y, noise, steps.task.astype(float))]
    groups = np.bincount(pairs[0])[pairs[0]]
    kept = groups > 1
    if kept.sum() < _FEWEST:
        none = np.full(len(bootstrap.weights), np.nan)
        return none, none, none
    key, task = np.unique(pairs[0][kept], return_inverse=True)[1], mean[3][kept].astype(int)
    own, truth, error = (column[kept] for column in mean[:3])
    count = np.bincount(key)
    centred = own - (np.bincount(key, own) / np.maximum(count, 1))[key]
    # Each key has one degree of freedom less than groups, shared by its rows.
    one, within, free, sx, sxx = bootstrap.sums(
        task, np.ones(len(own)), centred**2, 1 - 1 / count[key], own, own * own
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        variance = np.where(free > 0, within / free, np.nan)
        whole = sxx / one - (sx / one) ** 2
        share = np.where(whole > _TINY, variance / whole, np.nan)
    return variance, share, correlation(bootstrap, task, own, truth, error, excess=variance)


def _figure(values: Floats) -> dict[str, float | None]:
    """Value of the sample and its 95 % interval; None where it does not exist."""
    drawn = values[1:][np.isfinite(values[1:])]
    if not np.isfinite(values[0]) or not len(drawn):
        return {"value": None, "low": None, "high": None}
    low, high = np.quantile(drawn, [0.025, 0.975])
    return {"value": float(values[0]), "low": float(low), "high": float(high)}


def figures(steps: Steps, draws: int = 2_000, seed: int = 12345) -> dict[str, Any]:
    """Compute all figures.

    Args:
        steps: of all tasks.
        draws: number of bootstrap draws.
        seed: of the draws.

    Returns:
        By selection (``differ``: groups whose rewards differ; ``all``): number of ``steps``, ``reliability``, and by credit its figures,
        each with ``value``, ``low`` and ``high``; by depth and visits under ``slices``, for groups whose rewards differ.
    """
    bootstrap = Bootstrap(int(steps.task.max()) + 1, draws, seed)
    credit = {
        name: matched(values if np.ptp(values) else 0 * values, steps.truth, steps.error, steps.group)
        for name, values in steps.credit.items()  # one number for all steps is no credit
    }
    found: dict[str, Any] = {}
    for selection, rows in (("differ", steps.differs), ("all", np.ones(len(steps.truth), dtype=bool))):
        found[selection] = _selected(bootstrap, steps, rows, credit)
    parts = [(name, steps.depth == n) for n, name in enumerate(DEPTHS)]
    parts += [(name, steps.visits == n) for n, name in enumerate(VISITS)]
    found["slices"] = {
        name: _selected(bootstrap, steps, rows & steps.differs, credit) for name, rows in parts
    }
    return found


def _selected(
    bootstrap: Bootstrap,
    steps: Steps,
    rows: NDArray[np.bool_],
    credit: Mapping[str, Floats],
) -> dict[str, Any]:
    """Compute the figures of some of the steps, with their matched credit."""
    chosen = Steps(
        *(getattr(steps, name)[rows] for name in ("task", "group", "key", "truth", "error")),
        *(getattr(steps, name)[rows] for name in ("differs", "depth", "visits")),
        {name: values[rows] for name, values in credit.items()},
    )
    y, noise = chosen.truth, chosen.error**2
    none = np.zeros(len(y))
    found: dict[str, Any] = {
        "steps": int(rows.sum()),
        "groups": len(set(chosen.group.tolist())),
        "reliability": _figure(reliability(bootstrap, chosen.task, y, noise)),
        "credit": {},
    }
    first: Floats | None = None
    place = ranks(y)
    for name, x in chosen.credit.items():
        pearson = correlation(bootstrap, chosen.task, x, y, noise)
        first = pearson if first is None else first
        variance, share, endless = noise_figures(bootstrap, chosen, x, y, noise)
        found["credit"][name] = {
            "pearson": _figure(pearson),
            "pearson_minus_first": _figure(pearson - first),
            "spearman": _figure(correlation(bootstrap, chosen.task, ranks(x), place, none)),
            "sign": _figure(sign_agreement(bootstrap, chosen.task, x, chosen.truth, chosen.error)),
            "variance": _figure(variance),
            "noise": _figure(share),
            "pearson_without_noise": _figure(endless),
        }
    return found


def _cell(figure: Mapping[str, float | None], signed: bool = False) -> str:
    """Format a figure with its interval."""
    if figure["value"] is None:
        return "none"
    value, low, high = (
        f"{figure[k]:{'+' if signed else ''}.2f}".replace("0.", ".") for k in ("value", "low", "high")
    )
    return f"{value} ({low} to {high})"


def tables(found: Mapping[str, Any]) -> str:
    """Format the figures as Markdown: all steps of groups whose rewards differ, then by depth and visits."""
    whole = found["differ"]
    first = next(iter(whole["credit"]))
    lines = [
        f"{whole['steps']} steps of {whole['groups']} groups whose rewards differ; reliability of the truth "
        f"{_cell(whole['reliability'])}",
        "",
        f"| credit | Pearson | minus {first} | Spearman | sign right | noise | Pearson without noise | Pearson, all measured groups |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, row in whole["credit"].items():
        cells = [
            _cell(row["pearson"]),
            "" if name == first else _cell(row["pearson_minus_first"], signed=True),
            *(_cell(row[k]) for k in ("spearman", "sign", "noise", "pearson_without_noise")),
            _cell(found["all"]["credit"][name]["pearson"]),
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    parts = found["slices"]
    for title, key in (("Pearson", "pearson"), ("Sign right", "sign"), ("Noise", "noise")):
        lines += ["", f"| {title} | {' | '.join(parts)} |", f"|---|{'---|' * len(parts)}"]
        lines.append(
            f"| share of steps | {' | '.join(_share(p['steps'], whole['steps']) for p in parts.values())} |"
        )
        for name in whole["credit"]:
            cells = [_half_width(part["credit"][name][key]) for part in parts.values()]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _share(part: int, whole: int) -> str:
    return f"{part / max(whole, 1):.2f}".replace("0.", ".")


def _half_width(figure: Mapping[str, float | None]) -> str:
    """Format a figure with half the width of its interval."""
    value, low, high = figure["value"], figure["low"], figure["high"]
    if value is None or low is None or high is None:
        return "none"
    return f"{value:.2f} ±{(high - low) / 2:.2f}".replace("0.", ".")
