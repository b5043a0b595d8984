"""Files that somebody else made: what is no regular file, too much, damaged or nested is refused by name, and read otherwise."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tstar_envs import (
    BadData,
    InUse,
    MissingData,
    UnknownOption,
    only_writer,
    parse_json,
    read_json,
    write_whole,
)
from tstar_envs.data.files import (
    FILES,
    JSON_DEPTH,
    LINES,
    TEXT_BYTES,
    find_files,
    read_bytes,
    read_lines,
    read_text,
    regular_file,
    whole_file,
)


def test_only_regular_files(tmp_path: Path) -> None:
    (tmp_path / "folder.txt").mkdir()
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "nowhere.txt").symlink_to(tmp_path / "absent")
    (tmp_path / "loop.txt").symlink_to(tmp_path / "loop.txt")
    (tmp_path / "good.txt").write_text("x")
    (tmp_path / "link.txt").symlink_to(tmp_path / "good.txt")
    for name, message in (
        ("folder.txt", "a folder"),
        ("pipe.txt", "a pipe"),
        ("loop.txt", "cannot be read"),
        ("x" * 5000, "5,0"),
    ):
        with pytest.raises(BadData, match=message):
            read_bytes(tmp_path / name)
    for name, message in (("nowhere.txt", "broken link"), ("absent", "no such file")):
        with pytest.raises(MissingData, match=message):
            read_bytes(tmp_path / name)
    for odd in ("/dev/zero", "\0"):
        with pytest.raises(BadData):
            regular_file(odd)
    assert read_text(tmp_path / "link.txt") == "x"
    assert [p.name for p in find_files(tmp_path, [".TXT"])] == ["good.txt", "link.txt"]


def test_limits_name_their_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = tmp_path / "bomb.gz"
    packed.write_bytes(gzip.compress(b"\n" * 300_000))
    monkeypatch.setenv(TEXT_BYTES.variable, "200000")
    with pytest.raises(
        BadData, match=r"bomb\.gz \(unpacked\): more than 200,000 bytes.*TSTAR_MAX_TEXT_BYTES"
    ):
        read_bytes(packed)
    monkeypatch.setenv(LINES.variable, "1000")
    with pytest.raises(BadData, match="TSTAR_MAX_LINES"):
        list(read_lines(packed))
    monkeypatch.setenv(FILES.variable, "2")
    for name in "abc":
        (tmp_path / f"{name}.txt").touch()
    with pytest.raises(BadData, match="TSTAR_MAX_FILES"):
        find_files(tmp_path, [".txt"])
    for wrong in ("0x10", "-1", "many", "1" * 40):
        monkeypatch.setenv(LINES.variable, wrong)
        if wrong != "0x10":
            with pytest.raises(UnknownOption, match="TSTAR_MAX_LINES must be a whole number"):
                list(read_lines(packed))
    monkeypatch.delenv(TEXT_BYTES.variable)
    monkeypatch.setenv(LINES.variable, "300000")
    assert len(list(read_lines(packed))) == 300_000


LINE = st.text(alphabet=st.characters(exclude_characters="\n\r\0", exclude_categories=["Cs"]), max_size=20)


@settings(deadline=None)  # it writes files, on machines that may be busy
@given(st.lists(LINE, max_size=8), st.booleans())
def test_lines_are_those_of_the_file(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], ended: bool
) -> None:
    path = tmp_path_factory.mktemp("lines") / "f.txt"
    text = "\n".join(lines) + "\n" * ended
    path.write_bytes(text.encode("utf-8"))
    expected = text.encode("utf-8").decode("utf-8-sig").split("\n")
    assert [line for _, line in read_lines(path)] == (expected[:-1] if expected[-1] == "" else expected)
    assert [number for number, _ in read_lines(path)] == list(range(1, len(list(read_lines(path))) + 1))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[" * 100_000, "brackets within one another"),
        (b'{"a":' * 300 + b"1" + b"}" * 300, JSON_DEPTH.variable),
        (b"1" * 10_000, "digits"),
        (b'{"a": 1', "line 1, column"),
        (b"", "not JSON"),
        (b"[1]", "an object"),
        (b'"x"', "an object"),
        (b"\xff\xfe{\x00}\x00", "bytes of value 0"),
        (b'{"a": "\xe9"}', "not UTF-8"),
    ],
)
def test_damaged_json_is_one_sentence(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(content)
    with pytest.raises(BadData, match=message) as caught:
        read_json(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_brackets_in_texts_are_no_depth() -> None:
    text = json.dumps({"a": "[" * 1000, "b": ['\\"{' * 500]})
    assert parse_json(text, "here") == json.loads(text)
    assert parse_json("[]", "here", list) == [] and parse_json("3", "here", object) == 3


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_whole(path, "one")
    (tmp_path / ".a.json.partial").write_text("left by a killed writer")
    write_whole(path, "two")
    assert path.read_text() == "two" and [p.name for p in tmp_path.iterdir()] == ["a.json"]
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        write_whole(tmp_path / "folder", "x")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.json", "folder"]


def test_a_file_written_in_pieces_has_its_name_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    with whole_file(path) as handle:
        handle.writelines([b"one ", b"two"])
        assert not path.exists()
    assert path.read_bytes() == b"one two"
    with pytest.raises(KeyError), whole_file(path) as handle:
        handle.write(b"three")
        raise KeyError
    assert path.read_bytes() == b"one two" and [p.name for p in tmp_path.iterdir()] == ["a.bin"]


HOLD = """
import sys, time
from pathlib import Path
from tstar_envs import only_writer
with only_writer(Path(sys.argv[1]), "it", "wait"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_writer_is_refused_by_name_and_a_dead_ones_lock_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=-1, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        for _ in range(2):
            said = f"it is being written by process {holder.pid} on .+ since .+; wait"
            with pytest.raises(InUse, match=said), only_writer(path, "it", "wait"):
                pass
        holder.kill()
    assert path.exists(), "a killed process leaves its file"
    with only_writer(path, "it", "wait"):
        assert json.loads(path.read_text())["process"] == os.getpid()
        with pytest.raises(InUse, match=str(os.getpid())), only_writer(path, "it", "wait"):
            pass
    assert not path.exists()
    with pytest.raises(RuntimeError, match="kept"), only_writer(path, "it", "wait"):
        raise RuntimeError("kept")
    assert not path.exists()
