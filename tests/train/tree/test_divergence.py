"""Divergences and grafts against brute-force twins: evidence are those that passed the divergent node, and nobody else."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policies import random_policy

from tstar_envs import Episode, Step
from tstar_train.engines.local import LocalEngine
from tstar_train.grafting import graft
from tstar_train.tree import build_tree, tree_to_dict
from tstar_train.types import Trajectory, Turn


@dataclass
class Taken:
    """A step whose state alone decides what it merges with, so that ways part and meet again."""

    action: str
    state_key: str
    thought: str = "so"
    observation: str = "ok"
    modifies_state: bool = True
    effect_key: str = "x"


@dataclass
class Walk:
    reward: float
    steps: list[Taken] = field(default_factory=list)


def group_of(*walks: tuple[float, str]) -> list[Walk]:
    return [
        Walk(reward, [Taken(f"{i}-{t}", state) for t, state in enumerate(states)])
        for i, (reward, states) in enumerate(walks)
    ]


def tree_of(*walks: tuple[float, str], gamma: float = 1.0):
    return build_tree(group_of(*walks), lambda t, i, j: 0.0, gamma=gamma, history="state")


def twin(walks, tree, delta, shrink):
    """The specification word for word, by trajectories and states instead of nodes' own sets."""
    if len({reward for reward, _ in walks}) == 1:
        return []
    found = []
    for node in tree.nodes:
        depth = node.depth
        goes: dict[int, list[int]] = {}
        for i, _ in node.members:
            if depth < len(walks[i][1]):
                goes.setdefault(id(tree.node_of(i, depth)), []).append(i)
        ways = []
        for members in goes.values():
            child = tree.node_of(members[0], depth)
            value = (
                (len(members) * child.value + shrink * node.value) / (len(members) + shrink)
                if shrink
                else child.value
            )
            ways.append((value, sorted(members)))
        if len(ways) < 2:
            continue
        best = sorted(ways, key=lambda way: (-way[0], -len(way[1]), way[1][0]))[0]
        worst = sorted(ways, key=lambda way: (way[0], -len(way[1]), way[1][0]))[0]
        earned = [math.fsum(walks[i][0] for i in way[1]) / len(way[1]) for way in (best, worst)]
        if best[0] - worst[0] > delta and earned[0] > earned[1]:
            winner = sorted(best[1], key=lambda i: (-walks[i][0], i))[0]
            loser = sorted(worst[1], key=lambda i: (walks[i][0], i))[0]
            found.append(
                (node, best[0] - worst[0], (winner, depth), (loser, depth), len(best[1]), len(worst[1]))
            )
    return found


walks_of = st.lists(
    st.tuples(st.sampled_from([0.0, 0.25, 1.0]), st.text("abc", min_size=1, max_size=5)),
    min_size=2,
    max_size=8,
)


@settings(max_examples=300, deadline=None)
@given(
    walks=walks_of,
    gamma=st.sampled_from([1.0, 0.9]),
    delta=st.sampled_from([0.0, 0.1, 0.3]),
    shrink=st.sampled_from([0.0, 0.5, 3.0]),
)
def test_divergences_are_those_of_the_specification(walks, gamma, delta, shrink) -> None:
    tree = tree_of(*walks, gamma=gamma)
    ours = tree.divergences(delta, shrink)
    found = [(d.node, d.spread, d.best_step, d.worst_step, d.best_count, d.worst_count) for d in ours]
    assert found == twin(walks, tree, delta, shrink)
    for d in ours:
        for (i, t), child in ((d.best_step, d.best), (d.worst_step, d.worst)):
            assert tree.node_of(i, t) is child and t == d.node.depth
            assert (i, t - 1) in d.node.members, "who is contrasted stood at the divergent node"
    names = Counter(d.worst_step for d in ours)
    assert max(names.values(), default=0) <= 1, "by depth a step is named by one divergence alone"


def test_members_that_came_from_elsewhere_are_no_source_of_a_thought() -> None:
    # 0 and 1 part at state a; 2 and 3 come to the same two states from b, 3 with a worse end than 1 and 2 with a better one than 0.
    walks = ((0.5, "acx"), (0.25, "ady"), (1.0, "bcz"), (0.0, "bdw"))
    tree = tree_of(*walks)
    inner = next(d for d in tree.divergences(0.1) if (0, 0) in d.node.members)
    assert inner.best.trajectories == {0, 2} and inner.worst.trajectories == {1, 3}
    assert (inner.best_step, inner.worst_step) == ((0, 1), (1, 1))
    assert (inner.best_count, inner.worst_count) == (1, 1)
    exported = tree_to_dict(tree, group_of(*walks), 0.1)["divergences"]
    assert all(d["best_count"] == d["worst_count"] == 1 for d in exported if d["best_step"][1] == 1)


def test_a_child_that_is_good_for_others_alone_is_no_better_way() -> None:
    # From a both ways lose; the state c is worth much only because those that come from b win there.
    tree = tree_of((0.0, "acx"), (0.0, "ady"), (1.0, "bcz"), (1.0, "bcz"), (0.0, "bdw"))
    assert all((0, 0) not in d.node.members for d in tree.divergences(0.0))


def test_ties_go_to_where_more_went_from_the_node() -> None:
    # c has three members and d two, but from a two went to d and one to c.
    tree = tree_of((1.0, "acx"), (1.0, "ady"), (1.0, "ady"), (0.0, "aew"), (1.0, "bcx"), (1.0, "bcx"))
    inner = next(d for d in tree.divergences() if (0, 0) in d.node.members)
    assert len(inner.best.members) == 2 and inner.best_step == (1, 1), "as many went to d as evidence"


def test_shrinking_counts_those_that_passed_the_node() -> None:
    tree = tree_of((1.0, "acx"), (0.0, "ady"), (1.0, "bcx"), (1.0, "bcx"), (1.0, "bcx"))
    inner = next(d for d in tree.divergences(0.0, shrink=1.0) if (0, 0) in d.node.members)
    parent = inner.node.value
    assert inner.spread == pytest.approx((1.0 + parent) / 2 - (0.0 + parent) / 2), (
        "one trajectory each, whatever else is in c"
    )


def test_a_step_is_grafted_once_however_many_divergences_name_it() -> None:
    policy = random_policy()
    codec = policy.codec
    context, played = (
        codec.start("", "You see a door."),
        codec.reply("Thought: the door looks shut.\nAction: push"),
    )
    other = codec.reply("Thought: the key fits the lock.\nAction: open")

    def episode(member: int, reply: list[int], thought: str) -> Trajectory:
        record = Episode("e", "mini", "t", "train", "1", "p", "i", "o", reward=float(member))
        record.steps = [Step("", thought, "push", "ok", True, "", True, thought, "s")]
        return Trajectory(7, member, record, [Turn(context, reply, [0.0] * len(reply), 8)])

    group = [episode(0, played, "the door looks shut."), episode(1, other, "the key fits the lock.")]
    tree = build_tree(group, lambda t, i, j: math.inf)
    (found,) = tree.divergences(0.1)
    narrow = replace(found, spread=0.1)
    for order in ([(group, narrow), (group, found)], [(group, found), (group, narrow)]):
        made = graft(LocalEngine(policy), codec, order, seed="s", max_tokens=8, fallback="z_plus_only")
        assert [g.spread for g in made.kept] == [found.spread]
        assert made.dropped == {"another divergence grafts this step": 1}
