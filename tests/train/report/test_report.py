"""The report without a browser: unfinished runs, damaged files, odd numbers, caps, escaping, layout."""

from __future__ import annotations

import itertools
import json
import re
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_run import HOSTILE, make_run, page_data

from tstar_envs import BadData, MissingData
from tstar_train.report import write_report
from tstar_train.report.plot import Series, moving_average, plot, text
from tstar_train.report.read import clipped, evenly
from tstar_train.report.trees import REACH_X, REACH_Y, drawing, place, point_at, spread, trained


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run", iterations=3, trees=2)


def test_whole_run(run: Path) -> None:
    report = write_report(run)
    html = report.read_text(encoding="utf-8")
    assert report == run / "report.html"
    for part in (
        "36.0 %",
        "<strong>46.0 %</strong>",
        "+10.0 points",
        "+8.0 to",
        "clear of zero",
        "41.0 % → 47.0 %",
        "is complete: 3",
    ):
        assert part in html, part
    assert "Not in the run's folder" not in html
    data = page_data(report)
    assert [tree["iteration"] for tree in data["trees"]] == [1, 1, 2, 2, 3, 3]
    assert len(data["episodes"]) == 3 * 2 * 8
    for tree in data["trees"]:
        for divergence in tree["divergences"]:
            assert tree["grafts"][divergence["graft"]]["worst_step"] == divergence["worstStep"]
        for node in tree["nodes"]:
            assert len(node["which"]) == len(node["members"])
            assert (
                node["depth"] == 0 or -1 not in node["which"]
            )  # every member's words are among the recorded episodes


def test_self_contained(run: Path) -> None:
    html = write_report(run).read_text(encoding="utf-8")
    outside = re.sub(r'<script type="application/json".*?</script>', "", html, flags=re.DOTALL)
    links = re.findall(r'(?:src|href|action)="([^"]*)"', outside)
    assert links and all(link.startswith(("#", "data:")) for link in links)
    code = re.sub(r"^//.*$", "", outside, flags=re.MULTILINE)
    assert not re.search(
        r"url\(|@import|fetch\(|XMLHttpRequest|innerHTML|insertAdjacentHTML|document\.write|eval\(", code
    )


def test_same_run_gives_same_bytes_and_no_leftovers(run: Path) -> None:
    before = set(run.iterdir())
    first = write_report(run).read_bytes()
    assert write_report(run).read_bytes() == first
    assert set(run.iterdir()) - before == {run / "report.html"}


def test_failing_write_keeps_the_old_report(run: Path) -> None:
    report = write_report(run)
    old, files = report.read_bytes(), set(run.iterdir())

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))  # a write beyond fails, as on a full disk
    try:
        with pytest.raises(OSError, match="too large"):
            write_report(run)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert report.read_bytes() == old
    assert set(run.iterdir()) == files


def test_empty_folder(tmp_path: Path) -> None:
    html = write_report(tmp_path).read_text(encoding="utf-8")
    for part in (
        "config.json, metrics.jsonl, timings.jsonl, evaluation.json, summary.json, episodes.jsonl, trees/",
        "No iteration is finished yet",
        "Not measured yet",
        "No iteration has been recorded",
        "There are no trees",
        "There are no episodes",
        "There is no <code>config",
    ):
        assert part in html, part


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match="nowhere is not a folder"):
        write_report(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "metrics.jsonl",
        "timings.jsonl",
        "evaluation.json",
        "summary.json",
        "episodes.jsonl",
        "trees",
    ],
)
def test_any_one_missing(run: Path, name: str) -> None:
    path = run / name
    if path.is_dir():
        path = path.rename(run.parent / "elsewhere")
    else:
        path.unlink()
    assert f"Not in the run's folder, or still empty: {name}" in write_report(run).read_text(encoding="utf-8")


