"""A lock is only ever written where it is ours: what somebody else put in its place keeps its content, and its name."""

import json
import os
import resource
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tstar_envs import InUse, WriteFailed, only_writer, write_whole

VICTIM = b"do not lose me\n" * 3


def symbolic(lock: Path, victim: Path) -> None:
    lock.symlink_to(victim)


def relative(lock: Path, victim: Path) -> None:
    lock.symlink_to(os.path.relpath(victim, lock.parent))


def chain(lock: Path, victim: Path) -> None:
    between = lock.with_name("between")
    between.symlink_to(victim)
    lock.symlink_to(between)


def hard(lock: Path, victim: Path) -> None:
    os.link(victim, lock)


def dangling(lock: Path, victim: Path) -> None:
    lock.symlink_to(victim.with_name("not there"))


def in_a_circle(lock: Path, victim: Path) -> None:
    lock.symlink_to(lock)


def to_a_folder(lock: Path, victim: Path) -> None:
    lock.symlink_to(victim.parent)


def a_folder(lock: Path, victim: Path) -> None:
    lock.mkdir()


def a_pipe(lock: Path, victim: Path) -> None:
    os.mkfifo(lock)


def another_file(lock: Path, victim: Path) -> None:
    lock.write_bytes(VICTIM)


def other_json(lock: Path, victim: Path) -> None:
    lock.write_text('{"processes": [1, 2]}')


def a_long_file(lock: Path, victim: Path) -> None:
    lock.write_bytes(b'{"process": 1}' + b" " * 10_000)


FOREIGN = [
    *(symbolic, relative, chain, hard, dangling, in_a_circle, to_a_folder),
    *(a_folder, a_pipe, another_file, other_json, a_long_file),
]


@pytest.mark.parametrize("put", FOREIGN)
def test_what_is_not_ours_is_refused_and_left_as_it_was(
    tmp_path: Path, put: Callable[[Path, Path], None]
) -> None:
    victim, lock = tmp_path / "data" / "victim", tmp_path / "here" / ".lock"
    for folder in (victim.parent, lock.parent):
        folder.mkdir()
    victim.write_bytes(VICTIM)
    put(lock, victim)
    before = lock.lstat(), sorted(tmp_path.rglob("*"))
    with pytest.raises(WriteFailed, match=r"\.lock") as refused, only_writer(lock, "the folder", "wait"):
        pytest.fail("it was taken")
    assert "\n" not in str(refused.value)
    assert victim.read_bytes() == VICTIM and sorted(tmp_path.rglob("*")) == before[1]
    after = lock.lstat()
    assert (after.st_ino, after.st_size, after.st_mode) == (
        before[0].st_ino,
        before[0].st_size,
        before[0].st_mode,
    )


def test_one_of_a_dead_process_is_taken_over_and_removed(tmp_path: Path) -> None:
    lock = tmp_path / ".lock"
    for left in (b"", b'{"process": 12', json.dumps({"process": 1, "host": "h", "since": "s"}).encode()):
        lock.write_bytes(left)
        with only_writer(lock, "the folder", "wait"):
            assert json.loads(lock.read_text()) | {"since": ""} == {
                "process": os.getpid(),
                "host": socket.gethostname(),
                "since": "",
            }
            with pytest.raises(InUse, match=rf"process {os.getpid()} on"), only_writer(lock, "x", "wait"):
                pytest.fail("it was taken twice")
        assert not lock.exists()


def test_a_file_is_written_whole_past_a_link_in_the_place_of_its_first_draft(tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "settings.json"
    victim.write_bytes(VICTIM)
    (tmp_path / ".settings.json.partial").symlink_to(victim)
    write_whole(path, "{}")
    assert victim.read_bytes() == VICTIM and path.read_text() == "{}" and not path.is_symlink()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["settings.json", "victim"]


def test_a_full_disk_is_said_with_the_file_and_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    write_whole(path, "{}")
    whole = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, whole[1]))
    try:
        with pytest.raises(OSError, match=r"settings\.json"):
            write_whole(path, "x" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, whole)
    assert path.read_text() == "{}" and list(tmp_path.iterdir()) == [path]


def test_a_lock_on_a_full_disk_is_no_lock(tmp_path: Path) -> None:
    lock, whole = tmp_path / ".lock", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, whole[1]))
    try:
        said = r"\.lock' cannot be written: .*for the folder"
        with pytest.raises(WriteFailed, match=said), only_writer(lock, "the folder", "wait"):
            pytest.fail("it was taken")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, whole)
    assert not lock.exists()
