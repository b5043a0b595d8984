"""The cognitive trees that go into the page: a few of them, laid out, with the texts of every member and their grafts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tstar_envs import Episode
from tstar_train.report.credits import credits_of, trained
from tstar_train.report.embed import Budget, clipped, evenly
from tstar_train.report.read import Record, Run, checked, number, read_object
from tstar_train.report.routes import Drawing, drawing

MOST_ITERATIONS = 12
MOST_PER_ITERATION = 5
MOST_CHARACTERS = 4_000_000
Texts = dict[tuple[int, str, int], list[list[str]]]


@dataclass
class Forest:
    """What the page shows of the trees.

    Attributes:
        trees: for the page's script, in order of iteration.
        grafts: of the iterations that were read, for the table; `tree` is an index into `trees`, None if it is not shown.
        iterations: that were read.
        iterations_written: how many there are in the run's folder.
        found: trees in the iterations that were read.
        trained: which credit the run learns from, one of `credits.CREDITS`, or None where its options do not say.
    """

    trees: list[dict[str, Any]] = field(default_factory=list)
    grafts: list[dict[str, Any]] = field(default_factory=list)
    iterations: list[int] = field(default_factory=list)
    iterations_written: int = 0
    found: int = 0
    trained: str | None = None

    @property
    def kinds(self) -> set[str]:
        """What makes a node in the trees that are shown: "depth", "state" or both."""
        return {tree["by"] for tree in self.trees}


def forest(run: Run) -> Forest:
    """Read and choose: the first, the last and evenly spaced iterations, of each the trees that show most.

    Raises:
        BadData: a file is damaged.
    """
    result = Forest(
        iterations=evenly(sorted(run.trees), MOST_ITERATIONS),
        iterations_written=len(run.trees),
        trained=trained(run.config or {}),
    )
    texts = _texts(run.episodes)
    found: list[dict[str, Any]] = []
    ranks: list[int] = []  # place of each tree among those of its iteration
    for iteration in result.iterations:
        path = run.trees[iteration]
        record = read_object(path) or {}
        prepared = checked(f"{path}, line 1", partial(_iteration, record, iteration, texts))
        order = sorted(
            range(len(prepared)), key=[_interest(tree) for tree in prepared].__getitem__, reverse=True
        )
        ranks += [order.index(k) for k in range(len(prepared))]
        found += prepared
    result.found = len(found)
    # The best tree of every iteration comes before the second best of any, so that a full page still spans the whole run.
    budget = Budget(MOST_CHARACTERS)
    by_rank = sorted(range(len(found)), key=lambda k: ranks[k])
    chosen = {k for k in by_rank if ranks[k] < MOST_PER_ITERATION and budget.take(found[k])}
    for k, tree in enumerate(found):
        index = len(result.trees) if k in chosen else None
        result.grafts += [
            {**graft, "iteration": tree["iteration"], "task": tree["task"], "tree": index}
            for graft in tree["grafts"]
        ]
        if k in chosen:
            result.trees.append(tree)
    return result


def _texts(episodes: Sequence[Episode]) -> Texts:
    """Steps of the recorded training episodes, by (iteration, task, member): a tree keeps one member's text per node."""
    return {
        (episode.extra["iteration"], episode.task, episode.sample): [
            [s.thought, s.action, s.observation] for s in episode.steps
        ]
        for episode in episodes
        if isinstance(episode.extra.get("iteration"), int)
    }


def _interest(tree: dict[str, Any]) -> tuple[int, int, int]:
    """Grafts that the policy wrote itself, then divergences, then size."""
    return (sum(g["source"] == "model" for g in tree["grafts"]), len(tree["divergences"]), len(tree["nodes"]))


def _iteration(record: Record, iteration: int, texts: Texts) -> list[dict[str, Any]]:
    # A group whose rewards are all equal may have been saved without a tree.
    return [_tree(entry, iteration, texts) for entry in record["trees"] if entry.get("tree") is not None]


