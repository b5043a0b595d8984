"""Records are read as the standard library reads them: by msgspec where they are as we write them, and with the same values and faults."""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tstar_envs
from tstar_envs import BadData, Episode, Step, append_episode, read_episodes
from tstar_envs.agents.base import Call
from tstar_envs.record_files import _plain_records, _PlainRecords

PLAIN = _PlainRecords()
EPISODE = Episode(
    *("tstar/HotpotQA", "mini", "t0", "test", "1", "me", "who?", "Question: who?"),
    reward=0.5,
    success=True,
    ended="terminated",
    seed=7,
    extra={"em": 1.0, "kind": "bridge", "iteration": 3, "overlong": False, "advantages": [0.5, 1]},
    steps=[Step("Action: x", "", "x", "seen", True, "", True, "x", "00", seconds) for seconds in (0.25, 0.0)],
    calls=[
        {"purpose": "act", "seconds": 0.25, "input_tokens": 100, "output_tokens": None, "finish": "stop"},
        {"purpose": "reflect", "seconds": 1, "tries": 2, "text": "more", "miscounted": True, "step": 1, "attempt": 1},
    ],
    attempts=[{"reward": 0.0, "success": False, "ended": "truncated", "steps": [{"action": "y", "seconds": 0.5}]}],
    panel="v1 x",
    failure="model",
)  # fmt: skip
# Values as texts of JSON; the second group is not standard, but Python reads it.
VALUES = [
    *"0 1 2 3 -1 -0 0.0 1.0 -0.0 0.1 1e5 1E-400 5e-324 0.30000000000000004441 1e15 10000000000 10000000000.1".split(),
    *"true false null [] {} [1] [[1]] [{}] [null] [0.5,true] [1e400] [NaN]".split(),
    *(str(number + off) for number in (10**10, 10**15, 2**31, 2**53, 2**63, 2**64, -(2**63)) for off in (-1, 0, 1)),
    *("9" * digits for digits in (19, 20, 100, 309, 4_300, 4_301)),
    *("1" * 400 + ".0", "0." + "3" * 400, "1e400", "-1e400"),
    *("NaN", "Infinity", "-Infinity"),
    *('""', '"x"', '"error"', '"model"', '"\\ud800"', '"\\udfff\\ud800"', '"\\ud83d\\ude00"', '"\\u0000\\/\\u0041"', '"é東"', '"\x7f"'),
    *('"\t"', '"\\x"', '"\\u12"', "'x'", "01", "1.", ".5", "+1", "0x1", "--1", "1e", "tru", "nan", "", "\ufeff1"),
    *('{"x": 1, "x": "a"}', '{"x": 1e400}', '{"x": NaN}', '{"x": {"y": [[1]]}}', '{"progress": 2}', "[" * 300 + "]" * 300),
]  # fmt: skip
NAMES = [
    *(
        "steps",
        "calls",
        "extra",
        "reward",
        "seed",
        "schema",
        "seconds",
        "text",
        "x",
        "\\u0065xtra",
        "",
        "\\ud800",
    )
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        yield (*path, name)
        yield from places(inner, (*path, name))


RECORD: dict[str, Any] = json.loads(EPISODE.to_json())
PLACES = list(places(RECORD))
MARK = "@"


def with_text(place: tuple[Any, ...], text: str) -> str:
    """The record with a text of JSON in place of a value."""
    record = json.loads(json.dumps(RECORD))
    holder = record
    for name in place[:-1]:
        holder = holder[name]
    holder[place[-1]] = MARK
    return json.dumps(record).replace(json.dumps(MARK), text)


def at(place: tuple[Any, ...]) -> Any:
    value: Any = RECORD
    for name in place:
        value = value[name]
    return value


@st.composite
def lines(draw: st.DrawFn) -> bytes:
    """A line with one value replaced, one field doubled or added, or the text damaged anywhere."""
    place = draw(st.sampled_from(PLACES))
    old, new = json.dumps(at(place)), draw(st.sampled_from(VALUES))
    how = draw(st.sampled_from(("replaced", "doubled", "added", "cut", "edited", "spaced")))
    if how == "replaced":
        text = with_text(place, new)
    elif how in ("doubled", "added"):
        name = draw(st.sampled_from(NAMES)) if how == "added" else str(place[-1])
        first, second = draw(st.permutations([old, new]))
        text = with_text(place, f'{first}, "{name}": {second}')
    else:
        text = json.dumps(RECORD)
        start = draw(st.integers(0, len(text)))
        if how == "cut":
            text = text[:start] + draw(st.sampled_from(("", text[start + 1 :], text[start + 30 :], "}", " ")))
        elif how == "edited":
            text = text[:start] + draw(st.sampled_from('"}{[],:\\\0\x0b é0-. \r\udcff')) + text[start:]
        else:
            text = (
                json.dumps(dict(reversed(RECORD.items())), separators=(",", " : "), ensure_ascii=False)
                + " \t\r"
            )
    assume("\n" not in text)
    return text.encode("utf-8", "surrogateescape") + b"\n"


def exact(episode: Episode) -> str:
    """All values with their types: 1, 1.0 and true differ, as do 0.0 and -0.0."""
    return json.dumps(asdict(episode), sort_keys=True)


def twin(line: bytes) -> Episode | str:
    """Return what the standard library makes of a line, or the fault."""
    try:
        return Episode.from_json(line.decode("utf-8", "backslashreplace"))
    except BadData as error:
        return str(error)


def check(line: bytes, wanted: Episode | str) -> bool:
    """Compare what msgspec makes of a line, if it takes it, with its twin, read for figures too; True if it does."""
    found, bare = PLAIN.read(line), PLAIN.read(line, for_figures=True)
    if bare is not None:
        bare.steps = [Step(*(getattr(step, field.name) for field in fields(Step))) for step in bare.steps]
    assert (found and exact(found)) == (bare and exact(bare)), line
    assert found is None or (isinstance(wanted, Episode) and exact(found) == exact(wanted)), line
    return found is not None


@settings(max_examples=500, deadline=None)
@given(lines())
def test_a_line_is_read_or_refused_as_by_the_standard_library(
    tmp_path_factory: pytest.TempPathFactory, line: bytes
) -> None:
    path, wanted = tmp_path_factory.getbasetemp() / "twins.jsonl", twin(line)
    check(line, wanted)
    path.write_bytes(line + line[: len(line) // 2])  # what a killed writer left is skipped
    try:
        [episode] = read_episodes(path)
    except BadData as error:
        assert str(error) == f"{path}, line 1: {wanted}"
    else:
        assert isinstance(wanted, Episode) and exact(episode) == exact(wanted)


def test_every_value_in_every_place() -> None:
    """Each is taken with the same value and type or left to the standard library, and many are taken."""
    taken = valid = 0
    seen = set()
    for place in PLACES:
        kind = tuple("n" if isinstance(part, int) else part for part in place)
        if kind in seen:  # a second step is no other
            continue
        seen.add(kind)
        for value in VALUES:
            line = with_text(place, value).encode("utf-8", "surrogateescape") + b"\n"
            wanted = twin(line)
            valid += isinstance(wanted, Episode)
            taken += check(line, wanted)
    assert valid > 300 and valid * 0.7 < taken < valid


def test_records_of_evaluations_are_read_the_fast_way(tmp_path: Path) -> None:
    """Every family's, with requests and an earlier attempt; the reader would fall back in silence."""
    for env in ("sokoban-easy", "blocksworld-stack", "alfworld", "webshop", "hotpotqa"):
        path = tmp_path / f"{env}.jsonl"
        tstar_envs.evaluate(Reflecting(), env, tasks=2, out=path, options={"horizon": 2})
        lines = path.read_bytes().splitlines(keepends=True)
        assert len(lines) == 2 and all(check(line, twin(line)) for line in lines), env
        episodes = list(read_episodes(path))
        assert [episode.to_json().encode() + b"\n" for episode in episodes] == lines
        assert all(episode.calls and episode.attempts and episode.steps for episode in episodes)


class Reflecting:
    """Plays each task twice, and notes requests as an agent with a model does."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def reset(self, observation: str, info: dict[str, Any]) -> None:
        self.attempt = info["attempt"]

    def act(self, observation: str, info: dict[str, Any]) -> str:
        self.calls.append(Call("act", 0.25, 100, None, 50, 2, "stop", 1, "more", True))
        return "Thought: I go on.\nAction: Up"

    def again(self, observation: str, reward: float, info: dict[str, Any]) -> bool:
        self.calls.append(Call("reflect", 0.5, 7, 3, text="look first"))
        return self.attempt == 0


def test_without_msgspec_records_are_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_episode(tmp_path / "e.jsonl", EPISODE)
    monkeypatch.setitem(sys.modules, "msgspec", None)
    _plain_records.cache_clear()
    try:
        assert _plain_records() is None and [*read_episodes(tmp_path / "e.jsonl")] == [EPISODE]
    finally:
        monkeypatch.undo()
        _plain_records.cache_clear()
    assert _plain_records() is not None and [*read_episodes(tmp_path / "e.jsonl")] == [EPISODE]
