"""Replay of recorded episodes, to find where rules or scores differ."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import count, islice
from typing import Any, NamedTuple

from tstar_envs.core import TextEnv
from tstar_envs.errors import BadData, EnvironmentFailed, TStarError
from tstar_envs.foreign import StepResult, raised
from tstar_envs.record import Episode, Step
from tstar_envs.registry import EnvEntry
from tstar_envs.rollout import GroupEnv, new_episode, play_group

EPISODE_GOES_ON = "goes on"
_COMPARED = tuple(f.name for f in fields(Step) if f.compare and f.name != "reply")


class Change(NamedTuple):
    """Difference between a recorded and a new value.

    Attributes:
        what: name of the field in a record; ``ended`` is "goes on" if the episode continues.
        old: recorded value.
        new: new value.
    """

    what: str
    old: Any
    new: Any


class Recording(NamedTuple):
    """Replies to replay: of an episode's result, or of an earlier attempt within it (Reflexion).

    Attributes:
        line: line of the file, from 1.
        attempt: number of the attempt, from 0; the result is the last.
        episode: recorded episode.
    """

    line: int
    attempt: int
    episode: Episode


@dataclass
class Replayed:
    """Result of replaying a recording.

    Attributes:
        recording: recording that was replayed.
        steps: number of replies played.
        step: step of the first difference (0 is the reset, n the nth reply); None if there is none.
        changes: differences at that step.
        over: True if the episode is over afterwards.
        failed: error that stopped the replay early, "" if there was none or a difference came first.
    """

    recording: Recording
    steps: int = 0
    step: int | None = None
    changes: list[Change] = field(default_factory=list)
    over: bool = False
    failed: str = ""

    def note(self, changes: Sequence[Change]) -> None:
        """Record the differences after the last reply, if they are the first."""
        if changes and self.step is None:
            self.step, self.changes = self.steps, list(changes)


def recordings(episodes: Iterable[Episode], lines: Iterable[int] | None = None) -> Iterator[Recording]:
    """Iterate over all recordings of a file's episodes, in order.

    Args:
        episodes: episodes of the file.
        lines: line of each in the file; None for 1, 2, 3, ...

    Raises:
        BadData: an earlier attempt is damaged.
    """
    for line, episode in zip(count(1) if lines is None else lines, episodes, strict=False):
        for number, facts in enumerate(episode.attempts):
            try:
                kept = {name: facts[name] for name in ("reward", "success", "ended")}
                attempt = replace(
                    episode, steps=[Step(**step) for step in facts["steps"]], extra={}, attempts=[], **kept
                )
            except (KeyError, TypeError) as error:
                raise BadData(f"line {line}: attempt {number + 1} is damaged: {error}") from error
            yield Recording(line, number, attempt)
        yield Recording(line, len(episode.attempts), episode)


def replay(
    envs: Sequence[TextEnv[Any, Any]], entry: EnvEntry, wanted: Iterable[Recording]
) -> Iterator[Replayed]:
    """Replay recordings in lockstep, one per environment.

    Args:
        envs: environments of one id, made with the options of the recordings.
    """
    recorded = iter(wanted)
    while group := list(islice(recorded, len(envs))):
        yield from _side_by_side(envs, entry, group)


def _side_by_side(
    envs: Sequence[TextEnv[Any, Any]], entry: EnvEntry, wanted: Sequence[Recording]
) -> list[Replayed]:
    try:
        return _play(GroupEnv(envs[: len(wanted)], [r.episode.task for r in wanted], 1), entry, wanted)
    except Exception as error:  # noqa: BLE001 - a missing task or a fault in the rules fails one recording, not the file
        if len(wanted) == 1:
            message = (
                error
                if isinstance(error, TStarError)
                else EnvironmentFailed(raised("the environment", error))
            )
            return [Replayed(wanted[0], failed=f"{type(message).__name__}: {message}")]
        return [result for one in wanted for result in _side_by_side(envs, entry, [one])]


def _play(group: GroupEnv, entry: EnvEntry, wanted: Sequence[Recording]) -> list[Replayed]:
    results = [Replayed(recording) for recording in wanted]
    again = []
    for result, env, observation, info in zip(results, group.envs, *group.reset(), strict=True):
        old = result.recording.episode
        new = new_episode(env, entry, old.agent, old.task, sample=old.sample)
        new.begin(observation, info)
        again.append(new)
        result.note(
            _differing(old, new, ("split", "instruction", "first_observation")) + _differing_figures(old, new)
        )
    play_group(group, again, _Replies(results, again))
    for result, new in zip(results, again, strict=True):
        if result.step is None and new.error:
            result.failed = new.error
        elif not result.over and _was_over(result.recording.episode):
            result.note([Change("ended", result.recording.episode.ended, EPISODE_GOES_ON)])
    return results


class _Replies:
    """Player that repeats recorded replies and compares the results.

    Args:
        results: result per row, updated in place.
        again: new episodes.
    """

    def __init__(self, results: Sequence[Replayed], again: Sequence[Episode]) -> None:
        self._results, self._again = results, again

    def replies(self, rows: Sequence[int]) -> Mapping[int, str]:
        """Return the next recorded reply of each row that has one and has not differed so far."""
        said = {}
        for row in rows:
            result = self._results[row]
            steps = result.recording.episode.steps
            if result.step is None and result.steps < len(steps):
                said[row] = steps[result.steps].reply
        return said

    def played(self, row: int, result: StepResult) -> None:
        """Compare the last step with the recorded one."""
        replayed, new = self._results[row], self._again[row]
        old = replayed.recording.episode
        changes = _differing(old.steps[replayed.steps], new.steps[-1], _COMPARED)
        replayed.steps, replayed.over = replayed.steps + 1, result.over
        if result.over:
            last = replayed.steps == len(old.steps)
            if last and _was_over(old):
                changes += _differing(old, new, ("ended", "reward", "success")) + _differing_figures(old, new)
            elif not (last and old.ended == "error"):
                # The record of an episode that ended in an error does not say whether its last step was terminal.
                changes.append(Change("ended", EPISODE_GOES_ON, new.ended))
        replayed.note(changes)


def _was_over(old: Episode) -> bool:
    """Check whether the environment ended the episode, not an error or a full model context."""
    return old.ended != "error" and not old.extra.get("overlong")


def _differing(old: Episode | Step, new: Episode | Step, names: Sequence[str]) -> list[Change]:
    pairs = [(name, getattr(old, name), getattr(new, name)) for name in names]
    return [Change(*pair) for pair in pairs if not _same(*pair[1:])]


def _differing_figures(old: Episode, new: Episode) -> list[Change]:
    """Compare the family's figures (kind, em, f1, ...) that both have."""
    both = [(name, old.extra[name], value) for name, value in new.extra.items() if name in old.extra]
    return [Change(*figure) for figure in both if not _same(*figure[1:])]


def _same(old: Any, new: Any) -> bool:
    # Sums of fractions may differ in the last digits on another machine.
    if isinstance(old, float) or isinstance(new, float):
        return (
            isinstance(old, float | int)
            and isinstance(new, float | int)
            and math.isclose(old, new, rel_tol=1e-9, abs_tol=1e-12)
        )
    return bool(old == new)
