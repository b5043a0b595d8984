"""Which steps merge: the cheap path against testing every pair, and what the cheap path asks for."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tstar_train.tree import BatchedKL, History, Symmetry, Tree, build_tree

SYMMETRIES: tuple[Symmetry, ...] = ("max", "mean", "forward")
HISTORIES: tuple[History, ...] = ("sequence", "state")
Partition = set[frozenset[tuple[int, int]]]


@dataclass
class Step:
    thought: str = "I think."
    action: str = "go"
    observation: str = "You went."
    modifies_state: bool = False
    effect_key: str = ""
    state_key: str = "s"


@dataclass
class Trajectory:
    reward: float
    steps: list[Step] = field(default_factory=list)


@dataclass
class Table:
    """A fixed, asymmetric divergence per (depth, unordered pair), each unlike every other."""

    values: dict[tuple[int, int, int], float]
    calls: list[tuple[int, int, int]] = field(default_factory=list)

    def __call__(self, t: int, i: int, j: int) -> float:
        self.calls.append((t, i, j))
        return self.values[t, i, j]


@dataclass
class BatchedTable(Table):
    """Answers only what the last `prefetch` announced, in that order."""

    announced: list[tuple[int, int, int]] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)

    def prefetch(self, pairs: list[tuple[int, int, int]]) -> None:
        assert not self.announced, "the calls of the last round were not all made"
        assert pairs and len(set(pairs)) == len(pairs)
        self.announced = list(pairs)
        self.rounds.append(len(pairs))

    def __call__(self, t: int, i: int, j: int) -> float:
        assert self.announced.pop(0) == (t, i, j)
        return super().__call__(t, i, j)


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[Trajectory], dict[tuple[int, int, int], float]]:
    group = []
    for _ in range(draw(st.integers(1, 5))):
        steps = draw(
            st.lists(
                st.builds(
                    Step,
                    modifies_state=st.booleans(),
                    effect_key=st.sampled_from(["", "a", "b"]),
                    state_key=st.sampled_from(["x", "y"]),
                ),
                min_size=1,
                max_size=4,
            )
        )
        group.append(Trajectory(draw(st.sampled_from([0.0, 0.25, 1.0])), steps))
    # Values on both sides of the threshold 0.25, at it, negative (Monte Carlo) and infinite (exact).
    divergences = st.sampled_from([-0.1, 0.0, 0.1, 0.2, 0.25, 0.4, 1.0, math.inf])
    table = {
        (t, i, j): draw(divergences)
        for t in range(4)
        for i, j in itertools.permutations(range(len(group)), 2)
    }
    return group, table


def all_pairs(
    group: list[Trajectory],
    table: dict[tuple[int, int, int], float],
    symmetry: Symmetry,
    history: History,
    same_parent: bool,
    eps_kl: float = 0.25,
) -> Partition:
    """The definition, with no economy: every pair at a depth is tested, edges are closed transitively."""
    judge: dict[Symmetry, Callable[[float, float], float]] = {
        "max": max,
        "mean": lambda there, back: (there + back) / 2,
        "forward": lambda there, back: there,
    }

    def past(i: int, t: int) -> object:
        steps = group[i].steps[: t + 1]
        return (
            steps[-1].state_key if history == "state" else [s.effect_key for s in steps if s.modifies_state]
        )

    def joined(t: int, i: int, j: int) -> bool:
        i, j = min(i, j), max(i, j)
        ends = {len(group[k].steps) == t + 1 for k in (i, j)}
        if len(ends) == 2 or past(i, t) != past(j, t):
            return False
        return ends == {True} or judge[symmetry](table[t, i, j], table[t, j, i]) < eps_kl

    found: Partition = set()
    parent = dict.fromkeys(range(len(group)), frozenset(range(len(group))))
    for t in range(max(len(trajectory.steps) for trajectory in group)):
        here = [i for i in range(len(group)) if t < len(group[i].steps)]
        reach = {i: {i} for i in here}
        for _ in here:
            for i, j in itertools.combinations(here, 2):
                if joined(t, i, j):
                    reach[i] = reach[j] = reach[i] | reach[j]
                    for k in reach[i]:
                        reach[k] = reach[i]
        classes = {i: frozenset(reach[i] & parent[i] if same_parent else reach[i]) for i in here}
        parent.update(classes)
        found |= {frozenset((i, t) for i in members) for members in classes.values()}
    return found


def partition(tree: Tree) -> Partition:
    return {frozenset(node.members) for node in tree.nodes if node is not tree.root}


@pytest.mark.parametrize("symmetry", SYMMETRIES)
@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("same_parent", [False, True])
@settings(max_examples=60, deadline=None)
@given(case=groups())
def test_the_cheap_path_finds_the_components_of_all_pairs(
    symmetry: Symmetry,
    history: History,
    same_parent: bool,
    case: tuple[list[Trajectory], dict[tuple[int, int, int], float]],
) -> None:
    group, table = case
    plain, batched = Table(table), BatchedTable(table)
    tree = build_tree(group, plain, same_parent=same_parent, kl_symmetry=symmetry, history=history)
    assert partition(tree) == all_pairs(group, table, symmetry, history, same_parent)

    again = build_tree(group, batched, same_parent=same_parent, kl_symmetry=symmetry, history=history)
    assert not batched.announced
    assert batched.calls == plain.calls
    assert [(node.members, node.value) for node in again.nodes] == [
        (node.members, node.value) for node in tree.nodes
    ]


@pytest.mark.parametrize("symmetry", SYMMETRIES)
@settings(max_examples=60, deadline=None)
@given(case=groups())
def test_no_superfluous_question(
    symmetry: Symmetry, case: tuple[list[Trajectory], dict[tuple[int, int, int], float]]
) -> None:
    group, table = case
    kl = Table(table)
    stats = build_tree(group, kl, kl_symmetry=symmetry).stats()
    assert len(set(kl.calls)) == len(kl.calls) == stats["kl_calls"]
    for t, i, j in kl.calls:
        assert max(len(group[i].steps), len(group[j].steps)) > t + 1, "an ending step was asked about"
    forward = [(t, i, j) for t, i, j in kl.calls if i < j]
    backward = [(t, i, j) for t, i, j in kl.calls if i > j]
    assert stats["pairs_tested"] == len(forward)
    assert (
        len(backward)
        == {
            "max": sum(table[pair] < 0.25 for pair in forward),
            "mean": len(forward),
            "forward": 0,
        }[symmetry]
    )
    # Pairs that passed form a forest: one more than that would have been connected already.
    passed = build_tree(group, Table(table), kl_symmetry=symmetry)
    for node in passed.nodes:
        if not node.ending and node.depth:
            inside = [
                (i, j)
                for t, i, j in forward
                if {(i, t), (j, t)} <= node.members
                and {
                    "max": max(table[t, i, j], table[t, j, i]),
                    "mean": (table[t, i, j] + table[t, j, i]) / 2,
                    "forward": table[t, i, j],
                }[symmetry]
                < 0.25
            ]
            assert len(inside) == len(node.members) - 1
    assert stats["pairs_possible"] == sum(
        math.comb(sum(len(trajectory.steps) > t for trajectory in group), 2) for t in range(4)
    )
    skipped = ("pairs_skipped_ending", "pairs_skipped_history", "pairs_skipped_connected")
    assert stats["pairs_possible"] == stats["pairs_tested"] + sum(stats[name] for name in skipped)
    assert stats["pairs_compatible"] == stats["pairs_tested"] + stats["pairs_skipped_connected"]


@pytest.mark.parametrize("symmetry", ["max", "mean"])
@pytest.mark.parametrize("same_parent", [False, True])
@settings(max_examples=60, deadline=None)
@given(case=groups(), data=st.data())
def test_the_order_of_the_trajectories_changes_nothing(
    symmetry: Symmetry,
    same_parent: bool,
    case: tuple[list[Trajectory], dict[tuple[int, int, int], float]],
    data: st.DataObject,
) -> None:
    group, table = case
    order = data.draw(st.permutations(range(len(group))))
    shuffled = [group[i] for i in order]
    tree = build_tree(group, Table(table), same_parent=same_parent, kl_symmetry=symmetry)
    other = build_tree(
        shuffled,
        lambda t, i, j: table[t, order[i], order[j]],
        same_parent=same_parent,
        kl_symmetry=symmetry,
    )
    assert {frozenset((order[i], t) for i, t in members) for members in partition(other)} == partition(tree)
    for new, old in enumerate(order):
        for t in range(len(group[old].steps)):
            assert other.node_of(new, t).value == tree.node_of(old, t).value
        # Bit for bit: sums over members are exactly rounded.
        assert other.advantages()[new].tolist() == tree.advantages()[old].tolist()
    stable = ("nodes_after", "edges", "multi_parent_nodes", "pairs_compatible")
    assert {name: other.stats()[name] for name in stable} == {name: tree.stats()[name] for name in stable}
    # The last tie-break between children is the lowest trajectory, so only untied choices are order-free.
    if all(len({child.value for child in node.children}) == len(node.children) for node in tree.nodes):
        here = choices(tree, range(len(group)))
        assert choices(other, order) == here


def choices(tree: Tree, names: Sequence[int]) -> set[tuple[object, ...]]:
    """The divergences, with the trajectories called by their names."""
    return {
        (
            d.spread,
            *(frozenset((names[i], t) for i, t in node.members) for node in (d.node, d.best, d.worst)),
            *(tree.rewards[i] for i, _ in (d.best_step, d.worst_step)),
        )
        for d in tree.divergences(delta=0.05)
    }


def chain(reward: float, *effects: str) -> Trajectory:
    return Trajectory(
        reward, [Step(modifies_state=bool(e), effect_key=e, action=e or "look") for e in effects]
    )


def test_components_chain_through_a_middle_step() -> None:
    group = [chain(0, "", ""), chain(0, "", ""), chain(1, "", "")]
    near = {(0, 1), (1, 0), (1, 2), (2, 1)}
    tree = build_tree(group, lambda t, i, j: 0.1 if (i, j) in near else 9.0)
    assert tree.node_of(0, 0) is tree.node_of(1, 0) is tree.node_of(2, 0)


def test_max_asks_for_the_way_back_only_where_the_way_there_passes() -> None:
    calls = []

    def kl(t: int, i: int, j: int) -> float:
        calls.append((i, j))
        return 9.0 if (i, j) == (0, 1) else 0.0

    group = [chain(0, "", ""), chain(0, "", ""), chain(1, "", "")]
    tree = build_tree(group, kl)
    assert calls == [(0, 1), (0, 2), (2, 0), (1, 2), (2, 1)]
    assert tree.node_of(0, 0) is tree.node_of(1, 0), "joined through trajectory 2"


def test_one_way_is_not_enough_for_max_and_mean() -> None:
    group = [chain(0, "", ""), chain(1, "", "")]
    merged = {
        symmetry: len(build_tree(group, lambda t, i, j: 0.1 if i < j else 9.0, kl_symmetry=symmetry).nodes)
        == 3
        for symmetry in SYMMETRIES
    }
    assert merged == {"max": False, "mean": False, "forward": True}


def test_a_round_is_one_batch_over_all_depths() -> None:
    group = [chain(i / 4, *[""] * 6) for i in range(4)]
    table = {(t, i, j): 0.0 for t in range(6) for i, j in itertools.permutations(range(4), 2)}
    kl = BatchedTable(table)
    assert isinstance(kl, BatchedKL) and not isinstance(Table(table), BatchedKL)
    tree = build_tree(group, kl)
    # Three pairs connect four steps; five depths go on; then the way back.
    assert kl.rounds == [15, 15]
    assert tree.stats()["pairs_skipped_connected"] == 15


def test_histories_are_sequences_of_executed_changes() -> None:
    def merged(*effects: list[Step]) -> bool:
        group = [Trajectory(float(i), [*steps, Step()]) for i, steps in enumerate(effects)]
        tree = build_tree(group, lambda t, i, j: 0.0)
        t = len(effects[0]) - 1
        return tree.node_of(0, t) is tree.node_of(1, t)

    a, b = Step(modifies_state=True, effect_key="a"), Step(modifies_state=True, effect_key="b")
    no_op = Step(modifies_state=False, effect_key="a")
    assert merged([a, b], [a, b])
    assert not merged([a, b], [b, a]), "a sequence, not a set"
    assert not merged([a, Step()], [a, a]), "nor without multiplicity"
    assert not merged([a], [no_op]), "an action that changed nothing is no part of it"
    assert merged([no_op], [Step()])
    joined = Step(modifies_state=True, effect_key="ab")
    assert not merged([a, b], [joined, Step()]), "keys must not run together"
    assert not merged([Step(modifies_state=True, effect_key="")], [Step()]), (
        "a change without a key is a change"
    )
    assert merged(
        [Step(modifies_state=True, effect_key="\ud800")], [Step(modifies_state=True, effect_key="\ud800")]
    )


def test_history_state_finds_states_that_sequences_miss() -> None:
    ab = [
        Step(modifies_state=True, effect_key=e, state_key=s) for e, s in (("a", "1"), ("b", "12"), ("", "12"))
    ]
    ba = [
        Step(modifies_state=True, effect_key=e, state_key=s) for e, s in (("b", "2"), ("a", "12"), ("", "12"))
    ]
    group = [Trajectory(0, ab), Trajectory(1, ba)]
    by_state = build_tree(group, lambda t, i, j: 0.0, history="state")
    assert by_state.node_of(0, 1) is by_state.node_of(1, 1)
    assert by_state.node_of(0, 0) is not by_state.node_of(1, 0)
    assert build_tree(group, lambda t, i, j: 0.0).stats()["merge_ratio"] == 0


def test_an_ending_step_and_a_continuing_one_never_merge() -> None:
    def refuse(t: int, i: int, j: int) -> float:
        raise AssertionError(f"kl({t}, {i}, {j}) was asked about an ending step")

    group = [chain(1, ""), chain(0, ""), chain(0, "a"), chain(1, "", "")]
    tree = build_tree(group, refuse)
    assert tree.node_of(0, 0) is tree.node_of(1, 0), (
        "equal histories, both end: one leaf, whatever the reward"
    )
    assert tree.node_of(0, 0).value == 0.5 and tree.node_of(0, 0).ending
    assert tree.node_of(2, 0) is not tree.node_of(0, 0)
    assert tree.node_of(3, 0) is not tree.node_of(0, 0) and not tree.node_of(3, 0).ending
    assert tree.stats()["pairs_skipped_ending"] == 6


def test_same_parent_intersects_components_instead_of_cutting_edges() -> None:
    # 0 and 1 share a first step. At step 1 they are joined only through 2, which came another way.
    group = [chain(0, "", "", ""), chain(0, "", "", ""), chain(1, "", "", "")]

    def kl(t: int, i: int, j: int) -> float:
        return 0.0 if (2 in (i, j)) == (t == 1) else 9.0

    graph, tree = build_tree(group, kl), build_tree(group, kl, same_parent=True)
    assert graph.node_of(0, 1) is graph.node_of(2, 1) and graph.stats()["multi_parent_nodes"] == 1
    assert tree.node_of(0, 1) is tree.node_of(1, 1) is not tree.node_of(2, 1)
    assert tree.stats()["multi_parent_nodes"] == 0
    assert tree.stats()["edges"] == tree.stats()["nodes_after"]


def test_groups_without_variance_are_still_asked_about() -> None:
    kl = Table({(0, 0, 1): 0.0, (0, 1, 0): 0.0})
    tree = build_tree([chain(1, "", ""), chain(1, "", "")], kl)
    assert kl.calls == [(0, 0, 1), (0, 1, 0)]
    assert tree.stats()["merge_ratio"] == 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eps_kl": -0.1}, r"eps_kl is -0\.1"),
        ({"eps_kl": math.nan}, "eps_kl is nan"),
        ({"gamma": 0.0}, r"gamma is 0\.0.*\(0, 1\]"),
        ({"gamma": 1.01}, r"gamma is 1\.01"),
        ({"kl_symmetry": "min"}, "kl_symmetry is 'min'.*max, mean, forward"),
        ({"history": "set"}, "history is 'set'.*sequence, state"),
        ({"group": []}, "empty group"),
        ({"group": [chain(1, ""), Trajectory(0)]}, "trajectory 1 has no steps"),
        ({"group": [chain(math.nan, "")]}, "reward 0 of the group is nan"),
        ({"group": [Trajectory(0, [Step(state_key="")])], "history": "state"}, "step 0 of trajectory 0"),
        ({"kl": lambda t, i, j: math.nan}, r"kl\(0, 0, 1\) is NaN"),
    ],
)
def test_errors_name_the_value_and_the_way_out(options: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {"group": [chain(0, "", ""), chain(1, "", "")], "kl": lambda t, i, j: 0.0}
    with pytest.raises(ValueError, match=message):
        build_tree(**(arguments | options))  # type: ignore[arg-type]
