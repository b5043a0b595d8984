"""Formulas against brute-force twins of verl's and verl-agent's (GiGPO, HGPO, GraphGPO) on random input.

The twins are written anew as plain loops from their formulas. They keep what those do; where ours differs on purpose, a test says so.
"""

from __future__ import annotations

import math
from types import FunctionType
from typing import NamedTuple

import numpy as np
import pytest
import torch
from episodes import episode_of, made
from hypothesis import given, settings
from hypothesis import strategies as st

from tstar_train import advantages as module
from tstar_train import losses
from tstar_train.advantages import (
    discounted_returns,
    gae,
    gigpo_step,
    goal_distances,
    graphgpo_step,
    grpo,
    hgpo_step,
    soft_overlong,
    whiten,
    whitened,
)
from tstar_train.config import GiGPOConfig, HGPOConfig
from tstar_train.losses import clipped_policy_loss, kl_k3, value_loss

unhurried = settings(deadline=None)
scores = st.integers(0, 10).map(lambda k: k / 10)
small = st.floats(-3, 3).map(lambda x: round(x, 6))


def mean_of(values):
    return sum(values) / len(values)


def std_of(values):
    """torch.std's: over n - 1."""
    return math.sqrt(sum((v - mean_of(values)) ** 2 for v in values) / (len(values) - 1))


def verl_grpo(rewards, uids, divide):
    """compute_grpo_outcome_advantage: (s - mean) / (std + 1e-6) in a task's group; a group of one has mean 0 and std 1."""
    result = []
    for reward, uid in zip(rewards, uids, strict=True):
        group = [r for r, u in zip(rewards, uids, strict=True) if u == uid]
        mean, std = (0.0, 1.0) if len(group) == 1 else (mean_of(group), std_of(group))
        result.append((reward - mean) / (std + 1e-6) if divide else reward - mean)
    return result


@unhurried
@given(st.lists(st.tuples(scores, st.sampled_from("abc")), min_size=1, max_size=12), st.booleans())
def test_grpo_is_verls_but_for_a_group_of_one(episodes, divide):
    rewards, uids = [r for r, _ in episodes], [u for _, u in episodes]
    ours, theirs = grpo(rewards, uids, scale=divide), verl_grpo(rewards, uids, divide)
    for uid, mine, their, reward in zip(uids, ours, theirs, rewards, strict=True):
        if uids.count(uid) == 1:
            assert mine == 0 and their == pytest.approx(reward, abs=1e-5), (
                "verl trains on the raw score of what was compared with nothing"
            )
        else:
            assert mine == pytest.approx(their, abs=1e-9)


def verl_gae(rewards, values, mask, gamma, lam):
    """compute_gae_advantage_return of one row: on tokens of the environment the next value and advantage are carried over."""
    advantages, next_value, last = [0.0] * len(values), 0.0, 0.0
    for t in reversed(range(len(values))):
        if mask[t]:
            last = rewards[t] + gamma * next_value - values[t] + gamma * lam * last
            next_value = values[t]
        advantages[t] = last
    returns = [a + v for a, v in zip(advantages, values, strict=True)]
    own = [a for a, m in zip(advantages, mask, strict=True) if m]
    if len(own) < 2:
        return returns, advantages, None
    scale = math.sqrt(std_of(own) ** 2 + 1e-8)
    return returns, advantages, [(a - mean_of(own)) / scale for a in advantages]