def test_stopped_run(run: Path) -> None:
    (run / "summary.json").unlink()
    evaluation = json.loads((run / "evaluation.json").read_text())
    for name in ("after", "difference", "ci_low", "ci_high"):
        del evaluation[name]
    (run / "evaluation.json").write_text(json.dumps(evaluation))
    with open(run / "metrics.jsonl", "a") as handle:
        handle.write('{"iteration": 4, "rew')  # killed while writing
    html = write_report(run).read_text(encoding="utf-8")
    assert "3 of 3 iterations are finished" in html
    assert "the measurement after training is still to come" in html


def test_base_algorithm_alone(run: Path) -> None:
    for path in (run / "trees").iterdir():
        path.unlink()
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "tstar": False}))
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    plain = [
        {k: v for k, v in r.items() if not k.startswith(("tree_", "graft", "kl_", "surgical_", "weight"))}
        for r in records
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in plain))
    html = write_report(run).read_text(encoding="utf-8")
    assert "There are no trees in the run's folder: T-STAR is off." in html
    assert "hence not drawn: Merging and divergence; Nodes per tree" in html


def test_summary_alone_gives_the_headline(run: Path) -> None:
    (run / "evaluation.json").unlink()
    html = write_report(run).read_text(encoding="utf-8")
    assert "<strong>46.0 %</strong>" in html and "+10.0 points" in html


def test_validation_is_drawn_and_its_choice_named(run: Path, tmp_path: Path) -> None:
    assert "alidation" not in re.sub(
        r"<dl.*?</dl>", "", write_report(run).read_text(encoding="utf-8"), flags=re.DOTALL
    )
    chose = write_report(make_run(tmp_path / "chose", iterations=3, trees=1, validation=True))
    html = " ".join(chose.read_text(encoding="utf-8").split())
    best = "The weights of iteration 2 were chosen by validation: 47.5 % on 200 tasks of the split <i>valid</i>, the best of 3 validations."
    assert best in html and "<b>Validation</b>" in html
    [drawn] = [d for d in page_data(chose)["diagrams"] if d["lines"][0]["label"] == "sampled"]
    assert drawn["iterations"] == [0, 2, 3]
    assert {line["label"]: line["texts"] for line in drawn["lines"]} == {
        "sampled": ["37.5 %", "47.5 %", "42.5 %"],
        "greedy": ["39.5 %", "49.5 %", "44.5 %"],
        "best so far": ["37.5 %", "47.5 %", "47.5 %"],
    }


@pytest.mark.parametrize(
    ("metric", "samples", "sentences"),
    [
        ("EM", 4, ("4 sampled episodes each", "EM is a share of episodes")),
        ("success", 1, ("1 sampled episode each", "Success is a share of episodes")),
    ],
)
def test_the_metric_is_explained_in_whole_sentences(
    run: Path, metric: str, samples: int, sentences: tuple[str, str]
) -> None:
    for name in ("evaluation.json", "summary.json"):
        (run / name).write_text(
            json.dumps({**json.loads((run / name).read_text()), "metric": metric, "samples": samples})
        )
    html = " ".join(write_report(run).read_text(encoding="utf-8").split())
    assert all(sentence in html for sentence in sentences)


@pytest.mark.parametrize("alone", [False, True])
def test_where_success_is_not_the_reward_both_are_shown(run: Path, alone: bool) -> None:
    evaluation, summary = (
        json.loads((run / name).read_text()) for name in ("evaluation.json", "summary.json")
    )
    for part, success in (("before", 0.125), ("after", 0.375)):
        evaluation[part]["success"] = summary[f"success_{part}"] = success
    for name, record in (("evaluation.json", evaluation), ("summary.json", summary)):
        (run / name).write_text(json.dumps({**record, "metric": "score"}))
    if alone:
        (run / "evaluation.json").unlink()
    html = " ".join(write_report(run).read_text(encoding="utf-8").split())
    assert "score on held-out tasks" in html and "is a share of episodes" not in html
    assert "Success, a score of 1: 12.5 % → 37.5 %." in html


