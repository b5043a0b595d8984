"""Advantages: formulas of GRPO, DAPO, GiGPO, HGPO, GraphGPO, ECPO, T-STAR's trees and GAE."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Hashable, Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def gae(
    rewards: ArrayLike, values: ArrayLike, mask: ArrayLike, gamma: float, lam: float
) -> tuple[Floats, Floats]:
    """Generalised advantage estimation over the policy's own tokens.

    delta_t = r_t + gamma V_next - V_t and A_t = delta_t + gamma lam A_next, where "next" is the next token
    that the policy wrote: observation tokens (mask 0) are stepped over without a discount.

    Args:
        rewards: [..., T]; a reward belongs on a token of the policy, one on a masked token is not seen.
        values: [..., T], the critic's value before each token.
        mask: [..., T], 1 (True) where the policy wrote the token.
        gamma: discount per token of the policy.
        lam: the lambda of GAE.

    Returns:
        (advantages, returns), both [..., T] float64, returns = advantages + values, not whitened (`whiten`
        does that afterwards), and 0 on masked tokens.

    Raises:
        ValueError: the three shapes differ.

    Source: verl `compute_gae_advantage_return`, before its whitening; TRL's `PPOTrainer`, which knows no observation tokens.
    """
    reward, value = np.asarray(rewards, dtype=np.float64), np.asarray(values, dtype=np.float64)
    own = np.asarray(mask).astype(bool)
    if not reward.shape == value.shape == own.shape or reward.ndim == 0:
        raise ValueError(
            f"rewards, values and mask have shapes {reward.shape}, {value.shape} and {own.shape}: "
            "all must be [..., T]"
        )
    advantages = np.zeros_like(value)
    next_value = np.zeros(value.shape[:-1])
    next_advantage = np.zeros(value.shape[:-1])
    for t in range(value.shape[-1] - 1, -1, -1):
        delta = reward[..., t] + gamma * next_value - value[..., t]
        next_advantage = np.where(own[..., t], delta + gamma * lam * next_advantage, next_advantage)
        next_value = np.where(own[..., t], value[..., t], next_value)
        advantages[..., t] = next_advantage
    advantages = np.where(own, advantages, 0.0)
    return advantages, np.where(own, advantages + value, 0.0)


def turn_gae(
    rewards: ArrayLike, values: ArrayLike, lengths: Sequence[int], gamma: float, lam: float
) -> tuple[Floats, Floats]:
    """Generalised advantage estimation over turns: a whole reply is one action.

    delta_h = r_h + gamma V_{h+1} - V_h and A_h = delta_h + gamma lam A_{h+1}, where V_h is the value before the first token of turn h.

    Args:
        rewards: [turns].
        values: [T], the critic's value before each token of the policy; those after a turn's first are not read.
        lengths: number of tokens of each turn, at least 1, T together.
        gamma: discount per turn.
        lam: the lambda of GAE, per turn.

    Returns:
        (advantages, returns), both [T] float64: A_h at every token of turn h, and the target A_h + V_h at its first token, NaN (no target)
        at its others.

    Raises:
        ValueError: the lengths do not line up with the rewards and values.

    Source: Turn-PPO (arXiv 2512.17008), its formulas as third parties quote them (no public code was found); its GAE and one value per turn
    are these. Choices: the targets are GAE's as in `gae` (quoted: the discounted returns, which they are with lam 1).
    """
    reward, value = _vector("rewards", rewards), _vector("values", values)
    if len(lengths) != len(reward) or sum(lengths) != len(value) or min(lengths, default=1) < 1:
        raise ValueError(
            f"{len(reward)} rewards and {len(value)} values for turns of {list(lengths)} tokens: give one reward per turn, one value per "
            "token, and no empty turn"
        )
    first = np.cumsum([0, *lengths])[:-1].astype(np.int64)
    advantages, targets = gae(reward, value[first], np.ones(len(reward)), gamma, lam)
    returns = np.full(len(value), np.nan)
    returns[first] = targets
    return np.repeat(advantages, lengths), returns


def whiten(values: ArrayLike, mask: ArrayLike, eps: float = 1e-8) -> Floats:
    """Shift and scale to mean 0 and sample variance 1 over the tokens with mask 1: (x - mean) / sqrt(var + eps).

    Args:
        values: any shape.
        mask: the same shape, 1 (True) where a token counts.
        eps: added to the variance.

    Returns:
        float64 of the same shape, 0 on masked tokens; fewer than two tokens have no variance and give 0.

    Source: verl and TRL `masked_whiten`.
    """
    array, own = np.asarray(values, dtype=np.float64), np.asarray(mask).astype(bool)
    chosen = array[own]
    mean = float(chosen.mean()) if len(chosen) else 0.0
    return whitened(array, own, mean, float(((chosen - mean) ** 2).sum()), len(chosen), eps)


def whitened(
    values: ArrayLike, mask: ArrayLike, mean: float, squares: float, count: int, eps: float = 1e-8
) -> Floats:
    """Whiten a part, given the moments of the whole: (x - mean) / sqrt(squares / (count - 1) + eps).

    Several processes may hold parts of the whole.

    Args:
        values: any shape.
        mask: the same shape, 1 (True) where a token counts.
        mean: of all tokens that count.
        squares: sum of their squared differences from it.
        count: how many they are.
        eps: added to the variance.

    Returns:
        As `whiten`.

    Source: as `whiten`.
    """
    array, own = np.asarray(values, dtype=np.float64), np.asarray(mask).astype(bool)
    if count < 2:
        return np.zeros_like(array)
    return np.where(own, (np.where(own, array, 0.0) - mean) / np.sqrt(squares / (count - 1) + eps), 0.0)


StepMode = Literal["mean_norm", "mean_std_norm"]

# Rewards closer than this are the same reward: two float paths to one score must not become a group with a
# spread of 1e-16, whose discounted values would then be divided by eps alone.
SAME_REWARD = 1e-8


def reward_moments(rewards: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation of one group's rewards, the pair that GRPO and the tree share.

    mean = sum R_i / M and std = sqrt(sum (R_i - mean)^2 / (M - 1)).

    Args:
        rewards: the group's M terminal rewards.

    Returns:
        (mean, std); std is exactly 0 for one member and for rewards that are all equal (within
        `SAME_REWARD`). The sums are exactly rounded, so the order of the members never shows in the result.

    Raises:
        ValueError: no rewards, or one that is not finite.

    Source: verl `compute_grpo_outcome_advantage`, TRL `nanstd`: both divide by M - 1.
    """
    if not rewards:
        raise ValueError("a group needs at least one reward, got none")
    for i, reward in enumerate(rewards):
        if not math.isfinite(reward):
            raise ValueError(f"reward {i} of the group is {reward}: rewards must be finite numbers")
    mean = math.fsum(rewards) / len(rewards)
    if max(rewards) - min(rewards) <= SAME_REWARD:
        return mean, 0.0
    return mean, math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1))


