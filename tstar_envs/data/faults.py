"""Faults of external data, collected with their places and reported all at once.

A loader makes one ``Faults``, reads every item under ``collect`` (or calls ``add``), and finally calls ``settle``. That raises one
BadData which lists every fault or, with ``skip_bad``, returns what was left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from tstar_envs.errors import BadData, MissingData, UnknownOption
from tstar_envs.utils import counted

MOST_LISTED = 20  # faults listed one by one in a message
MOST_KINDS = 100
_LONGEST = 500  # characters of a reason
OTHER = "other faults"
# Faults of one kind differ only in these: quoted texts, numbers, pieces of PDDL.
_PARTICULAR = re.compile(r"'(?:[^'\\]|\\.)*+'|\"(?:[^\"\\]|\\.)*+\"|\([^()]*+\)|\d[\d,]*+")
_REST_OF_PLACE = re.compile(r"((?:, line \d+| \(unpacked\))?): ")


class Fault(NamedTuple):
    """One unusable item: its file (and line, field), and the reason."""

    where: str
    why: str

    def __str__(self) -> str:
        return f"{self.where}: {self.why}"


@dataclass(frozen=True)
class FaultKind:
    """Faults that differ only in names and numbers: their count and the first."""

    count: int
    example: Fault


@dataclass(frozen=True)
class LeftOut:
    """Unusable items of some data.

    Attributes:
        count: items with a fault.
        first: the first faults, 20 at most.
        kinds: faults by kind, most frequent first.
    """

    count: int = 0
    first: tuple[Fault, ...] = ()
    kinds: tuple[FaultKind, ...] = ()

    def plus(self, other: LeftOut) -> LeftOut:
        """Add the faults of another."""
        if not self.count or not other.count:
            return self if self.count else other
        kinds = sorted((*self.kinds, *other.kinds), key=lambda kind: -kind.count)
        return LeftOut(self.count + other.count, (*self.first, *other.first)[:MOST_LISTED], tuple(kinds))

    def to_record(self) -> dict[str, Any]:
        """Convert to JSON values."""
        return {
            "count": self.count,
            "first": self.first,
            "kinds": [(kind.count, kind.example) for kind in self.kinds],
        }

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> LeftOut:
        """Read the result of ``to_record``."""
        kinds = tuple(FaultKind(count, Fault(*example)) for count, example in record["kinds"])
        return cls(record["count"], tuple(Fault(*fault) for fault in record["first"]), kinds)

    def __str__(self) -> str:
        if not self.count:
            return "nothing left out"
        message = [f"{kind.count:,} x {kind.example.why} ({kind.example.where})" for kind in self.kinds[:3]]
        return f"{self.count:,} left out: {'; '.join(message)}{'; ...' if len(self.kinds) > 3 else ''}"


NOTHING_LEFT_OUT = LeftOut()


class Faults:
    """Faults of one folder or file during reading.

    Args:
        skip_bad: True to leave out faulty items; otherwise ``settle`` raises.

    Raises:
        UnknownOption: ``skip_bad`` is not a bool.
    """

    def __init__(self, skip_bad: bool = False) -> None:
        check_skip_bad(skip_bad)
        self._skip_bad = skip_bad
        self._count = 0
        self._first: list[Fault] = []
        self._kinds: dict[str, tuple[int, Fault]] = {}

    @property
    def hopeless(self) -> bool:
        """True if the whole will be rejected: then only further faults are of interest."""
        return self._count > 0 and not self._skip_bad

    def add(self, where: object, why: str) -> None:
        """Add a fault: the item at ``where`` (a file, with ", line N" if known) is unusable, and why."""
        fault = Fault(str(where), why if len(why) <= _LONGEST else f"{why[:_LONGEST]}...")
        self._count += 1
        if len(self._first) < MOST_LISTED:
            self._first.append(fault)
        kind = _PARTICULAR.sub("...", fault.why)
        if kind not in self._kinds and len(self._kinds) >= MOST_KINDS:
            kind = OTHER
        count, example = self._kinds.get(kind, (0, fault))
        self._kinds[kind] = (count + 1, example)

    @contextmanager
    def collect(self, where: object) -> Iterator[None]:
        """Turn BadData and MissingData (a file that was just deleted) inside into a fault of the item at ``where``."""
        try:
            yield
        except (BadData, MissingData) as error:
            place, message = str(where).encode("utf-8", "backslashreplace").decode("utf-8"), str(error)
            # The readers' messages begin with the file, mostly with a line number.
            named = _REST_OF_PLACE.match(message, len(place)) if message.startswith(place) else None
            self.add(*((message[: named.end(1)], message[named.end() :]) if named else (place, message)))

    def settle(self, usable: int, items: str) -> LeftOut:
        """Finish reading: raise on faults, or return what was left out.

        Args:
            items: plural noun for the items.

        Returns:
            Summary of the items left out.

        Raises:
            BadData: there are faults and ``skip_bad`` is False, or no item is usable; the message lists up to 20.
        """
        found = self.so_far()
        if self._count and not (self._skip_bad and usable):
            error = BadData(_message(found, usable, items))
            error.left_out = found
            raise error
        return found

    def so_far(self) -> LeftOut:
        """Faults found so far."""
        kinds = sorted((FaultKind(*kind) for kind in self._kinds.values()), key=lambda kind: -kind.count)
        return LeftOut(self._count, tuple(self._first), tuple(kinds))


def check_skip_bad(value: object) -> None:
    """Raise UnknownOption unless a value of the option ``skip_bad`` is a bool."""
    if not isinstance(value, bool):
        raise UnknownOption(f"skip_bad must be True or False, got {value!r:.80}")


def _message(found: LeftOut, usable: int, items: str) -> str:
    """Format one message that lists all faults; a single fault is the message itself."""
    kept = counted(usable, items.removesuffix("s"), items)
    advice = f"skip_bad=True leaves out what cannot be used and keeps {kept}" if usable else ""
    if found.count == 1:
        return f"{found.first[0]}{f' ({advice})' if advice else ''}"
    whole = f"{found.count:,} of {found.count + usable:,} {items} cannot be used"
    lines = [f"  {fault}" for fault in found.first]
    if found.count > len(found.first):
        lines.append(f"  and {found.count - len(found.first):,} more")
    return "\n".join(
        [f"{found.first[0].where} and elsewhere: {whole}{f'; {advice}' if advice else ''}", *lines]
    )
