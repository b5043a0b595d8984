"""A space of strings.

Not ``gymnasium.spaces.Text``: that one rejects spaces and newlines by default, and in an ``AsyncVectorEnv`` with
shared memory it returns stale padding instead of the observation, because its buffer is read once, when the vector is made.
This one is read whenever it is looked at (``SharedTexts``), so ``gym.make_vec(..., vectorization_mode="async")`` works as it is.
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
    """All strings of ``min_length`` to ``max_length`` characters.

    Args:
        max_length: longest member, in characters.
        min_length: shortest member.
        seed: seeds ``sample``.
    """

    def __init__(self, max_length: int, min_length: int = 0, seed: int | None = None) -> None:
        if not 0 <= min_length <= max_length:
            raise ValueError(f"need 0 <= min_length <= max_length, got {min_length} and {max_length}")
        self.min_length = min_length
        self.max_length = max_length
        super().__init__(shape=None, dtype=str, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """Strings have no fixed-size array form."""
        return False

    def sample(self, mask: None = None, probability: None = None) -> str:
        """A string of at most 32 printable ASCII characters (full-range samples would be unreadable)."""
        longest = min(self.max_length, max(32, self.min_length))
        length = int(self.np_random.integers(self.min_length, longest + 1))
        return "".join(string.printable[i] for i in self.np_random.integers(0, 95, size=length))

    def contains(self, x: Any) -> bool:
        """Whether ``x`` is a string within the bounds."""
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
    """The newest text of each environment of an ``AsyncVectorEnv``, read from the memory that its workers write to.

    A deep copy, which is what the vector hands out unless it is made with ``copy=False``, is a plain tuple of strings.

    Args:
        memory: for each environment ``slot`` bytes: four with the length of the text, then the text.
        slot: bytes of one environment.
        count: environments.
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


_LENGTH = 4  # bytes in front of a text
_WIDEST = 4  # bytes of a character


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
    """The shortest text, with which ``FrameStackObservation`` and ``DelayObservation`` fill what is not there yet."""
    return " " * space.min_length


def _differing(spaces: Sequence[Unicode]) -> TupleSpace[Any]:
    """As gymnasium does with its ``Text``, for ``make_vec`` with ``observation_mode="different"``."""
    return TupleSpace([copy.deepcopy(space) for space in spaces], seed=copy.deepcopy(spaces[0].np_random))


def _alike(first: Unicode, second: Unicode) -> bool:
    return isinstance(second, Unicode)


create_zero_array.register(Unicode, _zero)
is_space_dtype_shape_equiv.register(Unicode, _alike)
batch_differing_spaces.register(Unicode, _differing)
