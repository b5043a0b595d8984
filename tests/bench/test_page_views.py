"""What the page of results says, without a browser: names, task sets, the paper's tables, progress, differences, cost, what is kept."""

from __future__ import annotations

import json
import re
import tracemalloc
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from page_files import LONG, episode, panel_name, step, tasks, write

from tstar_envs import BadData, MissingData, MissingExtra, UnknownOption, panel
from tstar_envs.evaluation.cost import Price, PriceTable
from tstar_envs.evaluation.report import loading, write_report
from tstar_envs.evaluation.report.boards import Board, agent_names, make_boards, notices
from tstar_envs.evaluation.report.browse import MOST_STEPS, browsable
from tstar_envs.evaluation.report.loading import Evaluation, find_evaluations, read_evaluation
from tstar_envs.evaluation.report.paper import TABLES, Part, household_type, parts, row
from tstar_envs.evaluation.report.tables import cost_rows, counts, leaderboard, paired, paper_views
from tstar_envs.utils import script_json

NO_PRICES = PriceTable("USD", "", {})
EASY, HOTPOT, ALFWORLD = "tstar/Sokoban-easy", "tstar/HotpotQA", "tstar/ALFWorld"


def read(*paths: Path, prices: PriceTable = NO_PRICES) -> list[Evaluation]:
    found = [read_evaluation(path, prices) for path in paths]
    assert all(found)
    return [one for one in found if one is not None]


def boards_of(*paths: Path, prices: PriceTable = NO_PRICES) -> list[Board]:
    evaluations = read(*paths, prices=prices)
    return make_boards(evaluations, agent_names(evaluations))


def players(board: Board) -> list[str]:
    return [player.name for player in board.players]


def test_files_of_the_same_tasks_share_a_board_and_others_do_not(tmp_path: Path) -> None:
    same = [write(tmp_path / f"{name}.jsonl", tasks(10, 5, agent=name)) for name in ("a", "b")]
    fewer = write(tmp_path / "c.jsonl", tasks(6, 6, agent="c"))
    rules = write(tmp_path / "d.jsonl", tasks(10, 6, agent="d", rules_version="old"))
    changed = write(
        tmp_path / "e.jsonl", [replace(e, first_observation="other") for e in tasks(10, 5, agent="e")]
    )
    boards = boards_of(*same, fewer, rules, changed)
    assert [(b.letter, players(b), b.tasks) for b in boards] == [
        ("A", ["a", "b"], 10),
        ("B", ["c"], 6),
        ("C", ["d"], 10),
        ("D", ["e"], 10),
    ]
    (notice,) = notices(boards)
    assert (
        "Sokoban-easy was not played on the same tasks by all" in notice
        and "[B] 6 tasks, not of a panel, rules 7: c" in notice
    )
    assert "[C] 10 tasks, not of a panel, rules old: d" in notice


def test_other_options_and_errors_are_named(tmp_path: Path) -> None:
    a = write(tmp_path / "a.jsonl", tasks(4, 2, agent="a"))
    failed = episode(
        "t003", ended="error", error="EndpointError: down", agent="b", actions=(), failure="endpoint"
    )
    shown = [replace(e, first_observation="grid") for e in tasks(3, 2, agent="b")]
    b = write(tmp_path / "b.jsonl", [*shown, failed], {"observation": "grid_coords"})
    (board,) = boards_of(a, b)
    assert players(board) == ["a", "b"], "an episode that ended in an error leaves a file on its board"
    options, errors = notices([board])
    assert "different options" in options and "a: defaults; b: observation=grid_coords" in options
    assert "1 episode of b on Sokoban-easy ended in an error" in errors
    (table,), _ = paired([board])
    assert table.rows[0].tasks == 3 and len(table.warnings) == 2


def test_what_panel_it_is(tmp_path: Path) -> None:
    ids = panel("v1")[EASY].tasks
    whole = write(tmp_path / "a.jsonl", [episode(task, True, panel=panel_name(EASY)) for task in ids])
    part = write(
        tmp_path / "b.jsonl", [episode(task, True, agent="b", panel=panel_name(EASY)) for task in ids[:7]]
    )
    strange = write(tmp_path / "c.jsonl", [episode(task, agent="c", panel="v1 0123") for task in ids])
    unknown = write(tmp_path / "d.jsonl", [episode(task, agent="d", panel="v99 ff") for task in ids])
    boards = {players(board)[0]: board for board in boards_of(whole, part, strange, unknown)}
    assert boards["a"].of == f"all 200 tasks of panel v1 ({panel('v1')[EASY].hash})" and boards["a"].whole
    assert boards["b"].of.startswith("7 of 200 tasks of panel v1") and not boards["b"].whole
    assert boards["c"].of == "panel v1 (0123), which is not the v1 that this version of tstar has"
    assert boards["d"].of == "panel v99 (ff), which this version of tstar does not have"


