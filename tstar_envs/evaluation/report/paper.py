"""The paper's tables: columns, published figures, and rows of new evaluations."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tstar_envs.evaluation.stats import Figures, figures_of, success_bounds
from tstar_envs.record import Episode
from tstar_envs.registry import find_entry

SOURCE = (
    "Y. Li, S. Tang, T. Lan: Reason in Chains, Learn in Trees: Self-Rectification and Grafting for Multi-turn Agent "
    "Policy Optimization"
)


class PublishedRow(NamedTuple):
    """One published row: the model or group above it, the method, and its figures as printed."""

    group: str
    method: str
    figures: tuple[str, ...]


def _rows(table: str) -> tuple[PublishedRow, ...]:
    found, group = [], ""
    for line in table.strip().splitlines():
        method, colon, figures = line.partition(": ")
        if colon:
            found.append(PublishedRow(group, method, tuple(figures.split())))
        else:
            group = line
    return tuple(found)


_INTERACTIVE_TASKS = """
Closed models
GPT-4o: 86.8 74.4 79.1 90.9 93.6 83.1 84.6 84.2 61.7
Gemini-1.5-Pro: 81.6 68.1 72.9 84.8 88.6 77.7 79.0 79.3 54.7
Qwen2.5-3B-Instruct
ReAct: 48.2 40.9 44.8 51.7 55.4 38.6 46.6 50.7 25.3
Reflexion: 61.2 49.6 55.9 65.2 68.4 45.6 57.7 58.8 32.3
GRPO: 81.1 69.9 75.7 84.7 88.1 73.4 78.8 64.2 36.2
GRPO + T-STAR: 82.4 75.1 77.8 86.7 89.2 78.9 81.7 68.2 39.6
DAPO: 84.3 73.4 79.1 87.1 91.1 76.7 82.0 67.8 39.1
DAPO + T-STAR: 86.7 77.2 82.8 89.1 92.6 81.9 85.0 71.7 42.4
GiGPO: 90.1 78.9 85.6 92.1 95.2 83.8 87.6 73.1 41.6
GiGPO + T-STAR: 91.1 83.2 87.8 94.1 96.3 87.9 90.1 76.3 45.1
Phi-4-mini-instruct-3.8B
ReAct: 46.2 39.2 42.3 49.6 53.2 37.3 44.6 49.8 23.8
Reflexion: 58.6 47.1 54.2 62.1 66.2 42.9 55.2 56.4 30.7
GRPO: 79.7 67.3 73.3 82.9 86.8 70.8 76.8 62.3 34.1
GRPO + T-STAR: 81.3 73.2 76.8 84.4 88.1 76.8 80.1 65.2 38.3
DAPO: 82.6 71.9 77.9 85.9 89.9 75.7 80.7 66.1 37.4
DAPO + T-STAR: 85.9 75.6 81.9 87.8 91.2 80.6 83.8 69.2 41.1
GiGPO: 88.7 77.3 84.2 90.6 94.2 82.1 86.2 71.3 41.1
GiGPO + T-STAR: 90.1 81.7 87.3 92.7 95.7 86.8 89.0 74.2 44.3
"""
_REASONING_QA = """
Closed models
GPT-4o: 59.5 73.0 61.5 64.7 54.0 50.5 47.0 44.5 55.8
Gemini-1.5-Pro: 56.0 69.5 57.5 61.0 50.0 46.5 43.0 40.5 52.0
Qwen2.5-3B-Instruct
Direct: 23.5 36.0 25.0 28.2 19.0 16.5 13.0 11.5 21.2
ReAct: 29.0 43.5 30.5 34.3 26.0 22.5 19.5 17.5 26.7
Search-o1: 32.5 46.5 33.5 37.5 28.5 25.5 21.5 19.5 29.6
GRPO: 41.0 54.5 41.5 45.7 36.5 32.0 28.0 25.5 37.1
GRPO + T-STAR: 43.5 56.0 43.5 47.7 40.5 35.5 30.5 28.0 39.7
DAPO: 43.0 56.5 43.0 47.5 38.5 34.5 30.0 27.5 39.1
DAPO + T-STAR: 45.5 58.0 45.0 49.5 42.0 38.0 33.0 30.5 41.8
GiGPO: 45.0 58.5 44.5 49.3 41.0 37.0 32.5 30.0 41.1
GiGPO + T-STAR: 47.0 60.5 46.5 51.3 45.0 41.5 35.5 33.0 44.1
Phi-4-mini-instruct-3.8B
Direct: 25.5 38.5 27.5 30.5 20.5 17.5 14.0 12.0 22.4
ReAct: 31.5 46.0 33.0 36.8 27.5 24.0 21.0 19.0 28.6
Search-o1: 35.0 49.0 36.0 40.0 30.0 27.0 23.0 21.0 31.5
GRPO: 43.5 57.5 44.0 48.3 38.5 34.0 30.0 27.5 39.4
GRPO + T-STAR: 46.0 59.0 46.0 50.3 42.5 37.5 33.0 30.0 42.0
DAPO: 45.5 59.5 46.0 50.3 40.5 36.5 32.0 29.5 41.2
DAPO + T-STAR: 48.0 61.0 48.0 52.3 44.5 40.0 35.0 32.5 44.0
GiGPO: 47.5 61.5 47.5 52.2 43.5 39.0 34.5 32.0 43.6
GiGPO + T-STAR: 49.5 63.5 49.5 54.2 48.0 43.5 37.5 35.0 46.6
"""
_LOGICAL_PLANNING = """
Closed models
GPT-4o: 78.3 45.4 17.4 84.6 89.8
Gemini-1.5-Pro: 72.7 40.4 14.4 79.7 85.4
Qwen2.5-3B-Instruct
PPO: 16.9 4.7 0.7 24.1 32.4
GRPO: 37.4 13.6 2.2 47.1 54.4
GRPO + T-STAR: 44.7 20.6 6.7 55.7 62.9
DAPO: 42.6 18.4 3.9 52.3 58.9
DAPO + T-STAR: 49.4 25.9 8.3 61.4 67.7
GiGPO: 47.2 22.8 6.2 58.3 64.8
GiGPO + T-STAR: 54.4 29.6 11.2 67.1 73.4
Phi-4-mini-instruct-3.8B
PPO: 18.7 5.2 0.4 25.9 33.9
GRPO: 39.4 14.8 3.3 48.8 56.1
GRPO + T-STAR: 46.9 22.4 6.7 58.4 64.7
DAPO: 43.6 19.1 4.2 53.9 59.8
DAPO + T-STAR: 51.8 27.4 9.4 63.4 70.3
GiGPO: 48.6 23.8 7.3 59.6 66.8
GiGPO + T-STAR: 56.1 32.4 12.6 69.8 76.4
"""
# Columns: Pick, Look, Clean, Heat, Cool, Pick2, All of ALFWorld; score and success of WebShop.
INTERACTIVE = _rows(_INTERACTIVE_TASKS)
# Columns: NQ, TriviaQA, PopQA, their average; HotpotQA, 2WikiMultihopQA, MuSiQue, Bamboogle; average.
QUESTIONS = _rows(_REASONING_QA)
# Columns: easy, medium, hard of Sokoban; stack, unstack of Blocksworld.
PLANNING = _rows(_LOGICAL_PLANNING)


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
# ALFWorld's goal sentences, for records without the task type. The order matters: several begin with "put a".
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
    """Figure of a number of episodes, in [0, 1], with ``bounds`` (95 %) of a proportion."""

    value: float
    episodes: int
    bounds: tuple[float, float] | None = None


@dataclass(frozen=True)
class Column:
    """One column: heading, source environments, and part of their results; averages have ``of``."""

    heading: str
    envs: tuple[str, ...]
    part: str = ""
    of: tuple[int, ...] = ()


@dataclass(frozen=True)
class PaperTable:
    """One of the paper's tables.

    Attributes:
        name: anchor in the page.
        caption: caption of the table.
        groups: headings over several columns, with their widths.
        columns: columns in the paper's order.
        published: the paper's rows.
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


