"""The result file: settings are compared, the last record of an episode counts, nothing foreign is touched."""

import json
from pathlib import Path
from typing import Any

import pytest

from tstar_envs import BadData, Episode, UnknownOption
from tstar_envs.evaluation.log import ResultFile

SETTINGS: dict[str, Any] = {"env": "e", "seed": 0, "options": {"topk": 3, "names": ("a", "b")}}


def episode(task: str, ended: str = "terminated") -> Episode:
    return Episode("e", "mini", task, "test", "1", "a", "", "", ended=ended)


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "e.jsonl"
    first = ResultFile(path, SETTINGS)
    assert first.episodes() == {}
    for e in (episode("a", "error"), episode("b"), episode("a")):
        first.append(e)
    again = ResultFile(path, SETTINGS).episodes()
    assert {key: e.ended for key, e in again.items()} == {("a", 0): "terminated", ("b", 0): "terminated"}
    assert not list(path.parent.glob("*.tmp"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, "seed was 0, now 1"),
        ({"options": {"topk": 1, "names": ["a", "b"]}}, "options.topk was 3, now 1"),
        ({"options": {"names": ["a", "b"]}}, "options.topk was 3, now not set"),
        ({"extra": None}, "extra was not set, now null"),
        ({"seed": 1, "env": "f"}, 'env was "e", now "f"; seed was 0, now 1'),
    ],
)
def test_other_settings_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "e.jsonl"
    ResultFile(path, SETTINGS).append(episode("a"))
    before = path.read_bytes()
    with pytest.raises(UnknownOption) as caught:
        ResultFile(path, {**SETTINGS, **change})
    assert message in str(caught.value) and str(path) in str(caught.value)
    assert path.read_bytes() == before


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_text("my notes\n")
    with pytest.raises(BadData, match=r"config\.json"):
        ResultFile(path, SETTINGS)
    assert path.read_text() == "my notes\n" and [p.name for p in tmp_path.iterdir()] == ["e.jsonl"]
    for odd in (tmp_path, Path("/dev/null")):
        with pytest.raises(BadData, match="regular file"):
            ResultFile(odd, SETTINGS)


@pytest.mark.parametrize("content", ["{", "[]", "3"])
def test_damaged_settings(tmp_path: Path, content: str) -> None:
    (tmp_path / "e.jsonl.config.json").write_text(content)
    with pytest.raises(BadData, match=r"e\.jsonl\.config\.json"):
        ResultFile(tmp_path / "e.jsonl", SETTINGS)


def test_settings_are_readable(tmp_path: Path) -> None:
    ResultFile(tmp_path / "e.jsonl", SETTINGS)
    assert json.loads((tmp_path / "e.jsonl.config.json").read_text())["options"] == {
        "topk": 3,
        "names": ["a", "b"],
    }