def grpo(rewards: ArrayLike, groups: Sequence[Hashable], eps: float = 1e-6, scale: bool = True) -> Floats:
    """GRPO's advantage of each trajectory: (R - mean of its group) / (std of its group + eps).

    Args:
        rewards: [N], one terminal reward per trajectory (never one per row: an episode counts once).
        groups: N hashable group names, such as task ids.
        eps: added to the standard deviation.
        scale: False leaves the division out (Dr. GRPO).

    Returns:
        [N] float64. Exactly 0 for one-member groups (verl keeps the raw score there, which trains on an
        episode that was compared with nothing) and for groups whose rewards are all equal.

    Raises:
        ValueError: lengths differ, `rewards` is not one-dimensional, or a reward is not finite.

    Source: verl `compute_grpo_outcome_advantage`; Dr. GRPO is its `norm_adv_by_std_in_grpo=False`. TRL's `GRPOTrainer` with
    `scale_rewards` "group" (eps 1e-4) and "none".
    """
    scores = _vector("rewards", rewards)
    advantages = np.zeros(len(scores))
    for rows in _rows_by(groups, len(scores), "groups"):
        mean, std = reward_moments(scores[rows].tolist())
        if std > 0:
            advantages[rows] = (scores[rows] - mean) / (std + eps if scale else 1.0)
    return advantages


def discounted_returns(rewards: ArrayLike, gamma: float) -> Floats:
    """Compute the return from every step of one trajectory: G_t = r_t + gamma G_{t+1}.

    Args:
        rewards: [T], the reward of each step.
        gamma: discount per step.

    Returns:
        [T] float64.

    Source: GiGPO `compute_step_discounted_returns` (its equation 5).
    """
    returns = _vector("rewards", rewards).copy()
    for t in range(len(returns) - 2, -1, -1):
        returns[t] += gamma * returns[t + 1]
    return returns


