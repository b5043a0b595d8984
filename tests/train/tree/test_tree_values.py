"""Values, advantages, divergences and the export, against trees worked by hand."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tstar_train.advantages import grpo
from tstar_train.tree import KL, Baseline, Tree, build_tree, tree_to_dict


@dataclass
class Step:
    thought: str
    action: str
    observation: str = "ok"
    modifies_state: bool = True
    effect_key: str = ""
    state_key: str = ""


@dataclass
class Trajectory:
    reward: float
    steps: list[Step] = field(default_factory=list)


def trajectory(reward: float, actions: str) -> Trajectory:
    """One step per letter. A capital changes the state by that letter; steps in lower case change nothing."""
    return Trajectory(
        reward,
        [
            Step(f"I want {a}.", a, modifies_state=a.isupper(), effect_key=a if a.isupper() else "")
            for a in actions
        ],
    )


def same(t: int, i: int, j: int) -> float:
    return 0.0


def never(t: int, i: int, j: int) -> float:
    return math.inf


def tree_of(*cases: tuple[float, str], kl: KL = same, gamma: float = 1.0, same_parent: bool = False) -> Tree:
    return build_tree([trajectory(*case) for case in cases], kl, gamma=gamma, same_parent=same_parent)


rewards_of = st.sampled_from([0.0, 0.2, 0.7, 1.0])
cases_of = st.lists(st.tuples(rewards_of, st.text("ABc", min_size=1, max_size=4)), min_size=2, max_size=6)


@settings(max_examples=150, deadline=None)
@given(cases=cases_of)
def test_lemma_1_in_a_strict_tree(cases: list[tuple[float, str]]) -> None:
    """With gamma 1, A(v) is the mean of its members' GRPO advantages."""
    tree = tree_of(*cases, same_parent=True)
    base = grpo([reward for reward, _ in cases], ["task"] * len(cases))
    for i, row in enumerate(tree.advantages()):
        for t, advantage in enumerate(row):
            members = [j for j, _ in tree.node_of(i, t).members]
            assert advantage == pytest.approx(np.mean(base[members]), abs=1e-9)


@settings(max_examples=100, deadline=None)
@given(cases=cases_of)
def test_no_merging_and_gamma_1_is_grpo(cases: list[tuple[float, str]]) -> None:
    # A first step of one's own makes every history distinct, endings included.
    tree = tree_of(
        *((reward, chr(ord("D") + i) + actions) for i, (reward, actions) in enumerate(cases)), kl=never
    )
    assert tree.stats()["merge_ratio"] == 0
    base = grpo([reward for reward, _ in cases], ["task"] * len(cases))
    for i, row in enumerate(tree.advantages()):
        assert row.tolist() == [base[i]] * len(row)


@settings(max_examples=100, deadline=None)
@given(
    actions=st.lists(st.text("ABc", min_size=1, max_size=5), min_size=1, max_size=6),
    reward=st.floats(0, 1),
    gamma=st.sampled_from([0.5, 0.99, 1.0]),
)
def test_equal_rewards_teach_nothing(actions: list[str], reward: float, gamma: float) -> None:
    tree = tree_of(*((reward, a) for a in actions), gamma=gamma)
    assert tree.zero_variance
    baselines: tuple[Baseline, ...] = ("group", "discounted")
    for baseline in baselines:
        for row, a in zip(tree.advantages(baseline=baseline), actions, strict=True):
            assert row.tolist() == [0.0] * len(a)
    assert tree.divergences(delta=0.0) == []


def test_one_member_has_advantage_zero() -> None:
    tree = tree_of((1.0, "ABC"), gamma=0.99)
    assert [row.tolist() for row in tree.advantages()] == [[0.0, 0.0, 0.0]]


def test_rewards_equal_up_to_rounding_do_not_explode() -> None:
    tree = tree_of((0.1 + 0.2, "AB"), (0.3, "CB"), gamma=0.99)
    assert all(row.tolist() == [0.0, 0.0] for row in tree.advantages())


