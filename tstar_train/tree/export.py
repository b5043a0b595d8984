"""A tree as plain data, for the report and the run's `trees/` folder.

Nothing is shortened or escaped: thoughts and observations are untrusted text, which the page that shows them must escape.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, get_args

from tstar_train.advantages import grpo
from tstar_train.tree.node import Node, TrajectoryLike
from tstar_train.tree.tree import Baseline, Credit, Tree, build_tree


def tree_to_dict(
    tree: Tree,
    group: Sequence[TrajectoryLike],
    delta: float = 0.3,
    shrink: float = 0.0,
    baseline: Baseline = "group",
    credit: Credit = "value",
) -> dict[str, Any]:
    """Everything that a drawing of the tree needs, ready for `json.dumps`.

    Args:
        tree: the tree.
        group: the trajectories that it was built from, for their texts.
        delta: as for `Tree.divergences`.
        shrink: as for `Tree.divergences`.
        baseline: as for `Tree.advantages`.
        credit: as for `Tree.advantages`.

    Returns:
        `by` (what makes a node), `gamma`, `rewards`, `stats`, `credits` (see `credits_of`) and three lists.
        `nodes`: `id` (position in `tree.nodes`, the root is 0), `depth`, `value`, `advantage` (the mean of the steps
        that lead there, None for the root), `reward` (mean of the members' rewards), `members` ([trajectory, step] pairs), `ending`,
        `best_of` and `worst_of` (ids of the divergent nodes that it is the best or worst child of), and
        `thought`, `action`, `observation` of its lowest member (empty for the root).
        `edges`: `source`, `target`, `trajectories`, `weight`.
        `divergences`: `node`, `spread`, `best`, `worst` (ids), `best_count`, `worst_count` (who went there from the node),
        `best_step`, `worst_step` ([trajectory, step]).
        By state also `values` ("mean" or "bellman"), `way` (None, or `reward`, `steps` as [trajectory, step], and `nodes`, the ids that
        they lead to) and `forks` (`trajectory`, `parent`, `turn`, `untried`, `stopped`, and `steps` as [thought, action, observation]).

    Raises:
        ValueError: `group` is not the one that the tree was built from.
    """
    known = [n for n, trajectory in enumerate(group) if tree.graph is None or not tree.graph.stopped(n)]
    if len(group) != len(tree.rewards) or any(float(group[n].reward) != tree.rewards[n] for n in known):
        raise ValueError(
            f"the group's rewards are not the tree's {list(tree.rewards)}: pass the group it was built from"
        )
    ids = {node: index for index, node in enumerate(tree.nodes)}
    divergences = tree.divergences(delta, shrink)
    best_of: defaultdict[Node, list[int]] = defaultdict(list)
    worst_of: defaultdict[Node, list[int]] = defaultdict(list)
    for divergence in divergences:
        best_of[divergence.best].append(ids[divergence.node])
        worst_of[divergence.worst].append(ids[divergence.node])
    advantages = tree.advantages(baseline=baseline, credit=credit)

    nodes = []
    for node, index in ids.items():
        i, t = node.first
        step = group[i].steps[t] if t >= 0 else None
        led = [float(advantages[j][s]) for j, s in sorted(node.members) if s >= 0]
        nodes.append(
            {
                "id": index,
                "depth": node.depth,
                "value": node.value,
                "advantage": (led[0] if len(set(led)) == 1 else math.fsum(led) / len(led)) if step else None,
                "reward": sum(tree.rewards[j] for j in node.trajectories) / len(node.trajectories),
                "members": [list(member) for member in sorted(node.members)],
                "ending": node.ending,
                "best_of": best_of[node],
                "worst_of": worst_of[node],
                "thought": step.thought if step else "",
                "action": step.action if step else "",
                "observation": step.observation if step else "",
            }
        )
    of_states = {} if tree.graph is None else _of_states(tree, group, ids)
    return {
        "by": tree.by,
        **of_states,
        "gamma": tree.gamma,
        "rewards": list(tree.rewards),
        "stats": tree.stats(delta, shrink),
        "credits": credits_of(tree, group, baseline),
        "nodes": nodes,
        "edges": [
            {
                "source": ids[node],
                "target": ids[child],
                "trajectories": sorted(through),
                "weight": node.weight(child),
            }
            for node in tree.nodes
            for child, through in node.children.items()
        ],
        "divergences": [
            {
                "node": ids[divergence.node],
                "spread": divergence.spread,
                "best": ids[divergence.best],
                "worst": ids[divergence.worst],
                "best_count": divergence.best_count,
                "worst_count": divergence.worst_count,
                "best_step": list(divergence.best_step),
                "worst_step": list(divergence.worst_step),
            }
            for divergence in divergences
        ],
    }


def _of_states(tree: Tree, group: Sequence[TrajectoryLike], ids: dict[Node, int]) -> dict[str, Any]:
    """Return the entries that only a graph of states has: its values, its way and its forks."""
    way = tree.way()
    forks = [(n, trajectory, getattr(trajectory, "fork", None)) for n, trajectory in enumerate(group)]
    return {
        "values": "bellman" if tree.solved else "mean",
        "way": None
        if way is None
        else {
            "reward": way.reward,
            "steps": [list(step) for step in way.steps],
            "nodes": [ids[tree.node_of(*step)] for step in way.steps],
        },
        "forks": [
            {
                "trajectory": n,
                "parent": fork.parent,
                "turn": fork.turn,
                "untried": fork.untried,
                "stopped": fork.stopped,
                "steps": [[s.thought, s.action, s.observation] for s in trajectory.steps],
            }
            for n, trajectory, fork in forks
            if fork is not None
        ],
    }


def credits_of(
    tree: Tree, group: Sequence[TrajectoryLike], baseline: Baseline
) -> dict[str, list[list[float]]]:
    """Compute the advantages under each credit rule side by side, one number per step and trajectory.

    `grpo` is the episode's; of a tree by depth `depth_value` is the paper's and `depth_transition` what a step gains in it;
    `state_value` and `state_transition` are those of states with gamma .95, left out where steps have no state key. A run by state
    asks for no KL: there the tree by depth merges equal states. With forks only the last two are there.
    """
    if tree.graph is not None and tree.graph.forked:  # other credits compare whole episodes
        return {
            f"state_{name}": [row.tolist() for row in tree.advantages(credit=name)]
            for name in get_args(Credit)
        }
    rewards = [float(trajectory.reward) for trajectory in group]
    episode = grpo(rewards, [0] * len(rewards))
    found = {"grpo": [[float(a)] * len(t.steps) for a, t in zip(episode, group, strict=True)]}
    trees = {tree.by: tree}
    if tree.by == "state":
        trees = {"depth": build_tree(group, lambda t, i, j: 0.0, history="state"), **trees}
    elif all(step.state_key for trajectory in group for step in trajectory.steps):
        trees["state"] = build_tree(
            group, None, nodes="state", start_key=getattr(group[0], "start_key", None)
        )
    for by, one in trees.items():
        for credit in get_args(Credit):
            rows = one.advantages(baseline=baseline, credit=credit)
            found[f"{by}_{credit}"] = [row.tolist() for row in rows]
    return found
