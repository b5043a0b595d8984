"""Advantages by state (docs/tstar.md): values pooled over depths, loops, leaves, both credits, divergences and grafts on the graph."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tstar_train.tree import Tree, build_tree, tree_to_dict

EPS = 1e-6


@dataclass
class Step:
    state_key: str
    thought: str = ""
    action: str = "a"
    observation: str = "o"
    modifies_state: bool = True
    effect_key: str = "e"


@dataclass
class Walk:
    """The states that an episode was in after each step, and what it earned."""

    states: str
    reward: float

    @property
    def steps(self) -> list[Step]:
        return [Step(letter, action=f"to {letter}") for letter in self.states]


def graph(*walks: tuple[str, float], gamma: float | None = 1.0, start: str | None = "S") -> Tree:
    return build_tree([Walk(*walk) for walk in walks], None, gamma=gamma, nodes="state", start_key=start)


# Few letters, so that walks meet, loop and return to the start; the last state is none of a visit.
walk = st.tuples(st.text("Sabc", min_size=1, max_size=6), st.sampled_from([0.0, 0.5, 1.0]))
group = st.lists(walk, min_size=2, max_size=6)
gammas = st.sampled_from([1.0, 0.95, 0.5])


def twin(walks: list[tuple[str, float]], gamma: float, credit: str) -> list[list[float]]:
    """The definition, word for word."""
    visits: defaultdict[str, list[float]] = defaultdict(list)
    for states, reward in walks:
        for t, state in enumerate(["S", *states[:-1]]):  # before step t
            visits[state].append(gamma ** (len(states) - t) * reward)
    value = {state: sum(worth) / len(worth) for state, worth in visits.items()}
    rewards = [reward for _, reward in walks]
    mean = sum(rewards) / len(rewards)
    deviation = math.sqrt(sum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1))
    found = []
    for states, reward in walks:
        before = [value[s] for s in ["S", *states[:-1]]]
        after = [*before[1:], reward]
        base = before if credit == "transition" else [value["S"]] * len(states)
        found.append(
            [(x - y) / (deviation + EPS) if deviation else 0.0 for x, y in zip(after, base, strict=True)]
        )
    return found


@given(group, gammas, st.sampled_from(["value", "transition"]))
def test_values_and_credits_are_the_definition(
    walks: list[tuple[str, float]], gamma: float, credit: str
) -> None:
    found = graph(*walks, gamma=gamma).advantages(credit=credit)  # type: ignore[arg-type]
    for row, wanted in zip(found, twin(walks, gamma, credit), strict=True):
        assert row == pytest.approx(wanted, abs=1e-12)


@given(group, gammas, st.randoms())
def test_the_order_of_trajectories_changes_nothing(
    walks: list[tuple[str, float]], gamma: float, shuffle: object
) -> None:
    order = list(range(len(walks)))
    shuffle.shuffle(order)  # type: ignore[attr-defined]
    plain, other = graph(*walks, gamma=gamma), graph(*[walks[i] for i in order], gamma=gamma)
    for credit in ("value", "transition"):
        before, after = plain.advantages(credit=credit), other.advantages(credit=credit)  # type: ignore[arg-type]
        for place, i in enumerate(order):
            assert np.array_equal(before[i], after[place])


@given(group, gammas)
def test_credits_of_an_episode_add_up_to_what_it_earned(walks: list[tuple[str, float]], gamma: float) -> None:
    tree = graph(*walks, gamma=gamma)
    deviation = np.std(tree.rewards, ddof=1) + EPS
    for row, value, reward in zip(
        tree.advantages(credit="transition"), tree.advantages(), tree.rewards, strict=True
    ):
        wanted = (reward - tree.root.value) / deviation if not tree.zero_variance else 0.0
        assert row.sum() == pytest.approx(wanted, abs=1e-9) and value[-1] == pytest.approx(wanted, abs=1e-9)


@given(st.lists(st.tuples(st.integers(1, 5), st.sampled_from([0.0, 1.0])), min_size=2, max_size=5))
def test_states_met_once_get_all_at_the_step_that_leaves_the_start(shapes: list[tuple[int, float]]) -> None:
    walks = [
        ("".join(chr(ord("A") + 7 * i + t) for t in range(length)), reward)
        for i, (length, reward) in enumerate(shapes)
    ]
    tree = graph(*walks, start="start")
    mean, deviation = np.mean(tree.rewards), np.std(tree.rewards, ddof=1) + EPS
    for row, (_, reward) in zip(tree.advantages(credit="transition"), walks, strict=True):
        first = (reward - mean) / deviation if not tree.zero_variance else 0.0
        assert row == pytest.approx([first, *[0.0] * (len(row) - 1)], abs=1e-12)


def test_two_ways_from_one_state_differ_and_what_they_share_is_nothing() -> None:
    good, bad = graph(("xyW", 1.0), ("xzL", 0.0)).advantages(credit="transition")
    assert (
        good[0] == bad[0] == 0.0 and good[1] > 0 > bad[1] and good[1] == -bad[1] and good[2] == bad[2] == 0.0
    )


def test_a_detour_and_the_direct_way_share_a_node() -> None:
    tree = graph(("bW", 1.0), ("abL", 0.0))
    assert (
        tree.node_of(0, 0) is tree.node_of(1, 1)
        and tree.node_of(0, 0).value == 0.5
        and tree.node_of(0, 0).depth == 1
    )
    assert tree.root.value == 0.5 and len(tree.nodes) == 5


def test_coming_back_to_the_start_visits_it_again() -> None:
    walks = [("abW", 1.0), ("aSa", 0.0)]
    tree = graph(*walks)
    assert tree.root.value == pytest.approx(1 / 3) and len(tree.root.members) == 3
    assert tree.root.weight(tree.node_of(0, 0)) == 1.0, "both trajectories went to a, one of them twice"
    assert graph(*walks, start=None).root.value == 0.5, "without a key nobody comes back"


def test_an_ending_step_leads_to_a_leaf_of_its_own() -> None:
    """A cut-off episode that ends in a state that another one passed through does not count as a visit of it."""
    tree = graph(("abW", 1.0), ("ab", 0.0))
    assert tree.node_of(0, 1).value == 1.0 and tree.node_of(1, 1).value == 0.0 and tree.node_of(1, 1).ending
    assert not tree.node_of(0, 1).ending and tree.node_of(0, 2).ending and not tree.node_of(0, 2).children


def test_around_a_loop_credits_cancel() -> None:
    tree = graph(("abababW", 1.0), ("aL", 0.0), gamma=0.9)
    row = tree.advantages(credit="transition")[0]
    assert row[1] + row[2] == pytest.approx(0.0) and row[3] + row[4] == pytest.approx(0.0)


def test_a_self_loop_is_no_child() -> None:
    tree = graph(("aaW", 1.0), ("aL", 0.0))
    node = tree.node_of(0, 0)
    assert node is tree.node_of(0, 1) and node not in node.children and len(node.children) == 2


def test_the_discount_is_95_by_state_and_99_by_depth() -> None:
    walks = [Walk("ab", 1.0), Walk("cd", 0.0)]
    assert build_tree(walks, None, nodes="state").gamma == 0.95
    assert build_tree(walks, lambda t, i, j: 9.0).gamma == 0.99


def test_equal_rewards_teach_nothing() -> None:
    tree = graph(("abW", 1.0), ("W", 1.0), gamma=0.5)
    assert all(not row.any() for credit in ("value", "transition") for row in tree.advantages(credit=credit))  # type: ignore[arg-type]
    assert tree.divergences() == []


def test_no_divergence_is_asked_of_the_model() -> None:
    def never(t: int, i: int, j: int) -> float:
        raise AssertionError("kl was asked")

    tree = build_tree([Walk("ab", 1.0), Walk("ac", 0.0)], never, nodes="state")
    assert tree.stats()["kl_calls"] == tree.stats()["pairs_possible"] == 0 and tree.by == "state"


def test_a_divergence_names_the_first_passage_of_each_way() -> None:
    """At b two ways part; the loser took the bad edge twice and is shown at its first passage, deeper than the winner's."""
    tree = graph(("bW", 1.0), ("abcbcL", 0.0))
    (found,) = [d for d in tree.divergences(0.3) if d.node is tree.node_of(0, 0)]
    assert found.best.ending and found.best_step == (0, 1)
    assert found.worst is tree.node_of(1, 2) and found.worst_step == (1, 2) and found.worst_count == 1


