"""Base algorithms: numbers worked by hand for what each compares, and every combination trained, resumed and refused where it must be."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil

import numpy as np
import pytest
import torch
from episodes import episode_of, made
from policies import papers_preset, random_policy
from rich.console import Console

from tstar_envs import UnknownOption
from tstar_train.advantages import calibrated, gigpo_step, soft_overlong
from tstar_train.algorithms import ALGORITHMS
from tstar_train.algorithms.gigpo import actions_taken, turn_rewards
from tstar_train.algorithms.graphgpo import LOST, WON, states_after
from tstar_train.algorithms.ppo import rewards_by_token
from tstar_train.build import trainer_of
from tstar_train.config import (
    Config,
    DAPOConfig,
    EvaluationConfig,
    GiGPOConfig,
    GraphGPOConfig,
    HGPOConfig,
    PPOConfig,
    RolloutConfig,
)
from tstar_train.config_check import check
from tstar_train.distributed import SingleProcess
from tstar_train.learner.batch import Outputs, sequence_micro_batches, split_minibatches
from tstar_train.learner.terms import ValueTerm
from tstar_train.learner.update import totals_of
from tstar_train.presets import with_algorithm
from tstar_train.run import resume_run, train
from tstar_train.types import join_rows, rows_of

COMBINATIONS = [
    (algo, tstar)
    for algo in ("grpo", "dapo", "dapo-paper", "gigpo", "hgpo", "graphgpo")
    for tstar in (False, True)
] + [("ppo", False)]


def test_grpo_compares_episodes_of_a_task():
    group = [episode_of("ab", 1.0), episode_of("c", 0.0), episode_of("d", 0.0)]
    std = math.sqrt(1 / 3)
    credit = made("grpo").episode_advantages(group)
    np.testing.assert_allclose(credit[0], [2 / 3 / std] * 2, rtol=1e-5)
    np.testing.assert_allclose(np.concatenate(credit[1:]), [-1 / 3 / std] * 2, rtol=1e-5)


def test_gigpo_compares_turns_that_began_in_one_state_whatever_their_depth():
    # start -> a -> win; start -> b -> a -> lost: "a" is met at depths 1 and 2.
    group = [episode_of(["a", "won"], 1.0), episode_of(["b", "a", "lost"], 0.0)]
    one = made("gigpo", gigpo=GiGPOConfig(gamma=0.5, step_weight=2.0))
    # Returns from the start: .5 and 0, their mean .25; from "a": 1 and 0, mean .5; "b" is met once.
    first, second = one.step_advantages(group)
    np.testing.assert_allclose(first, [2 * 0.25, 2 * 0.5])
    np.testing.assert_allclose(second, [2 * -0.25, 0.0, 2 * -0.5])
    np.testing.assert_allclose(np.concatenate(one.episode_advantages(group)), [0.5, 0.5, -0.5, -0.5, -0.5])
    scaled = made("gigpo", gigpo=GiGPOConfig(gamma=0.5, mode="mean_std_norm"))
    np.testing.assert_allclose(
        scaled.step_advantages(group)[0], [0.25 / (0.5 / math.sqrt(2)), 0.5 / (1 / math.sqrt(2))], rtol=1e-5
    )
    three = made("gigpo", gigpo=GiGPOConfig(gamma=0.5, inner=3))
    assert not np.concatenate(three.step_advantages(group)).any(), "no state is met three times"


def test_a_long_episode_counts_once_in_gigpos_episode_term():
    short = made("gigpo").episode_advantages([episode_of("a", 1.0), episode_of("b", 0.0)])
    long = made("gigpo").episode_advantages([episode_of("a", 1.0), episode_of("bcdefghi", 0.0)])
    assert short[0][0] == long[0][0] == 0.5 and set(long[1]) == {-0.5}


def test_gigpo_shrinks_the_credit_of_rare_actions_and_of_noisy_states():
    group = [episode_of(["a", "won"], 1.0), episode_of(["b", "lost"], 0.0), episode_of(["b", "lost"], 0.0)]
    for trajectory, (first, last) in zip(group, ["xp", "yq", "yq"], strict=True):
        trajectory.steps[0].action, trajectory.steps[1].action = first, last
    group[2].steps[1].action_valid = False
    assert actions_taken(group) == ["x", "p", "y", "q", "y", None]
    # Returns from the start: 1, 0, 0; x was taken once, y twice.
    one = made("gigpo", gigpo=GiGPOConfig(gamma=1.0, shrink=1.0)).step_advantages(group)
    assert [row[0] for row in one] == pytest.approx([2 / 3 / 2, -1 / 3 * 2 / 3, -1 / 3 * 2 / 3])
    gated = made("gigpo", gigpo=GiGPOConfig(gamma=1.0, gate=2.0)).step_advantages(group)
    assert [row[0] for row in gated] == pytest.approx([math.tanh(1.5) * c for c in (2 / 3, -1 / 3, -1 / 3)])
    plain = made("gigpo", gigpo=GiGPOConfig(gamma=1.0)).step_advantages(group)
    assert [row[0] for row in plain] == pytest.approx([2 / 3, -1 / 3, -1 / 3])


def test_hgpo_compares_turns_with_one_past_more_than_those_with_another():
    # start -> a -> c -> won; start -> a -> c -> lost; start -> b -> c -> lost.
    group = [
        episode_of(["a", "c", "won"], 1.0),
        episode_of(["a", "c", "lost"], 0.0),
        episode_of(["b", "c", "lost"], 0.0),
    ]
    one = made("hgpo", hgpo=HGPOConfig(2.0, gamma=1.0, history=1, mode="mean_norm"))
    thirds = [2 / 3, -1 / 3, -1 / 3]
    # "c": by itself 1, 0, 0 (weight 2); after "a" 1, 0 (weight 3), and after "b" alone.
    at_c = [(2 * 2 / 3 + 3 * 0.5) / 5, (2 * -1 / 3 - 3 * 0.5) / 5, -1 / 3]
    # "a" and "a" after the start are the same two turns.
    at_second = [0.5, -0.5, 0.0]
    for row, wanted in zip(
        one.step_advantages(group), zip(thirds, at_second, at_c, strict=True), strict=True
    ):
        assert row == pytest.approx(2.0 * np.array(wanted))
    assert not np.concatenate(one.episode_advantages(group)).any(), "as published"
    both = made("hgpo", hgpo=HGPOConfig(episode_weight=0.5, mode="mean_norm"))
    assert [row[0] for row in both.episode_advantages(group)] == pytest.approx([c / 2 for c in thirds])
    shrunk = made("hgpo", hgpo=HGPOConfig(gamma=1.0, history=0, mode="mean_norm", shrink=3.0, gate=2.0))
    flat = np.concatenate(shrunk.step_advantages(group))
    states = [state for t in group for state in t.states_before]
    raw = gigpo_step([t.reward for t in group for _ in range(3)], states, [0] * 9)
    assert flat == pytest.approx(calibrated(raw, states, actions_taken(group), 3.0, 2.0))


def test_graphgpo_credits_good_steps_of_failed_episodes():
    # start -> a -> won; start -> a -> b (cut off); start -> b -> lost, ended by the rules in the state it was in.
    group = [episode_of(["a", "w"], 1.0), episode_of(["a", "b"], 0.0), episode_of(["b", "b"], 0.0)]
    group[1].episode.ended = "truncated"
    assert [states_after(t) for t in group] == [["a", WON], ["a", "b"], ["b", LOST]]
    one = made("graphgpo", graphgpo=GraphGPOConfig(step_weight=2.0))
    # d: a 1, start 2, b and lost 3. From the start: a, a (score 1) and b (.01); from a: won (1) and b (.001).
    start = 2 * 0.33 / (math.sqrt((2 * 0.33**2 + 0.66**2) / 2) + 1e-6)
    at_a = 2 * math.sqrt(0.5)
    first, second, third = one.step_advantages(group)
    assert first == pytest.approx([start, at_a], rel=1e-5)
    assert second == pytest.approx([start, -at_a], rel=1e-5)
    assert third == pytest.approx([-2 * start, 0.0], rel=1e-5)
    np.testing.assert_array_equal(
        np.concatenate(one.episode_advantages(group)),
        np.concatenate(made("grpo").episode_advantages(group)),
    )
    lost = [episode_of("ab", 0.0), episode_of("ac", 0.0)]
    assert not np.concatenate(one.step_advantages(lost)).any()


def test_dapo_keeps_groups_of_mixed_success_and_never_looks_at_a_shaped_reward():
    dapo = made("dapo")
    lost = [episode_of("a", 0.0), episode_of("b", 0.0)]
    lost[0].turns[0].shaping = 0.4
    assert lost[0].reward != lost[1].reward and not dapo.filter_group(lost)
    assert not dapo.filter_group([episode_of("a", 1.0), episode_of("b", 1.0)])
    assert dapo.filter_group([episode_of("a", 0.3, success=False), episode_of("b", 0.3, success=True)])


def test_the_soft_overlong_penalty():
    assert [soft_overlong(n, 100, 20) for n in (0, 80, 90, 100)] == [0.0, 0.0, -0.5, -1.0]
    assert soft_overlong(100, 100, 0) == 0.0 and soft_overlong(95, 100, 20, 2.0) == pytest.approx(-1.5)
    with pytest.raises(ValueError, match="buffer is 101"):
        soft_overlong(1, 100, 101)
    one = made(
        "dapo",
        rollout=RolloutConfig(max_tokens=10),
        dapo=DAPOConfig(overlong_buffer=0.5, overlong_factor=1.0),
    )
    long = episode_of("ab", 1.0, replies=[2, 9])
    one.shape_rewards([long])
    assert long.penalty == pytest.approx(0.8) and long.reward == pytest.approx(0.2) and long.earned == 1.0


def test_dapo_as_the_paper_words_it():
    one = made("dapo-paper")
    assert [one.temperature(share) for share in (0.0, 0.5, 1.0)] == [1.0, 0.75, 0.5]
    assert (one.config.optim.clip_low, one.config.optim.clip_high) == (0.2, 0.2)
    published = made("dapo").config.optim
    assert (published.clip_low, published.clip_high, published.aggregation) == (0.2, 0.28, "token-mean")


def test_a_turns_reward_stands_on_its_last_token():
    one = episode_of("ab", 1.0, replies=[2, 3])
    one.turns[0].shaping = 0.25
    assert turn_rewards(one) == [0.25, 1.0]
    rows = join_rows(rows_of(one, [0.0, 0.0]))
    rewards = rewards_by_token(one, rows)
    assert (
        len(rows) == 1
        and rewards.tolist() == [0, 0, 0.25, 0, 0, 0, 0, 1.0]
        and rows[0].response_mask == [0, 1, 1, 0, 0, 1, 1, 1]
    )
    apart = [row for turn in rows_of(one, [0.0, 0.0]) for row in join_rows([turn])]
    mask = np.concatenate([s.response_mask for s in apart]).astype(bool)
    assert rewards_by_token(one, apart)[mask].tolist() == [0, 0.25, 0, 0, 1.0]


@pytest.mark.parametrize("whiten", [False, True])
def test_ppo_credits_tokens_by_what_the_critic_expected(whiten):
    one = made("ppo", ppo=PPOConfig(gamma=0.5, lam=0.5, whiten=whiten))
    trajectory = episode_of("ab", 1.0, replies=[1, 1])
    [row] = join_rows(rows_of(trajectory, [0.125, 0.0]))  # the first turn was credited with .125 besides
    row.values = [9.0, 0.2, 9.0, 9.0, 0.6]  # what stands on tokens of the environment is not seen
    one.token_advantages([(trajectory, [row])], SingleProcess())
    last = 1.0 - 0.6
    first = 0.5 * 0.6 - 0.2 + 0.25 * last
    assert row.returns == pytest.approx([0, first + 0.2, 0, 0, 1.0])
    raw = np.array([first, last])
    wanted = (raw - raw.mean()) / math.sqrt(raw.var(ddof=1) + 1e-8) if whiten else raw
    assert [row.advantages[1], row.advantages[4]] == pytest.approx([wanted[0] + 0.125, wanted[1]])


def test_ppo_by_turns_credits_and_values_whole_replies():
    one = made("ppo", ppo=PPOConfig(level="turn", gamma=0.5, lam=0.5, whiten=False))
    trajectory = episode_of("ab", 1.0, replies=[2, 3])
    [row] = join_rows(rows_of(trajectory, [0.125, 0.0]))
    # Values before the policy's own tokens: .2 and .6 begin the turns; others are not seen.
    row.values = [9.0, 0.2, 7.0, 9.0, 9.0, 0.6, 7.0, 7.0]
    one.token_advantages([(trajectory, [row])], SingleProcess())
    last = 1.0 - 0.6
    first = 0.5 * 0.6 - 0.2 + 0.25 * last
    own = [a for a, m in zip(row.advantages, row.response_mask, strict=True) if m]
    assert own == pytest.approx([first + 0.125] * 2 + [last] * 3)
    assert row.returns == pytest.approx(
        [0, first + 0.2, math.nan, 0, 0, 1.0, math.nan, math.nan], nan_ok=True
    )
    # The critic learns these two values, and their mean: what it says within a reply has no gradient.
    [step] = split_minibatches([row], [], 1)
    totals = totals_of(step, SingleProcess())
    assert (totals.tokens, totals.targets) == (5.0, 2.0)
    [micro] = sequence_micro_batches(step.sequences, 100, 1.0, 0, torch.device("cpu"))
    values = torch.tensor([0.3, 5.0, 0.5, 5.0, 5.0], requires_grad=True)
    loss, figures = ValueTerm(0.5, None)(Outputs(torch.zeros(5), torch.zeros(5), values), micro, totals, None)
    by_hand = 0.5 * ((0.3 - first - 0.2) ** 2 + (0.5 - 1.0) ** 2) / 2
    assert loss.item() == pytest.approx(0.5 * by_hand) and figures["value_loss"] == pytest.approx(by_hand)
    loss.backward()
    assert [bool(g) for g in values.grad] == [True, False, True, False, False]


def small(env, algo, tstar, iterations=2):
    """The preset of an environment with an algorithm and the paper's tree, at its smallest."""
    config = with_algorithm(papers_preset(env), algo)
    return dataclasses.replace(
        config,
        tstar=tstar,
        iterations=iterations,
        processes=1,
        checkpoint_every=1,
        keep_checkpoints=9,
        env_options={**config.env_options, "horizon": 6},
        rollout=dataclasses.replace(config.rollout, tasks_per_iteration=2, group_size=3, horizon=5),
        tree=dataclasses.replace(config.tree, kl_samples=2),
        dapo=DAPOConfig(rounds=2),
        evaluation=EvaluationConfig(tasks=1, samples=1, split="valid", greedy=False),
    )