def test_names(tmp_path: Path) -> None:
    def named(*files: tuple[str, dict[str, Any]]) -> list[str]:
        paths = [write(tmp_path / name, tasks(2, 1, agent="chat"), **settings) for name, settings in files]
        return agent_names(read(*paths))

    model = {"agent_settings": {"model": "m", "temperature": 0.0}}
    warm = {"agent_settings": {"model": "m", "temperature": 1.0}}
    assert named(("one/a.jsonl", model)) == ["chat m"]
    assert named(("two/a.jsonl", model), ("two/b.jsonl", {"agent_settings": {"model": "n"}})) == [
        "chat m",
        "chat n",
    ]
    assert named(("three/a.jsonl", model), ("three/b.jsonl", warm)) == [
        "chat m (temperature 0.0)",
        "chat m (temperature 1.0)",
    ]
    assert named(("four/a.jsonl", model), ("five/a.jsonl", model)) == ["chat m (four)", "chat m (five)"]
    assert named(("six/a.jsonl", model), ("six/b.jsonl", model)) == ["chat m (a)", "chat m (b)"]
    deep = named(("x/same/a.jsonl", model), ("y/same/a.jsonl", model))
    assert len(set(deep)) == 2, "where nothing else differs, the path does"


def test_leaderboard_orders_by_what_all_have_played(tmp_path: Path) -> None:
    played = {EASY: {"weak": 2, "strong": 6}, HOTPOT: {"weak": 3, "strong": 5}, ALFWORLD: {"weak": 10}}
    paths = [
        write(tmp_path / f"{agent}{env[-4:]}.jsonl", tasks(10, solved, agent=agent, env=env))
        for env, agents in played.items()
        for agent, solved in agents.items()
    ]
    found = leaderboard(boards_of(*paths))
    assert (
        found.agents == ["strong", "weak"]
        and found.common == 2
        and found.means == pytest.approx([0.55, 0.25])
    )
    assert [board.env for board, _ in found.rows] == [HOTPOT, EASY, ALFWORLD], (
        "as the table of environments orders them"
    )
    assert [[None if s is None else s.success for s in row] for _, row in found.rows] == [
        [0.5, 0.3],
        [0.6, 0.2],
        [None, 1.0],
    ]


@pytest.mark.parametrize(
    ("extra", "instruction", "kind"),
    [
        ({"task_type": "pick_two_obj_and_place"}, "", "pick2"),
        ({}, "Your task is to: find two cellphone and put them in safe.", "pick2"),
        ({}, "Your task is to: put two soapbottle in cart.", "pick2"),
        ({}, "Your task is to: put a hot apple in garbagecan.", "heat"),
        ({}, "Your task is to: heat some egg and put it in fridge.", "heat"),
        ({}, "Your task is to: put a cool cup in sinkbasin.", "cool"),
        ({}, "Your task is to: put a clean ladle in diningtable.", "clean"),
        ({}, "Your task is to: look at pen under the desklamp.", "look"),
        ({}, "Your task is to: examine the cd with the desklamp.", "look"),
        ({}, "Your task is to: put some pen on desk.", "pick"),
        ({}, "Your task is to: tidy up.", ""),
    ],
)
def test_household_types(extra: dict[str, Any], instruction: str, kind: str) -> None:
    assert household_type(episode("t", env=ALFWORLD, extra=extra, instruction=instruction)) == kind


def test_household_types_of_records_and_of_sentences_agree() -> None:
    import gymnasium as gym

    env: Any = gym.make(ALFWORLD).unwrapped
    for task in env.task_ids()[::7]:
        observation, info = env.reset(options={"task": task})
        played = episode(task, env=ALFWORLD)
        played.begin(observation, info)
        kind = household_type(played)
        assert kind and played.extra.pop("task_type") and household_type(played) == kind