@pytest.fixture
def stitched() -> Tree:
    """Two first steps that the policy distinguishes lead to one second step.

    Trajectories 0 (R 1) and 1 (R 0) take the one way, 2 (R 1) the other; all share step 1; then 0 and 2 end
    with C, 1 with D. 3 (R 0) ends at once. The discount is 0.5.
    """

    def kl(t: int, i: int, j: int) -> float:
        return 9.0 if t == 0 and 2 in (i, j) else 0.0

    return tree_of((1.0, "abC"), (0.0, "abD"), (1.0, "abC"), (0.0, "E"), kl=kl, gamma=0.5)


def test_stitching_shares_a_step_between_two_parents(stitched: Tree) -> None:
    shared = stitched.node_of(0, 1)
    assert shared.members == {(0, 1), (1, 1), (2, 1)}
    left, right = stitched.node_of(0, 0), stitched.node_of(2, 0)
    assert left is stitched.node_of(1, 0) is not right
    assert left.children == {shared: frozenset({0, 1})} and right.children == {shared: frozenset({2})}
    won, lost = stitched.node_of(0, 2), stitched.node_of(1, 2)
    assert won is stitched.node_of(2, 2) and shared.weight(won) == 2 / 3 and shared.weight(lost) == 1 / 3


def test_the_root_is_the_first_node_and_holds_every_trajectory(stitched: Tree) -> None:
    assert stitched.root.members == {(0, -1), (1, -1), (2, -1), (3, -1)}
    assert stitched.node_of(1, -1) is stitched.root is stitched.nodes[0]
    assert [node.depth for node in stitched.nodes] == [0, 1, 1, 1, 2, 3, 3]


def test_values_are_path_weighted_through_a_shared_step(stitched: Tree) -> None:
    ends = stitched.node_of(0, 2), stitched.node_of(1, 2), stitched.node_of(3, 0)
    assert [node.value for node in ends] == [1.0, 0.0, 0.0]
    shared, left, right = (stitched.node_of(i, t) for i, t in ((0, 1), (0, 0), (2, 0)))
    assert shared.value == pytest.approx(0.5 * 2 / 3)
    # right's only member won, yet it is worth what the shared step is worth.
    assert left.value == right.value == pytest.approx(0.25 * 2 / 3)
    assert stitched.root.value == pytest.approx(0.5 * 0.75 * 0.25 * 2 / 3)


def test_advantages_through_a_shared_step(stitched: Tree) -> None:
    std = np.std([1, 0, 1, 0], ddof=1)
    expected = (np.array([0.25 * 2 / 3, 0.5 * 2 / 3, 1.0]) - 0.5) / (std + 1e-6)
    assert stitched.advantages()[2] == pytest.approx(expected)
    assert stitched.advantages(eps=1.0)[2] == pytest.approx(expected * (std + 1e-6) / (std + 1))


def test_statistics_count_a_shared_step_once(stitched: Tree) -> None:
    stats = stitched.stats()
    assert (stats["nodes_before"], stats["nodes_after"], stats["edges"]) == (10, 6, 7)
    assert stats["merge_ratio"] == pytest.approx(0.4)
    assert (stats["depth"], stats["multi_parent_nodes"]) == (3, 1)
    assert (stats["divergent_nodes"], stats["mean_spread"]) == (1, 1.0)
    assert stats["p_div"] == pytest.approx(1 / 6)