def gigpo_step(
    returns: ArrayLike,
    anchors: Sequence[Hashable],
    groups: Sequence[Hashable],
    mode: StepMode = "mean_norm",
    eps: float = 1e-6,
) -> Floats:
    """GiGPO's step-level advantage: a step's return against all from the same anchor state in its group.

    A_t = (G_t - mean G) / (std G + eps) over the steps of the group with t's anchor; without the division in "mean_norm".

    Args:
        returns: [N], the discounted return of each step, over all trajectories (see `discounted_returns`).
        anchors: N hashable keys of the state in which each step was taken; steps at different times may share
            one.
        groups: N hashable group names; equal anchors of different groups are kept apart.
        mode: "mean_norm" subtracts the mean, "mean_std_norm" also divides by (std + eps).
        eps: added to the standard deviation.

    Returns:
        [N] float64, 0 for a state that was met once.

    Raises:
        ValueError: an unknown mode, or lengths that differ.

    Source: GiGPO `build_step_group` and `step_norm_reward` (its equations 6 and 7).
    """
    if mode not in get_args(StepMode):
        raise ValueError(f"mode is {mode!r}: choose one of {', '.join(get_args(StepMode))}")
    values = _vector("returns", returns)
    if len(anchors) != len(groups):
        raise ValueError(f"{len(anchors)} anchors for {len(groups)} groups: give one of each per step")
    return grpo(values, list(zip(groups, anchors, strict=True)), eps, scale=mode == "mean_std_norm")


def calibrated(
    credit: ArrayLike,
    states: Sequence[Hashable],
    actions: Sequence[Hashable],
    shrink: float | None = None,
    gate: float | None = None,
) -> Floats:
    """Calibrate step credit by its evidence, as ECPO does: rare actions and noisy states count less.

    In a state s with mean credit m, n_u turns took action u, with mean credit c_u. Shrinkage gives each of them
    m + n_u / (n_u + shrink) (c_u - m). The variance gate then multiplies by tanh(n_s / gate) B / (B + W): n_s turns began in s, B is the
    variance of their actions' means, W the variance within actions.

    Args:
        credit: [N], of each step against the others from its state (`gigpo_step`).
        states: N hashable keys, as the steps were compared.
        actions: N hashable actions.
        shrink: pseudo-count (kappa, 2 in the paper), 0 or more; None leaves each step its own credit.
        gate: number of turns at which the gate opens (tau), above 0; None leaves the gate out.

    Returns:
        [N] float64.

    Raises:
        ValueError: lengths differ, or `shrink` or `gate` is out of range.

    Source: ECPO (arXiv 2606.05885), its formulas as independent summaries quote them (no public code was found). Choices, where those
    are silent: the credit is shrunk after the state's own normalisation, since normalising shrunken estimates by their own spread
    would undo the shrinkage; B and W weigh each turn the same, measured before it.
    """
    values = _vector("credit", credit)
    if len(actions) != len(values):
        raise ValueError(f"{len(actions)} actions for {len(values)} values: give one per value")
    if shrink is not None and not shrink >= 0:
        raise ValueError(f"shrink is {shrink}: it must be 0 or more, or None")
    if gate is not None and not gate > 0:
        raise ValueError(f"gate is {gate}: it must be above 0, or None")
    result = values.copy()
    for rows in _rows_by(states, len(values), "states"):
        own, centre = values[rows], values[rows].mean()
        means, counts = np.zeros(len(rows)), np.zeros(len(rows))
        for taken in _rows_by([actions[row] for row in rows], len(rows), "actions"):
            means[taken], counts[taken] = own[taken].mean(), len(taken)
        if shrink is not None:
            result[rows] = centre + counts / (counts + shrink) * (means - centre)
        if gate is not None:
            between, within = np.mean((means - centre) ** 2), np.mean((own - means) ** 2)
            signal = between / (between + within) if between > 0 else 0.0
            result[rows] *= math.tanh(len(rows) / gate) * signal
    return result