def test_the_papers_tables(tmp_path: Path) -> None:
    kinds = ["pick_and_place_simple"] * 4 + ["look_at_obj_in_light"] * 2
    houses = [
        episode(f"h{n}", n < 3, env=ALFWORLD, extra={"task_type": kind}) for n, kind in enumerate(kinds)
    ]
    paths = [write(tmp_path / "alfworld.jsonl", houses)]
    paths.append(
        write(
            tmp_path / "shop.jsonl",
            [episode(f"w{n}", n == 0, env="tstar/WebShop", reward=r) for n, r in enumerate((1, 0.4))],
        )
    )
    for n, name in enumerate(
        ("NQ", "TriviaQA", "PopQA", "HotpotQA", "2WikiMultihopQA", "MuSiQue", "Bamboogle")
    ):
        those = [episode(f"q{k}", k < n, env=f"tstar/{name}", extra={"em": float(k < n)}) for k in range(10)]
        paths.append(write(tmp_path / f"{name}.jsonl", those))
    views = {view.table.name: view for view in paper_views(boards_of(*paths))}
    assert list(views) == ["interactive", "questions"], "of planning nothing was played"
    ((name, cells),) = views["interactive"].rows
    assert name == "a"
    assert [cell and round(100 * cell.part.value, 1) for cell in cells] == [
        75.0,
        0.0,
        None,
        None,
        None,
        None,
        50.0,
        70.0,
        50.0,
    ]
    assert cells[0] is not None and cells[0].note == "4 episodes" and cells[0].part.bounds is not None
    ((_, cells),) = views["questions"].rows
    values = [round(100 * cell.part.value, 1) for cell in cells if cell]
    assert values == [0, 10, 20, 10, 30, 40, 50, 60, 30], "averages of 3 and of 7"
    for view in views.values():
        for _, rows in view.published:
            assert all(len(row.figures) == len(view.table.columns) for row in rows)


def test_published_figures_are_those_of_the_paper() -> None:
    """Spot checks against the printed tables, and each row as long as its table is wide."""
    found = {(t.name, row.group, row.method): row.figures for t in TABLES for row in t.published}
    assert len(found) == 18 + 20 + 16
    assert found["interactive", "Qwen2.5-3B-Instruct", "Reflexion"] == tuple(
        "61.2 49.6 55.9 65.2 68.4 45.6 57.7 58.8 32.3".split()
    )
    assert found["questions", "Phi-4-mini-instruct-3.8B", "Search-o1"] == tuple(
        "35.0 49.0 36.0 40.0 30.0 27.0 23.0 21.0 31.5".split()
    )
    assert found["planning", "Qwen2.5-3B-Instruct", "GiGPO + T-STAR"] == tuple(
        "54.4 29.6 11.2 67.1 73.4".split()
    )
    for table in TABLES:
        assert sum(width for _, width in table.groups) == len(table.columns)
        assert all(
            len(row.figures) == len(table.columns) and all(map(float, row.figures)) for row in table.published
        )


def test_progress_counts() -> None:
    found = counts(
        [
            (0.0, False),
            (0.09, False),
            (0.3, False),
            (3 * 0.1, True),
            (0.999, False),
            (1.0, True),
            (1.0, False),
        ]
    )
    assert found[0] == (0, 2) and found[3] == (1, 1) and found[9] == (0, 1) and found[10] == (1, 1)
    assert sum(map(sum, found)) == 7


@given(st.lists(st.tuples(st.floats(-1, 2), st.booleans())))
def test_progress_loses_no_episode(progress: list[tuple[float, bool]]) -> None:
    assert sum(map(sum, counts(progress))) == len(progress)


def test_differences_across_sets_are_on_what_all_have(tmp_path: Path) -> None:
    a, b = (
        write(tmp_path / f"{name}.jsonl", tasks(40, solved, agent=name))
        for name, solved in (("a", 30), ("b", 10))
    )
    c = write(tmp_path / "c.jsonl", tasks(20, 20, agent="c"))
    far = write(
        tmp_path / "far.jsonl", [replace(e, task=f"far{e.task}") for e in tasks(5, 1, agent="d", env=HOTPOT)]
    )
    near = write(tmp_path / "near.jsonl", tasks(5, 1, agent="e", env=HOTPOT))
    tables, messages = paired(boards_of(a, b, c, far, near))
    assert [(t.title, t.rows[0].tasks, len(t.rows)) for t in tables] == [
        ("Sokoban-easy [A]", 40, 1),
        ("Sokoban-easy, all sets", 20, 3),
    ]
    assert tables[0].rows[0].difference == 0.5 and tables[0].rows[0].decided
    assert messages == ["HotpotQA [A], HotpotQA [B] have no task in common: nothing to compare."]


