"""Plots: axes, curves and diagrams as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tstar_train.report.read import Record, Run, number, parts_by_env

NONE, MINUS = "\u2013", "\u2212"  # dash for a missing value, and the minus sign
HUGE = 1e100  # largest value on an axis; the smallest positive one is its inverse


def text(value: float | None, form: str) -> str:
    """Format a value: percent for fractions, else significant digits."""
    if value is None:
        return NONE
    if form == "share":
        return f"{100 * value:.1f} %".replace("-", MINUS)
    if form == "seconds":
        return f"{value:.3g} s"
    if value and (abs(value) < 1e-3 or abs(value) >= 1e6):
        return f"{value:.2e}".replace("-", MINUS)
    return f"{value:.4g}".replace("-", MINUS)


def tick_texts(ticks: Sequence[float], form: str, log: bool) -> list[str]:
    """Format the tick labels with enough digits to distinguish neighbours."""
    if log:
        return [f"{v:g}".replace("-", MINUS) for v in ticks]
    values = [100 * v for v in ticks] if form == "share" else list(ticks)
    unit = {"share": " %", "seconds": " s"}.get(form, "")
    step, largest = values[1] - values[0], max(abs(v) for v in values)
    places = max(0, -math.floor(math.log10(step) + 1e-9))
    if 1e-3 <= largest < 1e6 and places <= 7:
        texts = [f"{v:.{places}f}" for v in values]
    else:  # the digits between the largest value and the step
        texts = [f"{v:.{max(1, math.floor(math.log10(largest / step) + 1e-9) + 1)}g}" for v in values]
    return [t.replace("-", MINUS) + unit for t in texts]


def ticks(low: float, high: float) -> list[float]:
    """Choose two to six multiples of a round number; the first is at most `low`, the last at least `high`."""
    # Steps below a billionth of the values exceed float precision.
    span = max(high - low or abs(high) or 1.0, 1e-9 * max(abs(low), abs(high)), 1 / HUGE)
    step = 10.0 ** math.floor(math.log10(span / 4))
    step *= next(m for m in (1, 2, 5, 10) if span / 4 <= m * step)
    start, stop = math.floor(low / step + 1e-9), math.ceil(low / step + span / step - 1e-9)
    return [round(k * step, 12) if step > 1e-9 else k * step for k in range(start, max(stop, start + 1) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Choose powers of ten around two positive numbers."""
    start, stop = math.floor(math.log10(low)), math.ceil(math.log10(high))
    stop = max(stop, start + 1)
    every = max(1, math.ceil((stop - start) / 5))
    return [10.0**k for k in range(start, stop + every, every)]


def whole_ticks(first: int, last: int) -> list[int]:
    """Choose axis ticks: the first iteration and round ones after it."""
    step = max(1, int(ticks(0, max(1, last - first))[1]))
    return sorted(
        {first, *(n for n in range(first - first % step, last + 1, step) if n - first >= 0.6 * step)}
    )


Values = list[float | None]
WIDTH, HEIGHT = 400, 210
LEFT, RIGHT, TOP, BOTTOM = 50, 8, 10, 24


@dataclass(frozen=True)
class Series:
    """One line or one layer of bars: a legend and a value per point, None for a missing value."""

    label: str
    values: Values
    average: Values


@dataclass(frozen=True)
class Drawn:
    """Data of a plotted series."""

    label: str
    path: str
    average: str


@dataclass(frozen=True)
class Plot:
    """Finished plot. `ticks_x` and `ticks_y` are (position, text); `points` are the positions of the iterations."""

    series: list[Drawn]
    ticks_x: list[tuple[float, str]]
    ticks_y: list[tuple[float, str]]
    points: list[float]
    rule: tuple[float, str] | None
    box: tuple[int, int, int, int] = (LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM)
    size: tuple[int, int] = (WIDTH, HEIGHT)


