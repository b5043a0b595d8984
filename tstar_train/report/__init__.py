"""Report of a run: one self-contained HTML file, readable without a network and without this package.

```python
from tstar_train.report import write_report

write_report(Path("runs/hotpotqa-0"))  # .../report.html
```
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tstar_envs import Episode, Step, write_whole
from tstar_envs.redaction import redacted
from tstar_envs.utils import content_policy, counted, script_json
from tstar_train.report.plot import MINUS, NONE, diagrams, has_part, text
from tstar_train.report.read import (
    Budget,
    Record,
    Run,
    checked,
    clipped,
    dropped,
    evenly,
    number,
    parts_by_env,
    read_run,
)
from tstar_train.report.trees import forest

__all__ = ["write_report"]

MOST_EPISODES = 300
MOST_CHARACTERS = 3_000_000


def browsable(episodes: Sequence[Episode]) -> list[dict[str, Any]]:
    """Select evenly spaced episodes and format them for the page, in the file's order."""
    budget = Budget(MOST_CHARACTERS)
    several = len({episode.env for episode in episodes}) > 1
    return [
        entry
        for index in evenly(range(len(episodes)), MOST_EPISODES)
        if budget.take(entry := _episode(episodes[index], several))
    ]


def _episode(episode: Episode, several: bool) -> dict[str, Any]:
    """Format an episode; of several environments its kind begins with its own, to choose by."""
    extra, kind = dict(episode.extra), episode.kind
    iteration, advantages = extra.pop("iteration", None), extra.pop("advantages", None)
    for name in ("kind", "task_type"):
        extra.pop(name, None)
    if several:
        kind = ": ".join(filter(None, (str(episode.env).rpartition("/")[2], kind)))
    if not isinstance(advantages, list) or len(advantages) != len(episode.steps):
        advantages = [None] * len(episode.steps)
    return {
        "task": clipped(str(episode.task), 200),
        "sample": episode.sample,
        "iteration": iteration if isinstance(iteration, int) else None,
        "kind": clipped(kind, 100),
        "instruction": clipped(str(episode.instruction)),
        "start": clipped(str(episode.first_observation)),
        "reward": number(episode.reward),
        "success": bool(episode.success),
        "ended": str(episode.ended),
        "error": clipped(str(episode.error)),
        "figures": {clipped(str(name), 60): _figure(value) for name, value in extra.items()},
        "steps": [_step(step, number(a)) for step, a in zip(episode.steps, advantages, strict=True)],
    }


def _step(step: Step, advantage: float | None) -> dict[str, Any]:
    return {
        "thought": clipped(str(step.thought)),
        "action": clipped(str(step.action)),
        # The raw reply is only needed if no action could be parsed from it.
        "reply": "" if step.action else clipped(str(step.reply)),
        "observation": clipped(str(step.observation)),
        "valid": bool(step.action_valid),
        "reason": clipped(str(step.invalid_reason), 300),
        "modifies": bool(step.modifies_state),
        "advantage": advantage,
        "effect": clipped(str(step.effect_key), 200),
    }


def _figure(value: object) -> str:
    known = number(value)
    return f"{known:.4g}" if known is not None else clipped(str(value), 200)


FEW_TASKS = (
    100  # with fewer tasks the interval itself is rough: the bootstrap only resamples observed outcomes
)


@dataclass(frozen=True)
class Measured:
    """Results of one evaluation as fractions of 1; None for values that were not measured."""

    mean: float | None
    low: float | None
    high: float | None
    greedy: float | None
    success: float | None = None


@dataclass(frozen=True)
class Kind:
    """Row of the table of results per kind of task."""

    name: str
    tasks: int | None
    before: float | None
    after: float | None
    greedy_before: float | None
    greedy_after: float | None

    @property
    def change(self) -> float | None:
        """The value after training minus the value before."""
        return None if self.before is None or self.after is None else self.after - self.before


@dataclass(frozen=True)
class OfEnvironment:
    """Row of the table of results per environment; `low` and `high` are the 95 % interval of the difference."""

    name: str
    metric: str
    tasks: int | None
    before: float | None
    after: float | None
    difference: float | None
    low: float | None
    high: float | None
    greedy_before: float | None
    greedy_after: float | None


@dataclass(frozen=True)
class Chosen:
    """Weights chosen by validation: iteration (0 is the start), its mean, and the number of candidates."""

    iteration: int | None
    mean: float | None
    candidates: int | None
    tasks: int | None
    split: str