@given(group, gammas)
@settings(max_examples=60)
def test_every_divergence_is_where_its_ways_were_taken(walks: list[tuple[str, float]], gamma: float) -> None:
    tree = graph(*walks, gamma=gamma)
    for found in tree.divergences(0.1):
        for child, (i, t) in ((found.best, found.best_step), (found.worst, found.worst_step)):
            assert (
                tree.node_of(i, t - 1) is found.node
                and tree.node_of(i, t) is child
                and i in found.node.children[child]
            )
            earlier = [
                s for s in range(t) if tree.node_of(i, s - 1) is found.node and tree.node_of(i, s) is child
            ]
            assert not earlier


@given(group, gammas)
@settings(max_examples=40)
def test_a_graph_can_be_written_and_holds_every_visit(walks: list[tuple[str, float]], gamma: float) -> None:
    tree = graph(*walks, gamma=gamma)
    data = json.loads(json.dumps(tree_to_dict(tree, [Walk(*w) for w in walks]), allow_nan=False))
    members = [tuple(member) for node in data["nodes"] for member in node["members"]]
    assert sorted(members) == sorted(
        (i, t) for i, (states, _) in enumerate(walks) for t in range(-1, len(states))
    )
    assert data["nodes"][0]["depth"] == 0 and all(0 <= edge["weight"] <= 1 for edge in data["edges"])


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="by depth a tree needs `kl`"):
        build_tree([Walk("a", 1.0), Walk("b", 0.0)], None)
    broken = Walk("ab", 1.0)
    nameless = [Walk("ab", 1.0), SimpleNamespace(reward=0.0, steps=[Step("a"), Step("")])]
    with pytest.raises(ValueError, match="step 1 of trajectory 1 has no state_key"):
        build_tree(nameless, None, nodes="state")
    with pytest.raises(ValueError, match="choose one of depth, state"):
        build_tree([broken], None, nodes="time")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="credit is 'sum'"):
        graph(("a", 1.0)).advantages(credit="sum")  # type: ignore[arg-type]
