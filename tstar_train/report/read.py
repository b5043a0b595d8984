"""Reader of run folders for the report."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tstar_envs import BadData, Episode, MissingData, read_episodes

T = TypeVar("T")
MOST_TEXT = 4_000


def clipped(text: str, most: int = MOST_TEXT) -> str:
    """Truncate text to at most `most` characters, noting how many are left out."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most} more characters)"


def evenly(items: Sequence[T], most: int) -> list[T]:
    """Choose at most `most` items: the first, the last, and evenly spaced ones between them."""
    if len(items) <= most:
        return list(items)
    return [items[round(k * (len(items) - 1) / (most - 1))] for k in range(most)]


class Budget:
    """Limit on the total size of the page's data, in characters."""

    def __init__(self, characters: int) -> None:
        self._left = characters

    def take(self, data: Any) -> bool:
        """Check whether `data` fits; if so, spend its size."""
        size = len(json.dumps(data))
        if size > self._left:
            return False
        self._left -= size
        return True


Record = dict[str, Any]


def parts_by_env(record: Record) -> dict[str, Record]:
    """Return the figures of each environment in a record; empty if the run has one environment."""
    parts = record.get("by_env")
    return {
        str(env): part
        for env, part in (parts if isinstance(parts, dict) else {}).items()
        if isinstance(part, dict)
    }


ADVICE = "restore the file, or remove it to get a report without it"


@dataclass(frozen=True)
class Run:
    """Files of a run; tree files are only listed, since few are read.

    Attributes:
        folder: folder of the run.
        config: all options, None if the file does not exist yet.
        metrics: one record per iteration.
        timings: one record per iteration.
        validation: one record per validation; empty if the run does not validate.
        evaluation: results before and, at the end, after training.
        summary: summary of a finished run.
        episodes: sample of the training episodes.
        trees: tree files by iteration.
    """

    folder: Path
    config: Record | None
    metrics: list[Record]
    timings: list[Record]
    validation: list[Record]
    evaluation: Record | None
    summary: Record | None
    episodes: list[Episode]
    trees: dict[int, Path]

    @property
    def missing(self) -> list[str]:
        """Names of the files that are missing or empty."""
        found = {
            "config.json": self.config,
            "metrics.jsonl": self.metrics,
            "timings.jsonl": self.timings,
            "evaluation.json": self.evaluation,
            "summary.json": self.summary,
            "episodes.jsonl": self.episodes,
            "trees/": self.trees,
        }
        return [name for name, content in found.items() if not content]


def read_run(folder: Path) -> Run:
    """Read the files that exist.

    Raises:
        MissingData: `folder` is not a folder.
        BadData: a file is damaged.
    """
    if not folder.is_dir():
        raise MissingData(
            f"{folder} is not a folder: give the folder that a run wrote (it holds config.json and metrics.jsonl)"
        )
    return Run(
        folder=folder,
        config=read_object(folder / "config.json"),
        metrics=read_lines(folder / "metrics.jsonl"),
        timings=read_lines(folder / "timings.jsonl"),
        validation=read_lines(folder / "validation.jsonl"),
        evaluation=read_object(folder / "evaluation.json"),
        summary=read_object(folder / "summary.json"),
        episodes=list(read_episodes(folder / "episodes.jsonl")) if _there(folder / "episodes.jsonl") else [],
        trees=_tree_files(folder / "trees"),
    )


def dropped(run: Run) -> list[tuple[str, int]]:
    """Count the reasons for dropped thoughts over the whole run, most frequent first."""
    total: dict[str, int] = {}
    for record in run.metrics:
        reasons = record.get("grafts_dropped")
        for reason, count in reasons.items() if isinstance(reasons, dict) else ():
            total[str(reason)] = total.get(str(reason), 0) + int(number(count) or 0)
    return sorted(total.items(), key=lambda item: (-item[1], item[0]))


def read_object(path: Path) -> Record | None:
    """Read a JSON file with one object; None if it is missing.

    Raises:
        BadData: the file has other content.
    """
    if not _there(path):
        return None
    record = _parse(path.read_bytes(), f"{path}")
    if not isinstance(record, dict):
        raise BadData(f"{path}, line 1: a JSON object is expected, not {type(record).__name__}: {ADVICE}")
    return record


def read_lines(path: Path) -> list[Record]:
    """Read one object with an `iteration` per line; skip an unfinished last line of a running or killed writer.

    Raises:
        BadData: another line is damaged.
    """
    if not _there(path):
        return []
    *lines, _unfinished = path.read_bytes().split(b"\n")
    records = []
    for number, line in enumerate(lines, start=1):
        record = _parse(line, f"{path}, line {number}", with_line=False)
        if not isinstance(record, dict) or type(record.get("iteration")) is not int:
            raise BadData(
                f"{path}, line {number}: an object with a whole number 'iteration' is expected: {ADVICE}"
            )
        records.append(record)
    return records


def checked(where: str, make: Callable[[], T]) -> T:
    """Call `make` and convert an error about a field to one that names the file.

    Raises:
        BadData: a field is missing or of the wrong kind.
    """
    try:
        return make()
    except KeyError as error:
        raise BadData(f"{where}: no field {error}: {ADVICE}") from error
    except (TypeError, ValueError, IndexError, AttributeError) as error:
        raise BadData(f"{where}: not as expected ({error}): {ADVICE}") from error


def number(value: object) -> float | None:
    """Return a finite number, or None for anything else (absent, NaN, infinite, text)."""
    try:
        return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None
    except OverflowError:  # an integer too large for a float
        return None


def _parse(content: bytes, where: str, *, with_line: bool = True) -> Any:
    try:
        return json.loads(content)
    except json.JSONDecodeError as error:
        line = f", line {error.lineno}" if with_line else ""
        raise BadData(f"{where}{line}: not JSON ({error.msg}, column {error.colno}): {ADVICE}") from error
    except (ValueError, RecursionError) as error:  # not UTF-8, an endless number, brackets without end
        line = ", line 1" if with_line else ""
        raise BadData(f"{where}{line}: not JSON text ({error}): {ADVICE}") from error


def _there(path: Path) -> bool:
    """Check whether a regular file exists; reading a pipe or device might never end.

    Raises:
        BadData: the path exists and is not a regular file.
    """
    if path.exists() and not path.is_file():
        raise BadData(f"{path}, line 1: not a regular file: {ADVICE}")
    return path.exists()


def _tree_files(folder: Path) -> dict[int, Path]:
    return {int(path.stem): path for path in sorted(folder.glob("*.json")) if path.stem.isdecimal()}