def _tree(entry: Record, iteration: int, texts: Texts) -> dict[str, Any]:
    tree, task = entry["tree"], str(entry["task"])
    by = tree.get("by", "depth")  # trees from before there were nodes by state do not say
    grafts = [_graft(graft) for graft in entry.get("grafts") or []]
    depths = {int(node["id"]): int(node["depth"]) for node in tree["nodes"]}
    edges: list[dict[str, Any]] = [
        {
            "source": int(e["source"]),
            "target": int(e["target"]),
            "weight": float(e["weight"]),
            "trajectories": _members(e["trajectories"]),
        }
        for e in tree["edges"]
    ]
    if by not in ("depth", "state"):
        raise ValueError(f"a tree by {by!r}")
    drawn = drawing(depths, [(e["source"], e["target"], float(len(e["trajectories"]))) for e in edges])
    for edge in edges:
        edge["way"] = drawn.curves.get((edge["source"], edge["target"]))
    divergences = [_divergence(d, grafts) for d in tree["divergences"]]
    for end in [d[name] for d in divergences for name in ("node", "best", "worst")]:
        # A drawing of a node that is not there is a damaged file, said here and not in the browser.
        depths[end]
    return {
        "iteration": iteration,
        "task": clipped(task, 200),
        "instruction": clipped(str(entry.get("instruction", ""))),
        "by": by,
        "gamma": number(tree.get("gamma")),
        "rows": drawn.rows,
        "width": drawn.width,
        "rewards": [number(r) for r in tree["rewards"]],
        "credits": credits_of(tree),
        "stats": {str(name): number(value) for name, value in tree.get("stats", {}).items()},
        "nodes": [
            _node(node, drawn, lambda i, t: _said(texts, (iteration, task, i), t)) for node in tree["nodes"]
        ],
        "edges": edges,
        "divergences": divergences,
        "grafts": grafts,
    }


def _said(texts: Texts, key: tuple[int, str, int], turn: int) -> list[str] | None:
    steps = texts.get(key, [])
    return [clipped(part) for part in steps[turn]] if 0 <= turn < len(steps) else None


def _node(node: Record, drawn: Drawing, said: Callable[[int, int], list[str] | None]) -> dict[str, Any]:
    members = [(int(i), int(t)) for i, t in node["members"]]
    texts = [[clipped(str(node[name])) for name in ("thought", "action", "observation")]]
    which = [0]  # which of the texts each member has, -1 where the run did not record it
    for i, t in members[1:]:
        own = said(i, t)
        if own is not None and own not in texts:
            texts.append(own)
        which.append(-1 if own is None else texts.index(own))
    return {
        "id": int(node["id"]),
        "depth": int(node["depth"]),
        "x": drawn.spots[int(node["id"])][0],
        "row": drawn.spots[int(node["id"])][1],
        "value": number(node["value"]),
        "advantage": number(node["advantage"]),
        "reward": number(node["reward"]),
        "members": members,
        "ending": bool(node["ending"]),
        "bestOf": _members(node["best_of"]),
        "worstOf": _members(node["worst_of"]),
        "texts": texts,
        "which": which,
    }


def _divergence(divergence: Record, grafts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A divergence with the index of its graft: the one of the same failed step, and of these the nearest spread.

    A step can be the worst of two divergences, if two ways lead to its node.
    """
    spread, worst_step = float(divergence["spread"]), _members(divergence["worst_step"])
    same = [k for k, graft in enumerate(grafts) if graft["worst_step"] == worst_step]
    return {
        "node": int(divergence["node"]),
        "best": int(divergence["best"]),
        "worst": int(divergence["worst"]),
        "spread": number(spread),
        "bestStep": _members(divergence["best_step"]),
        "worstStep": worst_step,
        "graft": min(same, key=lambda k: abs((grafts[k]["spread"] or 0.0) - spread), default=None),
    }


def _graft(graft: Record) -> dict[str, Any]:
    return {
        "depth": int(graft["depth"]),
        "spread": number(graft["spread"]),
        "best_members": int(graft["best_members"]),
        "worst_members": int(graft["worst_members"]),
        "source": str(graft["source"]),
        "verified": number(graft.get("verified")),
        "thought": clipped(str(graft["thought"])),
        "worst_step": _members(graft["worst_step"]),
        "failed": _branch(graft["failed"]),
        "succeeded": _branch(graft["succeeded"]),
    }


def _branch(branch: Record) -> dict[str, str]:
    return {name: clipped(str(branch[name])) for name in ("thought", "action", "observation")}


def _members(values: Sequence[Any]) -> list[int]:
    return [int(v) for v in values]
