"""Episode records: every reply survives, half lines of a killed writer do no harm, newer files are refused."""

import json
from pathlib import Path

import pytest

from tstar_envs import BadData, Episode, Step, append_episode, read_episodes


def make_episode(task: str = "t0", reply: str = "Action: x") -> Episode:
    step = Step(reply, "", "x", "seen", True, "", True, "x", "00")
    return Episode(
        "tstar/HotpotQA",
        "mini",
        task,
        "test",
        "1",
        "me",
        "who?",
        "Question: who?",
        1.0,
        True,
        "terminated",
        steps=[step],
    )


@pytest.mark.parametrize("reply", ["\udfff\ud800\x00", "line\nline\u2028line\r\n", "東京 é", '"\\', ""])
def test_any_reply_survives(tmp_path: Path, reply: str) -> None:
    path = tmp_path / "episodes.jsonl"
    for _ in range(2):
        append_episode(path, make_episode(reply=reply))
    assert list(read_episodes(path)) == [make_episode(reply=reply)] * 2
    assert path.read_bytes().count(b"\n") == 2


@pytest.mark.parametrize("length", [1, 20, 500, 200_000])
def test_half_line_at_the_end_is_skipped_and_cut(tmp_path: Path, length: int) -> None:
    path = tmp_path / "episodes.jsonl"
    append_episode(path, make_episode("t0"))
    line = make_episode("t1", reply="y" * 200_000).to_json()
    with path.open("a") as handle:
        handle.write(line[:length])
    assert [e.task for e in read_episodes(path)] == ["t0"]
    append_episode(path, make_episode("t2"))
    assert [e.task for e in read_episodes(path)] == ["t0", "t2"]


def test_file_with_nothing_but_a_half_line(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    path.write_text('{"env": ')
    assert list(read_episodes(path)) == []
    append_episode(path, make_episode())
    assert list(read_episodes(path)) == [make_episode()]


@pytest.mark.parametrize(
    "line", ["nonsense", "[]", "{}", '{"steps": []}', '{"steps": 3, "schema": 1}', "\ufffd"]
)
def test_damaged_lines_are_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "episodes.jsonl"
    append_episode(path, make_episode())
    with path.open("a", encoding="utf-8") as handle:
        handle.write(line + "\n")
    append_episode(path, make_episode())
    with pytest.raises(BadData, match=r"episodes\.jsonl, line 2"):
        list(read_episodes(path))


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    path.write_bytes(b"\xff\xfe\x00\n")
    with pytest.raises(BadData, match="line 1"):
        list(read_episodes(path))


def test_newer_schema_is_refused() -> None:
    record = json.loads(make_episode().to_json()) | {"schema": 99}
    with pytest.raises(BadData, match="schema 99"):
        Episode.from_json(json.dumps(record))