@unhurried
@given(
    st.lists(st.tuples(small, small, st.booleans()), min_size=1, max_size=12),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_gae_and_whitening_are_verls(tokens, gamma, lam):
    rewards, values, mask = (list(column) for column in zip(*tokens, strict=True))
    returns, advantages, in_units = verl_gae(rewards, values, mask, gamma, lam)
    ours, our_returns = gae(rewards, values, mask, gamma, lam)
    chosen = np.array(mask)
    assert ours[chosen] == pytest.approx(np.array(advantages)[chosen], abs=1e-9)
    assert our_returns[chosen] == pytest.approx(np.array(returns)[chosen], abs=1e-9)
    if in_units is not None:
        assert whiten(ours, mask)[chosen] == pytest.approx(np.array(in_units)[chosen], abs=1e-6)
    else:
        assert not whiten(ours, mask).any(), "fewer than two tokens have no variance"


class Token(NamedTuple):
    """What the losses read of a token."""

    now: float
    old: float
    advantage: float
    own: bool


def verl_policy_loss(token, low, high, bound):
    """compute_policy_loss_vanilla of one token; where A < 0 verl holds the loss at -A c besides ("dual clip", c = 3)."""
    ratio = math.exp(min(max(token.now - token.old, -20.0), 20.0))
    clipped = min(max(ratio, 1 - low), 1 + high)
    loss = max(-token.advantage * ratio, -token.advantage * clipped)
    return min(loss, -token.advantage * bound) if token.advantage < 0 else loss


def verl_agg_loss(rows, mode):
    """agg_loss over rows of (loss, own), each with an own token."""
    of_rows = [[loss for loss, own in row if own] for row in rows]
    if mode == "token-mean":
        return mean_of([loss for row in of_rows for loss in row])
    if mode == "seq-mean-token-sum-norm":
        return sum(map(sum, of_rows)) / len(rows[0])
    return mean_of([mean_of(row) if mode == "seq-mean-token-mean" else sum(row) for row in of_rows])


tokens = st.builds(Token, st.floats(-4, 0), st.floats(-4, 0), small, st.booleans())


def rows_of(length):
    row = st.lists(tokens, min_size=length, max_size=length).filter(lambda row: any(t.own for t in row))
    return st.lists(row, min_size=1, max_size=4)


batches = st.integers(1, 5).flatmap(rows_of)


def tensors(rows):
    """[B, L] each: now, old, advantages, mask."""
    columns = [
        torch.tensor([[token[k] for token in row] for row in rows], dtype=torch.float64) for k in range(3)
    ]
    return *columns, torch.tensor([[token.own for token in row] for row in rows])


# Ours -> verl's, and what ours divides by where that is not the batch's own count.
MODES = {
    "token-mean": ("token-mean", None),
    "seq-mean-token-mean": ("seq-mean-token-mean", None),
    "seq-mean-token-sum": ("seq-mean-token-sum", None),
    "seq-mean-token-sum-norm": ("seq-mean-token-sum", "length"),  # Dr. GRPO
}


@pytest.mark.parametrize("mode", MODES)
@unhurried
@given(rows=batches, low=st.floats(0, 0.9), high=st.floats(0, 1))
def test_the_policy_loss_and_its_aggregation_are_verls(mode, rows, low, high):
    aggregation, divisor = MODES[mode]
    now, old, advantages, mask = tensors(rows)
    divisor = mask.shape[1] if divisor else None
    ours = clipped_policy_loss(now, old, advantages, mask, low, high, aggregation, divisor)
    without = [[(verl_policy_loss(token, low, high, math.inf), token.own) for token in row] for row in rows]
    assert ours.loss.item() == pytest.approx(verl_agg_loss(without, mode), abs=1e-9)
    # verl's third bound, which ours and the papers do not have, is met only where a bad token has become more than 3 times as likely.
    dual = [[(verl_policy_loss(token, low, high, 3.0), token.own) for token in row] for row in rows]
    met = any(t.own and t.advantage < 0 and t.now - t.old > math.log(3) for row in rows for t in row)
    assert met or verl_agg_loss(dual, mode) == verl_agg_loss(without, mode)


@unhurried
@given(rows=batches, clip=st.floats(0, 2))
def test_the_value_loss_is_verls(rows, clip):
    values, returns, old, mask = tensors(rows)  # three numbers of each token, whatever they are called above
    losses = []
    for value, target, before, own in (token for row in rows for token in row):
        held = min(max(value, before - clip), before + clip)
        if own:
            losses.append(max((value - target) ** 2, (held - target) ** 2))
    assert value_loss(values, returns, old, mask, clip).loss.item() == pytest.approx(
        0.5 * mean_of(losses), abs=1e-9
    )


@unhurried
@given(st.floats(-30, 0), st.floats(-30, 0))
def test_the_kl_is_verls_low_var_kl(now, reference):
    x = min(max(reference - now, -20.0), 20.0)
    wanted = min(max(math.exp(x) - x - 1, -10.0), 10.0)
    ours = kl_k3(torch.tensor([now], dtype=torch.float64), torch.tensor([reference], dtype=torch.float64))
    assert ours.item() == pytest.approx(wanted, abs=1e-9)


@unhurried
@given(
    st.integers(1, 60).flatmap(
        lambda most: st.tuples(st.integers(0, most), st.just(most), st.integers(1, most))
    ),
    st.floats(0, 3),
)
def test_the_soft_overlong_penalty_is_verls_and_dapos_equation(reply, factor):
    length, most, buffer = reply
    expected = most - buffer
    verl = min(-(length - expected) / buffer * factor, 0.0)
    assert soft_overlong(length, most, buffer, factor) == pytest.approx(verl, abs=1e-12)
    equation_13 = 0.0 if length <= expected else (expected - length) / buffer
    assert soft_overlong(length, most, buffer) == pytest.approx(equation_13, abs=1e-12)


class Row(NamedTuple):
    """One turn as GiGPO's batch has it."""

    uid: int
    trajectory: int
    anchor: str
    reward: float
    score: float  # of the whole episode, on each of its rows


def gigpo_returns(rows, gamma):
    """compute_step_discounted_returns: R_t = r_t + gamma R_{t+1} in a trajectory."""
    result = []
    for n, row in enumerate(rows):
        rest = [r.reward for r in rows[n:] if (r.uid, r.trajectory) == (row.uid, row.trajectory)]
        result.append(sum(gamma**k * reward for k, reward in enumerate(rest)))
    return result


def gigpo_episode(rows, mode):
    """episode_norm_reward: against the task's trajectories, each of them once however many rows it has; a lone one keeps its score."""
    result = []
    for row in rows:
        group = list({r.trajectory: r.score for r in rows if r.uid == row.uid}.values())
        mean, std = (0.0, 1.0) if len(group) == 1 else (mean_of(group), std_of(group))
        result.append((row.score - mean) / (std + 1e-6 if mode == "mean_std_norm" else 1.0))
    return result


def gigpo_of_step(rows, returns, mode):
    """build_step_group and step_norm_reward: against all rows of the task with the same anchor, at any time; a lone one gets 0."""
    result = []
    for row, mine in zip(rows, returns, strict=True):
        group = [g for r, g in zip(rows, returns, strict=True) if (r.uid, r.anchor) == (row.uid, row.anchor)]
        std = 1.0 if len(group) == 1 else std_of(group)
        result.append((mine - mean_of(group)) / (std + 1e-6 if mode == "mean_std_norm" else 1.0))
    return result


turns = st.lists(st.tuples(st.sampled_from("sabc"), scores), min_size=1, max_size=5)
groups = st.lists(st.lists(turns, min_size=2, max_size=4), min_size=1, max_size=3)
modes = st.sampled_from(["mean_norm", "mean_std_norm"])


@unhurried
@given(groups, modes, st.floats(0.1, 1), st.floats(0, 2))
def test_the_credit_of_turns_is_gigpos(tasks, mode, gamma, weight):
    """The whole algorithm over several tasks: its terms are added up as the trainer does."""
    algorithm = made("gigpo", gigpo=GiGPOConfig(weight, gamma, mode))
    rows, ours = [], []
    for uid, group in enumerate(tasks):
        trajectories = []
        for member, taken in enumerate(group):
            # Each turn leads to a state and earns a reward there; the last one's is the episode's own.
            trajectory = episode_of([state for state, _ in taken], taken[-1][1], start="s", member=member)
            for turn, (_, reward) in zip(trajectory.turns[:-1], taken[:-1], strict=True):
                turn.shaping = reward
            trajectories.append(trajectory)
            anchors = ["s", *(state for state, _ in taken)][:-1]
            total = sum(reward for _, reward in taken)
            rows += [
                Row(uid, member, anchor, reward, total)
                for anchor, (_, reward) in zip(anchors, taken, strict=True)
            ]
        whole, steps = algorithm.episode_advantages(trajectories), algorithm.step_advantages(trajectories)
        ours += [a + b for x, y in zip(whole, steps, strict=True) for a, b in zip(x, y, strict=True)]
    steps = gigpo_of_step(rows, gigpo_returns(rows, gamma), mode)
    theirs = [e + weight * s for e, s in zip(gigpo_episode(rows, mode), steps, strict=True)]
    assert ours == pytest.approx(theirs, abs=1e-6)


@unhurried
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("stu"), scores), min_size=1, max_size=12), modes
)
def test_the_step_term_alone_is_gigpos_whatever_the_order_of_rows(rows, mode):
    given_rows = [Row(uid, 0, anchor, reward, reward) for uid, anchor, reward in rows]
    theirs = gigpo_of_step(given_rows, [row.reward for row in given_rows], mode)
    ours = gigpo_step([r for *_, r in rows], [a for _, a, _ in rows], [u for u, *_ in rows], mode)
    assert ours == pytest.approx(np.array(theirs), abs=1e-9)


