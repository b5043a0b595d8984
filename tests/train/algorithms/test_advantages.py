"""Advantages against closed forms and numbers worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tstar_train.advantages import (
    below_zero,
    calibrated,
    discounted_returns,
    gae,
    gigpo_step,
    goal_distances,
    graphgpo_step,
    grpo,
    hgpo_step,
    relative_weight_change,
    reward_moments,
    turn_gae,
    whiten,
)
from tstar_train.tree import build_tree


def test_grpo_by_hand() -> None:
    got = grpo([1.0, 5.0, 0.0, 0.0, 5.0, 1.0], ["a", "b", "a", "a", "b", "a"])
    std = math.sqrt((2 * 0.25 + 2 * 0.25) / 3)  # n - 1
    assert got == pytest.approx(np.array([0.5, 0, -0.5, -0.5, 0, 0.5]) / (std + 1e-6))
    assert grpo([1, 0, 0, 1], [0] * 4, scale=False).tolist() == [0.5, -0.5, -0.5, 0.5]
    assert grpo([1, 0, 0, 1], [0] * 4, eps=1.0)[0] == pytest.approx(0.5 / (std + 1))


def test_the_moments_and_the_weight_of_what_is_below_zero_by_hand() -> None:
    assert reward_moments([1.0, 0.0, 0.0, 1.0]) == pytest.approx((0.5, math.sqrt(4 * 0.25 / 3)))
    assert reward_moments([0.5]) == (0.5, 0.0)
    assert below_zero(np.array([-2.0, 0.0, 3.0]), 0.5).tolist() == [-1.0, 0.0, 3.0]


def test_grpo_with_nothing_to_compare_is_exactly_zero() -> None:
    assert grpo([0.1] * 3 + [7.0], ["a"] * 3 + ["b"]).tolist() == [0.0] * 4
    assert grpo([0.1 + 0.2, 0.3], ["a"] * 2).tolist() == [0.0] * 2
    assert grpo([0.1] * 3 + [7.0], ["a"] * 3 + ["b"], scale=False).tolist() == [0.0] * 4
    assert grpo([], []).tolist() == []


@settings(max_examples=100, deadline=None)
@given(
    rewards=st.lists(st.integers(0, 10).map(lambda k: k / 10), min_size=2, max_size=8),
    data=st.data(),
)
def test_grpo_is_centred_scaled_and_blind_to_order(rewards: list[float], data: st.DataObject) -> None:
    got = grpo(rewards, [0] * len(rewards), eps=0.0)
    if len(set(rewards)) > 1:
        assert (got.mean(), got.std(ddof=1)) == (pytest.approx(0, abs=1e-12), pytest.approx(1))
    order = data.draw(st.permutations(range(len(rewards))))
    assert grpo([rewards[i] for i in order], [0] * len(rewards), eps=0.0).tolist() == got[order].tolist()
    assert reward_moments(rewards)[1] == pytest.approx(np.std(rewards, ddof=1))


def test_grpo_refuses_what_it_cannot_group() -> None:
    with pytest.raises(ValueError, match="2 groups for 3 values"):
        grpo([1, 0, 1], ["a", "b"])
    with pytest.raises(ValueError, match=r"shape \(2, 2\)"):
        grpo([[1, 0], [0, 1]], ["a", "b"])
    with pytest.raises(ValueError, match="reward 1 of the group is nan"):
        grpo([1, math.nan], ["a", "a"])


def test_discounted_returns_by_hand() -> None:
    assert discounted_returns([1, 0, 0, 2], 0.5).tolist() == [1.25, 0.5, 1.0, 2.0]
    rewards = np.zeros(3)
    discounted_returns(rewards, 0.9)
    rewards[2] = 1.0
    assert discounted_returns(rewards, 0.9) == pytest.approx([0.81, 0.9, 1.0])
    assert rewards.tolist() == [0.0, 0.0, 1.0], "the input is left as it was"


def test_gigpo_groups_equal_states_at_any_time_within_a_task() -> None:
    returns = [1.0, 0.0, 0.5, 9.0, 0.25]
    anchors, groups = ["s", "s", "s", "s", "u"], ["a", "a", "a", "b", "a"]
    assert gigpo_step(returns, anchors, groups) == pytest.approx([0.5, -0.5, 0.0, 0.0, 0.0])
    scaled = gigpo_step(returns, anchors, groups, "mean_std_norm")
    assert scaled == pytest.approx(np.array([0.5, -0.5, 0, 0, 0]) / (0.5 + 1e-6))
    with pytest.raises(ValueError, match=r"mode is 'std'.*mean_norm, mean_std_norm"):
        gigpo_step(returns, anchors, groups, "std")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="4 anchors for 5 groups"):
        gigpo_step(returns, anchors[:4], groups)


def test_hgpo_weighs_levels_by_hand() -> None:
    # Three steps from "s", two of them from "a" before it; the third began its episode there.
    returns, contexts = [1.0, 0.0, 0.5, 0.7], [("a", "s"), ("a", "s"), ("s",), ("b",)]
    # By "s": mean .5, weight 2; by "a", "s": mean .5, weight 3. The third step is the mean of the first level, the fourth met by none.
    assert hgpo_step(returns, contexts, mode="mean_norm") == pytest.approx([0.5, -0.5, 0.0, 0.0])
    uneven = [1.0, 0.0, 0.2, 0.7]
    # By "s": mean .4; by "a", "s": mean .5.
    by_hand = [(2 * 0.6 + 3 * 0.5) / 5, (2 * -0.4 + 3 * -0.5) / 5, -0.2, 0.0]
    assert hgpo_step(uneven, contexts, mode="mean_norm") == pytest.approx(by_hand)
    alike = [(0.6 + 0.5) / 2, (-0.4 - 0.5) / 2, -0.2, 0.0]
    assert hgpo_step(uneven, contexts, 0.0, "mean_norm") == pytest.approx(alike)
    # A level whose returns are all equal says nothing and weighs nothing.
    equal = [1.0, 1.0, 0.1, 0.7]
    assert hgpo_step(equal, contexts, mode="mean_norm") == pytest.approx([0.3, 0.3, -0.6, 0.0])
    std = math.sqrt((0.6**2 + 0.4**2 + 0.2**2) / 2)
    third = hgpo_step(uneven, contexts)[2]
    assert third == pytest.approx(-0.2 / (std + 1e-6))
    with pytest.raises(ValueError, match="3 contexts for 4 returns"):
        hgpo_step(returns, contexts[:3])
    with pytest.raises(ValueError, match="give actions"):
        hgpo_step(returns, contexts, shrink=2.0)


def test_hgpo_calibrates_each_level() -> None:
    # Both levels compare the first two steps; an action taken once by one of them weighs 1 / (1 + 1).
    returns, contexts = [1.0, 0.0], [("a", "s"), ("a", "s")]
    got = hgpo_step(returns, contexts, mode="mean_norm", actions=["x", "y"], shrink=1.0)
    assert got == pytest.approx([0.25, -0.25])
    gated = hgpo_step(returns, contexts, mode="mean_norm", actions=["x", "x"], gate=1.0)
    assert not gated.any(), "one action, so all variance is noise"


def test_shrinkage_and_the_variance_gate_by_hand() -> None:
    credit, states = [0.5, 0.3, -0.4, -0.4, 0.7], ["s"] * 4 + ["t"]
    actions = ["x", "x", "y", "z", "x"]
    # x was taken twice in s, its mean is .4; y and z once. t was left once.
    shrunk = calibrated(credit, states, actions, shrink=2.0)
    assert shrunk == pytest.approx([0.4 / 2, 0.4 / 2, -0.4 / 3, -0.4 / 3, 0.7])
    assert calibrated(credit, states, actions).tolist() == credit
    assert calibrated(credit, states, actions, shrink=0.0) == pytest.approx([0.4, 0.4, -0.4, -0.4, 0.7])
    # Between actions .4^2, within them (.1^2 + .1^2) / 4.
    between, within = 0.16, 0.005
    factor = math.tanh(4 / 3) * between / (between + within)
    gated = calibrated(credit, states, actions, gate=3.0)
    assert gated == pytest.approx([*(factor * c for c in credit[:4]), 0.0])
    both = calibrated(credit, states, actions, shrink=2.0, gate=3.0)
    assert both[:4] == pytest.approx(factor * shrunk[:4]), "the gate measures what was not shrunk"
    with pytest.raises(ValueError, match="shrink is -1"):
        calibrated(credit, states, actions, shrink=-1)
    with pytest.raises(ValueError, match="gate is 0"):
        calibrated(credit, states, actions, gate=0)
    with pytest.raises(ValueError, match="4 actions for 5 values"):
        calibrated(credit, states, actions[:4])
    with pytest.raises(ValueError, match="4 states for 5 values"):
        calibrated(credit, states[:4], actions)


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 10), st.sampled_from("st"), st.sampled_from("xyz")), min_size=1, max_size=12
    ),
    shrink=st.floats(0, 9),
)
def test_shrinking_credit_shrinks_the_mean_return_of_an_action(
    steps: list[tuple[int, str, str]], shrink: float
) -> None:
    """ECPO words it as (n G + kappa m) / (n + kappa), of returns: the same, in the units of the state."""
    returns = [float(g) for g, _, _ in steps]
    states, actions = [s for _, s, _ in steps], [a for _, _, a in steps]
    got = calibrated(gigpo_step(returns, states, [0] * len(steps)), states, actions, shrink=shrink)
    for (_, state, action), credit in zip(steps, got, strict=True):
        here = [g for g, s, _ in steps if s == state]
        taken = [g for g, s, a in steps if (s, a) == (state, action)]
        mean, own, n = np.mean(here), np.mean(taken), len(taken)
        wanted = (n * own + shrink * mean) / (n + shrink) - mean
        assert credit == pytest.approx(wanted, abs=1e-9)


def test_graphgpo_goes_the_shortest_known_way_by_hand() -> None:
    # S -> a -> b -> won; S -> c -> b (cut off): c is known to be two steps away from success, by the other's last step.
    # S -> d -> S (cut off): nobody knows a way from d but back.
    before = ["S", "a", "b", "S", "c", "S", "d"]
    after = ["a", "b", "won", "c", "b", "d", "S"]
    distances = goal_distances(before, after, "won")
    assert distances == {"won": 0, "b": 1, "a": 2, "c": 2, "S": 3, "d": 4}
    got = graphgpo_step(before, after, "won")
    # From S: to a and c (score 1) and to d (.01).
    scores = np.array([1.0, 1.0, 0.01])
    z = (scores - scores.mean()) / (scores.std(ddof=1) + 1e-6)
    assert got == pytest.approx([z[0], 0, 0, z[1], 0, z[2], 0])
    # A dead end is one step farther than all others.
    assert goal_distances(["S", "S"], ["won", "dead"], "won") == {"won": 0, "S": 1, "dead": 2}
    assert not graphgpo_step(["S", "S"], ["a", "b"], "won").any(), "without a success nothing is known"
    assert not graphgpo_step(before, after, "won", decay=1.0).any()
    assert graphgpo_step([], [], "won").tolist() == []
    with pytest.raises(ValueError, match="decay is 0"):
        graphgpo_step(before, after, "won", decay=0)
    with pytest.raises(ValueError, match="7 states before for 1 states after"):
        goal_distances(before, after[:1], "won")


def test_graphgpo_tells_steps_apart_far_from_the_goal() -> None:
    # Two ways from the start of a corridor of 30 states: along it, or a bump into its wall.
    before = [*range(30), 0]
    after = [*range(1, 31), 0]
    got = graphgpo_step(before, after, 30)
    assert [got[0], got[-1]] == pytest.approx([math.sqrt(0.5), -math.sqrt(0.5)], rel=1e-5)
    assert not got[1:-1].any()


def test_turn_gae_by_hand() -> None:
    # Turns of 2 and 3 tokens; the values before tokens within a turn are not read.
    values = [0.2, 9.0, 0.6, 9.0, 9.0]
    advantages, returns = turn_gae([0.0, 1.0], values, [2, 3], 0.5, 0.5)
    last = 1.0 - 0.6
    first = 0.5 * 0.6 - 0.2 + 0.25 * last
    assert advantages == pytest.approx([first, first, last, last, last])
    assert returns == pytest.approx([first + 0.2, np.nan, 1.0, np.nan, np.nan], nan_ok=True)
    with pytest.raises(ValueError, match=r"turns of \[2, 2\] tokens"):
        turn_gae([0.0, 1.0], values, [2, 2], 0.5, 0.5)
    with pytest.raises(ValueError, match="no empty turn"):
        turn_gae([0.0, 1.0], values, [5, 0], 0.5, 0.5)


@settings(max_examples=60, deadline=None)
@given(
    turns=st.lists(
        st.tuples(st.floats(-1, 1), st.lists(st.floats(-1, 1), min_size=1, max_size=4)),
        min_size=1,
        max_size=6,
    ),
    gamma=st.floats(0, 1),
    lam=st.floats(0, 1),
)
def test_turn_gae_is_the_token_levels_where_they_must_agree(
    turns: list[tuple[float, list[float]]], gamma: float, lam: float
) -> None:
    """At the first token of a turn with gamma and lambda 1, and everywhere for turns of one token."""
    rewards, lengths = [r for r, _ in turns], [len(v) for _, v in turns]
    values = [v for _, own in turns for v in own]
    first = np.cumsum([0, *lengths])[:-1]
    by_token = np.zeros(len(values))
    by_token[np.cumsum(lengths) - 1] = rewards
    advantages, returns = turn_gae(rewards, values, lengths, 1.0, 1.0)
    token, targets = gae(by_token, values, np.ones(len(values)), 1.0, 1.0)
    assert advantages[first] == pytest.approx(token[first], abs=1e-9)
    assert returns[first] == pytest.approx(targets[first], abs=1e-9)
    assert np.isnan(np.delete(returns, first)).all()
    heads = [own[0] for _, own in turns]
    one, aims = turn_gae(rewards, heads, [1] * len(turns), gamma, lam)
    same, targets = gae(rewards, heads, np.ones(len(turns)), gamma, lam)
    assert one.tolist() == same.tolist() and aims.tolist() == targets.tolist()


@settings(max_examples=100, deadline=None)
@given(
    data=st.lists(st.tuples(st.floats(-1, 1), st.floats(-1, 1), st.booleans()), min_size=1, max_size=12),
    gamma=st.floats(0, 1),
    lam=st.floats(0, 1),
)
def test_gae_is_the_closed_form_on_the_policys_own_tokens(
    data: list[tuple[float, float, bool]], gamma: float, lam: float
) -> None:
    """A_t = sum_l (gamma lam)^l delta_{t+l}, as if the observation tokens had never been there."""
    rewards, values, mask = (np.array(column) for column in zip(*data, strict=True))
    advantages, returns = gae(rewards, values, mask, gamma, lam)
    r, v = rewards[mask], values[mask]
    delta = r + gamma * np.append(v[1:], 0.0) - v if len(v) else r
    expected = [sum((gamma * lam) ** k * d for k, d in enumerate(delta[t:])) for t in range(len(delta))]
    assert advantages[mask] == pytest.approx(np.array(expected), abs=1e-9)
    assert returns[mask] == pytest.approx(np.array(expected) + v, abs=1e-9)
    assert not advantages[~mask].any() and not returns[~mask].any()


def test_gae_with_lambda_1_is_the_return_and_rows_are_independent() -> None:
    rewards = np.array([[0, 0, 0, 1.0], [0.5, 0, 0, 0]])
    values = np.array([[0.1, 0.7, 0.2, 0.3], [0.4, 0.3, 0.2, 0.1]])
    mask = np.array([[1, 0, 1, 1], [1, 1, 0, 0]])
    advantages, returns = gae(rewards, values, mask, 0.9, 1.0)
    assert returns == pytest.approx(np.array([[0.81, 0, 0.9, 1.0], [0.5, 0, 0, 0]]))
    for row in range(2):
        assert gae(rewards[row], values[row], mask[row], 0.9, 1.0)[0] == pytest.approx(advantages[row])
    with pytest.raises(ValueError, match=r"\(2, 4\), \(2, 4\) and \(4,\)"):
        gae(rewards, values, mask[0], 0.9, 1.0)


def test_whiten() -> None:
    got = whiten([[3.0, 99.0], [1.0, 2.0]], [[1, 0], [1, 1]])
    assert got == pytest.approx(np.array([[1.0, 0.0], [-1.0, 0.0]]))
    assert whiten([3.0, 1.0], [1, 0]).tolist() == [0.0, 0.0]


def test_relative_weight_change_by_hand() -> None:
    base = [[1.0, 1.0], [-1.0, -1.0]]
    assert relative_weight_change(base, base, [["p", "q"], ["p", "r"]]) == 0
    # p: 1 - 1 = 0 in both. q: 1.5 against 1, r: -1 in both.
    tree = [[0.5, 1.5], [-0.5, -1.0]]
    assert relative_weight_change(tree, base, [["p", "q"], ["p", "r"]]) == pytest.approx(0.5 / math.sqrt(2))
    distinct = relative_weight_change(tree, base, [[1, 2], [3, 4]])
    assert distinct == pytest.approx(math.sqrt(0.75) / 2)


def test_relative_weight_change_where_nothing_remains() -> None:
    assert relative_weight_change([[0.0]], [[0.0]], [["k"]]) == 0
    assert relative_weight_change([[0.5], [-0.5]], [[0.1], [-0.1]], [["k"], ["k"]]) == 0
    assert relative_weight_change([[0.5], [0.5]], [[0.1 + 0.2], [-0.3]], [["k"], ["k"]]) == math.inf
    assert relative_weight_change([], [], []) == 0
    with pytest.raises(ValueError, match="trajectory 0: 1 tree, 1 base advantages, 2 keys"):
        relative_weight_change([[1.0]], [[1.0]], [["a", "b"]])
    with pytest.raises(ValueError, match="1 tree rows, 2 base rows, 1 key rows"):
        relative_weight_change([[1.0]], [[1.0], [1.0]], [["a"]])


class _Step:
    thought = observation = effect_key = state_key = "x"
    modifies_state = True

    def __init__(self, action: str) -> None:
        self.action = self.effect_key = action


class _Trajectory:
    def __init__(self, reward: float, actions: str) -> None:
        self.reward, self.steps = reward, [_Step(a) for a in actions]


@settings(max_examples=60, deadline=None)
@given(
    cases=st.lists(
        st.tuples(st.sampled_from([0.0, 1.0]), st.text("AB", min_size=1, max_size=4)), min_size=2, max_size=6
    )
)
def test_a_strict_tree_with_gamma_1_changes_no_gradient(cases: list[tuple[float, str]]) -> None:
    """Where history fixes context and text, and everything equal merges, the summed weights are GRPO's."""
    group = [_Trajectory(*case) for case in cases]
    tree = build_tree(group, lambda t, i, j: 0.0, gamma=1.0, same_parent=True)
    # Endings apart, as in the tree: a step's text here says that it is the last.
    keys = [[(a[: t + 1], t + 1 == len(a)) for t in range(len(a))] for _, a in cases]
    advantages = grpo([reward for reward, _ in cases], [0] * len(cases))
    base = [np.full(len(a), advantages[i]) for i, (_, a) in enumerate(cases)]
    assert relative_weight_change(tree.advantages(), base, keys) == pytest.approx(0, abs=1e-9)
