"""Space of strings.

``gymnasium.spaces.Text`` does not fit: it rejects spaces and newlines by default. In an ``AsyncVectorEnv`` with shared memory it
also returns stale padding instead of the observation, because its buffer is read once, when the vector is made. This space reads
the buffer on every access (``SharedTexts``), so ``gym.make_vec(..., vectorization_mode="async")`` works as it is.
"""

from __future__ import annotations

import copy
import multiprocessing
import string
from collections.abc import Iterator, Sequence
from typing import Any, overload

from gymnasium.spaces import Space
from gymnasium.spaces import Tuple as TupleSpace
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector.utils import (
    batch_differing_spaces,
    create_shared_memory,
    read_from_shared_memory,
    write_to_shared_memory,
)
from gymnasium.wrappers.utils import create_zero_array


class Unicode(Space[str]):
    """Space of all strings of ``min_length`` to ``max_length`` characters.

    Example:
        >>> from tstar_envs import Unicode
        >>> "two words" in Unicode(max_length=20)
        True

    Args:
        max_length: maximum length, in characters.
        min_length: minimum length, in characters.
        seed: seed of ``sample``.
    """

    def __init__(self, max_length: int, min_length: int = 0, seed: int | None = None) -> None:
        if not 0 <= min_length <= max_length:
            raise ValueError(f"need 0 <= min_length <= max_length, got {min_length} and {max_length}")
        self.min_length = min_length
        self.max_length = max_length
        super().__init__(shape=None, dtype=str, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """Always False: strings have no fixed-size array form."""
        return False

    def sample(self, mask: None = None, probability: None = None) -> str:
        """Sample a string of at most 32 printable ASCII characters (full-range samples would be unreadable)."""
        longest = min(self.max_length, max(32, self.min_length))
        length = int(self.np_random.integers(self.min_length, longest + 1))
        return "".join(string.printable[i] for i in self.np_random.integers(0, 95, size=length))

    def contains(self, x: Any) -> bool:
        """Check whether ``x`` is a string within the bounds."""
        return isinstance(x, str) and self.min_length <= len(x) <= self.max_length

    def __repr__(self) -> str:
        return f"Unicode(max_length={self.max_length}, min_length={self.min_length})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unicode) and (self.min_length, self.max_length) == (
            other.min_length,
            other.max_length,
        )

    def __hash__(self) -> int:
        return hash((self.min_length, self.max_length))


class SharedTexts(Sequence[str]):
    """Latest text of each environment of an ``AsyncVectorEnv``, read from the workers' shared memory.

    A deep copy is a plain tuple of strings; the vector returns deep copies unless made with ``copy=False``.

    Args:
        memory: ``slot`` bytes per environment: four with the length of the text, then the text.
        slot: bytes per environment.
    """

    def __init__(self, memory: Any, slot: int, count: int) -> None:
        self._memory, self._slot, self._count = memory, slot, count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        if isinstance(index, slice):
            return tuple(self._text(number) for number in range(*index.indices(self._count)))
        return self._text(range(self._count)[index])

    def _text(self, number: int) -> str:
        with self._memory.get_lock():
            data = self._memory.get_obj()
            start = number * self._slot + _LENGTH
            length = int.from_bytes(bytes(data[start - _LENGTH : start]), "little")
            return bytes(data[start : start + length]).decode("utf-8", "surrogatepass")

    def __iter__(self) -> Iterator[str]:
        return iter(self[:])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self[:] == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def __deepcopy__(self, memo: dict[int, Any]) -> tuple[str, ...]:
        return self[:]

    def __repr__(self) -> str:
        return repr(self[:])


_LENGTH = 4  # bytes of the length prefix
_WIDEST = 4  # bytes per character, at most


def _slot(space: Unicode) -> int:
    return _LENGTH + _WIDEST * space.max_length


@create_shared_memory.register(Unicode)
def _create(space: Unicode, n: int = 1, ctx: Any = None) -> Any:
    return (ctx or multiprocessing).Array("B", n * _slot(space))


@read_from_shared_memory.register(Unicode)
def _read(space: Unicode, shared_memory: Any, n: int = 1) -> SharedTexts:
    return SharedTexts(shared_memory, _slot(space), n)


@write_to_shared_memory.register(Unicode)
def _write(space: Unicode, index: int, value: str, shared_memory: Any) -> None:
    data = value.encode("utf-8", "surrogatepass")
    start = index * _slot(space)
    with shared_memory.get_lock():
        memory = shared_memory.get_obj()
        memory[start : start + _LENGTH + len(data)] = len(data).to_bytes(_LENGTH, "little") + data


def _zero(space: Unicode) -> str:
    """Make the shortest text; ``FrameStackObservation`` and ``DelayObservation`` pad with it."""
    return " " * space.min_length


def _differing(spaces: Sequence[Unicode]) -> TupleSpace[Any]:
    """Build a tuple space for ``make_vec`` with ``observation_mode="different"``, as gymnasium does for ``Text``."""
    return TupleSpace([copy.deepcopy(space) for space in spaces], seed=copy.deepcopy(spaces[0].np_random))


def _alike(first: Unicode, second: Unicode) -> bool:
    return isinstance(second, Unicode)


create_zero_array.register(Unicode, _zero)
is_space_dtype_shape_equiv.register(Unicode, _alike)
batch_differing_spaces.register(Unicode, _differing)
