"""Episode records: the one format that the benchmark writes, the trainer reads and the report shows."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, BinaryIO

from tstar_envs.data.files import parse_json, regular_file
from tstar_envs.errors import BadData, EnvironmentFailed, TStarError
from tstar_envs.foreign import as_bool, as_number, wrong
from tstar_envs.record_fields import (
    ATTEMPT,
    CALL,
    EPISODE,
    STEP,
    TEXT,
    check_record,
    extra_fault,
    fault,
)
from tstar_envs.redaction import redacted_parts

# 2 added failure, calls, attempts, panel and the seconds of a step; files of 1 stay readable.
SCHEMA_VERSION = 2
_BLOCK = 65_536  # bytes read at a time, from the end


@dataclass(slots=True)
class Step:
    """One turn: what the agent wrote, what was made of it, and what came back.

    Attributes:
        reply: the agent's text as it came.
        thought: its thought.
        action: canonical action, "" if it could not be read.
        observation: what the environment answered.
        action_valid: whether the action was one.
        invalid_reason: why not, "" if it was.
        modifies_state: whether the state changed, as executed.
        effect_key: canonical key of the change, "" if none.
        state_key: hash of the state after the step.
        seconds: how long the agent took for its reply; 0 where nobody took the time.
    """

    reply: str
    thought: str
    action: str
    observation: str
    action_valid: bool
    invalid_reason: str
    modifies_state: bool
    effect_key: str
    state_key: str
    seconds: float = field(default=0.0, compare=False)

    @classmethod
    def from_info(cls, reply: str, observation: str, info: dict[str, Any]) -> Step:
        """Make a step from what ``TextEnv.step`` returned.

        Raises:
            EnvironmentFailed: ``info`` lacks a field of a step, or holds something else there.
        """
        try:
            named = {name: info[name] for name in _OF_INFO}
        except KeyError as error:
            raise EnvironmentFailed(f"the environment's step must return info with {error}") from None
        if [type(value) for value in named.values()] != _TYPES_OF_INFO:
            for name in ("action_valid", "modifies_state"):
                named[name] = as_bool(named[name])
            if found := fault(named, STEP):
                raise wrong(
                    "step", f"must return info whose {found.name!r} is {found.must}", info[found.name]
                )
        return cls(reply=reply, observation=observation, **named)


@dataclass(slots=True)
class Episode:
    """One episode from reset to end.

    Attributes:
        env: Gymnasium id.
        tier: data tier (mini, full, path).
        task: task id.
        split: its split.
        rules_version: of the environment.
        agent: who played.
        instruction: the goal in words.
        first_observation: what reset returned.
        reward: terminal reward, in [0, 1].
        success: whether the task was solved.
        ended: ``terminated``, ``truncated`` or ``error`` (infrastructure; never counted as a failure of the agent).
        seed: seed of the agent's sampling, None if it has none.
        sample: number of the episode among those of the same task.
        error: what went wrong, if ``ended`` is ``error``.
        extra: further figures of the family (for example em and f1), and ``facts``.
        steps: the turns.
        failure: why the task was not solved, one of the kinds of ``tstar_envs.bench.failures``; "" where it was solved or no cause was
            recorded.
        panel: name and hash of the panel of tasks that the task was played as a part of, "" if of none.
        calls: what the agent asked of a model: purpose, step, tokens, seconds, tries (``tstar_envs.bench.usage.Call``).
        attempts: the agent's earlier attempts at this task within the episode (Reflexion): reward, success, ended, steps; what it said
            about them is among ``calls``.
        schema: version of this format.
    """

    env: str
    tier: str
    task: str
    split: str
    rules_version: str
    agent: str
    instruction: str
    first_observation: str
    reward: float = 0.0
    success: bool = False
    ended: str = "truncated"
    seed: int | None = None
    sample: int = 0
    error: str = ""
    extra: dict[str, Any] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    failure: str = ""
    panel: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    attempts: list[dict[str, Any]] = field(default_factory=list)
    schema: int = field(default=SCHEMA_VERSION, compare=False)

    @staticmethod
    def facts(info: Mapping[str, Any]) -> dict[str, Any]:
        """What ``extra`` keeps of the ``info`` of a reset: the kind of task (ALFWorld calls it ``task_type``), that ALFWorld was played
        in the words of old games (``commands``), the tagger that WebShop's score depends on, and how long a shortest solution is, where
        that is known.
        """
        return {
            name: info[name]
            for name in ("kind", "task_type", "commands", "tagger", "optimal_length")
            if info.get(name) is not None
        }

    def begin(self, observation: str, info: Mapping[str, Any]) -> None:
        """Write what ``TextEnv.reset`` returned.

        Raises:
            EnvironmentFailed: ``info`` lacks what a record needs, or holds something else there.
        """
        for name in ("split", "instruction"):
            if not TEXT.holds(info.get(name)):
                raise wrong("reset", f"must return info whose {name!r} is {TEXT.must}", info.get(name))
        facts = self.facts(info)
        if found := extra_fault(facts):
            raise wrong("reset", f"must return info whose {found.name!r} is {found.must}", found.value)
        self.split, self.instruction, self.first_observation = info["split"], info["instruction"], observation
        self.extra.update(facts)

    def add(self, reply: str, observation: str, info: dict[str, Any]) -> None:
        """Write a turn: the reply, and what ``TextEnv.step`` returned."""
        self.steps.append(Step.from_info(reply, observation, info))

    def end(self, reward: float, terminated: bool, info: Mapping[str, Any]) -> None:
        """Write what the last step returned; figures of the family that come with the end, such as em and f1, go to ``extra``.

        Raises:
            EnvironmentFailed: the reward is no number from 0 to 1, ``info["success"]`` no truth value, or a figure not finite.
        """
        number, success = as_number(reward), as_bool(info.get("success"))
        if number is None or not 0 <= number <= 1:
            raise wrong("step", "must return a reward from 0 to 1 at the end of an episode", reward)
        if success is None:
            raise wrong("step", "must return info whose 'success' is True or False", info.get("success"))
        figures = {
            name: value for name, value in info.items() if isinstance(value, float) and name != "score"
        }
        if found := extra_fault(figures):
            raise wrong("step", f"must return info whose {found.name!r} is {found.must}", found.value)
        self.ended = "terminated" if terminated else "truncated"
        self.reward, self.success = number, success
        self.extra.update(figures)

    def fail(self, error: TStarError) -> None:
        """Write why the episode has no result: its reward, 0, means nothing."""
        self.ended, self.error = "error", f"{type(error).__name__}: {error}"
        self.reward, self.success = 0.0, False

    def to_json(self) -> str:
        """One line of JSON (lone surrogates are escaped, so any reply can be written), without what only other episodes have."""
        record = {
            name: value for name, value in redacted_parts(asdict(self)).items() if value or name not in _SOME
        }
        record["steps"] = [
            {name: value for name, value in step.items() if value or name not in _SOME}
            for step in record["steps"]
        ]
        return json.dumps(record, ensure_ascii=True)

    @classmethod
    def from_json(cls, line: str) -> Episode:
        """Read one line.

        Raises:
            BadData: not an episode, or one of a newer format.
        """
        record = parse_json(line, "not an episode record")
        schema = record.get("schema", 0)
        if type(schema) is int and schema > SCHEMA_VERSION:
            raise BadData(
                f"episode of schema {schema!r:.40}, this version reads up to {SCHEMA_VERSION}: upgrade tstar"
            )
        check_record("an episode record", record, EPISODE, _NEEDED)
        steps = record["steps"]
        for step in steps:
            check_record("a step record", step, STEP, _STEP_NEEDED)
        if found := extra_fault(record.get("extra", {})):
            raise BadData(
                f"not an episode record: {found.name!r} of extra must be {found.must}, found {found.value!r:.60}"
            )
        for call in record.get("calls", ()):
            check_record("a call of an episode record", call, CALL, ("purpose", "seconds"), True)
        for attempt in record.get("attempts", ()):
            check_record("an attempt of an episode record", attempt, ATTEMPT, ("steps",), True)
            for step in attempt["steps"]:
                check_record("a step of an attempt", step, STEP, (), True)
        return cls(**{**record, "steps": [Step(**step) for step in steps]})


_SOME = frozenset({"failure", "panel", "calls", "attempts", "seconds"})


def _needed(cls: type[Episode] | type[Step]) -> tuple[str, ...]:
    """The fields without a default."""
    return tuple(f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING)


_NEEDED, _STEP_NEEDED = (*_needed(Episode), "steps"), _needed(Step)
_OF_INFO = [name for name in _STEP_NEEDED if name not in ("reply", "observation")]
_TYPES_OF_INFO = [str if STEP[name] is TEXT else bool for name in _OF_INFO]


def append_episode(path: Path, episode: Episode) -> None:
    """Append one line and hand it to the operating system, so that a later crash loses nothing.

    A half line that a killed writer (or a full disk) left at the end is cut off first: the next line must not grow on it.
    """
    with open(path, "ab+") as handle:
        _cut_half_line(handle)
        handle.write(episode.to_json().encode("ascii") + b"\n")
        handle.flush()
        os.fsync(handle.fileno())


def _cut_half_line(handle: BinaryIO) -> None:
    end = handle.seek(0, os.SEEK_END)
    position = end
    while position > 0:
        start = max(0, position - _BLOCK)
        handle.seek(start)
        newline = handle.read(position - start).rfind(b"\n")
        if newline >= 0:
            position = start + newline + 1
            break
        position = start
    if position < end:
        handle.truncate(position)


def read_episodes(path: Path) -> Iterator[Episode]:
    """Read a file of episodes; a last line without its line break (a killed writer) is skipped.

    Raises:
        MissingData: there is no such file.
        BadData: another line is damaged; file and line are named. Or it is no regular file.
    """
    with open(regular_file(path), encoding="utf-8", errors="backslashreplace") as handle:
        for number, line in enumerate(handle, start=1):
            if not line.endswith("\n"):
                return
            try:
                yield Episode.from_json(line)
            except BadData as error:
                raise BadData(f"{path}, line {number}: {error}") from error
