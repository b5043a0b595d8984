"""Advantages against closed forms and numbers worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tstar_train.advantages import (
    below_zero,
    discounted_returns,
    gae,
    gigpo_step,
    grpo,
    relative_weight_change,
    reward_moments,
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
