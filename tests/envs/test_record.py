"""Episode records: every reply survives, half lines of a killed writer do no harm, newer files are refused."""

import json
import os
from pathlib import Path

import pytest

from tstar_envs import BadData, Episode, Step, append_episode, read_episodes
from tstar_envs.record_files import (
    Head,
    append_episodes,
    episode_at,
    episode_of_line,
    located_results,
    read_heads,
)


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


def test_episodes_written_together_are_one_flush_and_as_many_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, flushed, fsync = tmp_path / "episodes.jsonl", [], os.fsync

    def recorded(handle: int) -> None:
        fsync(handle)
        flushed.append(os.fstat(handle).st_size)

    monkeypatch.setattr(os, "fsync", recorded)
    path.write_text('{"half')
    append_episodes(path, [make_episode(f"t{n}") for n in range(3)])
    assert flushed == [path.stat().st_size], "all is on disk, at once"
    append_episodes(path, [])
    assert [e.task for e in read_episodes(path)] == ["t0", "t1", "t2"]


def test_an_episode_is_found_by_its_line_and_by_its_byte(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    append_episodes(path, [make_episode(task, "東" * n) for n, task in enumerate("abc")])
    places = [place for place, _ in located_results(path)]
    assert [episode_at(path, place) for place in places] == list(read_episodes(path))
    assert episode_of_line(path, 3).task == "c"
    assert episode_at(path, places[1] + 1) is None and episode_at(path, 10**6) is None
    with pytest.raises(BadData, match="has 3 lines of episodes, and no line 4"):
        episode_of_line(path, 4)
    path.write_text("damaged\n" + path.read_text())
    assert episode_of_line(path, 4).task == "c", "the others are not read"
    with pytest.raises(BadData, match="line 1"):
        episode_of_line(path, 1)


MARKS = '", "steps": [{"x": 1}], "panel": "no", "schema": 2}'


def test_heads_are_those_of_the_episodes_whatever_the_texts_hold(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    episodes = [make_episode(f"t{MARKS}", MARKS), make_episode("\ud800 東"), make_episode("t2")]
    episodes[0].instruction = episodes[0].first_observation = episodes[0].error = MARKS
    episodes[0].extra = {"kind": MARKS, "steps": [1, {"steps": []}], "panel": "extra"}
    episodes[0].panel = 'v1 "quoted\\" 0123'
    episodes[1].steps, episodes[1].ended, episodes[1].success = [], "error", False
    episodes[2].panel, episodes[2].calls = "v1 x", [{"purpose": "act", "seconds": 1.0, "text": MARKS}]
    append_episodes(path, episodes)
    wanted = [Head.of(line, episode) for line, episode in enumerate(episodes, start=1)]
    assert list(read_heads(path)) == wanted
    # Not as we write it: other spaces, another order, an older schema.
    records = [json.loads(line) for line in path.read_text().splitlines()]
    lines = [json.dumps(dict(reversed(record.items())), separators=(",", ":")) for record in records]
    path.write_text("\n".join(lines) + '\n{"half')
    assert list(read_heads(path)) == wanted and list(read_episodes(path)) == episodes
    path.write_text("".join(json.dumps({**record, "schema": 1}) + "\n" for record in records))
    assert list(read_heads(path)) == wanted


def test_a_head_of_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    path.write_text(make_episode().to_json().replace('"schema": 2', '"schema": 99') + "\n")
    with pytest.raises(BadData, match="line 1: episode of schema 99"):
        list(read_heads(path))


@pytest.mark.parametrize(
    ("extra", "kind"),
    [
        ({"task_type": "look_at_obj_in_light"}, "look_at_obj_in_light"),
        ({"kind": "2hop"}, "2hop"),
        ({"kind": None}, ""),
        ({"kind": 3}, ""),
        ({}, ""),
    ],
)
def test_the_kind_of_a_task_has_one_name_in_all_families(extra: dict[str, object], kind: str) -> None:
    episode = make_episode()
    episode.extra = extra
    assert episode.kind == kind
