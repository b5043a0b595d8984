"""The fields of a record, with what each may hold: checked where a record is read, and where others' code gives what is written."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from tstar_envs.errors import BadData

LARGEST_COUNT = 10**15  # of tokens, steps, tries: beyond, sums are no longer exact and something is wrong
_LONGEST_SECONDS = 1e10  # three centuries
ENDS = ("terminated", "truncated", "error")
# Why a task was not solved (``tstar_envs.bench.failures``): "" where it was, or no cause was recorded.
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
