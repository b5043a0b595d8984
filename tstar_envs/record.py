"""Episode records: format, fields and their valid values."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, NamedTuple

from tstar_envs.data.files import parse_json
from tstar_envs.errors import BadData, EnvironmentFailed, TStarError
from tstar_envs.foreign import as_bool, as_number, wrong
from tstar_envs.redaction import redacted_parts

LARGEST_COUNT = 10**15  # tokens, steps, tries: sums beyond it are not exact, and something is wrong
LONGEST_SECONDS = 1e10  # three centuries
ENDS = ("terminated", "truncated", "error")
# Causes of failure (``tstar_envs.agents.base``); "" if solved, or if no cause was recorded.
FAILURES = ("model", "unparsed", "endpoint", "environment", "agent")


class Kind(NamedTuple):
    """Valid values of a field.

    Attributes:
        must: description that follows "must be".
        holds: predicate: True if a value is valid.
    """

    must: str
    holds: Callable[[Any], bool]


class Fault(NamedTuple):
    """Invalid field of a record.

    Attributes:
        name: name of the field.
        must: description of the valid values.
        value: value found.
    """

    name: str
    must: str
    value: Any


def is_finite(value: Any, least: float = -math.inf, most: float = math.inf) -> bool:
    """Check whether a value is a finite number within bounds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value) and least <= value <= most
    except OverflowError:  # an integer beyond the range of float
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
SECONDS = Kind("a number of seconds from 0", lambda value: is_finite(value, 0, LONGEST_SECONDS))
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
# In the order of ``tstar_envs.agents.base.Call``.
CALL = {
    "purpose": TEXT,
    "seconds": SECONDS,
    "input_tokens": COUNT_OR_NONE,
    "output_tokens": COUNT_OR_NONE,
    "cached_tokens": COUNT,
    "tries": COUNT,
    "finish": TEXT,
    "dropped": COUNT,
    "text": TEXT,
    "miscounted": TRUTH,
    "step": COUNT,
    "attempt": COUNT,
}
# Of earlier attempts a page shows whatever is there; ``replay`` reports what is missing to replay one.
ATTEMPT = {"reward": SHARE, "success": TRUTH, "ended": TEXT, "reflection": TEXT, "steps": LIST}
# Entries of ``Episode.extra`` that are read by name; all other numbers are averaged and must be finite.
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
    """Find the first field with an invalid value; None if all present fields are valid."""
    for name, kind in fields.items():
        if name in record and not kind.holds(record[name]):
            return Fault(name, kind.must, record[name])
    return None


def extra_fault(extra: Mapping[str, Any]) -> Fault | None:
    """Find the first invalid entry of ``Episode.extra``, which may have further entries of the family."""
    for name, value in extra.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and name not in EXTRA and not is_finite(value):
            return Fault(name, NUMBER.must, value)
    return fault(extra, EXTRA)