def parts(episodes: Sequence[Episode | Figures]) -> dict[str, Part]:
    """Compute the figures of the paper's columns: ``success``, ``score``, ``EM`` if measured, and success per ALFWorld type.

    Args:
        episodes: episodes of one environment that have a result.
    """
    those = figures_of(episodes)
    if not those:
        return {}
    found = {"success": _success(those), "score": _mean([e.reward for e in those])}
    matches = [value for e in those if (value := e.extra.get("em")) is not None]
    if matches or those[0].env in _MATCHED:  # an agent that never answered has a result too: 0
        matches += [0.0] * (len(those) - len(matches))  # an episode without an answer matches nothing
        alike = all(e.extra.get("em", 0.0) == e.success for e in those)
        found["EM"] = found["success"] if alike else _mean(matches)
    if those[0].env.startswith("tstar/ALFWorld"):
        by_type: dict[str, list[Figures]] = {}
        for one in those:
            by_type.setdefault(_type_of(one.kind, one.instruction), []).append(one)
        found |= {kind: _success(by_type[kind]) for kind in TYPES if kind in by_type}
    return found


def household_type(episode: Episode) -> str:
    """Determine the ALFWorld task type of an episode, from record or goal; "" if unknown."""
    return _type_of(str(episode.extra.get("task_type", "")), episode.instruction)


def _type_of(recorded: str, instruction: str) -> str:
    task = instruction.removeprefix("Your task is to: ")
    return _NAMES.get(recorded, "") or next(
        (kind for kind, words in _SENTENCES.items() if re.match(words, task)), ""
    )


def row(table: PaperTable, found: Mapping[str, Mapping[str, Part]]) -> list[Part | None]:
    """Build an agent's row.

    Args:
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


def _success(episodes: Sequence[Figures]) -> Part:
    solved = sum(episode.success for episode in episodes)
    return Part(solved / len(episodes), len(episodes), success_bounds(episodes))


def _mean(values: Sequence[float]) -> Part:
    return Part(sum(values) / len(values), len(values))
