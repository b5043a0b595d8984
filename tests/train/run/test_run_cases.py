"""Case studies from a run's saved trees (``scripts/studies/run_cases.py``)."""

import json

import pytest

import tstar_train
from scripts.studies import run_cases
from tstar_envs import BadData, MissingData


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of two iterations with the paper's tree."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    config = tstar_train.make_config(
        "hotpotqa",
        iterations=2,
        **{
            "rollout.tasks_per_iteration": 8,
            "tree.nodes": "depth",
            "processes": 1,
            "evaluation.tasks": 1,
            "evaluation.samples": 1,
        },
    )
    tstar_train.train(config, folder)
    return folder


def test_the_case_has_the_greatest_spread_then_the_most_episodes_then_the_latest_iteration(run):
    every = list(run_cases.cases_of(run))
    [best] = run_cases.chosen(run, 1)
    assert every and best.rank == max(case.rank for case in every)
    several = run_cases.chosen(run, 3)
    assert len({case.group["task"] for case in several}) == len(several) > 1


def test_a_case_shows_what_the_episodes_did(run):
    """Shared steps, both branches and the graft are the recorded episodes' own."""
    [case] = run_cases.chosen(run, 1)
    text = run_cases.shown(run, case)
    member, turn = case.divergence["worst_step"]
    nodes = case.group["tree"]["nodes"]
    actions = [n["action"] for t in range(turn) for n in nodes if [member, t] in n["members"]]
    shared = next(line for line in text.splitlines() if line.startswith("**Shared steps.**"))
    assert len(actions) == turn > 0 and ", ".join(f"`{action}`" for action in actions) in shared
    assert case.graft["failed"]["thought"] in text and case.graft["thought"] in text
    episodes = [json.loads(line) for line in (run / "episodes.jsonl").read_text().splitlines()]
    assert any(
        case.graft["failed"]["thought"] in json.dumps(episode, ensure_ascii=False) for episode in episodes
    )
    assert "Admissible actions" not in run_cases.quoted("You see a pan.\nAdmissible actions: look")


def test_a_folder_without_trees_and_a_broken_file_are_named(tmp_path):
    with pytest.raises(MissingData, match="has no trees: name the folder of a run"):
        list(run_cases.cases_of(tmp_path))
    (tmp_path / "trees").mkdir()
    (tmp_path / "trees/0001.json").write_text("{")
    with pytest.raises(BadData, match=r"0001.json is not JSON"):
        list(run_cases.cases_of(tmp_path))
