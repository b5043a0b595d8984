"""Files of evaluations as the page needs them, and foreign text made fit for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tstar_envs.data.files import find_files
from tstar_envs.errors import BadData, MissingData, UnknownOption
from tstar_envs.evaluation.cost import CostSummary, PriceTable, account
from tstar_envs.evaluation.log import SETTINGS, Recorded, collect, latest, settings_of, settings_path
from tstar_envs.evaluation.report.paper import Part, parts
from tstar_envs.evaluation.stats import Summary, summarise
from tstar_envs.record import Episode, read_episodes
from tstar_envs.redaction import printable, redacted

MOST_TEXT = 4_000
NONE = "\N{EN DASH}"


def clean(text: str, most: int = MOST_TEXT) -> str:
    """Text as a page may show it (``printable``), at most ``most`` characters of it; a cut says how many more."""
    text = redacted(text)  # before a cut could leave the beginning of a secret
    if len(text) <= most:
        return printable(text)
    return f"{printable(text[:most])}… ({len(text) - most:,} more characters)"


def percent(value: float | None) -> str:
    """A share of 1 in percent, without the sign."""
    return NONE if value is None else f"{100 * value:.1f}"


def spread(bounds: tuple[float, float] | None) -> str:
    """An interval of a share, in percent."""
    return "" if bounds is None else f"{100 * bounds[0]:.1f} to {100 * bounds[1]:.1f}"


def number(value: float | None, digits: int = 2) -> str:
    """A number with thousands apart."""
    return NONE if value is None else f"{value:,.{digits}f}"


def seconds(value: float | None) -> str:
    """A duration: 12.3 s, 45 ms, or less than a millisecond."""
    if value is None:
        return NONE
    if value >= 1:
        return f"{value:,.1f} s"
    return f"{1000 * value:.0f} ms" if value >= 0.001 else "< 1 ms"


def points(value: float, digits: int = 1) -> str:
    """A difference of shares in percentage points, with its sign."""
    shown = f"{100 * value:+.{digits}f}"
    return shown.replace("-", "\N{MINUS SIGN}")


def short_id(env: str) -> str:
    """``Sokoban-easy`` for ``tstar/Sokoban-easy``."""
    return env.removeprefix("tstar/")


@dataclass(frozen=True)
class Evaluation:
    """What one file says.

    Attributes:
        path: of the file, as it was found.
        recorded: what it was played on, and the outcome of each task.
        settings: ``FILE.config.json``, empty where there is none.
        model: behind the agent, "" if there is none.
        panel: name and hash of the panel that its tasks are of, "" if of none.
        summary: the figures.
        accounts: what it cost.
        parts: success and scores of the kinds of tasks that the paper's tables have.
        progress: how far each episode came, and whether it solved its task, where that was measured.
        played: ids of the tasks, also of those whose episodes ended in errors alone.
    """

    path: Path
    recorded: Recorded
    settings: dict[str, Any]
    model: str
    panel: str
    summary: Summary
    accounts: CostSummary
    parts: dict[str, Part]
    progress: list[tuple[float, bool]]
    played: frozenset[str]

    @property
    def env(self) -> str:
        """The Gymnasium id."""
        return self.recorded.played_on["env"]

    @property
    def max_tokens(self) -> int | None:
        """The bound on an answer of its model, None where none was recorded."""
        chosen = self.settings.get("agent_settings")
        bound = chosen.get("max_tokens") if isinstance(chosen, dict) else None
        return bound if type(bound) is int else None

    @property
    def options(self) -> dict[str, Any]:
        """The options of the environment; empty also where they were not recorded."""
        return self.recorded.options or {}


def find_evaluations(given: Sequence[Path]) -> tuple[list[Path], int]:
    """The files that were meant: those given, and for a folder those below it that ``eval --out`` wrote.

    Returns:
        The files, each once, in the order given, and how many other ``.jsonl`` files of folders were passed over.

    Raises:
        MissingData: there is nothing of that name.
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
    """The figures of one file, None where it holds no episode yet.

    Raises:
        BadData: it is no file of episodes, or one of several evaluations, or its settings cannot be read.
    """
    episodes: list[Episode] = []
    recorded = collect(path, _kept(read_episodes(path), episodes))
    if not episodes:
        return None
    played = list(latest(episodes).values())
    del episodes
    panels = {episode.panel for episode in played}
    if len(panels) > 1:
        raise BadData(
            f"{path} mixes episodes of panels {', '.join(map(repr, sorted(panels)))}: give one file for each"
        )
    settings = settings_of(path) or {}
    model = _model(settings)
    good = [episode for episode in played if episode.ended != "error"]
    return Evaluation(
        path=path,
        recorded=recorded,
        settings=settings,
        model=model,
        panel=panels.pop(),
        summary=summarise(played),
        accounts=account(played, prices, model or None),
        parts=parts(good),
        progress=[
            (float(e.extra["progress"]), e.success)
            for e in good
            if isinstance(e.extra.get("progress"), int | float)
        ],
        played=frozenset(episode.task for episode in played),
    )


def _kept(episodes: Iterable[Episode], kept: list[Episode]) -> Iterator[Episode]:
    for episode in episodes:
        kept.append(episode)
        yield episode


def _model(settings: dict[str, Any]) -> str:
    chosen = settings.get("agent_settings")
    model = chosen.get("model", "") if isinstance(chosen, dict) else ""
    return model if isinstance(model, str) else ""