def hgpo_step(
    returns: ArrayLike,
    contexts: Sequence[Sequence[Hashable]],
    power: float = 1.0,
    mode: StepMode = "mean_std_norm",
    eps: float = 1e-6,
    *,
    actions: Sequence[Hashable] | None = None,
    shrink: float | None = None,
    gate: float | None = None,
) -> Floats:
    """HGPO's step-level advantage: a step is compared at several levels, by its last states.

    Level d compares the steps of one group whose last d states are equal, as `gigpo_step` does. The advantage is the mean over levels,
    weighted by (d + 1)^power. A level counts for a step only if steps were compared there and their returns differ.

    Args:
        returns: [N], the discounted return of each step.
        contexts: per step the states that led to it, oldest first and its own last; as many as there are levels, fewer near a start.
        power: exponent of the weights (alpha); 0 weighs all levels alike.
        mode: as in `gigpo_step`.
        eps: added to the standard deviation.
        actions: N hashable actions, for `shrink` and `gate`.
        shrink: as in `calibrated`, at every level.
        gate: as in `calibrated`, at every level.

    Returns:
        [N] float64, 0 for a step that no level compares; with one level `gigpo_step`.

    Raises:
        ValueError: an unknown mode, lengths that differ, or an option out of range.

    Source: HGPO (arXiv 2602.22817), `recipe/hgpo/core_hgpo.py` of verl-agent, read in a public copy. Choices: the standard deviation
    is the sample's, as in GiGPO (there: the population's); a level is left out if all returns in it are equal (there: if the step's
    advantage is exactly 0).
    """
    values = _vector("returns", returns)
    if len(contexts) != len(values):
        raise ValueError(f"{len(contexts)} contexts for {len(values)} returns: give one per step")
    if actions is None and (shrink is not None or gate is not None):
        raise ValueError("shrink and gate compare actions: give actions, one per step")
    total, weights = np.zeros(len(values)), np.zeros(len(values))
    for depth in range(1, max(map(len, contexts), default=0) + 1):
        # Too short a past is nobody's equal at this level: a name of its own leaves the step uncompared.
        names: list[Hashable] = [
            tuple(context[-depth:]) if len(context) >= depth else row for row, context in enumerate(contexts)
        ]
        credit = gigpo_step(values, names, [0] * len(names), mode, eps)
        counts = np.zeros(len(values))
        for rows in _rows_by(names, len(names), "contexts"):
            counts[rows] = (depth + 1) ** power if credit[rows].any() else 0.0
        if actions is not None:
            credit = calibrated(credit, names, actions, shrink, gate)
        total += counts * credit
        weights += counts
    return total / np.where(weights > 0, weights, 1.0)


def goal_distances(
    before: Sequence[Hashable], after: Sequence[Hashable], goal: Hashable
) -> dict[Hashable, int]:
    """Compute the number of steps from each state to the goal, in the graph that steps of a group form.

    Args:
        before: N states in which steps were taken.
        after: N states they led to.
        goal: the state that successful steps lead to.

    Returns:
        The fewest steps by state; one more than the largest of these where no way is known.

    Raises:
        ValueError: lengths that differ.

    Source: `all_to_target_shortest_paths` of `recipe/GraphGPO/core_graph.py` (see `graphgpo_step`), with steps of cost 1.
    """
    if len(before) != len(after):
        raise ValueError(
            f"{len(before)} states before for {len(after)} states after: give one of each per step"
        )
    sources: defaultdict[Hashable, list[Hashable]] = defaultdict(list)
    for state, following in zip(before, after, strict=True):
        sources[following].append(state)
    distances, queue = {goal: 0}, deque([goal])
    while queue:
        state = queue.popleft()
        for source in sources[state]:
            if source not in distances:
                distances[source] = distances[state] + 1
                queue.append(source)
    beyond = max(distances.values()) + 1
    return distances | {state: beyond for state in (*before, *after) if state not in distances}


def graphgpo_step(
    before: Sequence[Hashable],
    after: Sequence[Hashable],
    goal: Hashable,
    decay: float = 0.1,
    eps: float = 1e-6,
) -> Floats:
    """GraphGPO's step-level advantage: how near to the goal a step led, against the steps from its state.

    A step from s to s' scores decay^(d(s') - d(s) + 1) with d of `goal_distances`; the advantage is the score minus the mean of all steps
    from s, divided by (their standard deviation + eps).

    Args:
        before: N states in which the steps of one group were taken.
        after: N states they led to.
        goal: the state that successful steps lead to; nobody leaves it.
        decay: omega, above 0 up to 1.
        eps: added to the standard deviation.

    Returns:
        [N] float64, 0 for a state that was left once, and everywhere if no step leads to the goal.

    Raises:
        ValueError: lengths that differ, or `decay` out of range.

    Source: GraphGPO (arXiv 2605.26684), `compute_graph_path_returns` of `recipe/GraphGPO/core_graph.py` of verl-agent with
    `normalize_distance`, read in a public copy. Its default score, 10 decay^d(s'), has the same z-score but for eps, which erases the
    differences more than seven steps from the goal. Choice: the first, and no factor 10, which the z-score does not see either.
    """
    if not 0 < decay <= 1:
        raise ValueError(f"decay is {decay}: it must be above 0 and at most 1")
    distances = goal_distances(before, after, goal)
    scores = [decay ** (distances[b] - distances[a] + 1) for a, b in zip(before, after, strict=True)]
    return grpo(scores, before, eps)