def check_record(
    what: str, record: Any, fields: Mapping[str, Kind], needed: Collection[str], open_ended: bool = False
) -> None:
    """Validate a record.

    Args:
        what: name of the record, for the message.
        fields: all known fields.
        needed: required fields.
        open_ended: allow unknown fields.

    Raises:
        BadData: a field is missing, unknown or invalid.
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


# Schema 2 added failure, calls, attempts, panel and the seconds of a step; files of schema 1 stay readable.
SCHEMA_VERSION = 2


@dataclass(slots=True)
class Step:
    """One turn: the agent's reply, the parsed action and the observation.

    Attributes:
        reply: the agent's text, verbatim.
        thought: thought of the reply.
        action: canonical action, "" if it could not be parsed.
        observation: answer of the environment.
        action_valid: True if the action was valid.
        invalid_reason: reason if it was invalid, else "".
        modifies_state: True if the state changed, as executed.
        effect_key: canonical key of the change, "" if none.
        state_key: hash of the state after the step.
        seconds: time the agent took for its reply; 0 if it was not measured.
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
        """Create a step from the results of ``TextEnv.step``.

        Raises:
            EnvironmentFailed: a field of a step is missing in ``info`` or invalid.
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
    """Record of one episode from reset to end.

    Example:
        >>> from tstar_envs import Episode, find_entry, new_episode
        >>> entry = find_entry("sokoban-easy")
        >>> env = entry.make()
        >>> task = env.task_ids()[0]
        >>> episode = new_episode(env, entry, "me", task)
        >>> episode.begin(*env.reset(options={"task": task}))
        >>> reply = env.oracle()
        >>> observation, reward, terminated, truncated, info = env.step(reply)
        >>> episode.add(reply, observation, info)
        >>> Episode.from_json(episode.to_json()) == episode
        True

    Attributes:
        env: Gymnasium id.
        tier: data tier (mini, full, path).
        task: task id.
        split: its split.
        rules_version: rules version of the environment.
        agent: name of the agent.
        instruction: the goal in words.
        first_observation: observation of the reset.
        reward: terminal reward, in [0, 1].
        success: True if the task was solved.
        ended: ``terminated``, ``truncated`` or ``error`` (infrastructure; never counted as a failure of the agent).
        seed: seed of the agent's sampling, None if it has none.
        sample: number of the episode among those of the same task.
        error: error message, if ``ended`` is ``error``.
        extra: further figures of the family (such as em and f1), and ``facts``.
        steps: turns of the episode.
        failure: cause of the failure, one of the kinds of ``tstar_envs.agents.base``; "" if solved or no cause was recorded.
        panel: name and hash of the evaluation set that the task belongs to, "" if none.
        calls: model requests of the agent: purpose, step, tokens, seconds, tries (``tstar_envs.agents.base.Call``).
        attempts: earlier attempts of the agent at this task within the episode (Reflexion): reward, success, ended, steps. Its
            reflections on them are in ``calls``.
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
        """Select the entries of a reset's ``info`` that ``extra`` keeps.

        These are the type of task (``task_type`` in ALFWorld), ALFWorld's old command syntax (``commands``), the tagger of WebShop's score
        and the length of a shortest solution if it is known.
        """
        return {
            name: info[name]
            for name in ("kind", "task_type", "commands", "tagger", "optimal_length")
            if info.get(name) is not None
        }

    @property
    def kind(self) -> str:
        """Kind of the task among those of its environment: ``task_type`` (ALFWorld) or ``kind`` (search-QA), "" if unknown."""
        kind = self.extra.get("task_type") or self.extra.get("kind")
        return kind if isinstance(kind, str) else ""

    def begin(self, observation: str, info: Mapping[str, Any]) -> None:
        """Record the results of ``TextEnv.reset``.

        Raises:
            EnvironmentFailed: a field of a record is missing in ``info`` or invalid.
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
        """Record a turn: the reply, and the results of ``TextEnv.step``."""
        self.steps.append(Step.from_info(reply, observation, info))

    def end(self, reward: float, terminated: bool, info: Mapping[str, Any]) -> None:
        """Record the end of the episode; the family's figures, such as em, go to ``extra``.

        Raises:
            EnvironmentFailed: the reward is not in [0, 1], ``info["success"]`` is not a bool, or a figure is not finite.
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
        """Record an error: the episode has no result, and its reward of 0 means nothing."""
        self.ended, self.error = "error", f"{type(error).__name__}: {error}"
        self.reward, self.success = 0.0, False

    def to_json(self) -> str:
        """Serialize to one line of JSON without empty fields; lone surrogates are escaped."""
        steps = [
            {name: value for name in _STEP_NAMES if (value := getattr(step, name)) or name not in _SOME}
            for step in self.steps
        ]
        record = {
            name: value
            for name in _NAMES
            if (value := steps if name == "steps" else getattr(self, name)) or name not in _SOME
        }
        return json.dumps(redacted_parts(record), ensure_ascii=True)

    @classmethod
    def from_json(cls, line: str) -> Episode:
        """Parse one line of JSON.

        Raises:
            BadData: not an episode, or one of a newer schema.
        """
        record = parse_json(line, "not an episode record")
        schema = record.get("schema", 0)
        if type(schema) is int and schema > SCHEMA_VERSION:
            raise BadData(
                f"episode of schema {schema!r:.40}, this version reads up to {SCHEMA_VERSION}: upgrade tstar"
            )
        check_episode(record)
        steps = [_step_of(step) for step in record["steps"]]
        for call in record.get("calls", ()):
            if not _is_plain_call(call):
                check_record("a call of an episode record", call, CALL, ("purpose", "seconds"), True)
        for attempt in record.get("attempts", ()):
            check_record("an attempt of an episode record", attempt, ATTEMPT, ("steps",), True)
            for step in attempt["steps"]:
                check_record("a step of an attempt", step, STEP, (), True)
        record["steps"] = steps
        return cls(**record)


