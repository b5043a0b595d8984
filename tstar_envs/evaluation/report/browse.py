"""Episodes shown step by step on the page, within a size limit."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tstar_envs.agents.base import ACT, KINDS, failure_of
from tstar_envs.errors import BadData
from tstar_envs.evaluation.log import SAME
from tstar_envs.evaluation.report.boards import Board, BoardEntry
from tstar_envs.evaluation.report.loading import clean, short_id
from tstar_envs.record import Episode
from tstar_envs.record_files import episode_at
from tstar_envs.utils import script_json

MOST_DATA = 8_000_000  # characters of all episodes together
MOST_STEPS = 200  # per attempt
_NOTHING = -1


@dataclass
class Browsable:
    """Data for the page's script.

    Attributes:
        data: ``texts``, ``agents`` and ``settings`` (environments, with their tasks and episodes); texts are referenced by index.
        kept: number of episodes in it.
        episodes: number of episodes in all files.
        over: chosen episodes that were dropped because of the size limit.
    """

    data: dict[str, Any]
    kept: int = 0
    episodes: int = 0
    over: int = 0


class _Texts:
    """Deduplicated texts by index. Additions can be rolled back."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}
        self.size = 0

    def add(self, text: str) -> int:
        shown = clean(text)
        if shown not in self.places:
            self.places[shown] = len(self.places)
            self.size += 1 + len(script_json(shown))
        return self.places[shown]

    def forget(self, count: int, size: int) -> None:
        while len(self.places) > count:
            self.places.popitem()
        self.size = size


def browsable(boards: Sequence[Board], episodes: int, most: int = MOST_DATA) -> Browsable:
    """Choose and read the episodes.

    Tasks that more of an environment's agents have come first, then those with different outcomes. The choice is the same for all agents,
    for side-by-side comparison.

    Args:
        episodes: maximum per file.
        most: maximum number of characters in total.

    Raises:
        BadData: a file has changed since it was read.
    """
    texts, settings = _Texts(), list[dict[str, Any]]()
    names = list(dict.fromkeys(player.name for board in boards for player in board.players))
    found = Browsable({})
    players = [player for board in boards for player in board.players]
    left = len(players)
    spent = 0
    for title, those in _settings(players).items():
        ranks = {task: rank for rank, task in enumerate(_ranked(those))}
        tasks: dict[str, list[dict[str, Any]]] = {}
        for player in those:
            bound, left = spent + (most - spent) // left, left - 1
            found.episodes += player.evaluation.summary.episodes + player.evaluation.summary.errors
            for episode in _chosen(player, ranks, episodes):
                before = len(texts.places), texts.size
                record = _episode(episode, names.index(player.name), texts)
                size = spent + texts.size - before[1] + _length(record)
                if size > bound:
                    texts.forget(*before)
                    found.over += 1
                    continue
                spent = size
                tasks.setdefault(episode.task, []).append(record)
                found.kept += 1
        if tasks:
            ordered = sorted(
                tasks.items(), key=lambda item: (-len({e["agent"] for e in item[1]}), ranks[item[0]])
            )
            settings.append(
                {
                    "name": title,
                    "tasks": [{"name": clean(task, 200), "episodes": those} for task, those in ordered],
                }
            )
    found.data = {"texts": list(texts.places), "agents": names, "settings": settings}
    return found


def _settings(players: Iterable[BoardEntry]) -> dict[str, list[BoardEntry]]:
    """Group agents by what they played; the key is the short id, plus any differences."""
    by_facts: dict[tuple[str, ...], list[BoardEntry]] = {}
    for player in players:
        by_facts.setdefault(tuple(player.evaluation.recorded.played_on[name] for name in SAME), []).append(
            player
        )
    environments = [facts[0] for facts in by_facts]
    return {
        clean(
            short_id(facts[0])
            if environments.count(facts[0]) == 1
            else f"{short_id(facts[0])}, {', '.join(facts[1:])}",
            200,
        ): those
        for facts, those in by_facts.items()
    }