def plot(
    iterations: Sequence[int],
    series: Sequence[Series],
    kind: Literal["line", "log", "stack"],
    rule: tuple[float, str] | None,
    form: str,
    *,
    from_zero: bool = True,
) -> Plot | None:
    """Lay out a diagram.

    Args:
        iterations: iteration of each point, ascending.
        series: at least one series; its values are parallel to `iterations`.
        kind: see `Curve.kind`.
        rule: (value, name) of a dashed line.
        form: format of the axis labels: `share`, `number` or `seconds`.
        from_zero: True if the axis includes zero (it always does for bars).

    Returns:
        The plot, or None if there is no value to show (on a logarithmic axis: no positive one).
    """
    layers = [_usable(s, kind) for s in series]
    known = [v for s in layers for v in s.values if v is not None]
    if not known:
        return None
    if kind == "stack":
        known = [math.fsum(max(0.0, s.values[k] or 0.0) for s in layers) for k in range(len(iterations))] + [
            0.0
        ]
    if rule is not None:
        known.append(rule[0])
    low, high = min(known), max(known)
    if from_zero or kind == "stack":
        marks = log_ticks(low, high) if kind == "log" else ticks(min(0.0, low), max(0.0, high))
    else:
        marks = ticks(low, high)
    scale = _Scale(marks[0], marks[-1], kind == "log")
    first, last = iterations[0], iterations[-1]
    # Half a step of padding on both sides, so that bars and single points stay inside.
    step = (WIDTH - LEFT - RIGHT) / (last - first + 1)
    points = [round(LEFT + (n - first + 0.5) * step, 1) for n in iterations]
    if kind == "stack":
        drawn = _bars(layers, points, step, scale)
    else:
        drawn = [
            Drawn(s.label, _line(points, s.values, scale), _line(points, s.average, scale)) for s in layers
        ]
    return Plot(
        series=drawn,
        ticks_x=[(round(LEFT + (n - first + 0.5) * step, 1), str(n)) for n in whole_ticks(first, last)],
        ticks_y=list(zip(map(scale, marks), tick_texts(marks, form, kind == "log"), strict=True)),
        points=points,
        rule=(scale(rule[0]), rule[1]) if rule else None,
    )


def moving_average(values: Values, window: int) -> Values:
    """Average the last `window` points, fewer at the start; missing values are skipped."""
    averages: Values = []
    for k in range(len(values)):
        known = [v for v in values[max(0, k + 1 - window) : k + 1] if v is not None]
        averages.append(math.fsum(known) / len(known) if known else None)
    return averages


