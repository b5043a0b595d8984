"""Whether the files of a model's folder are those that were written: a changed block of weights plays on without a word."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from tstar_envs import BadData, MissingData, read_json

_BLOCK = 1 << 20
# A checkpoint of training and what ``warmstart`` wrote record the sums of their files here.
_RECORDS = ("state.json", "training.json")


def sha256_of(path: Path) -> str:
    """The sum of a file, in hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as handle:
        while block := handle.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def check_files(folder: Path, sums: Mapping[str, Any], needed: Collection[str] = ()) -> None:
    """Compare files with their recorded sums.

    Args:
        folder: where they lie.
        sums: by name; a name stands for a regular file of this folder and for nothing else, whatever it looks like.
        needed: names that must be among them.

    Raises:
        BadData: a name that leads elsewhere, a file that is no regular one or differs, a sum that is none, or one that is missing.
        MissingData: a file is not there.
    """
    if absent := sorted(set(needed) - set(sums)):
        raise BadData(f"{folder}: no sha256 is recorded of {', '.join(absent)}")
    for name, expected in sums.items():
        path = folder / name
        if Path(name).name != name or path.is_symlink():
            raise BadData(f"{folder}: {name!r:.100} is recorded as a file, but is none of this folder")
        if not path.exists():
            raise MissingData(f"{path} is missing, but its sha256 is recorded")
        if not path.is_file():
            raise BadData(f"{path} is not a regular file")
        if sha256_of(path) != expected:
            raise BadData(f"{path} is damaged (its sha256 differs)")


def check_folder(folder: Path) -> None:
    """Compare the files of a model's folder with the sums that it records, if it records any.

    Raises:
        BadData, MissingData: see ``check_files``; or the record itself cannot be read.
    """
    for name in _RECORDS:
        if (folder / name).is_file():
            sums = read_json(folder / name).get("sha256")
            if isinstance(sums, dict):
                check_files(folder, sums)
            elif name == "state.json":
                raise BadData(f"{folder / name}: no 'sha256', so that the weights cannot be checked")