def below_zero(advantages: Floats, weight: float) -> Floats:
    """Scale negative advantages (`optim.negative_weight`): max(A, 0) + weight * min(A, 0), any shape.

    Source: this project's own; arXiv 2505.12929 and 2506.01347 are why one would (`OptimConfig.negative_weight`).
    """
    return np.where(advantages < 0, weight * advantages, advantages)


def soft_overlong(length: int, most: int, buffer: int, factor: float = 1.0) -> float:
    """DAPO's soft overlong penalty: 0 up to `most - buffer` tokens, then falling linearly to -factor at `most`.

    factor * min((most - buffer - length) / buffer, 0).

    Args:
        length: of the reply, in tokens.
        most: the longest that a reply can be.
        buffer: over how many tokens before that the penalty grows; 0 is no penalty.
        factor: the penalty at `most` tokens.

    Returns:
        What is added to the reward, at most 0.

    Raises:
        ValueError: `buffer` is negative or above `most`.

    Source: verl `DAPORewardManager`, equation 13 of DAPO (arXiv 2503.14476), TRL `get_soft_overlong_punishment`.
    """
    if not 0 <= buffer <= most:
        raise ValueError(f"buffer is {buffer}: it must be from 0 to {most}, the longest reply")
    if buffer == 0:
        return 0.0
    return min(-(length - (most - buffer)) / buffer * factor, 0.0)


def relative_weight_change(
    tree: Sequence[ArrayLike], base: Sequence[ArrayLike], keys: Sequence[Sequence[Hashable]]
) -> float:
    """Relative change of the gradient weights from GRPO's: ||sum_tree - sum_grpo|| / ||sum_grpo||.

    Steps with equal context and text have the same gradient, so only the sum of their advantages acts. In a
    strict tree with gamma 1 merging changes no such sum (Lemma 1), and a value near 0 says that the tree does
    nothing.

    Args:
        tree: per trajectory, the tree's step advantages [T_i].
        base: per trajectory, GRPO's advantage at each of its steps [T_i].
        keys: per trajectory, T_i hashable keys, equal where a step's (context, text) are.

    Returns:
        A ratio >= 0; 0 if neither has any weight, infinity if only GRPO's weights cancel out.

    Raises:
        ValueError: the three do not line up.

    Source: this project's own measure (docs/tstar.md, figures of an iteration).
    """
    if not len(tree) == len(base) == len(keys):
        raise ValueError(
            f"{len(tree)} tree rows, {len(base)} base rows, {len(keys)} key rows: give one per trajectory"
        )
    sums: defaultdict[Hashable, list[float]] = defaultdict(lambda: [0.0, 0.0])
    unsummed = 0.0
    for i, (row, base_row, row_keys) in enumerate(zip(tree, base, keys, strict=True)):
        mine, other = _vector(f"tree[{i}]", row), _vector(f"base[{i}]", base_row)
        if not len(mine) == len(other) == len(row_keys):
            raise ValueError(
                f"trajectory {i}: {len(mine)} tree, {len(other)} base advantages, {len(row_keys)} keys"
            )
        unsummed += float(other @ other)
        for key, a, b in zip(row_keys, mine.tolist(), other.tolist(), strict=True):
            sums[key][0] += a
            sums[key][1] += b
    change = math.sqrt(math.fsum((a - b) ** 2 for a, b in sums.values()))
    norm = math.sqrt(math.fsum(b**2 for _, b in sums.values()))
    # What is left of weights that cancel is rounding, not a norm to divide by.
    noise = 1e-9 * math.sqrt(unsummed)
    if norm <= noise:
        return 0.0 if change <= noise else math.inf
    return change / norm


def _vector(name: str, values: ArrayLike) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(f"{name} has shape {array.shape}: it must be one-dimensional")
    return array


def _rows_by(names: Sequence[Hashable], count: int, what: str) -> list[list[int]]:
    if len(names) != count:
        raise ValueError(f"{len(names)} {what} for {count} values: give one per value")
    rows: defaultdict[Hashable, list[int]] = defaultdict(list)
    for row, name in enumerate(names):
        rows[name].append(row)
    return list(rows.values())
