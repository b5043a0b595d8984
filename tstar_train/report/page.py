"""The page as a whole: everything read, put into the template, and written in one stroke."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tstar_envs import write_whole
from tstar_envs.redaction import redacted
from tstar_envs.utils import content_policy, counted, script_json
from tstar_train.report.axis import MINUS, NONE, text
from tstar_train.report.diagrams import diagrams, dropped
from tstar_train.report.embed import clipped, evenly
from tstar_train.report.episodes import browsable
from tstar_train.report.headline import headline
from tstar_train.report.read import Record, Run, number, read_run
from tstar_train.report.trees import forest

SCRIPTS = ("dom.js", "charts.js", "drawing.js", "credits.js", "trees.js", "episodes.js")
MOST_GRAFTS = 80


def write_report(run: Path) -> Path:
    """Write `report.html` into a run folder, whether the run is over, going on, or was stopped.

    Args:
        run: the folder. Files that are not there yet are named in the report.

    Returns:
        The path of the report: one file that needs no other and no network.

    Raises:
        MissingData: there is no such folder.
        BadData: a file of the run is damaged; the message names it and the line.
    """
    path = run / "report.html"
    # Names may hold half a surrogate pair.
    content = redacted(render(read_run(run))).encode("utf-8", "backslashreplace")
    for left in run.glob(".report.html.*"):  # by writers that were killed
        left.unlink()
    write_whole(path, content)  # a reader sees the old report or the new one
    return path


def render(run: Run) -> str:
    """The report as HTML."""
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
        # Nothing is left in it that a parser could stumble over.
        data=Markup(
            script_json(
                {"diagrams": readings, "trees": woods.trees, "trained": woods.trained, "episodes": episodes}
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
    """What was run, from the configuration or, without one, from the summary."""
    source = run.config or run.summary or {}
    facts = {
        "environment": source.get("env"),
        "algorithm": source.get("algo"),
        "T-STAR": _plain(source["tstar"]) if "tstar" in source else None,
        "model": source.get("model"),
        "seed": source.get("seed"),
        "episodes": (run.summary or {}).get("episodes"),
        "time": _duration(number((run.summary or {}).get("seconds"))) if run.summary else None,
    }
    return [(name, clipped(str(value), 200)) for name, value in facts.items() if value is not None]


def _progress(run: Run) -> str:
    """One sentence about how far the run got."""
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
