"""Files of episode records: appending, and reading one episode at a time."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, fields
from functools import cache
from pathlib import Path
from types import GenericAlias
from typing import Annotated, Any, BinaryIO, Literal, NamedTuple

from tstar_envs.data.files import regular_file
from tstar_envs.errors import BadData
from tstar_envs.record import (
    ATTEMPT,
    CALL,
    COUNT,
    COUNT_OR_NONE,
    ENDS,
    EPISODE,
    FAILURES,
    LARGEST_COUNT,
    LONGEST_SECONDS,
    NEEDED,
    OBJECT,
    SCHEMA_VERSION,
    SECONDS,
    SEED,
    SHARE,
    STEP,
    STEP_NEEDED,
    TEXT,
    TRUTH,
    Episode,
    Kind,
    Step,
    check_episode,
    extra_fault,
)

_BLOCK = 65_536  # bytes per read


def append_episode(path: Path, episode: Episode) -> None:
    """Append one line and flush it to disk, so that a later crash loses nothing; see ``append_episodes``."""
    append_episodes(path, [episode])


def append_episodes(path: Path, episodes: Iterable[Episode]) -> None:
    """Append a line for each episode and flush them together to disk, so that a later crash loses none.

    A partial last line of a killed writer (or a full disk) is truncated first: the next line must not be appended to it.
    """
    lines = b"".join(episode.to_json().encode("ascii") + b"\n" for episode in episodes)
    with open(path, "ab+") as handle:
        _cut_half_line(handle)
        handle.write(lines)
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
    """Iterate over the episodes of a file; an unterminated last line (a killed writer) is skipped.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from tstar_envs import append_episode, find_entry, new_episode, read_episodes
        >>> entry = find_entry("sokoban-easy")
        >>> path = Path(tempfile.mkdtemp()) / "episodes.jsonl"
        >>> append_episode(path, new_episode(entry.make(), entry, "me", "a task"))
        >>> [episode.agent for episode in read_episodes(path)]
        ['me']

    Raises:
        MissingData: the file does not exist.
        BadData: another line is damaged (the message names file and line), or the path is not a regular file.
    """
    for number, _, line in _lines(path):
        yield _parsed(path, number, line)


def located_results(path: Path) -> Iterator[tuple[int, Episode]]:
    """Iterate over the episodes of a file for their figures, each with the byte at which its line begins.

    Its steps are to be read only: they have the attributes of ``Step``, and may lack its methods and equality. Reading takes two
    thirds of the time of ``read_episodes``; see there for the errors.
    """
    for number, place, line in _lines(path):
        yield place, _parsed(path, number, line, for_figures=True)


def episode_of_line(path: Path, wanted: int) -> Episode:
    """Read the episode of one line, from 1.

    Raises:
        MissingData: the file does not exist.
        BadData: the line is damaged, or there is none of this number.
    """
    number = 0
    for number, _, line in _lines(path):
        if number == wanted:
            return _parsed(path, number, line)
    raise BadData(f"{path} has {number} lines of episodes, and no line {wanted}")


def episode_at(path: Path, place: int) -> Episode | None:
    """Read the episode whose line begins at a byte; None if none does, as in a file that has changed."""
    with open(regular_file(path), "rb") as handle:
        handle.seek(place)
        line = handle.readline()
    try:
        return _episode(line) if line.endswith(b"\n") else None
    except BadData:
        return None


class Head(NamedTuple):
    """Facts of a record that can be read without its steps.

    Attributes:
        line: line of the file, from 1.
        env: Gymnasium id.
        tier: data tier.
        task: task id.
        split: its split.
        rules_version: rules version of the environment.
        agent: name of the agent.
        success: True if the task was solved.
        ended: how the episode ended, one of ``ENDS``.
        sample: number of the episode among those of the same task.
        panel: name and hash of the evaluation set, "" if none.
    """

    line: int
    env: str
    tier: str
    task: str
    split: str
    rules_version: str
    agent: str
    success: bool
    ended: str
    sample: int
    panel: str

    @classmethod
    def of(cls, line: int, episode: Episode) -> Head:
        """Take the head of an episode."""
        return cls(line, *(_shared(getattr(episode, name)) for name in cls._fields[1:]))


def _shared(value: Any) -> Any:
    """Return the one copy of a text that thousands of records share."""
    return sys.intern(value) if type(value) is str else value


def read_heads(path: Path) -> Iterator[Head]:
    """Iterate over the heads of a file's records, some ten times as fast as ``read_episodes``.

    The fields before the steps are validated. A line that is not in our own form is read whole.

    Raises:
        MissingData: the file does not exist.
        BadData: see ``read_episodes``; damage to steps is not noticed.
    """
    for number, _, line in _lines(path):
        record = _head(line)
        if record is None:
            yield Head.of(number, _parsed(path, number, line))
            continue
        try:
            check_episode(record)
        except BadData as error:
            raise BadData(f"{path}, line {number}: {error}") from error
        yield Head(number, *[_shared(record[name]) for name in Head._fields[1:]])


_BEFORE_STEPS, _BEFORE_PANEL, _BEFORE_SCHEMA = b', "steps": [', b', "panel": "', b', "schema": '
_DECODER = json.JSONDecoder()


def _head(line: bytes) -> dict[str, Any] | None:
    """Parse the fields before the steps, and the panel; None if the line is not as ``to_json`` writes it."""
    # These marks are never inside a text, where a quotation mark is escaped.
    end, last = line.find(_BEFORE_STEPS), line.rfind(_BEFORE_SCHEMA)
    if end < 0 or line[last + len(_BEFORE_SCHEMA) :] != b"%d}\n" % SCHEMA_VERSION:
        return None
    try:
        record = json.loads(line[:end] + b"}")
        at = line.rfind(_BEFORE_PANEL, end)
        start = at + len(_BEFORE_PANEL) - 1
        record["panel"] = "" if at < 0 else _DECODER.raw_decode(line[start : start + 1000].decode("ascii"))[0]
    except (ValueError, RecursionError):
        return None
    record["steps"] = []
    return record if isinstance(record, dict) and record.keys() >= {*Head._fields[1:]} else None


def _lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Iterate over the whole lines of a file: number from 1, byte at which it begins, and the line."""
    place = 0
    with open(regular_file(path), "rb", buffering=_BLOCK) as handle:
        for number, line in enumerate(handle, start=1):
            if not line.endswith(b"\n"):
                return
            yield number, place, line
            place += len(line)