def test_the_discounted_baseline_takes_out_the_drift() -> None:
    gamma, cases = 0.9, ((1.0, "ABC"), (0.0, "DE"), (1.0, "F"))
    tree = tree_of(*cases, kl=never, gamma=gamma)
    std = np.std([1, 0, 1], ddof=1) + 1e-6
    # mean over i of gamma^(T_i - depth) R_i; the last trajectory ended at depth 1.
    baselines = [(gamma ** (3 - depth) + gamma ** (1 - depth)) / 3 for depth in (1, 2, 3)]
    got = tree.advantages(baseline="discounted")
    assert got[0] == pytest.approx([(gamma ** (2 - t) - baselines[t]) / std for t in range(3)])
    assert got[1] == pytest.approx([-baselines[t] / std for t in range(2)])
    assert got[2] == pytest.approx([(1 - baselines[0]) / std])
    assert sum(row[0] for row in got) == pytest.approx(0, abs=1e-9), "no drift where all are present"
    assert sum(row[0] for row in tree.advantages()) < -0.1
    with pytest.raises(ValueError, match=r"baseline is 'none'.*group, discounted"):
        tree.advantages(baseline="none")  # type: ignore[arg-type]


def test_a_divergence_by_hand() -> None:
    # Under A: B is right (0 wins), C wrong (1 and 2); 3 goes another way from the root.
    tree = tree_of((1.0, "AB"), (0.2, "AC"), (0.0, "AC"), (0.0, "D"))
    (root, inner) = tree.divergences(delta=0.3)
    assert root.node is tree.root and (root.best, root.worst) == (tree.node_of(0, 0), tree.node_of(3, 0))
    assert root.spread == pytest.approx(0.4)
    assert inner.node is tree.node_of(0, 0)
    assert (inner.best, inner.worst) == (tree.node_of(0, 1), tree.node_of(1, 1))
    assert inner.spread == pytest.approx(0.9)
    assert (inner.best_step, inner.worst_step) == ((0, 1), (2, 1)), "the worst member of v-, the best of v+"
    assert root.best_step == (0, 0), "the member of v+ with the highest return"
    assert [d.node for d in tree.divergences(delta=0.5)] == [inner.node]
    assert tree.divergences(delta=inner.spread) == [], "more than delta, not as much"


def test_two_winners_of_different_length_do_not_diverge() -> None:
    long = "B" + "C" * 60
    tree = tree_of((1.0, "AD"), (1.0, "A" + long), (0.0, "E"), gamma=0.97)
    values = sorted(child.value for child in tree.node_of(0, 0).children)
    assert values[1] - values[0] > 0.8, "the discount alone makes the spread"
    assert [d.node for d in tree.divergences()] == [tree.root]


def test_ties_go_to_the_larger_child_then_to_the_lowest_trajectory() -> None:
    tree = tree_of((0.0, "A"), (1.0, "B"), (1.0, "C"), (1.0, "C"), (0.0, "D"))
    (divergence,) = tree.divergences()
    assert divergence.best is tree.node_of(2, 0), "two members against one"
    assert divergence.worst is tree.node_of(0, 0), "one against one: the lowest"
    assert (divergence.best_step, divergence.worst_step) == ((2, 0), (0, 0))


def test_shrinking_discounts_a_lucky_winner() -> None:
    cases = [(1.0, "A"), *[(0.0, "B")] * 2, *[(0.5, "C")] * 5]
    tree = tree_of(*cases)
    mean = tree.root.value
    assert mean == pytest.approx(3.5 / 8)
    (plain,) = tree.divergences()
    assert plain.best is tree.node_of(0, 0) and plain.spread == 1.0
    (shrunk,) = tree.divergences(delta=0.1, shrink=2.0)
    assert shrunk.spread == pytest.approx((1 + 2 * mean) / 3 - (2 * mean) / 4)
    assert tree.divergences(delta=0.1, shrink=20.0) == []
    # Much evidence for a middling child beats one lucky draw, and the choice is made after shrinking.
    big = tree_of((1.0, "A"), *[(0.9, "C")] * 9, *[(0.0, "B")] * 9)
    assert big.divergences()[0].best is big.node_of(0, 0)
    assert big.divergences(shrink=3.0)[0].best is big.node_of(1, 0)
    assert big.stats(shrink=3.0)["mean_spread"] == big.divergences(shrink=3.0)[0].spread