def test_score_is_compared_where_it_says_more(tmp_path: Path) -> None:
    shop = "tstar/WebShop"
    a = write(tmp_path / "a.jsonl", [replace(e, reward=0.5) for e in tasks(8, 0, agent="a", env=shop)])
    b = write(tmp_path / "b.jsonl", tasks(8, 0, agent="b", env=shop))
    tables, _ = paired(boards_of(a, b))
    assert [(t.metric, t.rows[0].difference) for t in tables] == [("success", 0.0), ("score", 0.5)]


def calls(given: int | None, out: int, **more: Any) -> list[dict[str, Any]]:
    return [
        {"purpose": "act", "seconds": 1.0, "step": 0, "input_tokens": given, "output_tokens": out, **more}
    ]


def test_cost_is_summed_and_unknown_where_a_part_is(tmp_path: Path) -> None:
    prices = PriceTable("EUR", "2026-01", {"m": Price(1.0, 0.1, 10.0)})
    model = {"agent_settings": {"model": "m"}}
    easy = write(
        tmp_path / "easy.jsonl", tasks(4, 2, agent="chat", calls=calls(1_000_000, 100_000, tries=3)), **model
    )
    hotpot = write(
        tmp_path / "hotpot.jsonl", tasks(4, 0, agent="chat", env=HOTPOT, calls=calls(500_000, 0)), **model
    )
    (total,), rows = cost_rows(boards_of(easy, hotpot, prices=prices))
    assert (
        total.agent == "chat m"
        and total.costs.cost == pytest.approx(4 * 2 + 4 * 0.5)
        and total.costs.usage.retries == 8
    )
    assert total.costs.cost_per_success == pytest.approx(5.0) and [row.where for row in rows] == [
        "HotpotQA",
        "Sokoban-easy",
    ]
    quiet = write(
        tmp_path / "quiet.jsonl", tasks(4, 0, agent="chat", env=ALFWORLD, calls=calls(None, 0)), **model
    )
    (total,), _ = cost_rows(boards_of(easy, quiet, prices=prices))
    assert total.costs.cost is None and total.costs.usage.uncounted == 4


def test_the_page_keeps_the_same_tasks_of_all_and_those_that_differ_first(tmp_path: Path) -> None:
    a = write(tmp_path / "a.jsonl", tasks(30, 15, agent="a"))
    b = write(tmp_path / "b.jsonl", tasks(30, 12, agent="b"))
    c = write(tmp_path / "c.jsonl", tasks(50, 0, agent="c"))
    found = browsable(boards_of(a, b, c), 4)
    (setting,) = found.data["settings"]
    names = [one["name"] for one in setting["tasks"]]
    assert found.kept == 12 and found.episodes == 110 and len(names) == 4
    assert all(int(name[1:]) < 15 for name in names), "solved by a, not by c"
    assert all([e["agent"] for e in one["episodes"]] == [0, 1, 2] for one in setting["tasks"])
    assert browsable(boards_of(c, a, b), 4).data["settings"][0]["tasks"][0]["name"] == names[0], (
        "whatever the order of the files"
    )


def test_a_file_that_changes_while_it_is_read_is_named(tmp_path: Path) -> None:
    boards = boards_of(write(tmp_path / "a.jsonl", tasks(5, 2)))
    lines = (tmp_path / "a.jsonl").read_text().splitlines()
    for changed in (lines[::-1], [line[1:] for line in lines], []):
        (tmp_path / "a.jsonl").write_text("".join(line + "\n" for line in changed))
        with pytest.raises(BadData, match=r"a\.jsonl has changed while it was read"):
            browsable(boards, 4)


def test_a_large_file_is_read_in_little_memory(tmp_path: Path) -> None:
    """Less than a third of its size; the episodes themselves would take twice their size."""
    steps = [step(f"go {n}" + "y" * 1000) for n in range(20)]
    path = write(tmp_path / "a.jsonl", [replace(e, steps=steps) for e in tasks(150, 3)])
    read(path)
    tracemalloc.start()
    try:
        read(path)
        assert tracemalloc.get_traced_memory()[1] < path.stat().st_size / 3
    finally:
        tracemalloc.stop()