@unhurried
@given(st.lists(scores, min_size=1, max_size=8), st.floats(0, 1))
def test_discounted_returns_are_gigpos(rewards, gamma):
    rows = [Row(0, 0, "s", reward, 0.0) for reward in rewards]
    assert discounted_returns(rewards, gamma) == pytest.approx(
        np.array(gigpo_returns(rows, gamma)), abs=1e-12
    )


def test_an_episode_that_was_compared_with_nothing_has_no_credit_where_gigpo_keeps_its_score():
    lone = [episode_of("ab", 1.0)]
    assert gigpo_episode([Row(0, 0, "s", 0.0, 1.0), Row(0, 0, "a", 1.0, 1.0)], "mean_norm") == [1.0, 1.0]
    assert not np.concatenate(made("gigpo").episode_advantages(lone)).any()


def hgpo_of_step(episodes, history, alpha, divide):
    """hgpo_advantage_estimate of one task: episodes of (state, return); every level of equal last states a step has a part in.

    As there but for what `hgpo_step` names: the sample's standard deviation, and levels of equal returns are left out.
    """
    result = []
    for episode in episodes:
        for t, (_, mine) in enumerate(episode):
            parts = []
            for k in range(1, min(history + 1, t + 1) + 1):
                past = [s for s, _ in episode[t - k + 1 : t + 1]]
                equal = [
                    other[u][1]
                    for other in episodes
                    for u in range(k - 1, len(other))
                    if [s for s, _ in other[u - k + 1 : u + 1]] == past
                ]
                if len(equal) > 1 and max(equal) - min(equal) > 1e-8:
                    own = (mine - mean_of(equal)) / (std_of(equal) + 1e-6 if divide else 1.0)
                    parts.append(((k + 1) ** alpha, own))
            weight = sum(w for w, _ in parts)
            result.append(sum(w * a for w, a in parts) / weight if parts else 0.0)
    return result


