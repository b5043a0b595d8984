"""Ways and forks in the report without a browser: what is read of them, older runs without any, damaged records."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from report_run import make_run, page_data, with_forks

from tstar_envs import BadData
from tstar_train.report import write_report
from tstar_train.report.trees import grafted_ways, trained


@pytest.fixture
def forked(tmp_path: Path) -> Path:
    return with_forks(make_run(tmp_path / "forked", iterations=2, trees=1, nodes="state"))


def test_a_way_and_forks_are_read_from_the_tree(forked: Path) -> None:
    report = write_report(forked)
    data, html = page_data(report), " ".join(report.read_text(encoding="utf-8").split())
    tree = data["trees"][0]
    assert tree["values"] == "bellman" and data["ways"] == "imitate" and data["pairs"] is False
    way = tree["way"]
    assert way["reward"] == 1.0 and way["steps"] == [[0, 0], [3, 0], [1, 4]] and way["shortest"] == [4, 5]
    assert {(e["source"], e["target"]) for e in tree["edges"]} >= set(itertools.pairwise([0, *way["nodes"]]))
    forks = [
        [f[name] for name in ("trajectory", "parent", "turn", "steps", "untried", "stopped")]
        for f in tree["forks"]
    ]
    assert forks == [[3, 0, 1, 1, True, True], [4, 0, 2, 2, False, False], [5, 4, 3, 1, False, False]]
    # Every step's own words are there: a fork's are with the tree, and a failed episode of the same number is not taken for it.
    said = {
        tuple(member): node["texts"][which][0]
        for node in tree["nodes"]
        for member, which in zip(node["members"], node["which"], strict=True)
        if which >= 0 and member[1] >= 0
    }
    assert said[3, 0] == "fork 3 thinks of z" and said[4, 1] == "fork 4 thinks of lost"
    assert {i for i, _ in said} == {3, 4, 5} | {
        n["members"][0][0] for n in tree["nodes"] if n["members"][0][1] >= 0
    }
    for sentence in (
        "shortest path through these states",
        "played on from a restored state",
        "by the steps of all who came by",
    ):
        assert sentence in html, sentence
    titles = (
        "Forks played",
        "How forks end",
        "Fork length",
        "Groups opened by forks",
        "Ways found",
        "Way length",
        "Turns sampled",
        "Tokens sampled",
    )
    assert all(f"<b>{title}</b>" in html for title in titles)
    assert "<b>Coverage and anchor reuse</b>" not in html  # a way that is imitated makes no pairs
    [drawn] = [d for d in data["diagrams"] if d["lines"][0]["label"] == "stopped in a known state"]
    assert {line["label"]: line["texts"][0] for line in drawn["lines"]} == {
        "stopped in a known state": "33.3 %",
        "solved, of the others": "50.0 %",
    }


def test_graphs_from_before_there_were_ways(forked: Path) -> None:
    """Neither ways nor values were written, and neither forks nor sampled turns were counted."""
    path = forked / "trees" / "0002.json"
    (forked / "trees" / "0001.json").unlink()
    record = json.loads(path.read_text())
    for entry in record["trees"]:
        for name in ("values", "way", "forks"):
            del entry["tree"][name]
    path.write_text(json.dumps(record))
    config = json.loads((forked / "config.json").read_text())
    del config["explore"], config["graft"]["source"], config["tree"]["values"]
    (forked / "config.json").write_text(json.dumps(config))
    lines = [json.loads(line) for line in (forked / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        del line["turns_sampled"], line["tokens_sampled"]
    (forked / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = write_report(forked)
    data, html = page_data(report), report.read_text(encoding="utf-8")
    assert [(t["values"], t["way"], t["forks"]) for t in data["trees"]] == [("mean", None, [])]
    assert data["ways"] == "" and data["trained"] == "state_transition"
    assert "is the mean, over all visits" in html and "restored state" not in html
    assert "<b>Forks played</b>" not in html and "<b>Turns sampled</b>" not in html


@pytest.mark.parametrize(
    ("where", "change", "message"),
    [
        ("way", {"nodes": [1, 999, 2]}, r"the way takes step \[3, 0\] from node 1 to 999"),
        ("way", {"steps": [[0, 0], [3, 1], [1, 4]]}, r"the way takes step \[3, 1\]"),
        ("way", {"steps": [[0, 0]]}, "not as expected"),
        ("way", {"reward": "much"}, "not as expected"),
        ("fork", {"trajectory": 9}, "fork 9 with 1 steps"),
        ("fork", {"steps": []}, "fork 3 with 0 steps"),
        ("fork", {"parent": 3}, "fork 3 of trajectory 3"),
        ("fork", {"turn": None}, "not as expected"),
        ("tree", {"forks": [{"trajectory": 3}]}, "no field 'parent'"),
        ("tree", {"values": "median"}, "values 'median'"),
    ],
)
def test_a_damaged_way_or_fork_is_named(
    forked: Path, where: str, change: dict[str, Any], message: str
) -> None:
    path = forked / "trees" / "0001.json"
    record = json.loads(path.read_text())
    tree = record["trees"][0]["tree"]
    {"way": tree["way"], "fork": tree["forks"][0], "tree": tree}[where].update(change)
    path.write_text(json.dumps(record))
    with pytest.raises(BadData, match=rf"0001\.json, line 1: .*{message}"):
        write_report(forked)


@pytest.mark.parametrize(
    ("graft", "ways", "credit"),
    [
        ({}, "", "state_value"),
        ({"source": "divergence"}, "none", "state_value"),
        ({"source": "both", "loss": "imitate"}, "imitate", "state_value"),
        ({"source": "way", "loss": "imitate", "way_only": True}, "only", None),
        ({"source": "way", "loss": "surgical"}, "surgical", "state_value"),
        ({"source": "way", "loss": "surgical", "surgical": False}, "none", "state_value"),
        ({"source": "way", "loss": "imitate", "enabled": False}, "none", "state_value"),
    ],
)
def test_what_a_run_learns_from_ways(graft: dict[str, Any], ways: str, credit: str | None) -> None:
    config = {"graft": graft, "tree": {"nodes": "state"}}
    assert grafted_ways(config) == ways and trained(config) == credit
    of_actions = {**config, "explore": {"share": 0.5, "credit": "graph"}}
    assert trained(of_actions) is None  # each action once: none of the columns