def line_of(text: str, number: int) -> Callable[[bytes], bytes]:
    """A change of one line of a file."""

    def change(content: bytes) -> bytes:
        lines = content.split(b"\n")
        lines[number - 1] = text.encode("latin-1")
        return b"\n".join(lines)

    return change


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("metrics.jsonl", line_of("{oops", 2), r"metrics\.jsonl, line 2: not JSON"),
        ("metrics.jsonl", line_of("", 2), r"metrics\.jsonl, line 2: not JSON"),
        ("metrics.jsonl", line_of("[1]", 3), r"metrics\.jsonl, line 3: .*'iteration'"),
        ("metrics.jsonl", line_of('{"iteration": "1"}', 1), r"metrics\.jsonl, line 1: .*'iteration'"),
        ("timings.jsonl", line_of("\xff\xfe", 2), r"timings\.jsonl, line 2: not JSON"),
        ("timings.jsonl", line_of("[" * 100_000, 2), r"timings\.jsonl, line 2: not JSON"),
        ("episodes.jsonl", line_of("{}", 5), r"episodes\.jsonl, line 5: not an episode"),
        ("episodes.jsonl", line_of("\xff", 7), r"episodes\.jsonl, line 7: not an episode"),
        ("config.json", lambda content: b"{\n\n]", r"config\.json, line 3: not JSON"),
        ("config.json", lambda content: b"[]", r"config\.json, line 1: a JSON object is expected, not list"),
        ("summary.json", lambda content: b"", r"summary\.json, line 1: not JSON"),
        ("validation.jsonl", lambda content: b'{"mean": 0.5}\n', r"validation\.jsonl, line 1: .*'iteration'"),
        ("evaluation.json", lambda content: b'{"chosen": 3}', r"evaluation\.json, line 1: .*'chosen' is int"),
        ("evaluation.json", lambda content: b'{"before": 3}', r"evaluation\.json, line 1: .*'before' is int"),
        (
            "evaluation.json",
            lambda content: b'{"before": {"by_kind": {"x": 1}}}',
            r"evaluation\.json, line 1: .*'x' is int",
        ),
        ("trees/0002.json", lambda content: content[:500], r"0002\.json, line 1: not JSON"),
        ("trees/0002.json", lambda content: b"{}", r"0002\.json, line 1: no field 'trees'"),
        ("trees/0002.json", lambda content: b'{"trees": 4}', r"0002\.json, line 1: not as expected"),
        (
            "trees/0001.json",
            lambda content: content.replace(b'"members"', b'"numbers"', 1),
            r"0001\.json, line 1: no field 'members'",
        ),
        (
            "trees/0001.json",
            lambda content: content.replace(b'"source": 0', b'"source": 999', 1),
            r"0001\.json, line 1: no field 999",
        ),
    ],
)
def test_damage_is_named(run: Path, name: str, change: Callable[[bytes], bytes], message: str) -> None:
    path = run / name
    path.write_bytes(change(path.read_bytes() if path.exists() else b""))
    with pytest.raises(BadData, match=message):
        write_report(run)
    assert not (run / "report.html").exists()


@pytest.mark.parametrize(
    "odd",
    [
        float("nan"),
        float("inf"),
        float("-inf"),
        "nan",
        None,
        10**400,
        "text",
        {"a": 1},
        [],
        True,
        1e308,
        -1e308,
        5e-324,
    ],
)
def test_odd_numbers(run: Path, odd: Any) -> None:
    for name in ("metrics.jsonl", "timings.jsonl"):
        records = [json.loads(line) for line in (run / name).read_text().splitlines()]
        records[1] = {key: value if key == "iteration" else odd for key, value in records[1].items()}
        (run / name).write_text("".join(json.dumps(record) + "\n" for record in records))
    evaluation = json.loads((run / "evaluation.json").read_text())
    (run / "evaluation.json").write_text(
        json.dumps({**evaluation, "difference": odd, "ci_low": odd, "tasks": odd})
    )
    html = write_report(run).read_text(encoding="utf-8")
    drawings = "".join(re.findall(r"<svg viewBox.*?</svg>", html, re.DOTALL))
    assert not re.search(r'"[^"]*\b(nan|inf)\b[^"]*"', drawings)


