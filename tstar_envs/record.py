"""Episode records: the one format that the benchmark writes, the trainer reads and the report shows."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, BinaryIO

from tstar_envs.data.files import parse_json, regular_file
from tstar_envs.errors import BadData, TStarError
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
        """Make a step from what ``TextEnv.step`` returned."""
        named = {
            f.name: info[f.name] for f in fields(cls) if f.name not in ("reply", "observation", "seconds")
        }
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
        """Write what ``TextEnv.reset`` returned."""
        self.split, self.instruction, self.first_observation = info["split"], info["instruction"], observation
        self.extra.update(self.facts(info))

    def add(self, reply: str, observation: str, info: dict[str, Any]) -> None:
        """Write a turn: the reply, and what ``TextEnv.step`` returned."""
        self.steps.append(Step.from_info(reply, observation, info))

    def end(self, reward: float, terminated: bool, info: Mapping[str, Any]) -> None:
        """Write what the last step returned; figures of the family that come with the end, such as em and f1, go to ``extra``."""
        self.ended = "terminated" if terminated else "truncated"
        self.reward, self.success = float(reward), bool(info["success"])
        self.extra.update(
            {name: value for name, value in info.items() if isinstance(value, float) and name != "score"}
        )

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
                f"episode of schema {schema}, this version reads up to {SCHEMA_VERSION}: upgrade tstar"
            )
        steps = record.get("steps")
        if not isinstance(steps, list):
            raise BadData(f"not an episode record (steps must be a list): {line[:100]!r}")
        _check_parts(record)
        return cls(**{**_checked(cls, record), "steps": [Step(**_checked(Step, step)) for step in steps]})


_SOME = frozenset({"failure", "panel", "calls", "attempts", "seconds"})
# What a field may hold, by how its type is written; a whole number stands for a fraction too (``"reward": 1``).
_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "bool": (bool,),
    "int": (int,),
    "float": (float, int),
    "int | None": (int, type(None)),
    "dict[str, Any]": (dict,),
    "list[Step]": (list,),
    "list[dict[str, Any]]": (list,),
}


def _checked(cls: type[Episode] | type[Step], record: Any) -> dict[str, Any]:
    """The fields of a record, once each is known to hold what it should.

    Raises:
        BadData: one is missing, unknown, or holds something else.
    """
    if not isinstance(record, dict):
        raise BadData(f"not a {cls.__name__.lower()} record: {record!r:.80}")
    known = {f.name: f for f in fields(cls)}
    for name in record.keys() - known.keys():
        raise BadData(f"not a {cls.__name__.lower()} record: unknown field {name!r:.60}")
    for name, described in known.items():
        if name not in record:
            if described.default is MISSING and described.default_factory is MISSING:
                raise BadData(f"not a {cls.__name__.lower()} record: {name!r} is missing")
            continue
        value = record[name]
        if not isinstance(value, _TYPES[str(described.type)]) or (
            isinstance(value, bool) and described.type != "bool"
        ):
            raise BadData(
                f"not a {cls.__name__.lower()} record: {name!r} must be {described.type}, found {value!r:.60}"
            )
    return record


# What is counted of a call.
_COUNTS = ("input_tokens", "output_tokens", "cached_tokens", "tries", "dropped", "step", "attempt")


def _check_parts(record: dict[str, Any]) -> None:
    """Require that calls and attempts are what the harness writes.

    Raises:
        BadData: one of them is something else.
    """
    for call in record.get("calls") or ():
        if (
            not isinstance(call, dict)
            or not isinstance(call.get("purpose"), str)
            or type(call.get("seconds")) not in (int, float)
        ):
            raise BadData(f"not an episode record (a call needs purpose and seconds): {call!r:.80}")
        for name in _COUNTS:
            if type(call.get(name) or 0) is not int:  # None where the endpoint did not report it
                raise BadData(
                    f"not an episode record (a call's {name} must be a whole number, found {call[name]!r:.60})"
                )
    for attempt in record.get("attempts") or ():
        steps = attempt.get("steps") if isinstance(attempt, dict) else None
        if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
            raise BadData(f"not an episode record (an attempt needs a list of steps): {attempt!r:.80}")


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
