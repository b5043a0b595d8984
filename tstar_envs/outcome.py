"""Outcome of an action under the rules of a family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from tstar_envs.foreign import as_bool, as_number, checked_actions, checked_extra, wrong

State = TypeVar("State")

# Entries that ``step`` adds to ``info``.
STEP_INFO = {
    "thought": "",
    "action": "",
    "action_valid": True,
    "invalid_reason": "",
    "modifies_state": False,
    "effect_key": "",
    "state_key": "",
}


@dataclass(slots=True)
class Outcome(Generic[State]):
    """Outcome of one action under the rules; cheap to make (half a microsecond).

    Attributes:
        state: state after the action (the same object if nothing changed).
        observation: text for the agent.
        action: canonical form of the action, "" if it could not be parsed.
        invalid_reason: reason for a no-op, "" for a valid action.
        effect_key: canonical key of the change that counts as modifying the state, "" if there is none. Movement that can always be
            undone (walking in Sokoban) changes the state and its key, but has no effect.
        terminated: True if the episode is over.
        success: True if the task is solved.
        score: terminal reward, in [0, 1].
        extra: extra ``info`` entries of this family.
        shaping: reward of a step that does not end the episode, 0 unless an option of the family sets it.
        admissible: admissible actions after the action, if the rules have computed them; else None.
        state_key: key of the state after the action, if the rules have computed it; else "".
    """

    state: State
    observation: str
    action: str
    invalid_reason: str = ""
    effect_key: str = ""
    terminated: bool = False
    success: bool = False
    score: float = 0.0
    extra: Mapping[str, Any] | None = None
    shaping: float = 0.0
    admissible: Sequence[str] | None = None
    state_key: str = ""


_TEXTS = ("observation", "action", "invalid_reason", "effect_key", "state_key")


def is_plain(outcome: Outcome[Any]) -> bool:
    """Check types and the range of the score; faster than ``checked``, which explains faults."""
    return (
        type(outcome) is Outcome
        and outcome.state is not None
        and outcome.extra is None
        and outcome.admissible is None
        and type(outcome.observation) is type(outcome.action) is type(outcome.invalid_reason) is str
        and type(outcome.effect_key) is type(outcome.state_key) is str
        and type(outcome.terminated) is type(outcome.success) is bool
        and type(outcome.score) is type(outcome.shaping) is float
        and 0.0 <= outcome.score <= 1.0
        and -_LARGEST <= outcome.shaping <= _LARGEST
    )


_LARGEST = 1.7976931348623157e308  # largest finite float


def checked(outcome: Any) -> Outcome[Any]:
    """Normalize the values of an outcome that is not plain (NumPy numbers, 1 for 1.0).

    Raises:
        EnvironmentFailed: not an outcome, or a field is invalid; the message names field and value.
    """
    if not isinstance(outcome, Outcome):
        raise wrong("_apply", "must return an Outcome", outcome)
    if outcome.state is None:
        raise wrong("_apply", "must return an Outcome whose state is one", None)
    texts: dict[str, Any] = {}
    for name in _TEXTS:
        value = getattr(outcome, name)
        if not isinstance(value, str):
            raise wrong("_apply", f"must return an Outcome whose {name} is a text", value)
        texts[name] = str.__str__(value)
    flags = {name: as_bool(getattr(outcome, name)) for name in ("terminated", "success")}
    for name, flag in flags.items():
        if flag is None:
            raise wrong(
                "_apply", f"must return an Outcome whose {name} is True or False", getattr(outcome, name)
            )
    score, shaping = as_number(outcome.score), as_number(outcome.shaping)
    if score is None or not 0 <= score <= 1:
        raise wrong("_apply", "must return an Outcome whose score is a number from 0 to 1", outcome.score)
    if shaping is None:
        raise wrong("_apply", "must return an Outcome whose shaping is a finite number", outcome.shaping)
    return replace(
        outcome,
        **texts,
        **flags,  # type: ignore[arg-type]
        score=score,
        shaping=shaping,
        extra=None if outcome.extra is None else checked_extra("_apply", outcome.extra),
        admissible=checked_actions("_apply", outcome.admissible),
    )