def _parsed(path: Path, number: int, line: bytes, for_figures: bool = False) -> Episode:
    try:
        return _episode(line, for_figures)
    except BadData as error:
        raise BadData(f"{path}, line {number}: {error}") from error


def _episode(line: bytes, for_figures: bool = False) -> Episode:
    plain = _plain_records()
    episode = plain.read(line, for_figures) if plain is not None else None
    return Episode.from_json(line.decode("utf-8", "backslashreplace")) if episode is None else episode


@cache
def _plain_records() -> _PlainRecords | None:
    """Make the fast reader; None without msgspec (extra ``bench``)."""
    try:
        return _PlainRecords()
    except ModuleNotFoundError:
        return None


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


class _PlainRecords:
    """Reader of records as ``to_json`` writes them, three times as fast as ``Episode.from_json``.

    A record that it takes is the one that ``from_json`` makes. It leaves all others to ``from_json``, valid or not.
    """

    def __init__(self) -> None:
        import msgspec

        def number(most: int) -> Any:  # two types, so that an int stays one
            bounds = msgspec.Meta(ge=0, le=most)
            return Annotated[int, bounds] | Annotated[float, bounds]

        # A seed of more than 63 bits, and further objects within extra, are left to from_json.
        count = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_COUNT)]
        plain: Any = str | bool | int | float | None
        types: dict[Kind, Any] = {
            TEXT: str,
            TRUTH: bool,
            COUNT: count,
            COUNT_OR_NONE: count | None,
            SHARE: number(1),
            SECONDS: number(int(LONGEST_SECONDS)),
            SEED: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | None,
            OBJECT: dict[str, plain | list[plain]],
            EPISODE["ended"]: Literal[ENDS],
            EPISODE["failure"]: Literal["", *FAILURES],
        }

        def struct(kinds: Mapping[str, Kind], needed: Collection[str], of: Any = None, **inner: Any) -> Any:
            """Make the type of a record. Without a class to take defaults from, it has only the fields that are there."""
            defaults = {field.name: _default(field) for field in fields(of)} if of is not None else {}
            members: list[Any] = []
            for name in defaults or kinds:
                kind = inner[name] if name in inner else types[kinds[name]]
                optional = (name, kind | msgspec.UnsetType, defaults.get(name, msgspec.UNSET))
                members.append((name, kind) if name in needed else optional)
            return msgspec.defstruct("Record", members, kw_only=True, forbid_unknown_fields=True, gc=False)

        step = struct(STEP, STEP_NEEDED, Step)
        call = struct(CALL, ("purpose", "seconds"))
        earlier = struct({name: STEP[name] for name in step.__struct_fields__}, ())
        attempt = struct(ATTEMPT, ("steps",), steps=GenericAlias(list, earlier))
        episode = struct(
            EPISODE,
            NEEDED,
            Episode,
            steps=GenericAlias(list, step),
            calls=GenericAlias(list, call),
            attempts=GenericAlias(list, attempt),
            schema=Annotated[int, msgspec.Meta(ge=0, le=SCHEMA_VERSION)],
        )
        self._decode = msgspec.json.Decoder(episode).decode
        self._refused = msgspec.DecodeError
        self._values, self._plain = msgspec.structs.astuple, msgspec.to_builtins

    def read(self, line: bytes, for_figures: bool = False) -> Episode | None:
        """Read a line; None if it is not in our own form. Steps that are only counted (``for_figures``) stay as they were decoded."""
        if not line.isascii():
            return None
        try:
            record: Any = self._decode(line)
        except self._refused:
            return None
        if extra_fault(record.extra) is not None:
            return None
        values = self._values
        if not for_figures:
            record.steps = [Step(*values(step)) for step in record.steps]
        record.calls = self._plain(record.calls)
        record.attempts = self._plain(record.attempts)
        return Episode(*values(record))
