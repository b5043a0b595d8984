"""Loading of evaluation files for the page, and sanitizing of foreign text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tstar_envs.data.files import find_files
from tstar_envs.errors import BadData, MissingData, UnknownOption
from tstar_envs.evaluation.cost import CostSummary, PriceTable, summarise_costs
from tstar_envs.evaluation.log import SETTINGS, Key, Recorded, collect, settings_of, settings_path
from tstar_envs.evaluation.report.paper import Part, parts
from tstar_envs.evaluation.stats import Figures, Summary, summarise
from tstar_envs.record import Episode
from tstar_envs.record_files import located_results
from tstar_envs.redaction import printable, redacted

MOST_TEXT = 4_000
MOST_SAMPLES = 3  # per task that the page shows step by step
NONE = "\N{EN DASH}"


def clean(text: str, most: int = MOST_TEXT) -> str:
    """Make text safe for the page (``printable``), truncated to ``most`` characters with a note."""
    text = redacted(text)  # before truncation could leave the beginning of a secret
    if len(text) <= most:
        return printable(text)
    return f"{printable(text[:most])}… ({len(text) - most:,} more characters)"


def percent(value: float | None) -> str:
    """Format a share in percent, without the sign."""
    return NONE if value is None else f"{100 * value:.1f}"


def spread(bounds: tuple[float, float] | None) -> str:
    """Format an interval of a share, in percent."""
    return "" if bounds is None else f"{100 * bounds[0]:.1f} to {100 * bounds[1]:.1f}"


def number(value: float | None, digits: int = 2) -> str:
    """Format a number with thousands separators."""
    return NONE if value is None else f"{value:,.{digits}f}"


def seconds(value: float | None) -> str:
    """Format a duration: 12.3 s, 45 ms, or less than a millisecond."""
    if value is None:
        return NONE
    if value >= 1:
        return f"{value:,.1f} s"
    return f"{1000 * value:.0f} ms" if value >= 0.001 else "< 1 ms"


def points(value: float, digits: int = 1) -> str:
    """Format a difference of shares in percentage points, with its sign."""
    shown = f"{100 * value:+.{digits}f}"
    return shown.replace("-", "\N{MINUS SIGN}")


def short_id(env: str) -> str:
    """Shorten ``tstar/Sokoban-easy`` to ``Sokoban-easy``."""
    return env.removeprefix("tstar/")


@dataclass(frozen=True)
class Evaluation:
    """Contents of one evaluation file.

    Attributes:
        path: path of the file.
        recorded: environment and outcomes per task.
        settings: ``FILE.config.json``, empty if missing.
        model: model of the agent, "" if none.
        panel: name and hash of the evaluation set, "" if none.
        summary: statistics.
        costs: cost.
        parts: success and scores of the kinds of tasks in the paper's tables.
        progress: progress and success of each episode, if measured.
        played: task ids, including tasks of which all episodes ended in errors.
        places: bytes at which the records begin that the page may show step by step, by task and sample.
    """

    path: Path
    recorded: Recorded
    settings: dict[str, Any]
    model: str
    panel: str
    summary: Summary
    costs: CostSummary
    parts: dict[str, Part]
    progress: list[tuple[float, bool]]
    played: frozenset[str]
    places: dict[Key, int]

    @property
    def env(self) -> str:
        """Gymnasium id."""
        return self.recorded.played_on["env"]

    @property
    def max_tokens(self) -> int | None:
        """Token limit of an answer, None if it was not recorded."""
        chosen = self.settings.get("agent_settings")
        bound = chosen.get("max_tokens") if isinstance(chosen, dict) else None
        return bound if type(bound) is int else None

    @property
    def options(self) -> dict[str, Any]:
        """Options of the environment; also empty if they were not recorded."""
        return self.recorded.options or {}


def find_evaluations(given: Sequence[Path]) -> tuple[list[Path], int]:
    """Find evaluation files: those given, and in folders those written by ``eval --out``.

    Returns:
        The files, without duplicates, in the given order, and the number of other ``.jsonl`` files in the folders.

    Raises:
        MissingData: a path does not exist.
        UnknownOption: a folder holds no evaluation, or no file was given.
    """
    found: dict[Path, Path] = {}
    passed = 0
    for path in given:
        if not path.is_dir():
            if not path.exists():
                raise MissingData(
                    f"{path}: there is no such file. Give files or folders that `python -m tstar_envs eval --out` wrote"
                )
            found.setdefault(path.resolve(), path)
            continue
        inside = find_files(path, [".jsonl"])
        ours = [file for file in inside if settings_path(file).exists()]
        passed += len(inside) - len(ours)
        if not ours:
            raise UnknownOption(
                f"{path} holds no evaluation (FILE.jsonl with FILE.jsonl{SETTINGS} beside it): give the folder of eval --out"
            )
        for file in ours:
            found.setdefault(file.resolve(), file)
    if not found:
        raise UnknownOption("give at least one file or folder that `python -m tstar_envs eval --out` wrote")
    return list(found.values()), passed


def read_evaluation(path: Path, prices: PriceTable) -> Evaluation | None:
    """Read the results of one file; None if it has no episodes yet.

    Raises:
        BadData: not a file of episodes, a mix of several evaluations, or unreadable settings.
    """
    found: dict[Key, Figures] = {}
    places: dict[Key, int] = {}
    recorded = collect(path, _noted(path, found, places))
    if not found:
        return None
    played = list(found.values())
    panels = {one.panel for one in played}
    if len(panels) > 1:
        raise BadData(
            f"{path} mixes episodes of panels {', '.join(map(repr, sorted(panels)))}: give one file for each"
        )
    settings = settings_of(path) or {}
    model = _model(settings)
    good = [one for one in played if one.ended != "error"]
    return Evaluation(
        path=path,
        recorded=recorded,
        settings=settings,
        model=model,
        panel=panels.pop(),
        summary=summarise(played),
        costs=summarise_costs(played, prices, model or None),
        parts=parts(good),
        progress=[(value, one.success) for one in good if (value := one.extra.get("progress")) is not None],
        played=frozenset(one.task for one in played),
        places=places,
    )


def _noted(path: Path, found: dict[Key, Figures], places: dict[Key, int]) -> Iterator[Episode]:
    """Iterate over the episodes of a file, and note the figures of each and where it stands."""
    for place, episode in located_results(path):
        one = Figures.of(episode)
        key = one.task, episode.sample
        found[key] = one
        if episode.sample < MOST_SAMPLES:
            places[key] = place
        yield episode


def _model(settings: dict[str, Any]) -> str:
    chosen = settings.get("agent_settings")
    model = chosen.get("model", "") if isinstance(chosen, dict) else ""
    return model if isinstance(model, str) else ""