def test_group_without_tree_and_without_episodes(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", iterations=2, trees=2, episodes=False)
    path = run / "trees" / "0001.json"
    record = json.loads(path.read_text())
    record["trees"][0] |= {"tree": None, "grafts": []}
    path.write_text(json.dumps(record))
    data = page_data(write_report(run))
    assert [tree["iteration"] for tree in data["trees"]] == [1, 2, 2]
    assert any(-1 in node["which"] for tree in data["trees"] for node in tree["nodes"] if node["depth"])


def test_long_run_is_capped_and_says_so(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", iterations=14, trees=6, group=4, turns=3)
    report = write_report(run)
    data, html = page_data(report), report.read_text(encoding="utf-8")
    shown = sorted({tree["iteration"] for tree in data["trees"]})
    assert len(shown) == 12 and shown[0] == 1 and shown[-1] == 14
    assert len(data["trees"]) == 60 and len(data["episodes"]) == 300
    assert (
        "60 of the 72 trees" in html
        and "has trees of 14\n    iterations" in html
        and "300 of the 336 training episodes" in html
    )
    assert report.stat().st_size < 4_000_000


def test_texts_and_big_trees_are_capped(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", iterations=2, trees=2, group=16, turns=30, text="x" * 9_000)
    report = write_report(run)
    assert report.stat().st_size < 8_000_000
    assert " more characters)" in report.read_text(encoding="utf-8")


def test_each_environment_is_shown_by_itself_and_together(run: Path, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "several", iterations=7, trees=1, validation=True, several=True)
    html = write_report(folder).read_text()
    assert (
        "tstar/HotpotQA (66.7 %), tstar/NQ (33.3 %)" in html
        and "held-out tasks, mean over environments" in html
    )
    table = html[html.index("By environment") : html.index("By kind of task")]
    for part in (
        "tstar/HotpotQA (EM)",
        "tstar/NQ (EM)",
        "20.0 %",
        "25.0 %",
        "+5.0",
        "+1.0 to +9.0",
        "31.0 %",
    ):
        assert part in table, part
    lines = {
        line["label"]
        for diagram in page_data(folder / "report.html")["diagrams"]
        for line in diagram["lines"]
    }
    assert {"HotpotQA", "NQ", "NQ, mean of 3", "too hard"} <= lines
    for title in (
        "Success in training by environment",
        "Validation by environment",
        "Tasks of the curriculum",
    ):
        assert title in html
    plain = write_report(run).read_text()
    assert (
        "By environment" not in plain and "by environment" not in plain and "of the curriculum" not in plain
    )
    # Before the end each environment's start is known.
    evaluation = json.loads((folder / "evaluation.json").read_text())
    start = {"tstar/NQ": {"mean": 0.125, "greedy": None}}
    (folder / "evaluation.json").write_text(
        json.dumps({"metric": "EM", "before": {**evaluation["before"], "by_env": start}})
    )
    assert "12.5 %" in write_report(folder).read_text()


def test_hostile_text_leaves_no_markup_in_the_source(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", iterations=2, trees=1, text=HOSTILE)
    html = write_report(run).read_text(encoding="utf-8")
    assert "<img" not in html
    assert html.count("<script") == 2 and html.count("</script") == 2
    assert "\u2028" not in re.search(r'id="data">(.*?)</script>', html, re.DOTALL)[1]  # type: ignore[index]
    assert "{{ 7*7 }}" in html
    assert any(
        HOSTILE[:300] in node["texts"][0][0] for node in page_data(run / "report.html")["trees"][0]["nodes"]
    )


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=8))
def test_spread_is_the_nearest_with_distance_one(aims: list[float]) -> None:
    places = spread(aims)
    assert all(b - a >= 1 - 1e-9 for a, b in itertools.pairwise(places))
    cost = sum((p - a) ** 2 for p, a in zip(places, aims, strict=True))
    # The cost is convex, so no small move of any run of places that stays allowed may lower it.
    for first, last, move in itertools.product(range(len(aims)), range(len(aims)), (-1e-3, 1e-3)):
        moved = [p + move * (first <= k <= last) for k, p in enumerate(places)]
        if all(b - a >= 1 for a, b in itertools.pairwise(moved)):
            assert sum((p - a) ** 2 for p, a in zip(moved, aims, strict=True)) >= cost - 1e-9


def test_layout_puts_a_chain_in_line_and_uncrosses() -> None:
    assert set(place({0: 0, 1: 1, 2: 2}, [(0, 1, 1.0), (1, 2, 1.0)]).values()) == {0.0}
    # Children numbered against their parents' order: 1 -> 4 and 2 -> 3 cross unless the layer is reordered.
    places = place({0: 0, 1: 1, 2: 1, 3: 2, 4: 2}, [(0, 1, 1.0), (0, 2, 1.0), (1, 4, 1.0), (2, 3, 1.0)])
    assert (places[1] < places[2]) == (places[4] < places[3])
    assert place({}, []) == {}


graphs = st.dictionaries(st.integers(0, 30), st.integers(0, 9), min_size=1, max_size=16).flatmap(
    lambda depths: st.tuples(
        st.just(depths),
        st.lists(
            st.tuples(st.sampled_from(sorted(depths)), st.sampled_from(sorted(depths)), st.floats(0.5, 8)),
            max_size=30,
            unique_by=lambda edge: edge[:2],
        ),
    )
)


@given(graphs)
def test_a_cyclic_graph_is_laid_out_whole(graph: tuple[dict[int, int], list[tuple[int, int, float]]]) -> None:
    depths, edges = graph
    drawn = drawing(depths, edges)
    assert set(drawn.spots) == set(depths)
    assert [drawn.rows[row] for _, row in drawn.spots.values()] == [depths[node] for node in drawn.spots]
    for one, other in itertools.combinations(depths, 2):
        if depths[one] == depths[other]:
            assert abs(drawn.spots[one][0] - drawn.spots[other][0]) >= 1 - 2e-3  # places have three digits
    apart = {(a, b) for a, b, _ in edges if a != b and drawn.spots[b][1] - drawn.spots[a][1] != 1}
    assert set(drawn.curves) == apart
    for (source, target), curve in drawn.curves.items():
        for end, node in ((curve[0], source), (curve[-1], target)):
            assert end == pytest.approx(drawn.spots[node], abs=2e-3)
        for k in range(25):
            x, y = point_at(curve, k / 24)
            assert -1e-2 <= x <= drawn.width + 1e-2 and -1 <= y <= len(drawn.rows)
    assert all(0 <= x <= drawn.width for x, _ in drawn.spots.values())


def test_an_edge_back_runs_past_the_nodes_between_and_apart_from_its_return() -> None:
    chain = [(k, k + 1, 1.0) for k in range(4)]
    drawn = drawing({k: k for k in range(5)}, [*chain, (4, 0, 1.0), (0, 4, 1.0), (3, 1, 1.0)])
    assert set(drawn.curves) == {(4, 0), (0, 4), (3, 1)}
    paths = {edge: [point_at(curve, k / 50) for k in range(1, 50)] for edge, curve in drawn.curves.items()}
    for edge, path in paths.items():
        for node in set(drawn.spots) - set(edge):
            u, v = drawn.spots[node]
            assert all(((x - u) / REACH_X) ** 2 + ((y - v) / REACH_Y) ** 2 >= 0.98 for x, y in path), (
                edge,
                node,
            )
    middle = {edge: path[24][0] for edge, path in paths.items()}
    assert abs(middle[4, 0] - middle[0, 4]) > 0.3


def test_a_tree_by_depth_has_no_curves(run: Path) -> None:
    trees = page_data(write_report(run))["trees"]
    assert all(tree["by"] == "depth" and tree["rows"] == list(range(len(tree["rows"]))) for tree in trees)
    assert all(edge["way"] is None for tree in trees for edge in tree["edges"])
    names = ["depth_transition", "depth_value", "grpo", "state_transition", "state_value"]
    assert all(sorted(tree["credits"]) == names for tree in trees)


def test_a_run_by_state_is_drawn_with_what_its_credits_give(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", iterations=2, trees=2, nodes="state")
    report = write_report(run)
    data, html = page_data(report), report.read_text(encoding="utf-8")
    assert "as a graph of states" in html and "equal decisions merged" not in html
    assert data["trained"] == "state_transition"
    written = [
        entry["tree"]
        for n in (1, 2)
        for entry in json.loads((run / "trees" / f"{n:04d}.json").read_text())["trees"]
    ]
    for tree, source in zip(data["trees"], written, strict=True):
        rows = {node["id"]: node["row"] for node in tree["nodes"]}
        assert any(
            rows[edge["target"]] < rows[edge["source"]] for edge in tree["edges"]
        )  # there are loops in it
        for edge in tree["edges"]:
            assert (edge["way"] is None) == (rows[edge["target"]] - rows[edge["source"]] == 1)
        assert len(tree["credits"]) == 5
        for name, trajectories in tree["credits"].items():
            for shown, true in zip(trajectories, source["credits"][name], strict=True):
                assert shown == pytest.approx(true, abs=1e-4)
        assert all(len(node["which"]) == len(node["members"]) for node in tree["nodes"])


def test_trees_from_before_there_were_credits(run: Path) -> None:
    for path in (run / "trees").iterdir():
        record = json.loads(path.read_text())
        for entry in record["trees"]:
            for name in ("by", "gamma", "credits"):
                del entry["tree"][name]
        path.write_text(json.dumps(record))
    config = json.loads((run / "config.json").read_text())
    del config["tree"]["nodes"], config["tree"]["credit"]
    (run / "config.json").write_text(json.dumps(config))
    data = page_data(write_report(run))
    assert data["trained"] == "depth_value"  # there was no other
    assert len(data["trees"]) == 6 and all(
        tree["by"] == "depth" and tree["credits"] == {} for tree in data["trees"]
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"by": "time"}, "a tree by 'time'"),
        ({"by": ["depth"]}, r"a tree by \['depth'\]"),
        ({"credits": []}, "not as expected"),
        ({"credits": {"grpo": [[0.5]]}}, "credits grpo are not those of trajectories"),
    ],
)
def test_a_tree_that_says_what_cannot_be_is_named(run: Path, change: dict[str, Any], message: str) -> None:
    path = run / "trees" / "0001.json"
    record = json.loads(path.read_text())
    record["trees"][0]["tree"] |= change
    path.write_text(json.dumps(record))
    with pytest.raises(BadData, match=rf"0001\.json, line 1: .*{message}"):
        write_report(run)


