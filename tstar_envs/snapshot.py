"""Snapshots of an episode, state keys, and checks that a snapshot fits."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from tstar_envs.errors import UnknownOption
from tstar_envs.utils import is_whole


def state_hasher(task_id: str) -> hashlib.blake2b:
    """Hasher that the keys of all states of a task start from."""
    return hashlib.blake2b(f"{task_id}\0".encode("utf-8", "surrogatepass"), digest_size=16)


def hash_state(hasher: hashlib.blake2b, fingerprint: bytes) -> str:
    """Hash a state, given its task's ``state_hasher`` and a fingerprint that is equal exactly for equal states."""
    own = hasher.copy()
    own.update(fingerprint)
    return own.hexdigest()


State = TypeVar("State")
# Options that a state does not depend on: the source of the tasks (their contents count), the horizon, the phrasing.
_INDIFFERENT = frozenset(
    {
        "commands",
        "data",
        "explain_invalid",
        "horizon",
        "levels",
        "list_actions",
        "problems",
        "prompt_style",
        "render_mode",
        "retriever",
        "skip_bad",
        "split",
    }
)


class Origin(NamedTuple):
    """Origin of a snapshot: environment class, options that matter to a state, digest of the task."""

    environment: str
    options: tuple[tuple[str, str], ...]
    task: str


@dataclass(frozen=True, slots=True)
class Snapshot(Generic[State]):
    """Snapshot of an episode: everything its future depends on. Immutable and picklable.

    Example:
        >>> from tstar_envs import find_entry
        >>> env = find_entry("sokoban-easy").make()
        >>> observation, info = env.reset(options={"task": 0})
        >>> start = env.snapshot()
        >>> _ = env.step(env.oracle())
        >>> env.restore(start)[0] == observation
        True
    """

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
        """Reject a snapshot of another origin, or with invalid fields.

        Args:
            origin: origin of the environment that is to restore it.

        Raises:
            UnknownOption: it does not fit; the message names the difference.
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
                f"this snapshot is damaged: {self!r:.200}; restore takes a snapshot made by snapshot(), unchanged"
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
    """List the options that a state depends on, as text, including defaults.

    Args:
        given: keyword arguments of the constructor.
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
    """Compute a short digest of a text."""
    return hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
