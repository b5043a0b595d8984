"""Run folders for the report's tests: synthetic episodes, put through the real trees, records and options."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import re
from pathlib import Path
from typing import Any

from tstar_envs import Episode, Step
from tstar_train.config import Config
from tstar_train.tree import Divergence, Nodes, Tree, build_tree, tree_to_dict
from tstar_train.types import Fork

HOSTILE = (
    "</script><script>window.hacked=1</script><img src=x onerror=\"window.hacked=2\"> <!-- <b>'quoted'</b> &lt; "
    "\u2028 line \u2029 \x00 \ud800 {{ 7*7 }} ${window.hacked=3} " + "w" * 300
)
NAMES = [
    "Sailors of Melyth",
    "Rosmar Books",
    "Ulfin Landing",
    "Margan Torvan",
    "Stones of Hespar",
    "Kelwen Vespar",
]
KINDS = ["bridge", "comparison"]


@dataclasses.dataclass
class Trajectory:
    """What `build_tree` reads."""

    reward: float
    steps: list[Step]
    fork: Fork | None = None
    truncated: bool = False


def make_run(
    folder: Path,
    *,
    iterations: int = 8,
    trees: int = 3,
    group: int = 8,
    turns: int = 5,
    text: str = "",
    seed: int = 0,
    episodes: bool = True,
    validation: bool = False,
    nodes: Nodes = "depth",
    several: bool = False,
) -> Path:
    """A finished run; `text` is added to everything that a model, an environment or a user might have written; with `validation` also one
    that chose the weights of iteration 2. With `nodes="state"` episodes come back to states, the start among them. With
    `several` it is of two environments, by a curriculum.
    """
    rng = random.Random(seed)
    (folder / "trees").mkdir(parents=True)
    config = dataclasses.replace(
        Config(env="hotpotqa" + text, iterations=iterations, seed=seed), env_options={"note" + text: text}
    )
    config = dataclasses.replace(
        config,
        tree=dataclasses.replace(
            config.tree, nodes=nodes, credit="transition" if nodes == "state" else "value"
        ),
    )
    envs = {"tstar/HotpotQA" + text: 1.0, "tstar/NQ": 0.5} if several else {}
    config = dataclasses.replace(config, mix=envs)
    (folder / "config.json").write_text(config.to_json(), encoding="utf-8", errors="backslashreplace")
    metrics, timings = [], []
    for iteration in range(1, iterations + 1):
        entries = [
            _entry(rng, folder, iteration, k, group, turns, text, episodes, nodes) for k in range(trees)
        ]
        (folder / "trees" / f"{iteration:04d}.json").write_text(
            json.dumps({"iteration": iteration, "trees": entries})
        )
        stats = [entry["tree"]["stats"] for entry in entries]
        part = iteration / iterations
        metrics.append(
            {
                "iteration": iteration,
                "reward": 0.3 + 0.2 * part + rng.gauss(0, 0.05),
                "success": 0.3 + 0.2 * part + rng.gauss(0, 0.05),
                "f1": 0.4 + 0.2 * part,
                "invalid_rate": 0.05 * (1 - part),
                "episode_length": 4.2,
                "response_tokens": 23.0,
                "entropy": 0.4 - 0.1 * part,
                "zero_variance_groups": 0.4,
                **{f"tree_{name}": sum(s[name] for s in stats) / len(stats) for name in stats[0]},
                "grafting_coverage": 0.2,
                "anchor_reuse": 0.1 * part,
                "grafts": 9,
                "grafts_model": 7,
                "grafts_z_plus": 2,
                "grafts_best_members": 3.1,
                "grafts_worst_members": 1.4,
                "graft_dataset_size": 9 * iteration,
                "graft_dataset_age": 0.5 * (iteration - 1),
                "grafts_dropped": {"no thought" + text: 2, "empty": 1},
                "weight_change": 0.5,
                "kl_asked": 80,
                "kl_identical": 9,
                "kl_scored": 500,
                "kl_scores_saved": 600,
                "kl_rejected_early": 3,
                "surgical_loss": math.log(2) - 0.02 * part,
                "surgical_accuracy": 0.7 * part,
                "base_gradient_norm": 0.3,
                "surgical_gradient_norm": 0.1,
                "gradient_norm": 0.35,
                "kl_reference": 1e-4 * part,
                "base_loss": -0.01,
                "clip_fraction": 0.0,
                "logprob_difference_mean": 2e-7,
                "logprob_difference_max": 4e-6,
            }
        )
        if several:
            figures = {"success": 0.2 + 0.1 * part, "episode_length": 3.5}
            metrics[-1] |= {"by_env": dict.fromkeys(envs, figures), "tasks_seen": 4 * iteration}
            metrics[-1] |= {"tasks_too_hard": iteration, "tasks_too_easy": 0}
        seconds = {"rollout": 2.1, "tree": 1.0, "grafting": 0.3, "update" + text: 1.9}
        timings.append({"iteration": iteration, **seconds, "seconds": 5.5 * iteration})
    for name, records in (("metrics.jsonl", metrics), ("timings.jsonl", timings)):
        (folder / name).write_text("".join(json.dumps(record) + "\n" for record in records))
    kinds = {kind + text: {"tasks": 500, "mean": 0.36, "greedy": 0.4} for kind in KINDS}
    before = {"mean": 0.36, "ci_low": 0.34, "ci_high": 0.38, "greedy": 0.41, "by_kind": kinds}
    after = {**before, "mean": 0.46, "ci_low": 0.44, "ci_high": 0.48, "greedy": 0.47}
    evaluation = {
        "metric": "EM",
        "split": "test",
        "tasks": 1000,
        "samples": 4,
        "before": before,
        "after": after,
    }
    interval = {"difference": 0.1, "ci_low": 0.08, "ci_high": 0.12}
    if several:
        gain = {"before": 0.2, "after": 0.25, "difference": 0.05, "ci_low": 0.01, "ci_high": 0.09}
        own = {"tasks": 500, "metric": "EM" + text, **gain, "greedy_before": 0.31, "greedy_after": 0.33}
        evaluation["by_env"] = dict.fromkeys(envs, own)
    if validation:
        chosen = {
            "iteration": 2,
            "by": "validation",
            "mean": 0.475,
            "candidates": 3,
            "split": "valid" + text,
            "tasks": 200,
            "samples": 4,
        }
        evaluation["chosen"] = chosen
        found = [
            {
                "iteration": n,
                "mean": mean,
                "ci_low": mean - 0.05,
                "ci_high": mean + 0.05,
                "greedy": mean + 0.02,
                "tasks": 200,
                "failed": 0,
                "best": 2 if n else 0,
                "best_mean": 0.475 if n else 0.375,
                **({"by_env": {env: {"mean": mean} for env in envs}} if several else {}),
            }
            for n, mean in ((0, 0.375), (2, 0.475), (iterations, 0.425))
        ]
        (folder / "validation.jsonl").write_text("".join(json.dumps(line) + "\n" for line in found))
    (folder / "evaluation.json").write_text(json.dumps({**evaluation, **interval}))
    summary = {
        "env": "tstar/HotpotQA",
        "algo": "grpo",
        "tstar": True,
        "seed": seed,
        "metric": "EM",
        **interval,
    }
    summary |= {"before": 0.36, "after": 0.46}
    summary |= {
        "greedy_before": 0.41,
        "greedy_after": 0.47,
        "episodes": 64 * iterations,
        "iterations": iterations,
        "seconds": 432.5,
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def page_data(report: Path) -> dict[str, Any]:
    """The data block of a report, as its script sees it."""
    found = re.search(
        r'<script type="application/json" id="data">(.*?)</script>',
        report.read_text(encoding="utf-8"),
        re.DOTALL,
    )
    assert found
    data: dict[str, Any] = json.loads(found[1])
    return data


def _entry(
    rng: random.Random,
    folder: Path,
    iteration: int,
    k: int,
    group: int,
    turns: int,
    text: str,
    episodes: bool,
    nodes: Nodes,
) -> dict[str, Any]:
    task, instruction = (
        f"task-{iteration}-{k}{text}",
        f"Who founded the publisher of {rng.choice(NAMES)}?{text}",
    )
    trajectories = [_trajectory(rng, turns, text) for _ in range(group)]
    trajectories[0].reward, trajectories[-1].reward = 1.0, 0.0  # always something to compare
    if nodes == "state":
        for trajectory in trajectories:  # where one is depends on what was looked up last, not on when
            trajectory.steps = [
                dataclasses.replace(step, state_key=step.state_key.partition("-")[0])
                for step in trajectory.steps
            ]
    tree = build_tree(
        trajectories,
        lambda t, i, j: float(trajectories[i].steps[t].action != trajectories[j].steps[t].action),
        nodes=nodes,
        start_key=NAMES[1],
    )
    if episodes:
        lines = []  # written at once: `append_episode` waits for the disk after each
        for sample, trajectory in enumerate(trajectories):
            extra = {"iteration": iteration, "kind": KINDS[k % 2] + text, "em": trajectory.reward}
            extra |= {"advantages": [0.5] * len(trajectory.steps)}
            episode = Episode(
                env="tstar/HotpotQA",
                tier="mini",
                task=task,
                split="train",
                rules_version="1",
                agent="policy",
                instruction=instruction,
                first_observation=f"Question: {instruction}",
                reward=trajectory.reward,
                success=trajectory.reward == 1.0,
                ended="terminated",
                sample=sample,
                extra=extra,
                steps=trajectory.steps,
            )
            lines.append(episode.to_json() + "\n")
        with open(folder / "episodes.jsonl", "a") as handle:
            handle.writelines(lines)
    grafts = [_graft(trajectories, tree, d, n, text) for n, d in enumerate(tree.divergences())]
    rewards = [t.reward for t in trajectories]
    return {
        "task": task,
        "instruction": instruction,
        "rewards": rewards,
        "tree": tree_to_dict(tree, trajectories),
        "grafts": grafts,
    }


def _trajectory(rng: random.Random, turns: int, text: str) -> Trajectory:
    steps, right = [], 0
    for turn in range(rng.randint(max(2, turns - 2), turns)):
        name = NAMES[min(int(rng.expovariate(1.2)), len(NAMES) - 1)]
        right += name == NAMES[0]
        # Every word but the action's is the trajectory's own; only the action decides what merges.
        wording = rng.choice(["I look it up:", "So next is", "Perhaps", "The question starts from"])
        valid = rng.random() > 0.1
        steps.append(
            Step(
                reply=f"Thought: {wording} {name}.{text}\nAction: search[{name}]",
                thought=f"{wording} {name}.{text}",
                action=f"search[{name}]{text}" if valid else "",
                observation=f"Doc 1 (Title: {name}) {name} is known here. " * 4 + text,
                action_valid=valid,
                invalid_reason="" if valid else f"no such action{text}",
                modifies_state=valid and turn % 2 == 1,
                effect_key=f"search:{name}" if valid and turn % 2 == 1 else "",
                state_key=f"{name}-{turn}",
            )
        )
    return Trajectory(float(rng.random() < 0.25 + 0.2 * right), steps)


FORK_FIGURES = {
    "forks": 3,
    "forks_failed": 0,
    "forks_stopped": 1 / 3,
    "fork_length": 4 / 3,
    "fork_success": 0.5,
    "groups_opened_by_forks": 1,
    "ways": 1,
    "way_length": 3.0,
    "ways_stitched": 1,
    "ways_shorter": 1,
    "turns_sampled": 14,
    "tokens_sampled": 322,
}


def with_forks(run: Path, text: str = "") -> Path:
    """Make the trees of iteration 1 of a run by state one group of known shape, with forks.

    Episodes: 0 goes s a b and loses, 1 goes s x v y z and wins, 2 goes s x and is cut off in a. Forks: 3 goes from a (episode 0) to z,
    where it stops; 4 from b (episode 0) over c and loses; 5 from c (fork 4) and wins. The way is s a z: 3 steps, from episode 0, fork 3
    and episode 1. A failed episode is on record as member 3.
    """

    def trajectory(
        name: str, states: str, reward: float, fork: Fork | None = None, cut: bool = False
    ) -> Trajectory:
        steps = [
            Step(
                reply=f"Action: go {key}",
                thought=f"{name} thinks of {key}{text}",
                action=f"go {key}{text}",
                observation=f"{name} is in {key}{text}",
                action_valid=True,
                invalid_reason="",
                modifies_state=True,
                effect_key=key,
                state_key=key,
            )
            for key in states.split()
        ]
        return Trajectory(reward, steps, fork, cut)

    group = [
        trajectory("episode 0", "a b lost", 0.0),
        trajectory("episode 1", "x v y z won", 1.0),
        trajectory("episode 2", "x a", 0.0, cut=True),
        trajectory("fork 3", "z", 0.0, Fork(0, 1, "a", untried=True, stopped=True)),
        trajectory("fork 4", "c lost", 0.0, Fork(0, 2, "b")),
        trajectory("fork 5", "won", 1.0, Fork(4, 3, "c")),
    ]
    tree = build_tree(group, None, nodes="state", start_key="s", values="bellman")
    entry = {
        "task": f"forked{text}",
        "instruction": f"Find the way.{text}",
        "rewards": [t.reward for t in group[:3]],
        "tree": tree_to_dict(tree, group, credit="transition"),
        "grafts": [],
    }
    (run / "trees" / "0001.json").write_text(json.dumps({"iteration": 1, "trees": [entry]}))
    failed = trajectory("FAILED", "q", 0.0)
    record = Episode(
        env="tstar/HotpotQA",
        tier="mini",
        task=f"forked{text}",
        split="train",
        rules_version="1",
        agent="policy",
        instruction="Find the way.",
        first_observation="s",
        reward=0.0,
        success=False,
        ended="error",
        sample=3,
        extra={"iteration": 1},
        steps=failed.steps,
    )
    with open(run / "episodes.jsonl", "a") as handle:
        handle.write(record.to_json() + "\n")
    config = json.loads((run / "config.json").read_text())
    config["tree"]["values"], config["graft"]["source"], config["explore"]["share"] = "bellman", "way", 0.5
    (run / "config.json").write_text(json.dumps(config))
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (run / "metrics.jsonl").write_text("".join(json.dumps(r | FORK_FIGURES) + "\n" for r in records))
    return run


def _graft(
    group: list[Trajectory], tree: Tree, divergence: Divergence, number: int, text: str
) -> dict[str, Any]:
    def branch(member: tuple[int, int]) -> dict[str, str]:
        step = group[member[0]].steps[member[1]]
        return {"thought": step.thought, "action": step.action, "observation": step.observation}

    return {
        "depth": divergence.node.depth,
        "spread": divergence.spread,
        "best_members": len(divergence.best.members),
        "worst_members": len(divergence.worst.members),
        "source": "z_plus" if number % 3 == 2 else "model",
        "verified": 1.0 if number % 2 else None,
        "thought": f"GRAFTED THOUGHT {number} of {len(tree.nodes)}{text}",
        "worst_step": list(divergence.worst_step),
        "failed": branch(divergence.worst_step),
        "succeeded": branch(divergence.best_step),
    }
