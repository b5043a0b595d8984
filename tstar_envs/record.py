"""Episode records: the format, its fields and what each may hold, reading and writing."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from tstar_envs.data.files import parse_json, regular_file
from tstar_envs.errors import BadData, EnvironmentFailed, TStarError
from tstar_envs.foreign import as_bool, as_number, wrong
from tstar_envs.redaction import redacted_parts

LARGEST_COUNT = 10**15  # of tokens, steps, tries: beyond, sums are no longer exact and something is wrong
_LONGEST_SECONDS = 1e10  # three centuries
ENDS = ("terminated", "truncated", "error")
# Why a task was not solved (``tstar_envs.agents.base``): "" where it was, or no cause was recorded.
FAILURES = ("model", "unparsed", "endpoint", "environment", "agent")


class Kind(NamedTuple):
    """What a field may hold.

    Attributes:
        must: in words, after "must be".
        holds: whether a value is that.
    """

    must: str
    holds: Callable[[Any], bool]


class Fault(NamedTuple):
    """What is wrong with a record.

    Attributes:
        name: of the field.
        must: what it must be.
        value: what it is.
    """

    name: str
    must: str
    value: Any


def is_finite(value: Any, least: float = -math.inf, most: float = math.inf) -> bool:
    """Whether a value is a number that can be calculated with, within bounds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value) and least <= value <= most
    except OverflowError:  # a whole number beyond all fractions
        return False


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= LARGEST_COUNT


def _one_of(values: Collection[str]) -> Kind:
    return Kind(
        f"one of {', '.join(map(repr, values))}", lambda value: isinstance(value, str) and value in values
    )


TEXT = Kind("a text", lambda value: isinstance(value, str))
TRUTH = Kind("true or false", lambda value: type(value) is bool)
COUNT = Kind("a whole number from 0", _is_count)
COUNT_OR_NONE = Kind("a whole number from 0, or null", lambda value: value is None or _is_count(value))
SHARE = Kind("a number from 0 to 1", lambda value: is_finite(value, 0, 1))
SECONDS = Kind("a number of seconds from 0", lambda value: is_finite(value, 0, _LONGEST_SECONDS))
NUMBER = Kind("a finite number", is_finite)
OBJECT = Kind("an object", lambda value: isinstance(value, dict))
LIST = Kind("a list of objects", lambda v: isinstance(v, list) and all(isinstance(one, dict) for one in v))
SEED = Kind(
    "a whole number of 64 bits, or null",
    lambda value: value is None or (type(value) is int and -(2**63) <= value < 2**64),
)

STEP = {
    **dict.fromkeys(
        ("reply", "thought", "action", "observation", "invalid_reason", "effect_key", "state_key"), TEXT
    ),
    "action_valid": TRUTH,
    "modifies_state": TRUTH,
    "seconds": SECONDS,
}
EPISODE = {
    **dict.fromkeys(
        ("env", "tier", "task", "split", "rules_version", "agent", "instruction", "first_observation"), TEXT
    ),
    "reward": SHARE,
    "success": TRUTH,
    "ended": _one_of(ENDS),
    "seed": SEED,
    "sample": COUNT,
    "error": TEXT,
    "extra": OBJECT,
    "steps": LIST,
    "failure": _one_of(("", *FAILURES)),
    "panel": TEXT,
    "calls": LIST,
    "attempts": LIST,
    "schema": COUNT,
}
CALL = {
    "purpose": TEXT,
    "seconds": SECONDS,
    "input_tokens": COUNT_OR_NONE,
    "output_tokens": COUNT_OR_NONE,
    **dict.fromkeys(("cached_tokens", "tries", "dropped", "step", "attempt"), COUNT),
    "finish": TEXT,
    "text": TEXT,
    "miscounted": TRUTH,
}
# Of earlier attempts a page shows what there is; ``replay`` says what it lacks to play one again.
ATTEMPT = {"reward": SHARE, "success": TRUTH, "ended": TEXT, "reflection": TEXT, "steps": LIST}
# Of ``Episode.extra``, what is read by name; of the rest, numbers are averaged and must be finite.
EXTRA = {
    **dict.fromkeys(("kind", "task_type", "commands", "tagger", "progress_unknown"), TEXT),
    "progress": SHARE,
    "optimal_length": NUMBER,
    "iteration": COUNT,
    "overlong": TRUTH,
    "advantages": Kind(
        "a list of finite numbers", lambda v: isinstance(v, list) and all(is_finite(one) for one in v)
    ),
}


def fault(record: Mapping[Any, Any], fields: Mapping[str, Kind]) -> Fault | None:
    """The first field that holds what it must not; None where each that is there is right."""
    for name, kind in fields.items():
        if name in record and not kind.holds(record[name]):
            return Fault(name, kind.must, record[name])
    return None


def extra_fault(extra: Mapping[str, Any]) -> Fault | None:
    """Likewise of ``Episode.extra``, whose further fields are the family's own."""
    for name, value in extra.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and name not in EXTRA and not is_finite(value):
            return Fault(name, NUMBER.must, value)
    return fault(extra, EXTRA)


def check_record(
    what: str, record: Any, fields: Mapping[str, Kind], needed: Collection[str], open_ended: bool = False
) -> None:
    """Require that a record is one.

    Args:
        what: which, for the message.
        record: what was read.
        fields: all that it may have.
        needed: those that it must have.
        open_ended: whether it may have others too.

    Raises:
        BadData: a field is missing, unknown, or holds what it must not.
    """
    if not isinstance(record, dict):
        raise BadData(f"not {what}: {record!r:.80}")
    for name in needed:
        if name not in record:
            raise BadData(f"not {what}: {name!r} is missing")
    for name in record.keys() - fields.keys() if not open_ended else ():
        raise BadData(f"not {what}: unknown field {name!r:.60}")
    if found := fault(record, fields):
        raise BadData(f"not {what}: {found.name!r} must be {found.must}, found {found.value!r:.60}")


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
        failure: why the task was not solved, one of the kinds of ``tstar_envs.agents.base``; "" where it was solved or no cause was
            recorded.
        panel: name and hash of the panel of tasks that the task was played as a part of, "" if of none.
        calls: what the agent asked of a model: purpose, step, tokens, seconds, tries (``tstar_envs.agents.base.Call``).
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