def _ranked(players: Sequence[BoardEntry]) -> list[str]:
    """Rank all tasks by interest; ties are broken by a fixed random order."""
    outcomes: dict[str, list[float]] = {}
    for player in players:
        for task in player.evaluation.played:
            those = player.evaluation.recorded.tasks.get(task, ())
            outcomes.setdefault(task, []).append(sum(o.success for o in those) / len(those) if those else 0.0)

    def order(task: str) -> tuple[int, bool, bytes]:
        chance = hashlib.blake2b(task.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return -len(outcomes[task]), len(set(outcomes[task])) == 1, chance

    return sorted(outcomes, key=order)


def _chosen(player: BoardEntry, ranks: Mapping[str, int], most: int) -> Iterator[Episode]:
    """Read the first episodes of a file by the rank of their tasks."""
    evaluation = player.evaluation
    tasks = set(sorted(evaluation.played, key=ranks.__getitem__)[:most])
    keys = sorted(
        (key for key in evaluation.places if key[0] in tasks), key=lambda key: (ranks[key[0]], key[1])
    )
    for key in keys[:most]:
        episode = episode_at(evaluation.path, evaluation.places[key])
        if episode is None or (episode.task, episode.sample) != key:
            raise BadData(f"{evaluation.path} has changed while it was read: write the page again")
        yield episode


def _episode(episode: Episode, agent: int, texts: _Texts) -> dict[str, Any]:
    reflections = {
        c.get("attempt", 0): str(c.get("text", "")) for c in episode.calls if c.get("purpose") == "reflect"
    }
    attempts = []
    for number, attempt in enumerate(episode.attempts):
        said = reflections.get(number, str(attempt.get("reflection", "")))
        ended = "solved" if attempt.get("success") else "not solved"
        attempts.append(
            _attempt(
                _earlier(attempt),
                ended,
                str(attempt.get("ended", "")),
                attempt.get("reward"),
                "",
                said,
                (),
                texts,
            )
        )
    failure = failure_of(episode)
    outcome = "solved" if not failure else KINDS.get(failure, failure)
    notes = tuple(c for c in episode.calls if c.get("text") and c.get("purpose") not in (ACT, "reflect"))
    steps = [
        (s.thought, s.action, s.observation, s.action_valid, s.invalid_reason, s.modifies_state, s.reply)
        for s in episode.steps
    ]
    attempts.append(_attempt(steps, outcome, episode.ended, episode.reward, episode.error, "", notes, texts))
    return {
        "agent": agent,
        "sample": episode.sample,
        "task": texts.add(episode.instruction),
        "start": texts.add(episode.first_observation),
        "attempts": attempts,
    }


def _earlier(attempt: Mapping[str, Any]) -> Iterator[tuple[str, str, str, bool, str, bool, str]]:
    """Iterate over the steps of an earlier attempt, which the record holds verbatim."""
    steps = attempt.get("steps")
    for step in steps if isinstance(steps, list) else ():
        if isinstance(step, dict):
            thought, action, observation, reason, reply = (
                str(step.get(name, ""))
                for name in ("thought", "action", "observation", "invalid_reason", "reply")
            )
            yield (
                thought,
                action,
                observation,
                bool(step.get("action_valid")),
                reason,
                bool(step.get("modifies_state")),
                reply,
            )


def _attempt(
    steps: Iterable[tuple[str, str, str, bool, str, bool, str]],
    outcome: str,
    ended: str,
    reward: Any,
    error: str,
    reflection: str,
    calls: Sequence[Mapping[str, Any]],
    texts: _Texts,
) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    more = 0
    for number, (thought, action, observation, valid, reason, modifies, reply) in enumerate(steps):
        if number >= MOST_STEPS:
            more += 1
            continue
        row: dict[str, Any] = {"a": texts.add(action), "o": texts.add(observation)}
        notes = [texts.add(f"{c.get('purpose')}: {c['text']}") for c in calls if c.get("step") == number]
        extra = {
            "t": texts.add(thought) if thought else None,
            "x": None if valid else texts.add(reason or "not an action"),
            "m": 1 if modifies else None,
            "r": texts.add(reply) if _says_more(reply, thought, action) else None,
            "n": notes or None,
        }
        rows.append(row | {name: value for name, value in extra.items() if value is not None})
    return {
        "outcome": clean(outcome, 100),
        "ended": clean(ended, 100),
        "reward": float(reward) if isinstance(reward, int | float) and abs(reward) < float("inf") else None,
        "error": texts.add(error) if error else _NOTHING,
        "reflection": texts.add(reflection) if reflection else _NOTHING,
        "steps": rows,
        "more": more,
    }


def _says_more(reply: str, thought: str, action: str) -> bool:
    """Check whether a reply has text besides its thought and action."""
    if not action:
        return True
    return _words(reply) not in (
        _words(action),
        _words(f"{thought}{action}"),
        _words(f"Thought: {thought} Action: {action}"),
    )


def _words(text: str) -> str:
    return "".join(sign for sign in text.lower() if sign.isalnum())


def _length(record: Mapping[str, Any]) -> int:
    """Estimate the length in JSON of an episode's numbers."""
    return 120 + sum(150 + 60 * len(attempt["steps"]) for attempt in record["attempts"])
