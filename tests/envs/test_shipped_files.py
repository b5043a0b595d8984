"""A file of the package that is damaged in any way says what mends it."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tstar_envs import BadData
from tstar_envs.data.shipped import read_shipped, read_shipped_records

CUT = gzip.compress(b'{"a": 1}\n' * 100)[:-20]
DAMAGE = {
    "missing": None,
    "cut off": CUT,
    "not packed": b'{"a": 1}\n',
    "not text": gzip.compress(b"\xff\xfe\xff\n"),
}


@pytest.mark.parametrize("data", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("read", [read_shipped, read_shipped_records])
def test_damage_names_the_file_and_the_cure(
    read: Callable[[Path], Any], data: bytes | None, tmp_path: Path
) -> None:
    path = tmp_path / "tasks.jsonl.gz"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(BadData, match=r"install tstar again: .*tasks\.jsonl\.gz"):
        read(path)


def test_a_line_that_is_no_json(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"a": 1}\n{"a": \n'))
    with pytest.raises(BadData, match="install tstar again"):
        read_shipped_records(path)
