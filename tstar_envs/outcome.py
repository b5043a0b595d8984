"""What the rules of a family say that an action did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

State = TypeVar("State")


@dataclass(slots=True)
class Outcome(Generic[State]):
    """What the rules say an action did; made in half a microsecond.

    Attributes:
        state: the state after it (the same object if nothing changed).
        observation: the text that the agent reads.
        action: the canonical form of the action, "" if it could not be read.
        invalid_reason: why it was a no-op, "" for a valid action.
        effect_key: canonical key of the change that counts as modifying the state, "" if there is none. Movement that can
            always be undone (Sokoban: walking) changes the state, and its key, without an effect.
        terminated: whether the episode is over.
        success: whether the task is solved.
        score: in [0, 1]; the terminal reward.
        extra: further ``info`` entries of this family.
        shaping: reward of a step that does not end the episode, 0 unless an option of the family asks for it.
        admissible: the admissible actions after it and
        state_key: the key of the state after it, where the rules know them already; None and "" are looked up.
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
