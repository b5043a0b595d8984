"""Some four thousand damaged files of episodes: each is read as before, or refused in one sentence that names file and line."""

import copy
import json
import random
import re
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cli_process import call_main

from tstar_envs import BadData, Episode, TStarError, append_episode, find_entry, read_episodes
from tstar_envs.agents.base import KINDS, Call
from tstar_envs.envs.sokoban.env import SokobanEnv
from tstar_envs.evaluation.cost import read_prices
from tstar_envs.evaluation.log import ResultFile, read_recorded
from tstar_envs.evaluation.replay import recordings, replay
from tstar_envs.evaluation.report.loading import read_evaluation
from tstar_envs.evaluation.runner import play_episode
from tstar_envs.record import FAILURES
from tstar_envs.record_files import Head, read_heads

ENTRY = find_entry("sokoban-easy")
PRICES = read_prices(None)
CASES, CPU_SECONDS = 4_000, 60
HUGE = 10**400
BAD: list[Any] = [
    *(None, True, False, 0, 1, -1, 5, 0.5, -0.0, 1e308, 10**16, 2**64, HUGE, -HUGE),
    *(
        float("nan"),
        float("inf"),
        float("-inf"),
        "",
        "x",
        "1",
        "nan",
        "\ud800",
        "\x00",
        "error",
        "x" * 10_000,
    ),
    *([], [None], [1], ["x"], [[]], [{}], [{"x": 1}], [{"steps": 3}], [{"purpose": "act", "seconds": "1"}]),
    *({}, {"x": None}, {"x": HUGE}, {"x": float("nan")}, {"progress": 3}, {"task_type": []}, {"": {}}),
    [{"purpose": "act", "seconds": 1, "input_tokens": HUGE, "output_tokens": -1}],
    [{"purpose": "act", "seconds": 1, "cached_tokens": None, "step": 1.5}],
    [{"reward": 3, "success": "no", "ended": 3, "steps": [{"seconds": "x", "action": 3}]}],
]


class Asking:
    """Walks about, and notes requests and an earlier attempt as an agent with a model does."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def reset(self, observation: str, info: dict[str, Any]) -> None:
        self.attempt = info["attempt"]

    def act(self, observation: str, info: dict[str, Any]) -> str:
        self.calls.append(Call("act", 0.25, 100, 10, 50, 2, "stop"))
        return "Thought: I go on.\nAction: Up"

    def again(self, observation: str, reward: float, info: dict[str, Any]) -> bool:
        self.calls.append(Call("reflect", 0.5, 7, 3, text="look first"))
        return self.attempt == 0


@pytest.fixture(scope="module")
def records() -> list[dict[str, Any]]:
    """As an evaluation writes them."""
    tasks = SokobanEnv().task_ids()
    played = [
        play_episode(SokobanEnv(horizon=2), ENTRY, Asking(), name="a", task=task, progress=True)
        for task in tasks[:2]
    ]
    return [json.loads(episode.to_json()) for episode in played]


def places(record: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a value stands in a record, at any depth."""
    inside = (
        record.items() if isinstance(record, dict) else enumerate(record) if isinstance(record, list) else ()
    )
    for name, value in inside:
        yield (*path, name)
        yield from places(value, (*path, name))


def changed(
    record: dict[str, Any], place: tuple[Any, ...], change: Any, draw: random.Random
) -> dict[str, Any]:
    """A copy with a value replaced, removed, doubled or nested."""
    damaged = copy.deepcopy(record)
    holder: Any = damaged
    for name in place[:-1]:
        holder = holder[name]
    name = place[-1]
    if change == "delete":
        del holder[name]
    elif change == "nest":
        for _ in range(draw.choice((1, 3, 200))):
            holder[name] = [holder[name]] if draw.random() < 0.5 else {"x": holder[name]}
    elif change == "rename" and isinstance(holder, dict):
        holder[f"{name}{draw.choice(('', ' ', '_', 's'))}x"] = holder.pop(name)
    else:
        holder[name] = copy.deepcopy(change)
    return damaged