@pytest.mark.parametrize(
    ("config", "credit"),
    [
        ({}, None),
        ({"tree": 4}, None),
        ({"tstar": False, "tree": {}}, None),
        ({"tree": {"enabled": False}}, "grpo"),
        ({"tree": {"nodes": "state", "credit": "value"}}, "state_value"),
        ({"tree": {"nodes": "time"}}, None),
    ],
)
def test_which_credit_a_run_learns_from(config: dict[str, Any], credit: str | None) -> None:
    assert trained(config) == credit


def test_plot_of_one_point_constant_and_gap() -> None:
    one = plot([5], [Series("a", [2.0], [])], "line", None, "number")
    assert one is not None and one.series[0].path.endswith("h0")
    gap = plot([1, 2, 3], [Series("a", [0.0, None, 0.0], [])], "line", None, "number")
    assert gap is not None and gap.series[0].path.count("M") == 2
    assert plot([1], [Series("a", [None], [])], "line", None, "number") is None
    assert plot([1], [Series("a", [0.0], [])], "log", None, "number") is None
    negative = plot([1, 2], [Series("a", [-3.0, -1.0], [])], "line", None, "number")
    assert negative is not None and [label for _, label in negative.ticks_y] == ["−3", "−2", "−1", "0"]
    close = plot([1, 2], [Series("a", [0.6931, 0.6930], [])], "line", None, "number", from_zero=False)
    assert close is not None and len({label for _, label in close.ticks_y}) == len(close.ticks_y)