def contexts_of(episodes, history):
    return [
        [s for s, _ in episode[max(0, t - history) : t + 1]]
        for episode in episodes
        for t in range(len(episode))
    ]


@unhurried
@given(
    st.lists(turns, min_size=1, max_size=5),
    st.integers(0, 3),
    st.sampled_from([0.0, 1.0, 2.0]),
    modes,
    st.data(),
)
def test_hgpo_is_verl_agents_and_gigpo_with_one_level(episodes, history, alpha, mode, data):
    returns = [r for episode in episodes for _, r in episode]
    ours = hgpo_step(returns, contexts_of(episodes, history), alpha, mode)
    theirs = hgpo_of_step(episodes, history, alpha, mode == "mean_std_norm")
    assert ours == pytest.approx(np.array(theirs), abs=1e-9)
    states = [s for episode in episodes for s, _ in episode]
    one = hgpo_step(returns, contexts_of(episodes, 0), alpha, mode)
    assert one == pytest.approx(gigpo_step(returns, states, [0] * len(states), mode), abs=1e-12)
    order = data.draw(st.permutations(range(len(episodes))))
    moved = [episodes[i] for i in order]
    again = hgpo_step([r for e in moved for _, r in e], contexts_of(moved, history), alpha, mode)
    ends = np.cumsum([len(e) for e in episodes])[:-1]
    by_member = np.split(ours, ends)
    assert again == pytest.approx(np.concatenate([by_member[i] for i in order]), abs=1e-12)