def test_a_bound_on_the_data_is_kept_and_named(tmp_path: Path) -> None:
    long = [replace(e, steps=[step(f"go {n} {e.task}" + "y" * 900) for n in range(20)]) for e in tasks(20, 3)]
    a = write(tmp_path / "a.jsonl", long)
    b = write(tmp_path / "b.jsonl", [replace(e, agent="b") for e in long])
    found = browsable(boards_of(a, b), 20, most=100_000)
    assert 0 < found.kept < 40 and found.over == 40 - found.kept and len(script_json(found.data)) < 110_000
    (setting,) = found.data["settings"]
    assert {e["agent"] for one in setting["tasks"] for e in one["episodes"]} == {0, 1}, (
        "no file takes all the room"
    )
    used = {
        place
        for one in setting["tasks"]
        for e in one["episodes"]
        for s in e["attempts"][0]["steps"]
        for place in (s["a"], s["o"])
    }
    assert max(used) < len(found.data["texts"]) <= len(used) + 40, "what was left out leaves no texts"


def test_long_episodes_and_attempts(tmp_path: Path) -> None:
    earlier = {
        "reward": 0.0,
        "success": False,
        "ended": "truncated",
        "steps": [{"reply": "r", "thought": "t", "action": "Up"}],
    }
    reflect = {"purpose": "reflect", "seconds": 1.0, "step": 1, "text": "look first"}
    refine = {"purpose": "refine", "seconds": 1.0, "step": 0, "attempt": 1, "text": "in short"}
    steps = [step("Down", reply="Action: Down and more words")] + [step("Down")] * (MOST_STEPS + 4)
    one = episode("t", True, attempts=[earlier], calls=[reflect, refine], steps=steps)
    found = browsable(boards_of(write(tmp_path / "a.jsonl", [one])), 1)
    (kept,) = found.data["settings"][0]["tasks"][0]["episodes"]
    first, last = kept["attempts"]
    texts = found.data["texts"]
    assert texts[first["reflection"]] == "look first" and [texts[s["a"]] for s in first["steps"]] == ["Up"]
    assert last["outcome"] == "solved" and len(last["steps"]) == MOST_STEPS and last["more"] == 5
    assert texts[last["steps"][0]["r"]] == "Action: Down and more words" and "r" not in last["steps"][1]
    assert [texts[place] for place in last["steps"][0]["n"]] == ["refine: in short"]


def test_retried_records_count_once(tmp_path: Path) -> None:
    failed = episode("t", ended="error", error="EndpointError: down", actions=())
    (one,) = read(write(tmp_path / "a.jsonl", [failed, episode("t", True)]))
    assert one.summary.episodes == 1 and one.summary.errors == 0 and one.summary.success == 1.0


@given(st.text(st.characters(codec=None), max_size=50))
def test_cleaned_text_is_inert(words: str) -> None:
    shown = loading.clean(words)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", shown)
    shown.encode()
    assert len(shown) == len(words) and json.loads(script_json({"x": words}))["x"] == words


def test_long_lines_are_cut_and_say_so() -> None:
    assert loading.clean(LONG).endswith("z… (96,000 more characters)") and len(loading.clean(LONG)) < 4_050


def test_whole_page(tmp_path: Path) -> None:
    a = write(tmp_path / "in" / "a.jsonl", tasks(30, 20, agent="a", extra={"progress": 0.5}))
    write(tmp_path / "in" / "b.jsonl", tasks(30, 5, agent="b"))
    (tmp_path / "in" / "other.jsonl").write_text("{}\n")
    written = write_report(
        [tmp_path / "in", a], tmp_path / "out" / "page.html", NO_PRICES, title="Ours & theirs"
    )
    html = written.path.read_text(encoding="utf-8")
    assert (written.files, written.passed_over, written.size) == (2, 1, len(html.encode()))
    for part in (
        "<title>Ours &amp; theirs</title>",
        "66.7",
        "Success against progress",
        "decided, <bdi>a</bdi> is better",
        "as published",
    ):
        assert part in html, part
    assert (
        write_report(
            [tmp_path / "in"], tmp_path / "again.html", NO_PRICES, title="Ours & theirs"
        ).path.read_text()
        == html
    )
    outside = re.sub(r'<script type="application/json".*?</script>', "", html, flags=re.DOTALL)
    links = re.findall(r'(?:src|href|action)="([^"]*)"', outside)
    assert links and all(link.startswith(("#", "data:")) for link in links)
    code = re.sub(r"^ *//.*$", "", outside, flags=re.MULTILINE)
    assert not re.search(
        r"url\(|@import|fetch\(|XMLHttpRequest|innerHTML|insertAdjacentHTML|document\.write|eval\(| style=",
        code,
    )
    heads = [int(level) for level in re.findall(r"<h(\d)", html)]
    assert heads[0] == 1 and heads.count(1) == 1 and all(new <= old + 1 for old, new in pairwise(heads))
    for table in re.findall(r"<table.*?</table>", html, re.DOTALL):
        assert "<caption" in table and not re.search(r"<th(?![^>]*scope=)[ >]", table)


