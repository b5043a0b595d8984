"""Trees and state graphs of the report: their data and layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

from tstar_envs import Episode
from tstar_train.advantages import SAME_REWARD
from tstar_train.report.read import Budget, Record, Run, checked, clipped, evenly, number, read_object

Edge = tuple[int, int, float]
SWEEPS = 12


def place(depths: Mapping[int, int], edges: Sequence[Edge]) -> dict[int, float]:
    """Compute horizontal positions, at least 1 apart within a layer; the leftmost is 0.

    Args:
        depths: layer of each node, by id; ids break ties.
        edges: (source, target, weight). Heavier edges pull harder, so that frequent paths are straight. The direction of an edge does not
            matter, and edges within a layer have no effect.
    """
    layers: dict[int, list[int]] = {}
    for node in sorted(depths):
        layers.setdefault(depths[node], []).append(node)
    above: dict[int, list[tuple[int, float]]] = {node: [] for node in depths}
    below: dict[int, list[tuple[int, float]]] = {node: [] for node in depths}
    for source, target, weight in edges:
        if depths[source] != depths[target]:
            upper, lower = sorted((source, target), key=depths.__getitem__)
            above[lower].append((upper, weight))
            below[upper].append((lower, weight))

    places = {node: float(k) for layer in layers.values() for k, node in enumerate(layer)}
    for sweep in range(SWEEPS):
        downward = sweep % 2 == 0
        neighbours = above if downward else below
        for depth in sorted(layers, reverse=not downward):
            aims = sorted((_aim(node, neighbours[node], places), node) for node in layers[depth])
            layers[depth] = [node for _, node in aims]
            places.update(zip(layers[depth], spread([aim for aim, _ in aims]), strict=True))
    for layer in layers.values():  # the order is final; now average over the neighbours above and below
        settled = spread([_aim(node, [*above[node], *below[node]], places) for node in layer])
        places.update(zip(layer, settled, strict=True))
    left = min(places.values(), default=0.0)
    return {node: round(x - left, 3) for node, x in places.items()}


def spread(aims: Sequence[float]) -> list[float]:
    """Place nodes nearest to `aims` (least squares), at least 1 apart in the given order.

    Subtracting k from the k-th position turns "1 apart" into "not decreasing", which is isotonic regression: pooling adjacent violators
    solves it exactly.
    """
    blocks: list[tuple[float, int]] = []  # (sum, count)
    for k, aim in enumerate(aims):
        total, count = aim - k, 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / count:
            more, others = blocks.pop()
            total, count = total + more, count + others
        blocks.append((total, count))
    level = [total / count for total, count in blocks for _ in range(count)]
    return [x + k for k, x in enumerate(level)]


def _aim(node: int, neighbours: Sequence[tuple[int, float]], places: Mapping[int, float]) -> float:
    """Return the neighbours' mean position, or the node's own without neighbours."""
    total = sum(weight for _, weight in neighbours)
    return sum(places[n] * weight for n, weight in neighbours) / total if total else places[node]


CREDITS = ("grpo", "depth_value", "depth_transition", "state_value", "state_transition")


def trained(config: Record) -> str | None:
    """Return the credit that the run's options choose; None if unknown, or if it is none of these.

    Old runs without these options use the paper's credit.
    """
    options = config.get("tree")
    if not isinstance(options, dict) or config.get("tstar") is False:
        return None
    explore = part if isinstance(part := config.get("explore"), dict) else {}
    of_actions = (number(explore.get("share")) or 0.0) > 0 and explore.get("credit") == "graph"
    if of_actions or grafted_ways(config) == "only":
        return None
    name = (
        f"{options.get('nodes', 'depth')}_{options.get('credit', 'value')}"
        if options.get("enabled") is not False
        else "grpo"
    )
    return name if name in CREDITS else None


def grafted_ways(config: Record) -> str:
    """Return the use that the run's options make of ways.

    Returns:
        ``imitate``, ``only`` (imitated, and nothing else is learnt from), ``surgical``, ``none``, or "" if the options do not say.
    """
    options = config.get("graft")
    if not isinstance(options, dict) or "source" not in options:
        return ""
    off = config.get("tstar") is False or options.get("enabled") is False
    if off or options["source"] == "divergence":
        return "none"
    if options.get("loss") == "imitate":
        return "only" if options.get("way_only") else "imitate"
    return "surgical" if options.get("surgical", True) else "none"


def _lengths(tree: Record) -> list[int]:
    """Count the steps of each trajectory of a stored tree, of a fork without those before it."""
    lengths = [0] * len(tree["rewards"])
    for i, t in [member for node in tree["nodes"] for member in node["members"]]:
        lengths[i] = max(lengths[i], t + 1)
    return lengths


def credits_of(tree: Record) -> dict[str, list[list[float | None]]]:
    """Read the known credits of a stored tree, per trajectory and step, to 4 digits; empty in old trees.

    Raises:
        KeyError: a field is missing.
        ValueError: the credits do not match the tree's steps.
    """
    lengths = _lengths(tree)
    found: dict[str, list[list[float | None]]] = {}
    for name in CREDITS:
        rows = tree.get("credits", {}).get(name)
        if rows is None:
            continue
        if [len(row) for row in rows] != lengths:
            raise ValueError(f"credits {name} are not those of trajectories with {lengths} steps")
        found[name] = [
            [None if (credit := number(value)) is None else round(credit, 4) for value in row] for row in rows
        ]
    return found


Point = tuple[float, float]
Curve = tuple[Point, Point, Point, Point]
SAMPLES = 24
CELLS = 5  # cells per unit of the grid that records the curves
REACH_X, REACH_Y = 0.42, 0.3  # half axes around a node; a curve inside touches the node
SWINGS = (0.45, 0.8, 1.2, 1.7, 2.4, 3.2)
TOUCH, ALONG, SWING = 3.0, 0.35, 0.25  # cost of a touched node, a crowded cell and a unit of swing


@dataclass(frozen=True)
class Drawing:
    """Layout of a graph: coordinates from 0 to the right and downward.

    Attributes:
        spots: (x, row) of each node, by id.
        curves: curves of the edges that do not lead to the next row, by (source, target).
        rows: depth of each row; depths without nodes have no row.
        width: rightmost position of a node or curve.
    """

    spots: dict[int, tuple[float, int]]
    curves: dict[tuple[int, int], Curve]
    rows: list[int]
    width: float


def drawing(depths: Mapping[int, int], edges: Sequence[Edge]) -> Drawing:
    """Lay out a graph, which may have cycles; for the arguments see `place`."""
    rows = sorted(set(depths.values()))
    places = place(depths, edges)
    spots = {node: (x, rows.index(depths[node])) for node, x in places.items()}
    curves = route(spots, [(source, target) for source, target, _ in edges])
    reached = [point_at(curve, k / SAMPLES)[0] for curve in curves.values() for k in range(SAMPLES + 1)]
    left = min([0.0, *reached])  # curves may reach further left than the nodes
    return Drawing(
        {node: (round(x - left, 3), row) for node, (x, row) in spots.items()},
        {edge: _rounded([(x - left, y) for x, y in curve]) for edge, curve in curves.items()},
        rows,
        round(max([*places.values(), *reached], default=0.0) - left, 3),
    )


def route(spots: Mapping[int, Point], edges: Sequence[tuple[int, int]]) -> dict[tuple[int, int], Curve]:
    """Draw the curves of all edges except those to the next row.

    Args:
        spots: (x, row) of each node, by id.
        edges: (source, target), no self-loops.

    Returns:
        By edge, the four points of a cubic Bezier curve from source to target, rounded to 3 digits.
    """
    # Short edges first: they have the fewest free routes.
    winding = sorted(
        {(a, b) for a, b in edges if a != b and spots[b][1] - spots[a][1] != 1},
        key=lambda edge: (abs(spots[edge[1]][1] - spots[edge[0]][1]), edge),
    )
    standing: dict[float, list[tuple[int, float]]] = {}  # the nodes of each row
    for node, (x, row) in spots.items():
        standing.setdefault(row, []).append((node, x))
    taken: dict[tuple[int, int], int] = {}
    found: dict[tuple[int, int], Curve] = {}
    extent = (
        min((x for x, _ in spots.values()), default=0.0),
        max((x for x, _ in spots.values()), default=0.0),
    )
    for source, target in winding:
        start, end = spots[source], spots[target]
        best, best_cost, best_cells = None, 0.0, frozenset[tuple[int, int]]()
        for swing, curve in _candidates(start, end, extent):
            path = [point_at(curve, k / SAMPLES) for k in range(1, SAMPLES)]
            cells = frozenset((round(x * CELLS), round(y * CELLS)) for x, y in path)
            cost = (
                TOUCH * _touched(path, standing, (source, target))
                + ALONG * sum(taken.get(cell, 0) for cell in cells)
                + SWING * swing
            )
            if best is None or cost < best_cost:
                best, best_cost, best_cells = curve, cost, cells
        if best is None:  # every pair of points has candidates
            raise RuntimeError(f"no curve from {source} to {target}")
        found[source, target] = best
        for cell in best_cells:
            taken[cell] = taken.get(cell, 0) + 1
    return found


def point_at(curve: Curve, share: float) -> Point:
    """Compute a point of a cubic Bezier curve at parameter 0 to 1."""
    a, b, c, d = (1 - share) ** 3, 3 * share * (1 - share) ** 2, 3 * share**2 * (1 - share), share**3
    (x0, y0), (x1, y1), (x2, y2), (x3, y3) = curve
    return a * x0 + b * x1 + c * x2 + d * x3, a * y0 + b * y1 + c * y2 + d * y3


def _candidates(start: Point, end: Point, extent: tuple[float, float]) -> list[tuple[float, Curve]]:
    """List candidate curves, each with its swing to the side."""
    (x0, y0), (x1, y1) = start, end
    # An arc above the row to the right, below it to the left: so an edge and its reverse do not overlap.
    if y0 == y1:
        side = -1.0 if x1 > x0 else 1.0
        flat, inset = (x1 - x0), 0.2
        return [
            (
                height,
                _rounded(
                    [
                        start,
                        (x0 + inset * flat, y0 + side * height),
                        (x1 - inset * flat, y1 + side * height),
                        end,
                    ]
                ),
            )
            for height in (0.4, 0.6, 0.8)
        ]
    middle, lift = (x0 + x1) / 2, 0.2 * (y1 - y0)
    # Past all nodes, on either side.
    around = [(extent[0] - 0.6 - middle) / 0.75, (extent[1] + 0.6 - middle) / 0.75]
    swings = [sign * swing for swing in SWINGS for sign in (1.0, -1.0)] + around
    if y1 > y0:
        swings.insert(0, 0.0)  # a downward edge may be straight if no node is in between
    return [
        (abs(swing), _rounded([start, (x0 + swing, y0 + lift), (x1 + swing, y1 - lift), end]))
        for swing in swings
    ]


def _rounded(points: Sequence[Point]) -> Curve:
    a, b, c, d = [(round(x, 3), round(y, 3)) for x, y in points]
    return a, b, c, d


def _touched(
    path: Sequence[Point], standing: Mapping[float, Sequence[tuple[int, float]]], ends: tuple[int, int]
) -> int:
    """Count the nodes that a path touches, except its ends. A point is near one row at most."""
    touched: set[int] = set()
    for x, y in path:
        row = round(y)
        room = 1 - ((y - row) / REACH_Y) ** 2
        if room > 0:
            touched |= {node for node, u in standing.get(row, ()) if ((x - u) / REACH_X) ** 2 < room}
    return len(touched.difference(ends))


MOST_ITERATIONS = 12
MOST_PER_ITERATION = 5
MOST_CHARACTERS = 4_000_000
Texts = dict[tuple[int, str, int], list[list[str]]]


@dataclass
class Forest:
    """Trees as shown on the page.

    Attributes:
        trees: data of the shown trees for the page's script, in order of iteration.
        grafts: grafts of the iterations that were read, for the table; `tree` is an index into `trees`, None if it is not shown.
        iterations: iterations that were read.
        iterations_written: number of iterations with trees in the run's folder.
        found: number of trees in the iterations that were read.
        trained: the credit that the run learns from, one of `CREDITS`; None if unknown.
        ways: what the run learns from ways, see `grafted_ways`.
    """

    trees: list[dict[str, Any]] = field(default_factory=list)
    grafts: list[dict[str, Any]] = field(default_factory=list)
    iterations: list[int] = field(default_factory=list)
    iterations_written: int = 0
    found: int = 0
    trained: str | None = None
    ways: str = ""

    @property
    def kinds(self) -> set[str]:
        """Kind of nodes in the shown trees: "depth", "state" or both."""
        return {tree["by"] for tree in self.trees}

    @property
    def values(self) -> set[str]:
        """Kind of values in the shown graphs of states: "mean", "bellman" or both."""
        return {tree["values"] for tree in self.trees if tree["by"] == "state"}

    @property
    def forked(self) -> bool:
        """True if forks are among the trajectories of a shown tree."""
        return any(tree["forks"] for tree in self.trees)

    @property
    def led(self) -> bool:
        """True if a shown tree has a way."""
        return any(tree["way"] for tree in self.trees)


def forest(run: Run) -> Forest:
    """Read and choose trees: the first, the last and evenly spaced iterations, and the most interesting trees of each.

    Raises:
        BadData: a file is damaged.
    """
    result = Forest(
        iterations=evenly(sorted(run.trees), MOST_ITERATIONS),
        iterations_written=len(run.trees),
        trained=trained(run.config or {}),
        ways=grafted_ways(run.config or {}),
    )
    texts = _texts(run.episodes)
    found: list[dict[str, Any]] = []
    ranks: list[int] = []  # rank of each tree within its iteration
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
    # Take the best tree of every iteration before any second best, so that a full page still covers the whole run.
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
    """Index the steps of recorded training episodes by (iteration, task, member), for texts that trees omit."""
    return {
        (episode.extra["iteration"], episode.task, episode.sample): [
            [s.thought, s.action, s.observation] for s in episode.steps
        ]
        for episode in episodes
        if isinstance(episode.extra.get("iteration"), int)
    }


def _interest(tree: dict[str, Any]) -> tuple[int, int, bool, int]:
    """Return the sort key: grafts written by the policy, then divergences, then a way, then size."""
    written = sum(graft["source"] == "model" for graft in tree["grafts"])
    return written, len(tree["divergences"]), tree["way"] is not None, len(tree["nodes"])


def _iteration(record: Record, iteration: int, texts: Texts) -> list[dict[str, Any]]:
    # A group with equal rewards may be saved without a tree.
    return [_tree(entry, iteration, texts) for entry in record["trees"] if entry.get("tree") is not None]


def _tree(entry: Record, iteration: int, texts: Texts) -> dict[str, Any]:
    tree, task = entry["tree"], str(entry["task"])
    by = tree.get("by", "depth")  # old trees have no "by" and are by depth
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
        # A reference to a missing node means a damaged file: raise KeyError here, not in the browser.
        depths[end]
    forks = _forks(tree)
    own = {fork["trajectory"]: fork["steps"] for fork in tree.get("forks") or []}

    def said(i: int, t: int) -> list[str] | None:
        """Return the words of a step: a fork's are with the tree, since only episodes from the start are recorded elsewhere."""
        steps = own[i] if i in own else texts.get((iteration, task, i), [])
        return [clipped(str(part)) for part in steps[t]] if 0 <= t < len(steps) else None

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
        "nodes": [_node(node, drawn, said) for node in tree["nodes"]],
        "edges": edges,
        "values": _values(tree),
        "forks": forks,
        "way": _way(tree, forks),
        "divergences": divergences,
        "grafts": grafts,
    }


