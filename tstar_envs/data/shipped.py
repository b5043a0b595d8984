"""Files shipped with the package: reproducible gzip files with a manifest of checksums."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tstar_envs.data.files import FILE_BYTES, read_lines, read_text, write_whole
from tstar_envs.errors import BadData, MissingData

MANIFEST = "MANIFEST.json"


def write_shipped(folder: Path, contents: Mapping[str, bytes], what: str, made_by: str, **more: Any) -> None:
    """Write the files of a mini tier; equal contents give equal bytes on every machine.

    Args:
        folder: output folder, created if missing.
        contents: name without ``.gz`` -> uncompressed bytes.
        what: description and licence.
        made_by: command that generates them.
        **more: extra entries of the manifest, before the checksums.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in contents.items():
        write_whole(folder / f"{name}.gz", gzip.compress(data, mtime=0))
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}
    manifest = {"what": what, "made_by": made_by, **more, "sha256_uncompressed": sums}
    write_whole(folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")


def read_shipped(path: Path) -> list[str]:
    """Read the lines of a shipped text file; ``path`` includes ``.gz``.

    Raises:
        BadData: the installed package is damaged.
    """
    with _of_the_package():
        return read_text(path, FILE_BYTES).splitlines()


def read_shipped_records(path: Path) -> list[Any]:
    """Read the records of a shipped ``.jsonl.gz``, one per line.

    Raises:
        BadData: the installed package is damaged.
    """
    with _of_the_package():
        return [json.loads(line) for _, line in read_lines(path)]


@contextmanager
def _of_the_package() -> Iterator[None]:
    """Add the remedy to errors about shipped files: install again."""
    try:
        yield
    except (MissingData, BadData, ValueError) as error:
        raise BadData(f"the installed package is damaged, install tstar again: {error}") from error