def require_resumes(out):
    """A finished run of two iterations, resumed as if it had been killed after the first checkpoint; returns its metrics."""
    whole = (out / "metrics.jsonl").read_text()
    (out / "summary.json").unlink()
    shutil.rmtree(out / "checkpoints" / "000002")
    resume_run(out, Console(quiet=True))
    assert (out / "metrics.jsonl").read_text() == whole, "an interrupted run and a whole one are the same"
    return whole


# By default one combination of the algorithms with a state or rounds of their own; test_switches.py has the others.
ALWAYS = {("hotpotqa", "dapo", True), ("hotpotqa", "ppo", False)}
MATRIX = [(env, algo, tstar) for env in ("hotpotqa", "sokoban-easy") for algo, tstar in COMBINATIONS]


@pytest.mark.parametrize(
    ("env", "algo", "tstar"), [c if c in ALWAYS else pytest.param(*c, marks=pytest.mark.slow) for c in MATRIX]
)
def test_every_combination_trains_and_resumes(env, algo, tstar, tmp_path):
    out = tmp_path / "run"
    summary = train(small(env, algo, tstar), out, Console(quiet=True)).summary
    assert (summary["algo"], summary["tstar"], summary["iterations"]) == (algo, tstar, 2)
    whole = require_resumes(out)
    metrics = json.loads(whole.splitlines()[-1])
    assert ("tree_nodes_before" in metrics or "grafts" in metrics) == tstar
    assert ("value_loss" in metrics) == (algo == "ppo") and ("played_tasks" in metrics) == algo.startswith(
        "dapo"
    )
    assert (out / "checkpoints" / "000002" / "critic.safetensors").exists() == (algo == "ppo")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "options"),
    [
        ("gigpo", {"gigpo": GiGPOConfig(shrink=2.0, gate=8.0)}),
        ("hgpo", {"hgpo": HGPOConfig(shrink=2.0, gate=8.0, episode_weight=1.0)}),
        ("ppo", {"ppo": PPOConfig(level="turn", gamma=0.99, lam=0.9)}),
    ],
)
@pytest.mark.parametrize("processes", [1, 2])
def test_options_of_step_credit_train_and_resume_on_one_process_and_on_two(
    algo, options, processes, tmp_path
):
    config = dataclasses.replace(small("hotpotqa", algo, algo != "ppo"), processes=processes, **options)
    assert train(config, tmp_path / "run", Console(quiet=True)).summary["iterations"] == 2
    lines = [json.loads(line) for line in require_resumes(tmp_path / "run").splitlines()]
    assert all(line["gradient_norm"] > 0 and 0 < line["reward"] < 1 for line in lines)
    assert all(0 < line["value_loss"] < 1 for line in lines if algo == "ppo")


def test_ppo_carries_no_tstar_and_says_so():
    with pytest.raises(
        UnknownOption,
        match=r"--tstar needs .* which ppo does not: leave --tstar out, or choose --algo grpo or dapo",
    ):
        check(Config(env="hotpotqa", algo="ppo", tstar=True))
    check(with_algorithm(Config(env="hotpotqa"), "ppo"))
    assert set(ALGORITHMS) == {"grpo", "dapo", "dapo-paper", "gigpo", "hgpo", "graphgpo", "ppo"}


def test_tasks_divide_by_processes():
    with pytest.raises(
        UnknownOption,
        match=r"--rollout.tasks-per-iteration 4 does not divide by --processes 3: give 1 or 2 or 4 processes",
    ):
        check(Config(env="hotpotqa", processes=3))
    three = SingleProcess()
    three.size = 3  # as torchrun may start, whatever the options say
    with pytest.raises(
        UnknownOption, match="--rollout.tasks-per-iteration 4 does not divide by the 3 processes"
    ):
        trainer_of(Config(env="hotpotqa"), random_policy(), three)