def window_for(count: int) -> int:
    """Choose the moving average's window: a sixth of the iterations, 3 to 20; 0 if there are too few."""
    return max(3, min(20, count // 6)) if count >= 6 else 0


@dataclass(frozen=True)
class _Scale:
    low: float
    high: float
    log: bool

    def __call__(self, value: float) -> float:
        low, high, at = (
            (math.log10(v) for v in (self.low, self.high, value))
            if self.log
            else (self.low, self.high, value)
        )
        return round(HEIGHT - BOTTOM - (at - low) / (high - low) * (HEIGHT - TOP - BOTTOM), 1)


def _usable(series: Series, kind: str) -> Series:
    """Drop values that an axis cannot show: huge ones, and on a logarithmic axis those that are not positive."""
    least = 1 / HUGE if kind == "log" else -HUGE

    def usable(values: Values) -> Values:
        return [v if v is not None and least < v < HUGE else None for v in values]

    return Series(series.label, usable(series.values), [] if kind == "log" else usable(series.average))


def _line(points: Sequence[float], values: Values, scale: _Scale) -> str:
    parts, pen_down = [], False
    for x, value in zip(points, values, strict=False):
        if value is not None:
            # A single point is a line of length zero; round line caps show it as a dot.
            parts.append(f"L{x} {scale(value)}" if pen_down else f"M{x} {scale(value)}h0")
        pen_down = value is not None
    return "".join(parts)


def _bars(layers: Sequence[Series], points: Sequence[float], step: float, scale: _Scale) -> list[Drawn]:
    width = round(min(40.0, max(0.5, step * (0.8 if step > 4 else 1.0))), 2)
    floor = [0.0] * len(points)
    drawn = []
    for layer in layers:
        path: list[str] = []
        for k, (x, value) in enumerate(zip(points, layer.values, strict=True)):
            if value is not None and value > 0:
                bottom, top = scale(floor[k]), scale(floor[k] + value)
                path.append(f"M{x - width / 2:.1f} {bottom}V{top}h{width}V{bottom}z")
                floor[k] += value
        drawn.append(Drawn(layer.label, "".join(path), ""))
    return drawn


@dataclass(frozen=True)
class Curve:
    """Definition of one diagram.

    Attributes:
        title: title of the diagram.
        reading: explanation for readers of the report.
        lines: (legend, metric name) pairs; empty for all phases of the timings.
        unit: `share` is shown in percent.
        kind: `stack` is stacked bars, so its metrics must be parts of a whole; `log` has a logarithmic axis.
        smooth: True to add a moving average to each line.
        rule: (value, meaning) of a dashed line.
        from_zero: True if the axis includes zero.
        source: file of the metrics; a curve of `validation` is skipped in runs without validation.
        part: part of the method, "" for every run; a run without that part does not show the curve.
    """

    title: str
    reading: str
    lines: tuple[tuple[str, str], ...]
    unit: Literal["share", "number", "seconds"] = "number"
    kind: Literal["line", "log", "stack"] = "line"
    smooth: bool = False
    rule: tuple[float, str] | None = None
    from_zero: bool = True
    source: Literal["metrics", "timings", "validation"] = "metrics"
    part: Literal["", "tree", "kl", "forks", "grafts", "ways", "set", "surgical"] = ""


LEARNING = (
    Curve(
        "Success in training",
        "Share of the sampled episodes that solved their task; every iteration has other tasks, so judge the moving average, "
        "and the held-out tasks above for the real gain.",
        (("success", "success"),),
        unit="share",
        smooth=True,
    ),
    Curve(
        "Validation",
        "The same tasks of the validation split each time, sampled and greedy; the weights with the highest sampled figure are kept, of "
        "equal ones the earliest. Iteration 0 is the start. The highest of several is a little lucky: judge the gain by the held-out "
        "tasks above.",
        (("sampled", "mean"), ("greedy", "greedy"), ("best so far", "best_mean")),
        unit="share",
        source="validation",
    ),
    Curve(
        "Reward",
        "Mean terminal reward. Where the task is to answer, also F1, the overlap of answers with the right ones: F1 rising alone means "
        "that answers get closer without being right.",
        (("reward", "reward"), ("F1", "f1")),
        smooth=True,
    ),
    Curve(
        "Groups without contrast, invalid actions",
        "Groups whose episodes all earned the same teach nothing, so a rising line means that fewer tasks still do; invalid actions "
        "should fall towards zero.",
        (("zero-variance groups", "zero_variance_groups"), ("invalid actions", "invalid_rate")),
        unit="share",
    ),
    Curve(
        "Episode length",
        "Turns per episode: falling with success means shorter solutions, falling without it means giving up early.",
        (("turns", "episode_length"),),
    ),
    Curve(
        "Reply length",
        "Tokens per reply: a steady climb or a collapse is an early sign of degenerate text.",
        (("tokens", "response_tokens"),),
    ),
    Curve(
        "Entropy",
        "Nats per token: it falls as the policy makes up its mind; close to zero, groups lose their variety and learning ends.",
        (("entropy", "entropy"),),
    ),
)

TREES = (
    Curve(
        "Merging and divergence",
        "Merge ratio is the share of steps that turned out to be the same decision as another episode's; divergent is the share of "
        "the remaining nodes at which the way taken decided over success.",
        (("merge ratio", "tree_merge_ratio"), ("divergent nodes / nodes", "tree_p_div")),
        unit="share",
        part="tree",
    ),
    Curve(
        "Nodes per tree",
        "The gap between the upper two lines is what merging saved; divergent nodes are where a thought can be grafted.",
        (
            ("before merging", "tree_nodes_before"),
            ("after merging", "tree_nodes_after"),
            ("several parents", "tree_multi_parent_nodes"),
            ("divergent", "tree_divergent_nodes"),
        ),
        part="tree",
    ),
    Curve(
        "Value spread at divergences",
        "Best child's value minus the worst's, mean over divergent nodes: near 1, one decision settles the episode.",
        (("mean spread", "tree_mean_spread"),),
        part="tree",
    ),
    Curve(
        "Change of the step weights against GRPO",
        "How far the tree's step advantages move the gradient away from GRPO's, summed over equal steps: near 0, the tree changes nothing.",
        (("relative change", "weight_change"),),
        smooth=True,
        part="tree",
    ),
    Curve(
        "Pairs of steps per tree",
        "All pairs of steps at one depth: tested ones cost model calls, the others were decided without (different history, "
        "an ending, or already connected).",
        (
            ("tested", "tree_pairs_tested"),
            ("other history", "tree_pairs_skipped_history"),
            ("ending", "tree_pairs_skipped_ending"),
            ("connected", "tree_pairs_skipped_connected"),
        ),
        kind="stack",
        part="kl",
    ),
    Curve(
        "Cost of the KL tests",
        "Divergences asked for in an iteration, and how many were answered by identical contexts or by an early rejection instead of "
        "by the model.",
        (
            ("asked", "kl_asked"),
            ("identical contexts", "kl_identical"),
            ("rejected early", "kl_rejected_early"),
        ),
        part="kl",
    ),
    Curve(
        "Scores computed and saved",
        "Continuations that the model scored for those tests, and those that sharing made unnecessary.",
        (("computed", "kl_scored"), ("saved", "kl_scores_saved")),
        kind="stack",
        part="kl",
    ),
)

FORKS = (
    Curve(
        "Forks played",
        "Episodes that were played on from a restored state of the group, in an iteration; failed ones were lost to infrastructure errors.",
        (("forks", "forks"), ("failed", "forks_failed")),
        part="forks",
    ),
    Curve(
        "How forks end",
        "Stopped: share of the forks that came to a known state, whose value tells what they are worth. Solved: share of the others, which "
        "were played to an end.",
        (("stopped in a known state", "forks_stopped"), ("solved, of the others", "fork_success")),
        unit="share",
        part="forks",
    ),
    Curve(
        "Fork length",
        "Turns per fork, without those before the state that it begins in: near 1, forks come back to known states at once.",
        (("turns", "fork_length"),),
        part="forks",
    ),
    Curve(
        "Groups opened by forks",
        "Groups whose episodes from the start all earned the same, and whose forks found another ending: without forks they teach nothing.",
        (("groups", "groups_opened_by_forks"),),
        part="forks",
    ),
)

GRAFTING = (
    Curve(
        "Ways found",
        "Groups with a shortest way through their states to the best ending; how many are stitched from several episodes, and how many are "
        "shorter than every single episode that ends as well.",
        (("ways", "ways"), ("stitched", "ways_stitched"), ("shorter", "ways_shorter")),
        part="ways",
    ),
    Curve(
        "Way length",
        "Mean number of steps from the start to the best ending along the way.",
        (("steps", "way_length"),),
        part="ways",
    ),
    Curve(
        "Coverage and anchor reuse",
        "Coverage is the share of failed episodes that got a grafted thought; reuse is the share of divergent decisions that had got "
        "one in an earlier iteration already.",
        (("grafting coverage", "grafting_coverage"), ("anchor reuse", "anchor_reuse")),
        unit="share",
        part="grafts",
    ),
    Curve(
        "Grafts by source",
        "Thoughts that the policy wrote itself, and those where the successful episode's own thought had to step in.",
        (("policy", "grafts_model"), ("successful thought", "grafts_z_plus")),
        kind="stack",
        part="grafts",
    ),
    Curve(
        "Thoughts dropped",
        "Written thoughts that could not be used; the reasons stand below, under Grafts.",
        (("dropped", "dropped_total"),),
        part="grafts",
    ),
    Curve(
        "Evidence behind grafts",
        "Mean number of episodes behind the better and the worse branch: one on each side is weak evidence.",
        (("better branch", "grafts_best_members"), ("worse branch", "grafts_worst_members")),
        part="grafts",
    ),
    Curve(
        "Grafting set",
        "Preference pairs kept for the surgical loss, after each iteration's were added; every update draws some of them.",
        (("pairs", "graft_dataset_size"),),
        part="set",
    ),
    Curve(
        "Age of the drawn pairs",
        "Mean number of iterations since the drawn pairs were made: the older, the less they come from the present policy's errors.",
        (("iterations", "graft_dataset_age"),),
        part="set",
    ),
    Curve(
        "Surgical loss",
        "Preference loss of grafted over failed thoughts: at log 2 (dashed) there is no preference, lower is learnt.",
        (("surgical loss", "surgical_loss"),),
        rule=(0.693147, "log 2"),
        from_zero=False,
        part="surgical",
    ),
    Curve(
        "Surgical accuracy",
        "Share of pairs in which the policy has moved towards the grafted thought, compared with the reference; moving at random "
        "would give a half (dashed), not moving at all 0.",
        (("accuracy", "surgical_accuracy"),),
        unit="share",
        rule=(0.5, "at random"),
        part="surgical",
    ),
)

UPDATE = (
    Curve(
        "Gradient norms",
        "The surgical part (weighted by lambda) beside the base algorithm's: many times smaller, and the grafts hardly matter; "
        "larger, and they rule.",
        (
            ("base", "base_gradient_norm"),
            ("surgical", "surgical_gradient_norm"),
            ("together", "gradient_norm"),
        ),
    ),
    Curve(
        "KL to the reference",
        "Nats per token away from the slowly following reference: how fast the policy moves.",
        (("KL", "kl_reference"),),
    ),
    Curve(
        "Clipped tokens",
        "Share of tokens whose probability ratio left the clip range; 0 with one on-policy update per iteration.",
        (("clip fraction", "clip_fraction"),),
        unit="share",
    ),
    Curve(
        "Importance correction",
        "Mean weight of a sampled token (near 1 where sampler and trainer agree), and the shares of tokens that the correction masks "
        "or truncates.",
        (
            ("weight", "correction_weight"),
            ("masked", "correction_masked"),
            ("truncated", "correction_truncated"),
        ),
    ),
    Curve(
        "Base loss",
        "The base algorithm's loss; with one on-policy update it is about minus the mean advantage and says little.",
        (("base loss", "base_loss"),),
        from_zero=False,
    ),
)

CHECKS = (
    Curve(
        "Turns sampled",
        "Turns that the policy was asked for in an iteration, those of forks, dropped groups and failed episodes included: compare runs at "
        "equal sums of them.",
        (("turns", "turns_sampled"),),
    ),
    Curve(
        "Tokens sampled",
        "Tokens that the policy wrote in these turns.",
        (("tokens", "tokens_sampled"),),
    ),
    Curve(
        "Seconds per phase",
        "Wall time of each iteration, by phase.",
        (),
        unit="seconds",
        kind="stack",
        source="timings",
    ),
    Curve(
        "Sampler against trainer",
        "Difference of the log-probabilities that the sampler and the trainer give the same tokens; above the dashed line the two "
        "no longer compute the same policy.",
        (("mean", "logprob_difference_mean"), ("largest", "logprob_difference_max")),
        kind="log",
        rule=(1e-5, "limit 1e-5"),
    ),
)

CURVES = {
    "Learning": LEARNING,
    "Cognitive trees": TREES,
    "Forks": FORKS,
    "Grafting": GRAFTING,
    "Update": UPDATE,
    "Cost and checks": CHECKS,
}


def further_curves(run: Run) -> dict[str, tuple[Curve, ...]]:
    """Define the curves of a run on several environments, one line for each, and of a curriculum; empty for other runs."""
    found: list[Curve] = []
    envs = list(dict.fromkeys(env for record in run.metrics for env in parts_by_env(record)))
    if envs:

        def lines(figure: str) -> tuple[tuple[str, str], ...]:
            return tuple((env.rpartition("/")[2], f"by_env {env} {figure}") for env in envs)

        success = "Share of the sampled episodes that solved their task, of each environment."
        found += [
            Curve("Success in training by environment", success, lines("success"), unit="share", smooth=True),
            Curve(
                "Validation by environment",
                "The sampled figure of each environment; the best weights of each are kept beside the best of all together.",
                lines("mean"),
                unit="share",
                source="validation",
            ),
            Curve("Turns by environment", "Turns per episode.", lines("episode_length")),
        ]
    if any("tasks_seen" in record for record in run.metrics):
        names = (("seen", "tasks_seen"), ("too hard", "tasks_too_hard"), ("too easy", "tasks_too_easy"))
        found.append(
            Curve("Tasks of the curriculum", "Those played, and of them those left out of the pool.", names)
        )
    return {"Environments and curriculum": tuple(found)} if found else {}


@dataclass(frozen=True)
class Diagram:
    """A curve with its plot; `number` is the index of its values in the page's data."""

    number: int
    curve: Curve
    plot: Plot
    window: int


def diagrams(run: Run) -> tuple[dict[str, list[Diagram]], list[str], list[dict[str, Any]]]:
    """Make all diagrams for which the run has values.

    Returns:
        Diagrams by heading; titles of the curves without values; and the hover texts of each diagram, in order of its number.
    """
    sections: dict[str, list[Diagram]] = {}
    empty: list[str] = []
    readings: list[dict[str, Any]] = []
    for heading, curves in {"Learning": LEARNING, **further_curves(run), **CURVES}.items():
        for curve in curves:
            if curve.source == "validation" and not run.validation:
                continue
            if not has_part(run, curve.part):
                empty.append(curve.title)
                continue
            sources = {"metrics": run.metrics, "timings": run.timings, "validation": run.validation}
            records = _by_iteration(sources[curve.source])
            series, window = _series(curve, records)
            drawing = (
                plot(list(records), series, curve.kind, curve.rule, curve.unit, from_zero=curve.from_zero)
                if records
                else None
            )
            if drawing is None:
                empty.append(curve.title)
                continue
            sections.setdefault(heading, []).append(Diagram(len(readings), curve, drawing, window))
            lines = [(s.label, s.values) for s in series] + [
                (f"{s.label}, mean of {window}", s.average) for s in series if s.average
            ]
            readings.append(
                {
                    "iterations": list(records),
                    "points": drawing.points,
                    "lines": [
                        {"label": label, "texts": [text(v, curve.unit) for v in values]}
                        for label, values in lines
                    ],
                }
            )
    return sections, empty, readings


def has_part(run: Run, part: str) -> bool:
    """Check whether a run uses a part of the method; without a configuration it may use any.

    Args:
        run: files of the run.
        part: see ``Curve.part``.
    """
    config = run.config
    if not part or not isinstance(config, dict):
        return True
    tree, graft = (value if isinstance(value := config.get(name), dict) else {} for name in ("tree", "graft"))
    if not config.get("tstar", True):
        return False
    if part == "forks":
        explore = value if isinstance(value := config.get("explore"), dict) else {}
        return (number(explore.get("share")) or 0.0) > 0
    if part == "ways":
        return bool(graft.get("enabled", True)) and graft.get("source", "divergence") != "divergence"
    if part == "kl":
        return bool(tree.get("nodes", "depth") == "depth")
    if (
        part == "set" and graft.get("keep", "iteration") == "iteration"
    ):  # runs of older versions have no such option
        return False
    if part in ("grafts", "set", "surgical"):
        pairs = graft.get("enabled", True) and (
            graft.get("source") != "way" or graft.get("loss") == "surgical"
        )
        return bool(pairs) and (part != "surgical" or bool(graft.get("surgical", True)))
    return True


def _by_iteration(records: list[Record]) -> dict[int, Record]:
    """Index records by iteration, ascending; the last record of an iteration counts (a resumed run writes it again)."""
    last = {record["iteration"]: record for record in records}
    return dict(sorted(last.items()))


def _series(curve: Curve, records: dict[int, Record]) -> tuple[list[Series], int]:
    lines = curve.lines
    if curve.source == "timings":
        names = dict.fromkeys(name for record in records.values() for name in record)
        lines = tuple((name, name) for name in names if name not in ("iteration", "seconds"))
    window = window_for(len(records)) if curve.smooth else 0
    series = []
    for label, name in lines:
        values = [_value(record, name) for record in records.values()]
        if any(v is not None for v in values):
            series.append(Series(label, values, moving_average(values, window) if window else []))
    return series, window


def _value(record: Record, name: str) -> float | None:
    if name.startswith("by_env "):
        env, _, figure = name.removeprefix("by_env ").rpartition(" ")
        return number(parts_by_env(record).get(env, {}).get(figure))
    if name != "dropped_total":
        return number(record.get(name))
    reasons = record.get("grafts_dropped")
    return sum(number(count) or 0.0 for count in reasons.values()) if isinstance(reasons, dict) else None
