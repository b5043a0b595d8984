"""Training curves of a record of runs by sampled turns, for ``compare_algorithms.py``: smoothed, compared, and drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

POINTS = 100  # of a curve
WIDTH = 0.06  # standard deviation of the smoothing, as a share of the budget
DRAWS = 400  # of the bootstrap

Curve = Sequence[
    tuple[float, float]
]  # per iteration: sampled turns so far, success of its episodes from the start


def smoothed(curve: Curve, budget: float) -> NDArray[np.float64]:
    """Average a curve's iterations around each of ``POINTS`` places of the budget, weighted by a Gaussian.

    Args:
        curve: of one run.
        budget: sampled turns of the whole run.
    """
    turns, success = np.array(curve, dtype=np.float64).T
    middle = (
        turns + np.concatenate([[0.0], turns[:-1]])
    ) / 2  # an iteration's episodes are played by the weights before it
    places = np.linspace(0, budget, POINTS)
    weights = np.exp(-0.5 * ((places[:, None] - middle[None]) / (WIDTH * budget)) ** 2) + 1e-300
    return np.asarray((weights * success).sum(axis=1) / weights.sum(axis=1))


def mean_curve(curves: Sequence[Curve], budget: float) -> NDArray[np.float64]:
    """Average the smoothed curves of several seeds, shape (``POINTS``,)."""
    return np.asarray(np.mean([smoothed(curve, budget) for curve in curves], axis=0))


def share_to_reach(curves: Sequence[Curve], target: float, budget: float) -> float:
    """Compute the share of the budget after which the mean curve first reaches a success; infinite if it never does."""
    above = np.flatnonzero(mean_curve(curves, budget) >= target)
    return float(above[0] / (POINTS - 1)) if len(above) else float("inf")


def turns_ratio(
    first: Sequence[Curve], base: Sequence[Curve], budget: float, seed: int = 0
) -> tuple[float, float, float]:
    """Compute the share of the budget that a method needs for the base's final success, with a 95 % interval.

    Args:
        first: curves of the method, one for each seed.
        base: curves of the base.
        budget: sampled turns of each run.
        seed: of the bootstrap.

    Returns:
        (share, low, high): the interval is of the bootstrap over seeds, and within each over its iterations. Infinite: not reached.
    """
    rng = np.random.default_rng(seed)

    def drawn(curves: Sequence[Curve]) -> list[Curve]:
        found = []
        for n in rng.integers(len(curves), size=len(curves)):
            kept = np.sort(rng.integers(len(curves[n]), size=len(curves[n])))
            found.append([curves[n][k] for k in kept])
        return found

    def share(one: Sequence[Curve], other: Sequence[Curve]) -> float:
        return share_to_reach(one, float(mean_curve(other, budget)[-1]), budget)

    draws = [share(drawn(first), drawn(base)) for _ in range(DRAWS)]
    low, high = np.quantile(draws, [0.025, 0.975], method="nearest")
    return share(first, base), float(low), float(high)


def draw(
    panels: Mapping[str, Mapping[str, Sequence[Curve]]], budgets: Mapping[str, float], path: Path
) -> None:
    """Draw the mean curves of methods as SVG, one panel for each group; bands are the least and the most of several seeds.

    Args:
        panels: by group and method the curves of its seeds.
        budgets: sampled turns of a run, by group.
        path: of the file.
    """
    pyplot = _pyplot()
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = pyplot.subplots(rows, columns, figsize=(5.2 * columns, 4.0 * rows), squeeze=False)
    styles: dict[str, Any] = {}
    dashes = ["-", "--", "-.", ":"]
    for axis, (group, methods) in zip(axes.flat, panels.items(), strict=False):
        for name, curves in methods.items():
            number = len(styles)
            style = styles.setdefault(
                name, {"color": f"C{number % 10}", "linestyle": dashes[number // 2 % 4]}
            )
            places = np.linspace(0, budgets[group], POINTS) / 1000
            each = np.array([smoothed(curve, budgets[group]) for curve in curves])
            axis.plot(places, each.mean(axis=0), label=name, linewidth=1.6, **style)
            if len(curves) > 1:
                axis.fill_between(
                    places, each.min(axis=0), each.max(axis=0), color=style["color"], alpha=0.1, linewidth=0
                )
        axis.set_title(group)
        axis.set_xlabel("sampled turns, thousands")
        axis.set_ylabel("success of training episodes")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=4, frameon=False)
    for axis in list(axes.flat)[len(panels) :]:
        axis.set_axis_off()
    _save(figure, path)


def draw_dynamics(panels: Mapping[str, Mapping[str, Sequence[Curve]]], path: Path) -> None:
    """Draw what changes in training: a row for each group, a column for each statistic, a band over the seeds.

    Args:
        panels: by group, by statistic (the same in all), a curve for each seed.
        path: of the SVG file.
    """
    names = list(next(iter(panels.values())))
    figure, axes = _pyplot().subplots(
        len(panels), len(names), figsize=(3.2 * len(names), 1.9 * len(panels)), squeeze=False, sharex="row"
    )
    for row, (group, statistics) in zip(axes, panels.items(), strict=True):
        for axis, name in zip(row, names, strict=True):
            curves = [curve for curve in statistics[name] if len(curve)]
            if curves:
                budget = min(curve[-1][0] for curve in curves)
                each = np.array([smoothed(curve, budget) for curve in curves])
                places = np.linspace(0, budget, POINTS) / 1000
                axis.plot(places, each.mean(axis=0), color="C0", linewidth=1.6)
                axis.fill_between(places, each.min(axis=0), each.max(axis=0), color="C0", alpha=0.2)
            if name == "anchor_reuse":  # 0 throughout where no task comes again
                axis.set_ylim(-0.05, 1.05)
            axis.grid(alpha=0.3)
        row[0].set_ylabel(group, fontsize=9)
    for axis, name in zip(axes[0], names, strict=True):
        axis.set_title(name.replace("tree_", "").replace("_", " "), fontsize=10)
    for axis in axes[-1]:
        axis.set_xlabel("sampled turns, thousands")
    _save(figure, path)


def _pyplot() -> Any:
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "tstar"  # the same file each time
    from matplotlib import pyplot

    return pyplot


def _save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, format="svg", metadata={"Date": None})
    _pyplot().close(figure)