@pytest.mark.parametrize(
    "options", [{"delta": -1.0}, {"delta": math.nan}, {"shrink": -0.5}, {"shrink": math.inf}]
)
def test_divergence_options_are_checked(options: dict[str, float]) -> None:
    name, value = next(iter(options.items()))
    with pytest.raises(ValueError, match=f"{name} is {value}"):
        tree_of((1.0, "A"), (0.0, "B")).divergences(**options)


def test_a_step_that_is_not_there() -> None:
    tree = tree_of((1.0, "AB"), (0.0, "B"))
    for i, t in ((1, 1), (2, 0), (0, -2), (-1, 0)):
        with pytest.raises(IndexError, match=f"no step {t} of trajectory {i}: the lengths are \\[2, 1\\]"):
            tree.node_of(i, t)


SCRIPT = "<script>" + "x" * 5000


@pytest.fixture(scope="module")
def exported() -> tuple[Tree, list[Trajectory], dict[str, Any]]:
    """A tree that parts after one step, the group it is of, and its export as it comes back from a file."""
    group = [trajectory(1.0, "AB"), trajectory(0.0, "AC"), trajectory(0.0, "AC")]
    group[1].steps[1].thought = SCRIPT
    tree = build_tree(group, same, gamma=0.9)
    return tree, group, json.loads(json.dumps(tree_to_dict(tree, group), allow_nan=False))


def test_the_export_holds_every_node_and_who_is_in_it(exported) -> None:
    _, _, data = exported
    assert [node["members"] for node in data["nodes"]] == [
        [[0, -1], [1, -1], [2, -1]],
        [[0, 0], [1, 0], [2, 0]],
        [[0, 1]],
        [[1, 1], [2, 1]],
    ]
    assert [node["id"] for node in data["nodes"]] == [0, 1, 2, 3]
    assert [node["ending"] for node in data["nodes"]] == [False, False, True, True]


def test_the_export_holds_values_advantages_and_figures_of_the_tree(exported) -> None:
    tree, _, data = exported
    assert [node["value"] for node in data["nodes"]] == [node.value for node in tree.nodes]
    assert [node["advantage"] for node in data["nodes"]] == [
        None,
        tree.advantages()[0][0],
        tree.advantages()[0][1],
        tree.advantages()[1][1],
    ]
    assert data["stats"] == tree.stats()


def test_the_export_holds_thoughts_and_actions_neither_escaped_nor_cut(exported) -> None:
    start, _, won, lost = exported[2]["nodes"]
    assert lost["thought"] == SCRIPT
    assert (start["thought"], won["action"]) == ("", "B")


def test_the_export_holds_every_edge_with_its_weight(exported) -> None:
    assert exported[2]["edges"] == [
        {"source": 0, "target": 1, "trajectories": [0, 1, 2], "weight": 1.0},
        {"source": 1, "target": 2, "trajectories": [0], "weight": 1 / 3},
        {"source": 1, "target": 3, "trajectories": [1, 2], "weight": 2 / 3},
    ]


def test_the_export_holds_divergences_and_marks_their_nodes(exported) -> None:
    _, parting, won, lost = exported[2]["nodes"]
    assert exported[2]["divergences"] == [
        {
            "node": 1,
            "spread": 1.0,
            "best": 2,
            "worst": 3,
            "best_count": 1,
            "worst_count": 2,
            "best_step": [0, 1],
            "worst_step": [1, 1],
        }
    ]
    assert (won["best_of"], lost["worst_of"]) == ([1], [1])
    assert parting["best_of"] == parting["worst_of"] == []


def test_the_export_leaves_out_divergences_up_to_delta(exported) -> None:
    tree, group, _ = exported
    assert tree_to_dict(tree, group, delta=1.0)["divergences"] == []


def test_the_export_takes_the_group_that_the_tree_is_of(exported) -> None:
    tree, group, _ = exported
    with pytest.raises(ValueError, match="pass the group it was built from"):
        tree_to_dict(tree, group[:2])