@unhurried
@given(groups, modes, st.integers(0, 2), st.floats(0, 2))
def test_the_credit_of_turns_is_hgpos(tasks, mode, history, weight):
    """The algorithm on episodes; its episode term is off unless asked for."""
    algorithm = made("hgpo", hgpo=HGPOConfig(weight, mode=mode, history=history, gamma=1.0))
    for group in tasks:
        trajectories, episodes = [], []
        for member, taken in enumerate(group):
            reward = taken[-1][1]
            trajectories.append(episode_of([s for s, _ in taken], reward, start="s", member=member))
            episodes.append([(s, reward) for s in ["s", *(s for s, _ in taken)][:-1]])
        theirs = hgpo_of_step(episodes, history, 1.0, mode == "mean_std_norm")
        ours = np.concatenate(algorithm.step_advantages(trajectories))
        assert ours == pytest.approx(weight * np.array(theirs), abs=1e-9)
        assert not np.concatenate(algorithm.episode_advantages(trajectories)).any()


def floyd_warshall(before, after, goal):
    """Steps between all pairs of states; unreachable ones are one farther than the farthest, as in the recipe."""
    states = sorted({*before, *after, goal})
    steps = {(a, b): 0 if a == b else math.inf for a in states for b in states}
    for a, b in zip(before, after, strict=True):
        steps[a, b] = min(steps[a, b], 1)
    for via in states:
        for a in states:
            for b in states:
                steps[a, b] = min(steps[a, b], steps[a, via] + steps[via, b])
    known = {a: steps[a, goal] for a in states if steps[a, goal] < math.inf}
    return {a: known.get(a, max(known.values()) + 1) for a in states}


walks = st.lists(st.lists(st.sampled_from("abcdeG"), min_size=1, max_size=6), min_size=1, max_size=5)


@unhurried
@given(walks, st.sampled_from([0.1, 0.5]), st.data())
def test_graphgpo_is_the_recipes_by_floyd_warshall(ways, decay, data):
    """10 decay^d(s') there, decay^(d(s') - d(s) + 1) here: without eps the same z-scores."""
    walked = [["s", *way[: way.index("G") + 1 if "G" in way else None]] for way in ways]
    before, after = [s for w in walked for s in w[:-1]], [s for w in walked for s in w[1:]]
    distances = floyd_warshall(before, after, "G")
    assert goal_distances(before, after, "G") == distances
    ours = graphgpo_step(before, after, "G", decay, eps=0.0)
    for state, following, mine in zip(before, after, ours, strict=True):
        scores = [10 * decay ** distances[b] for a, b in zip(before, after, strict=True) if a == state]
        own = 10 * decay ** distances[following]
        same = len(scores) == 1 or max(scores) == min(scores)
        assert mine == pytest.approx(0.0 if same else (own - mean_of(scores)) / std_of(scores), abs=1e-9)
    order = data.draw(st.permutations(range(len(before))))
    moved = graphgpo_step([before[i] for i in order], [after[i] for i in order], "G", decay, eps=0.0)
    assert moved == pytest.approx(ours[order], abs=1e-12)


FORMULAS = [
    formula
    for where in (losses, module)
    for name, formula in vars(where).items()
    if isinstance(formula, FunctionType) and formula.__module__ == where.__name__ and not name.startswith("_")
]


@pytest.mark.parametrize("formula", [*FORMULAS, whitened], ids=lambda f: f.__name__)
def test_every_formula_names_its_source(formula):
    assert "Source: " in formula.__doc__