def test_stack_adds_up() -> None:
    drawn = plot([1, 2], [Series("a", [1.0, None], []), Series("b", [3.0, 2.0], [])], "stack", None, "number")
    assert drawn is not None and drawn.ticks_y[-1][1] == "4"
    assert drawn.series[0].path.count("M") == 1 and drawn.series[1].path.count("M") == 2


def test_small_helpers() -> None:
    assert moving_average([1.0, None, 3.0, 5.0], 2) == [1.0, 1.0, 3.0, 4.0]
    assert evenly(range(10), 4) == [0, 3, 6, 9]
    assert clipped("abcdef", 3) == "abc… (3 more characters)"
    assert [text(v, "number") for v in (0.0, 1.5e-7, -2.0, None)] == ["0", "1.50e−07", "−2", "–"]


def test_parts_that_a_run_does_not_have_are_not_drawn(run: Path) -> None:
    """By state nobody asks for a KL; without grafts there is no surgical loss; no greedy episode, no greedy figure."""
    whole = write_report(run).read_text(encoding="utf-8")
    assert "<b>Cost of the KL tests</b>" in whole and "<b>Surgical loss</b>" in whole and "Greedy: " in whole
    config = json.loads((run / "config.json").read_text())
    config["tree"]["nodes"], config["graft"]["enabled"] = "state", False
    (run / "config.json").write_text(json.dumps(config))
    evaluation = json.loads((run / "evaluation.json").read_text())
    for part in ("before", "after"):
        evaluation[part]["greedy"] = None
        for kind in evaluation[part].get("by_kind", {}).values():
            kind["greedy"] = None
    (run / "evaluation.json").write_text(json.dumps(evaluation))
    html = write_report(run).read_text(encoding="utf-8")
    for title in (
        "Cost of the KL tests",
        "Scores computed and saved",
        "Surgical loss",
        "Coverage and anchor reuse",
    ):
        assert f"<b>{title}</b>" not in html and title in html.partition("hence not drawn:")[2]
    assert "<b>Merging and divergence</b>" in html
    assert "Greedy: " not in html and "greedy before" not in html


def test_a_run_without_the_trees_credit_shows_its_trees_and_grafts(run: Path) -> None:
    config = json.loads((run / "config.json").read_text())
    config["tree"]["enabled"], config["graft"]["keep"] = False, "all"
    (run / "config.json").write_text(json.dumps(config))
    html = write_report(run).read_text(encoding="utf-8")
    for title in ("Merging and divergence", "Grafting set", "Age of the drawn pairs", "Surgical loss"):
        assert f"<b>{title}</b>" in html, title


@pytest.mark.parametrize("keep", ["all", 500, "iteration", None])
def test_the_grafting_set_is_drawn_where_a_run_keeps_one(run: Path, keep: str | int | None) -> None:
    """Runs of older versions do not say, and kept none."""
    config = json.loads((run / "config.json").read_text())
    config["graft"] = {name: value for name, value in config["graft"].items() if name != "keep"}
    config["graft"] |= {} if keep is None else {"keep": keep}
    (run / "config.json").write_text(json.dumps(config))
    html = write_report(run).read_text(encoding="utf-8")
    for title in ("Grafting set", "Age of the drawn pairs"):
        assert (f"<b>{title}</b>" in html) == (keep in ("all", 500)), title
    assert "<b>Surgical loss</b>" in html
