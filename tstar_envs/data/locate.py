"""Location of data: public data below ``$TSTAR_DATA``, and files or folders given by an option."""

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
    """Get the data folder: ``$TSTAR_DATA``, or ``~/.cache/tstar`` if it is not set."""
    return Path(os.environ.get("TSTAR_DATA", "~/.cache/tstar")).expanduser()


class Published(NamedTuple):
    """Public data of a full tier.

    Attributes:
        what: description.
        found: path, None if missing.
        looked_in: expected path.
        fetch: command that fetches the data.
        look: function that reads a sample of the data and raises a ``TStarError`` if it is unusable.
    """

    what: str
    found: Path | None
    looked_in: tuple[Path, ...]
    fetch: str
    look: Callable[[Path], object]


def choose_tier(data: PathLike, full_is_there: Callable[[], bool]) -> str:
    """Determine the tier of an environment's ``data`` option.

    Args:
        data: ``mini`` (shipped), ``full`` (published), ``auto`` (full if present, else mini), or a path.
        full_is_there: checks for the published data; called only for ``auto``.

    Returns:
        ``mini``, ``full`` or ``path``.
    """
    if data == "auto":
        return "full" if full_is_there() else "mini"
    return str(data) if data in ("mini", "full") else "path"


@contextmanager
def with_mini_named(tier: str) -> Iterator[None]:
    """Add the remedy ``data='mini'`` to errors about public data: the shipped tasks do not need them.

    Raises:
        BadData: the original error; for the full tier with the remedy.
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
    """Determine the file or folder to play; None for the shipped tasks.

    Args:
        data: ``auto`` or ``mini`` (shipped), or a path, as in every family.
        path: value of the family's own path option.

    Raises:
        UnknownOption: ``full``, both options at once, or a value that is not a path.
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
    """Return the path if it exists.

    Args:
        option: name of the option, for the message.
        wanted: description of valid files, for the message.

    Raises:
        UnknownOption: an empty path.
        MissingData: the path does not exist.
        BadData: a pipe, a device, or a name that the system rejects.
    """
    if not os.fspath(path):
        raise UnknownOption(f"{option}='' is not a path; give {wanted}, or leave the option out")
    try:
        found = Path(path).expanduser()
    except RuntimeError:  # ~user of an unknown user
        found = Path(path)
    if os.path.isdir(found):  # noqa: PTH112 - Path.is_dir raises for names that the system rejects
        return found
    try:
        return regular_file(found)
    except MissingData as error:
        other = "'auto', 'mini', " if option == "data" else ""
        what = "a broken link" if found.is_symlink() else "there is no such file or folder"
        raise MissingData(f"{option}={shown(path)!r}: {what}; give {other}{wanted}") from error


def stamped(files: Iterable[Path]) -> Stamped:
    """Collect times and sizes of files, as a cache key that changes with their content.

    Raises:
        MissingData: a file was just deleted.
    """
    # The inode's change time too: rsync and cp -p preserve the modification time of other content.
    stats = [(file, regular_file(file).stat()) for file in files]
    return tuple((file, max(stat.st_mtime_ns, stat.st_ctime_ns), stat.st_size) for file, stat in stats)
