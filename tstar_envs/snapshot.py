"""Snapshots of an episode, keys of states, and the checks that both fit."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from tstar_envs.errors import UnknownOption
from tstar_envs.utils import is_whole


def state_hasher(task_id: str) -> hashlib.blake2b:
    """What the keys of all states of a task start from."""
    return hashlib.blake2b(f"{task_id}\0".encode("utf-8", "surrogatepass"), digest_size=16)


def hash_state(hasher: hashlib.blake2b, fingerprint: bytes) -> str:
    """The key of a state, from its task's ``state_hasher`` and what is equal exactly for equal states of the task."""
    own = hasher.copy()
    own.update(fingerprint)
    return own.hexdigest()


State = TypeVar("State")
# Options that a state does not depend on: where tasks come from (their contents count), how long an episode is, how it is worded.
_INDIFFERENT = frozenset(
    {
        "commands",
        "data",
        "explain_invalid",
        "horizon",
        "levels",
        "problems",
        "prompt_style",
        "render_mode",
        "retriever",
        "skip_bad",
        "split",
    }
)


class Origin(NamedTuple):
    """Where a snapshot was taken: the class of the environment, its options that a state depends on, and a digest of its task's data."""

    environment: str
    options: tuple[tuple[str, str], ...]
    task: str


@dataclass(frozen=True, slots=True)
class Snapshot(Generic[State]):
    """Everything an episode's future depends on; immutable and picklable."""

    task_id: str
    split: str
    state: State
    step: int
    observation: str
    over: bool
    success: bool
    score: float
    origin: Origin

    def check(self, origin: Origin) -> None:
        """Refuse a snapshot that was taken elsewhere, or whose plain fields hold something else than ``snapshot()`` put there.

        Args:
            origin: of the environment that is to continue from it.

        Raises:
            UnknownOption: what differs is named.
        """
        if self.origin != origin:
            raise UnknownOption(
                f"this snapshot does not fit: {_difference(self.origin, origin, self.task_id)}"
            )
        right = (
            is_whole(self.step)
            and self.step >= 0
            and type(self.observation) is str
            and type(self.over) is bool
            and type(self.success) is bool
            and isinstance(self.score, float | int)
            and 0 <= self.score <= 1
        )
        if not right:
            raise UnknownOption(
                f"this snapshot is damaged: {self!r:.200}; restore takes what snapshot() gave, as it was"
            )


def _difference(theirs: Origin, ours: Origin, task_id: str) -> str:
    if theirs.environment != ours.environment:
        return f"it was taken in {theirs.environment or 'an earlier version of this suite'}, and this is {ours.environment}"
    if theirs.options != ours.options:
        before, now = dict(theirs.options), dict(ours.options)
        names = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
        message = ", ".join(
            f"{name}={before.get(name, 'default')} there and {now.get(name, 'default')} here"
            for name in names
        )
        return f"it was taken with other options ({message})"
    return f"task {task_id!r} has other data there than here (another folder, or a file that has changed)"


def options_of_state(cls: type, given: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """The options that a state depends on, with their values as text, those left out with their defaults.

    Args:
        cls: class of the environment.
        given: keyword arguments it was made with.
    """
    parameters = inspect.signature(cls.__init__).parameters.values()  # type: ignore[misc]
    defaults = {
        p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is not p.empty
    }
    values = {name: value for name, value in {**defaults, **given}.items() if name not in _INDIFFERENT}
    plain = {
        name: value
        for name, value in values.items()
        if isinstance(value, str | bool | float) or is_whole(value)
    }
    return tuple(sorted((name, f"{value}") for name, value in plain.items()))


def digest(content: str) -> str:
    """A short digest of a text."""
    return hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
