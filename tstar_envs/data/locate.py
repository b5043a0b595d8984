"""Where data lie: public ones below ``$TSTAR_DATA``, and files or folders that are named by an option."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeAlias

from tstar_envs.data.files import regular_file, shown
from tstar_envs.errors import BadData, MissingData, UnknownOption

PathLike: TypeAlias = str | os.PathLike[str]
Stamped: TypeAlias = tuple[tuple[Path, int, int], ...]


def data_home() -> Path:
    """``$TSTAR_DATA``, or ``~/.cache/tstar`` where it is not set."""
    return Path(os.environ.get("TSTAR_DATA", "~/.cache/tstar")).expanduser()


class Published(NamedTuple):
    """Public data that a full tier needs.

    Attributes:
        what: in words.
        found: where they are, None where they are not.
        looked_in: where they would be found.
        fetch: the command that fetches them.
        look: reads a little of what was found, and raises a ``TStarError`` where it cannot be used.
    """

    what: str
    found: Path | None
    looked_in: tuple[Path, ...]
    fetch: str
    look: Callable[[Path], object]


def choose_tier(data: PathLike, full_is_there: Callable[[], bool]) -> str:
    """The tier that an environment's ``data`` option means.

    Args:
        data: ``mini`` (shipped), ``full`` (published), ``auto`` (full if it is there, else mini), or a path.
        full_is_there: looks for the published data; asked only for ``auto``.

    Returns:
        ``mini``, ``full`` or ``path``.
    """
    if data == "auto":
        return "full" if full_is_there() else "mini"
    return str(data) if data in ("mini", "full") else "path"


@contextmanager
def with_mini_named(tier: str) -> Iterator[None]:
    """Say of public data that cannot be used how to do without: the shipped tasks read nothing of them.

    Raises:
        BadData: as inside; of the full tier with the value that helps.
    """
    try:
        yield
    except BadData as error:
        if tier != "full":
            raise
        refused = BadData(f"{error}\ndata='mini' plays the shipped tasks instead")
        refused.left_out = error.left_out
        raise refused from None


def chosen_path(data: PathLike, path: PathLike | None, option: str) -> PathLike | None:
    """The file or folder to play, None for the shipped tasks.

    Args:
        data: ``auto`` or ``mini`` (shipped), or a path, as in every family.
        path: value of the family's own option for a path.
        option: its name.

    Raises:
        UnknownOption: ``full``, both options at once, or something that is no path.
    """
    for name, value in (("data", data), (option, path)):
        if value is not None and not isinstance(value, str | os.PathLike):
            raise UnknownOption(f"{name} must be a path, got {value!r}")
    tier = choose_tier(data, lambda: False)
    if tier == "full":
        raise UnknownOption(
            f"data='full': this family has no full tier; data='mini' is shipped, and {option}=PATH plays public files"
        )
    if tier == "mini":
        return path
    if path is not None:
        raise UnknownOption(
            f"data={str(data)!r} and {option}={str(path)!r} both name what to play; give one of them"
        )
    return data


def existing(path: PathLike, option: str, wanted: str) -> Path:
    """The path, once it is known that there is something.

    Args:
        path: as given.
        option: by which option it was given, for the error message.
        wanted: what may be there.

    Raises:
        UnknownOption: an empty path.
        MissingData: nothing there.
        BadData: a pipe, a device, or a name that the system refuses.
    """
    if not os.fspath(path):
        raise UnknownOption(f"{option}='' is no path; give {wanted}, or leave the option out")
    try:
        found = Path(path).expanduser()
    except RuntimeError:  # ~somebody who is not known here
        found = Path(path)
    if os.path.isdir(found):  # noqa: PTH112 - Path.is_dir raises for names that the system refuses
        return found
    try:
        return regular_file(found)
    except MissingData as error:
        other = "'auto', 'mini', " if option == "data" else ""
        what = "a link that leads nowhere" if found.is_symlink() else "there is no such file or folder"
        raise MissingData(f"{option}={shown(path)!r}: {what}; give {other}{wanted}") from error


def stamped(files: Iterable[Path]) -> Stamped:
    """Files with their times and sizes: what a cache goes by, so that a changed file is read anew.

    Raises:
        MissingData: one of them has just gone.
    """
    # The time of the inode's change too: rsync and cp -p give a file of another content the time that the old one had.
    stats = [(file, regular_file(file).stat()) for file in files]
    return tuple((file, max(stat.st_mtime_ns, stat.st_ctime_ns), stat.st_size) for file, stat in stats)