def damaged_files(records: list[dict[str, Any]], share: int) -> Iterator[tuple[str, str]]:
    """(what was done, text of the file): every field with every value first, then drawn ones, always the same; one in `share` of all."""
    draw = random.Random(49)
    lines = [json.dumps(record) for record in records]
    first = records[0]
    at = [p for p in places(first) if p[0] not in ("steps", "calls", "attempts") or 0 in p or len(p) == 1]
    cases = [(place, bad) for place in at for bad in (*BAD, "delete", "nest", "rename")]
    draw.shuffle(cases)
    for place, bad in cases[: CASES - 700 : share]:
        yield f"{place} = {bad!r:.60}", json.dumps(changed(first, place, bad, draw)) + f"\n{lines[1]}\n"
    for number in range(400 // share):
        line = lines[0]
        start = draw.randrange(len(line))
        if number % 4 == 0:
            line = line[:start]
        elif number % 4 == 1:
            line = line[:start] + draw.choice(['"', "}", "[", ",", "\\", "\0", "\n", "\u2028"]) + line[start:]
        elif number % 4 == 2:
            line = line[:start] + line[start + draw.randrange(1, 40) :]
        else:
            line = re.sub(r"\d+", lambda found: draw.choice((found[0], "9" * 50, "1e999", "-1")), line)
        yield f"line {number}", f"{line}\n{lines[1]}\n"
    for number in range(300):
        one, two = (draw.choice(list(places(first))) for _ in range(2))
        damaged = changed(first, one, draw.choice(BAD), draw)
        if two in list(places(damaged)):
            damaged = changed(damaged, two, draw.choice((*BAD, "delete")), draw)
        yield f"two {number}", f"{lines[1]}\n{json.dumps(damaged)}\n"


def same_in_another_order(path: Path, wanted: list[Episode] | None) -> None:
    """Records in another order of fields, which are checked field by field, are valid exactly if these are."""

    def turned(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: turned(inner) for name, inner in reversed(value.items())}
        return [turned(inner) for inner in value] if isinstance(value, list) else value

    other = path.with_name("other.jsonl")
    try:
        lines = [json.dumps(turned(json.loads(line))) for line in path.read_text().splitlines()]
    except (ValueError, RecursionError):  # damaged as JSON
        return
    other.write_text("\n".join(lines) + "\n")
    if wanted is None:
        with pytest.raises(BadData, match="line [12]: "):
            list(read_episodes(other))
    else:
        assert list(read_episodes(other)) == wanted


@pytest.mark.parametrize("share", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_a_damaged_file_is_read_or_named(share: int, records: list[dict[str, Any]], tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    settings = path.with_name("e.jsonl.config.json")
    settings.write_text(json.dumps({"options": {}}))
    env = SokobanEnv(horizon=2)
    began, counted, refused = time.process_time(), 0, 0
    for what, text in damaged_files(records, share):
        counted += 1
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        try:
            episodes = list(read_episodes(path))
        except BadData as error:
            refused += 1
            assert re.match(rf"{re.escape(str(path))}, line [12]: ", str(error)), (what, str(error))
            assert "\n" not in str(error) and len(str(error)) < 500, what
            for use in (read_recorded, partial(read_evaluation, prices=PRICES)):
                with pytest.raises(BadData, match="line [12]"):
                    use(path)
            if not counted % 3:
                same_in_another_order(path, None)
            try:  # damage behind the head shows once the episode is read
                assert len(list(read_heads(path))) == 2, what
            except BadData as named:
                assert re.match(rf"{re.escape(str(path))}, line [12]: ", str(named)), what
            continue
        assert list(read_heads(path)) == [Head.of(n, episode) for n, episode in enumerate(episodes, 1)], what
        if not counted % 3:
            same_in_another_order(path, episodes)
        try:
            for episode in episodes:
                assert 0 <= episode.reward <= 1 and episode.ended in ("terminated", "truncated", "error"), (
                    what
                )
                assert Episode.from_json(episode.to_json()) == episode, what
            assert ResultFile(path, {"options": {}}).episodes(), what
            for use in (read_recorded, partial(read_evaluation, prices=PRICES)):
                try:
                    use(path)
                except TStarError as error:  # two episodes that do not belong together, or none with a result
                    assert str(path) in str(error), what
            try:
                for _ in replay([env], ENTRY, recordings(episodes)):
                    pass
            except BadData as error:
                assert "line" in str(error) and "attempt" in str(error), what
        except AssertionError:
            raise
        except Exception as error:  # the point of the test: nothing else comes
            raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
    assert counted >= (CASES - 100) // share and counted / 3 < refused < counted
    assert time.process_time() - began < CPU_SECONDS


@pytest.mark.parametrize("other", [None, "0.5", [], {"x": 1}, True])
@pytest.mark.parametrize("name", ["f1", "em", "coins"])
def test_a_figure_that_is_no_number_in_one_record_is_left_out(
    name: str, other: Any, records: list[dict[str, Any]], tmp_path: Path
) -> None:
    path = tmp_path / "e.jsonl"
    path.with_name("e.jsonl.config.json").write_text(json.dumps({"options": {}}))
    for values in ((other, 0.5), (0.5, other)):
        lines = [
            json.dumps({**record, "extra": {**record["extra"], name: value, "steps_left": 2.0}})
            for record, value in zip(records, values, strict=True)
        ]
        path.write_text("\n".join(lines) + "\n")
        read_recorded(path)
        assert read_evaluation(path, prices=PRICES).summary.extra.keys() & {name, "steps_left"} == {
            "steps_left"
        }


def test_every_command_names_the_line(
    records: list[dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    call = partial(call_main, capsys)
    again = ("eval", "--env", "sokoban-easy", "--agent", "random", "--tasks", "2", "--out", "e.jsonl")
    assert call(*again)[0] == 0
    whole = Path("e.jsonl").read_text().splitlines()
    Path("other.jsonl").write_text("\n".join(whole) + "\n")
    for name, value in (
        ("reward", float("nan")),
        ("reward", 5),
        ("success", "no"),
        ("seed", HUGE),
        ("extra", 3),
    ):
        damaged = json.dumps({**json.loads(whole[1]), name: value})
        Path("e.jsonl").write_text(f"{whole[0]}\n{damaged}\n")
        for command in (again, ("report", "e.jsonl", "--out", "p.html"), ("replay", "e.jsonl")):
            code, _, err = call(*command)
            assert code == 2 and f"e.jsonl, line 2: not an episode record: {name!r} must be" in err, command
            assert err.count("\n") == 1
        code, _, err = call("compare", "other.jsonl", "e.jsonl")
        assert code == 2 and "e.jsonl, line 2" in err and err.count("\n") == 1
        assert Path("e.jsonl").read_text() == f"{whole[0]}\n{damaged}\n", "nothing is lost"


def test_a_record_knows_the_kinds_of_failures() -> None:
    assert tuple(KINDS) == FAILURES


def test_what_no_reader_would_take_is_not_written(tmp_path: Path) -> None:
    """Every record that an evaluation writes is one that the commands read."""
    for task in SokobanEnv().task_ids()[:3]:
        append_episode(
            tmp_path / "e.jsonl", play_episode(SokobanEnv(horizon=3), ENTRY, Asking(), name="a", task=task)
        )
    assert len(list(read_episodes(tmp_path / "e.jsonl"))) == 3