def _forks(tree: Record) -> list[dict[str, Any]]:
    """Read which trajectories are forks, in order; empty in trees by depth and in old ones.

    Raises:
        KeyError: a field is missing.
        ValueError: a fork that is none of the tree's trajectories, or that begins in none before it.
    """
    lengths, found = _lengths(tree), []
    for fork in tree.get("forks") or []:
        i, parent, turn = (int(fork[name]) for name in ("trajectory", "parent", "turn"))
        if not 0 <= i < len(lengths) or lengths[i] != len(fork["steps"]):
            raise ValueError(
                f"fork {i} with {len(fork['steps'])} steps, of trajectories with {lengths} steps"
            )
        if not 0 <= parent < i or turn < 0:
            raise ValueError(f"fork {i} of trajectory {parent}, after {turn} turns")
        found.append(
            {
                "trajectory": i,
                "parent": parent,
                "turn": turn,
                "steps": lengths[i],
                "untried": bool(fork["untried"]),
                "stopped": bool(fork["stopped"]),
            }
        )
    return found


def _way(tree: Record, forks: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Read the way to the best ending; None if there is none.

    Returns:
        `reward`, `steps` ([trajectory, step]), `nodes` (ids, one for each step) and `shortest`: of the single episodes that end as well
        [number of steps from the start, trajectory], None if there is none.

    Raises:
        KeyError: a field is missing.
        ValueError: the way does not run along the tree's edges.
    """
    way = tree.get("way")
    if way is None:
        return None
    steps, nodes = [_members(step) for step in way["steps"]], _members(way["nodes"])
    members = {int(node["id"]): [_members(member) for member in node["members"]] for node in tree["nodes"]}
    edges = {(int(edge["source"]), int(edge["target"])) for edge in tree["edges"]}
    for step, edge in zip(steps, pairwise([0, *nodes]), strict=True):
        if edge not in edges or step not in members.get(edge[1], ()):
            raise ValueError(
                f"the way takes step {step} from node {edge[0]} to {edge[1]}, which is none of the tree's"
            )
    begun = {fork["trajectory"]: fork["turn"] for fork in forks}
    unknown = {fork["trajectory"] for fork in forks if fork["stopped"]}
    reward = float(way["reward"])
    ended = [
        [begun.get(i, 0) + length, i]
        for i, length in enumerate(_lengths(tree))
        if i not in unknown and float(tree["rewards"][i]) >= reward - SAME_REWARD
    ]
    return {"reward": number(reward), "steps": steps, "nodes": nodes, "shortest": min(ended, default=None)}


def _values(tree: Record) -> str:
    """Read how states were valued: "mean", as in old trees, or "bellman"."""
    values = str(tree.get("values", "mean"))
    if values not in ("mean", "bellman"):
        raise ValueError(f"values {values!r}")
    return values


def _node(node: Record, drawn: Drawing, said: Callable[[int, int], list[str] | None]) -> dict[str, Any]:
    members = [(int(i), int(t)) for i, t in node["members"]]
    texts = [[clipped(str(node[name])) for name in ("thought", "action", "observation")]]
    which = [0]  # index of each member's text, -1 if the run did not record it
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
    """Match a divergence with its graft: same failed step, then nearest spread.

    A step can be the worst of two divergences if its node has two parents.
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