@dataclass(frozen=True)
class Headline:
    """Headline of the report. `low` and `high` are the 95 % interval of the difference; `chosen` is None without validation."""

    metric: str
    split: str
    tasks: int | None
    samples: int | None
    before: Measured | None
    after: Measured | None
    difference: float | None
    low: float | None
    high: float | None
    kinds: list[Kind]
    chosen: Chosen | None = None
    environments: list[OfEnvironment] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """Interpretation of the interval, in words."""
        if self.low is None or self.high is None:
            return ""
        rough = (
            f"; of {self.tasks} tasks the interval itself is rough"
            if self.tasks is not None and self.tasks < FEW_TASKS
            else ""
        )
        if self.low > 0:
            return f"a gain: the interval is clear of zero{rough}"
        if self.high < 0:
            return f"a loss: the interval is clear of zero{rough}"
        return f"not decided: the interval includes zero{rough}"


def headline(run: Run) -> Headline | None:
    """Read the headline from `evaluation.json`, else from `summary.json`; None without both.

    Raises:
        BadData: a field has the wrong type.
    """
    if run.evaluation is not None:
        evaluation = run.evaluation
        return checked(f"{run.folder / 'evaluation.json'}, line 1", lambda: _from_evaluation(evaluation))
    if run.summary is not None:
        return _from_summary(run.summary)
    return None


def _from_evaluation(record: Record) -> Headline:
    before, after = _part(record, "before"), _part(record, "after")
    kinds_before, kinds_after = _part(before or {}, "by_kind") or {}, _part(after or {}, "by_kind") or {}
    return Headline(
        metric=str(record.get("metric", "score")),
        split=str(record.get("split", "")),
        tasks=_whole(record.get("tasks")),
        samples=_whole(record.get("samples")),
        before=_measured(before),
        after=_measured(after),
        difference=number(record.get("difference")),
        low=number(record.get("ci_low")),
        high=number(record.get("ci_high")),
        kinds=[
            _kind(name, kinds_before, kinds_after) for name in dict.fromkeys([*kinds_before, *kinds_after])
        ],
        chosen=_chosen(_part(record, "chosen")),
        environments=_environments(record, before or {}),
    )


def _from_summary(record: Record) -> Headline:
    def measured(name: str) -> Measured:
        return Measured(
            number(record.get(name)),
            None,
            None,
            number(record.get(f"greedy_{name}")),
            number(record.get(f"success_{name}")),
        )

    return Headline(
        metric=str(record.get("metric", "score")),
        split="",
        tasks=None,
        samples=None,
        before=measured("before"),
        after=measured("after"),
        difference=number(record.get("difference")),
        low=number(record.get("ci_low")),
        high=number(record.get("ci_high")),
        kinds=[],
    )


def _environments(record: Record, before: Record) -> list[OfEnvironment]:
    """Read the results of each environment: compared in the end, until then as they were before training."""
    compared = parts_by_env(record)
    early = {
        env: {"before": part.get("mean"), "greedy_before": part.get("greedy")}
        for env, part in parts_by_env(before).items()
    }
    names = ("before", "after", "difference", "ci_low", "ci_high", "greedy_before", "greedy_after")
    return [
        OfEnvironment(
            clipped(env, 200),
            str(part.get("metric", "")),
            _whole(part.get("tasks")),
            *(number(part.get(name)) for name in names),
        )
        for env, part in (compared or early).items()
    ]


def _part(record: Mapping[str, Any], name: str) -> Record | None:
    part = record.get(name)
    if part is not None and not isinstance(part, dict):
        raise TypeError(f"{name!r} is {type(part).__name__}, not an object")
    return part


def _measured(part: Record | None) -> Measured | None:
    if part is None:
        return None
    return Measured(*(number(part.get(name)) for name in ("mean", "ci_low", "ci_high", "greedy", "success")))


def _chosen(part: Record | None) -> Chosen | None:
    if part is None:
        return None
    iteration, candidates, tasks = (_whole(part.get(name)) for name in ("iteration", "candidates", "tasks"))
    return Chosen(iteration, number(part.get("mean")), candidates, tasks, str(part.get("split", "")))


def _kind(name: str, before: Record, after: Record) -> Kind:
    first, second = _part(before, name) or {}, _part(after, name) or {}
    return Kind(
        name=name,
        tasks=_whole(first.get("tasks", second.get("tasks"))),
        before=number(first.get("mean")),
        after=number(second.get("mean")),
        greedy_before=number(first.get("greedy")),
        greedy_after=number(second.get("greedy")),
    )


def _whole(value: object) -> int | None:
    known = number(value)
    return None if known is None else int(known)