_NAMES, _STEP_NAMES = (tuple(f.name for f in fields(cls)) for cls in (Episode, Step))
_SOME = frozenset({"failure", "panel", "calls", "attempts", "seconds"})


def _needed(cls: type[Episode] | type[Step]) -> tuple[str, ...]:
    """List the fields without a default."""
    return tuple(f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING)


NEEDED, STEP_NEEDED = (*_needed(Episode), "steps"), _needed(Step)


def check_episode(record: Any) -> None:
    """Validate the fields of an episode record; those of steps, calls and attempts have checks of their own."""
    if _is_plain(record):
        return
    check_record("an episode record", record, EPISODE, NEEDED)
    if found := extra_fault(record.get("extra", {})):
        raise BadData(
            f"not an episode record: {found.name!r} of extra must be {found.must}, found {found.value!r:.60}"
        )


def _is_plain(record: dict[str, Any]) -> bool:
    """Check whether an episode record is as ``to_json`` writes it, and valid; others may be valid too."""
    names = [*record]
    return (
        names[: len(_HEAD)] == _HEAD
        and [*map(type, record.values())][: len(_HEAD)] in _HEAD_TYPES
        and 0 <= record["reward"] <= 1
        and record["ended"] in ENDS
        and 0 <= record["sample"] <= LARGEST_COUNT
        and SEED.holds(record["seed"])
        and extra_fault(record["extra"]) is None
        and "steps" in record
        and all(name in EPISODE and EPISODE[name].holds(record[name]) for name in names[len(_HEAD) :])
    )


_HEAD = [*_NAMES[: _NAMES.index("steps")]]
_HEAD_TYPES = [[*([str] * 8), float, bool, str, seed, int, str, dict] for seed in (int, type(None))]
_STEP_TYPES = [str if STEP[name] is TEXT else bool for name in STEP_NEEDED]
_TIMED_NAMES, _TIMED_TYPES = (*STEP_NEEDED, "seconds"), [*_STEP_TYPES, float]


def _step_of(record: dict[str, Any]) -> Step:
    """Make a step of its record; one as we write it, with the right types in order, needs no further check."""
    names, types = tuple(record), [*map(type, record.values())]
    if (names == STEP_NEEDED and types == _STEP_TYPES) or (
        names == _TIMED_NAMES and types == _TIMED_TYPES and 0 <= record["seconds"] <= LONGEST_SECONDS
    ):
        return Step(*record.values())
    check_record("a step record", record, STEP, STEP_NEEDED)
    return Step(**record)


def _is_plain_call(record: dict[str, Any]) -> bool:
    """Check whether a call has the types that ``to_json`` writes, and is valid; others may be valid too."""
    for name, value in record.items():
        if type(value) is not _CALL_TYPES.get(name) or (
            type(value) is int and not 0 <= value <= LARGEST_COUNT
        ):
            return False
    return "purpose" in record and 0 <= record.get("seconds", -1) <= LONGEST_SECONDS


_CALL_TYPES = {name: {TEXT: str, TRUTH: bool, SECONDS: float}.get(kind, int) for name, kind in CALL.items()}
_OF_INFO = [name for name in STEP_NEEDED if name not in ("reply", "observation")]
_TYPES_OF_INFO = [str if STEP[name] is TEXT else bool for name in _OF_INFO]