def test_errors_name_file_and_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(error: type[Exception], match: str, *given: Path) -> None:
        with pytest.raises(error, match=match):
            write_report(given, tmp_path / "page.html", NO_PRICES)
        assert not (tmp_path / "page.html").exists()

    good = write(tmp_path / "good.jsonl", tasks(2, 1))
    refused(MissingData, "nowhere.jsonl: there is no such file", good, tmp_path / "nowhere.jsonl")
    (tmp_path / "prose.jsonl").write_text("Dear all,\n")
    refused(
        BadData, r"prose.jsonl, line 1: not an episode record.*eval --out", good, tmp_path / "prose.jsonl"
    )
    newer = json.loads(tasks(1, 1)[0].to_json()) | {"schema": 99}
    (tmp_path / "newer.jsonl").write_text(json.dumps(newer) + "\n")
    refused(
        BadData,
        "newer.jsonl, line 1: episode of schema 99, this version reads up to",
        tmp_path / "newer.jsonl",
    )
    old = {"env": "x", "steps": [], "reward": 1}
    (tmp_path / "old.jsonl").write_text(json.dumps(old) + "\n")
    refused(BadData, "old.jsonl, line 1: not an episode record: 'tier' is missing", tmp_path / "old.jsonl")
    refused(
        BadData,
        "mixes episodes of agent 'a' and 'b'",
        write(tmp_path / "m.jsonl", [episode("t"), episode("u", agent="b")]),
    )
    refused(
        BadData,
        "mixes episodes of panels '', 'v1 x'",
        write(tmp_path / "p.jsonl", [episode("t"), episode("u", panel="v1 x")]),
    )
    refused(BadData, "empty.jsonl holds no episode; run", write(tmp_path / "empty.jsonl", []))
    failed = [replace(e, ended="error", error="EndpointError: x") for e in tasks(2, 0)]
    refused(
        BadData, r"holds only episodes that ended in an error \(2\)", write(tmp_path / "failed.jsonl", failed)
    )
    (tmp_path / "folder").mkdir()
    refused(UnknownOption, "folder holds no evaluation", tmp_path / "folder")
    refused(UnknownOption, "give at least one file")
    monkeypatch.setitem(__import__("sys").modules, "jinja2", None)
    refused(MissingExtra, r"the page of results needs the package 'jinja2'.*\[bench\]", good)


def test_records_of_the_first_schema_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [])
    record = json.loads(episode("t", True).to_json()) | {"schema": 1}
    path.write_text(json.dumps(record) + "\n")
    assert read(path)[0].summary.success == 1.0


def test_folders_are_searched_and_files_taken_once(tmp_path: Path) -> None:
    a, b = (
        write(tmp_path / "x" / "a.jsonl", tasks(1, 1)),
        write(tmp_path / "x" / "deep" / "b.jsonl", tasks(1, 1)),
    )
    assert find_evaluations([a, tmp_path / "x", tmp_path / "x" / "deep"]) == ([a, b], 0)


def test_an_agent_that_never_answered_stands_in_the_papers_table_with_zero() -> None:
    """Also where it shares the table with averages; a set that nobody played has no figure."""
    silent = tasks(4, 0, env="tstar/HotpotQA")
    assert parts(silent)["EM"].value == 0.0 and parts(silent)["EM"].episodes == 4
    questions = next(table for table in TABLES if table.name == "questions")
    found = {
        env: parts(tasks(4, 0, env=env))
        for column in questions.columns
        for env in column.envs
        if not column.of
    }
    cells = row(questions, found)
    assert all(isinstance(cell, Part) and cell.value == 0.0 for cell in cells)
    assert row(questions, {"tstar/NQ": found["tstar/NQ"]})[1:] == [None] * (len(cells) - 1)