SCRIPTS = ("dom.js", "charts.js", "drawing.js", "ways.js", "credits.js", "trees.js", "episodes.js")
MOST_GRAFTS = 80


def write_report(run: Path) -> Path:
    """Write `report.html` into the folder of a finished, running or stopped run.

    Args:
        run: folder of the run. The report lists files that do not exist yet.

    Returns:
        Path of the report, one self-contained file.

    Raises:
        MissingData: the folder does not exist.
        BadData: a file of the run is damaged; the message names the file and the line.
    """
    path = run / "report.html"
    # File names may contain lone surrogates.
    content = redacted(render(read_run(run))).encode("utf-8", "backslashreplace")
    for left in run.glob(".report.html.*"):  # by writers that were killed
        left.unlink()
    write_whole(path, content)  # atomic: readers see the old or the new report
    return path


def render(run: Run) -> str:
    """Render the report as HTML."""
    environment = Environment(
        loader=PackageLoader("tstar_train.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"share": _share, "points": _points, "number": _number, "duration": _duration}
    sources = {name: _source(environment, name) for name in (*SCRIPTS, "report.css")}
    script = '"use strict";\n(() => {\n' + "\n".join(sources[name] for name in SCRIPTS) + "})();\n"
    sections, empty, readings = diagrams(run)
    woods = forest(run)
    episodes = browsable(run.episodes)
    return environment.get_template("report.html.j2").render(
        run=run,
        name=run.folder.resolve().name,
        header=_header(run),
        config=_flat(run.config or {}),
        progress=_progress(run),
        result=headline(run),
        sections=sections,
        empty_curves=empty,
        dropped=dropped(run),
        forest=woods,
        grafts=evenly(woods.grafts, MOST_GRAFTS),
        episodes=episodes,
        # ``script_json`` escapes everything that could end the script element.
        data=Markup(
            script_json(
                {
                    "diagrams": readings,
                    "trees": woods.trees,
                    "trained": woods.trained,
                    "ways": woods.ways,
                    "pairs": has_part(run, "grafts"),
                    "episodes": episodes,
                }
            )
        ),
        style=Markup(sources["report.css"]),  # our own file
        script=Markup(script),  # our own files
        policy=content_policy(script, sources["report.css"]),
    )


def _source(environment: Environment, name: str) -> str:
    if environment.loader is None:
        raise RuntimeError("an environment without loader")
    return environment.loader.get_source(environment, name)[0]


def _header(run: Run) -> list[tuple[str, str]]:
    """Describe the run from its configuration or, without one, its summary."""
    source = run.config or run.summary or {}
    facts = {
        "environment": _environment(source),
        "algorithm": source.get("algo"),
        "T-STAR": _plain(source["tstar"]) if "tstar" in source else None,
        "model": source.get("model"),
        "seed": source.get("seed"),
        "episodes": (run.summary or {}).get("episodes"),
        "time": _duration(number((run.summary or {}).get("seconds"))) if run.summary else None,
    }
    return [(name, clipped(str(value), 200)) for name, value in facts.items() if value is not None]


def _environment(source: Record) -> str | None:
    """Name the environment, or all with their shares of the tasks."""
    mix = source.get("mix")
    weights = {
        str(env): number(weight) or 0.0 for env, weight in (mix if isinstance(mix, dict) else {}).items()
    }
    whole = sum(weights.values())
    if not whole:
        return source.get("env")
    return ", ".join(f"{env} ({text(weight / whole, 'share')})" for env, weight in weights.items())


def _progress(run: Run) -> str:
    """Describe the run's progress in one sentence."""
    done = max((record["iteration"] for record in run.metrics), default=0)
    planned = number((run.config or {}).get("iterations"))
    if run.summary is not None:
        return f"The run is complete: {counted(done, 'iteration')}."
    of = f" of {planned:.0f}" if planned is not None else ""
    if not run.metrics:
        return "No iteration is finished yet."
    return (
        f"The run is not complete: {done}{of} iterations are finished. It is still going, or it was stopped."
    )


def _flat(record: Record, prefix: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for name, value in record.items():
        if isinstance(value, dict) and value:
            rows += _flat(value, f"{prefix}{name}.")
        else:
            rows.append((f"{prefix}{name}", clipped(_plain(value), 300)))
    return rows


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return NONE if value is None else str(value)


def _share(value: float | None) -> str:
    return text(value, "share")


def _points(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:+.1f}".replace("-", MINUS)


def _number(value: float | None) -> str:
    return text(value, "number")


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return NONE
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
