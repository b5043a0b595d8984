"""The paper's tables: which figure of which environment stands in which column, for the evaluations that there are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tstar_envs.bench.report.published import INTERACTIVE, PLANNING, QUESTIONS, PublishedRow
from tstar_envs.bench.stats import summarise
from tstar_envs.record import Episode
from tstar_envs.registry import find_entry

TYPES = ("pick", "look", "clean", "heat", "cool", "pick2")
# ALFRED's names, as ``info["task_type"]`` and the record have them.
_NAMES = {
    "pick_and_place_simple": "pick",
    "look_at_obj_in_light": "look",
    "pick_clean_then_place_in_recep": "clean",
    "pick_heat_then_place_in_recep": "heat",
    "pick_cool_then_place_in_recep": "cool",
    "pick_two_obj_and_place": "pick2",
}
# ALFWorld's own sentences, for records from before they held the type; in this order, for "put a" begins several.
_SENTENCES = {
    "pick2": r"(?:put|find) two ",
    "look": r"(?:look at|examine) ",
    "clean": r"(?:clean some|put a clean) ",
    "heat": r"(?:heat some|put a hot) ",
    "cool": r"(?:cool some|put a cool) ",
    "pick": r"put (?:a|an|some) ",
}
SINGLE, MULTI = ("NQ", "TriviaQA", "PopQA"), ("HotpotQA", "2WikiMultihopQA", "MuSiQue", "Bamboogle")


@dataclass(frozen=True)
class Part:
    """A figure of a number of episodes, as a share of 1; ``bounds`` is its 95 % interval where it is a proportion."""

    value: float
    episodes: int
    bounds: tuple[float, float] | None = None


@dataclass(frozen=True)
class Column:
    """One column: its heading, the environments whose file it is read from, and the part of it; an average has ``of`` others."""

    heading: str
    envs: tuple[str, ...]
    part: str = ""
    of: tuple[int, ...] = ()


@dataclass(frozen=True)
class PaperTable:
    """One of the paper's tables.

    Attributes:
        name: for its address in the page.
        caption: what it shows.
        groups: heading over a number of columns, and how many.
        columns: in the paper's order.
        published: the paper's own rows.
    """

    name: str
    caption: str
    groups: tuple[tuple[str, int], ...]
    columns: tuple[Column, ...]
    published: tuple[PublishedRow, ...]


def _alfworld(kind: str) -> Column:
    return Column(kind.capitalize(), (f"tstar/ALFWorld-{kind}", "tstar/ALFWorld"), kind)


def _whole(heading: str, env: str) -> Column:
    return Column(heading, (env,), find_entry(env).metric)


def _questions(name: str) -> Column:
    return _whole(name, f"tstar/{name}")


TABLES = (
    PaperTable(
        "interactive",
        "Interactive and embodied tasks, in %: ALFWorld's success by type of task; WebShop's score and success",
        (("ALFWorld", 7), ("WebShop", 2)),
        (
            *map(_alfworld, TYPES),
            _whole("All", "tstar/ALFWorld"),
            _whole("Score", "tstar/WebShop"),
            Column("Succ.", ("tstar/WebShop",), "success"),
        ),
        INTERACTIVE,
    ),
    PaperTable(
        "questions",
        "Questions with a search engine, exact match in %",
        (("Single-hop", 4), ("Multi-hop", 4), ("", 1)),
        (
            *map(_questions, SINGLE),
            Column("Avg.", (), of=(0, 1, 2)),
            *map(_questions, MULTI),
            Column("Avg. of 7", (), of=(0, 1, 2, 4, 5, 6, 7)),
        ),
        QUESTIONS,
    ),
    PaperTable(
        "planning",
        "Logical planning, success in %",
        (("Sokoban", 3), ("Blocksworld", 2)),
        (
            *(_whole(tier.capitalize(), f"tstar/Sokoban-{tier}") for tier in ("easy", "medium", "hard")),
            *(_whole(way.capitalize(), f"tstar/Blocksworld-{way}") for way in ("stack", "unstack")),
        ),
        PLANNING,
    ),
)


_MATCHED = {env for table in TABLES for column in table.columns if column.part == "EM" for env in column.envs}


def parts(episodes: Sequence[Episode]) -> dict[str, Part]:
    """The figures of the paper's columns: ``success``, ``score``, ``EM`` where it was measured, and of ALFWorld's types their success.

    Args:
        episodes: of one environment, those that have a result.
    """
    if not episodes:
        return {}
    found = {"success": _success(episodes), "score": _mean([e.reward for e in episodes])}
    matches = [float(e.extra["em"]) for e in episodes if isinstance(e.extra.get("em"), int | float)]
    if matches or episodes[0].env in _MATCHED:  # an agent that never answered has a result too, which is 0
        matches += [0.0] * (len(episodes) - len(matches))  # an episode that never answered matches nothing
        alike = all(e.extra.get("em", 0.0) == e.success for e in episodes)
        found["EM"] = found["success"] if alike else _mean(matches)
    if episodes[0].env.startswith("tstar/ALFWorld"):
        by_type: dict[str, list[Episode]] = {}
        for episode in episodes:
            by_type.setdefault(household_type(episode), []).append(episode)
        found |= {kind: _success(by_type[kind]) for kind in TYPES if kind in by_type}
    return found


def household_type(episode: Episode) -> str:
    """Which of ALFWorld's six types of task an episode is: as its record says, else as its task is worded; "" if neither shows it."""
    message = _NAMES.get(str(episode.extra.get("task_type", "")), "")
    task = episode.instruction.removeprefix("Your task is to: ")
    return message or next((kind for kind, words in _SENTENCES.items() if re.match(words, task)), "")


def row(table: PaperTable, found: Mapping[str, Mapping[str, Part]]) -> list[Part | None]:
    """An agent's row.

    Args:
        table: which.
        found: environment -> its parts, for the environments that the agent has played.
    """
    cells: list[Part | None] = []
    for column in table.columns:
        if not column.of:
            seen = [found[env][column.part] for env in column.envs if column.part in found.get(env, {})]
            cells.append(seen[0] if seen else None)
            continue
        those = [cells[place] for place in column.of]
        known = [part for part in those if part is not None]
        complete = len(known) == len(those)
        cells.append(
            Part(sum(p.value for p in known) / len(known), sum(p.episodes for p in known))
            if complete
            else None
        )
    return cells


def _success(episodes: Sequence[Episode]) -> Part:
    summary = summarise(episodes)
    return Part(summary.success or 0.0, summary.episodes, summary.clustered or summary.wilson)


def _mean(values: Sequence[float]) -> Part:
    return Part(sum(values) / len(values), len(values))
