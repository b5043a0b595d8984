"""Every environment with a built-in policy and training tasks trains: one small iteration through the command line's own path."""

from __future__ import annotations

import dataclasses
import json

import pytest
from rich.console import Console

from tstar_envs import list_envs
from tstar_train.config import EvaluationConfig
from tstar_train.policy.files import has_tiny
from tstar_train.presets import choose
from tstar_train.recipes.recipe import policy_name
from tstar_train.run import train

# HotpotQA has tests of its own (test_train_run.py), and ALFWorld's kinds of task differ in nothing that training sees.
TRAINED = [
    e.name
    for e in list_envs()
    if "train" in e.splits
    and has_tiny(policy_name(e))
    and e.name != "hotpotqa"
    and not e.name.startswith("alfworld-")
]


def test_the_sets_and_levels_are_among_them():
    assert {"nq", "triviaqa", "2wikimultihopqa", "musique", "alfworld"} <= set(TRAINED)
    assert {
        "sokoban-easy",
        "sokoban-medium",
        "sokoban-hard",
        "blocksworld-stack",
        "blocksworld-unstack",
    } <= set(TRAINED)


# One of each family is quick, of search-QA other modules train; hard levels have the policy of medium ones and take minutes.
SLOW = {
    "sokoban-easy",
    "sokoban-hard",
    "sokoban-medium",
    "blocksworld-unstack",
    "webshop",
    "nq",
    "triviaqa",
    "musique",
    "2wikimultihopqa",
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in TRAINED]
)
def test_an_iteration(name, tmp_path):
    entry = next(e for e in list_envs() if e.name == name)
    config, _ = choose(entry, "auto")
    config = dataclasses.replace(
        config,
        iterations=1,
        processes=1,
        env_options={**config.env_options, "horizon": 8},
        rollout=dataclasses.replace(config.rollout, tasks_per_iteration=2, group_size=4, horizon=5),
        tree=dataclasses.replace(config.tree, kl_samples=2, statistics_everywhere=True),
        evaluation=EvaluationConfig(tasks=1, samples=1, split="valid", greedy=False),
    )
    train(config, tmp_path / "run", Console(quiet=True))
    [metrics] = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert metrics["tree_nodes_before"] >= metrics["tree_nodes_after"] > 0
    learnt = (
        metrics["gradient_norm"] > 0.0
    )  # groups of equal rewards teach nothing, and then nothing of the kind is measured
    assert metrics["logprob_difference_max"] < 1e-3 if learnt else metrics["logprob_difference_max"] is None
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    # Those from the start; forks are counted by their turns.
    assert summary["env"] == entry.id and summary["episodes"] == 2 * config.first_episodes
