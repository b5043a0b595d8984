"""Several passes over one iteration's minibatches: the updates that one would take by hand, and the figures of all of them."""

from __future__ import annotations

import pytest
import torch
from policies import random_policy, trainer

from tstar_train.algorithms import options_set_by
from tstar_train.config import Config, GraftConfig, OptimConfig, RolloutConfig, TreeConfig
from tstar_train.grafting import GraftDataset
from tstar_train.learner.batch import split_minibatches
from tstar_train.learner.terms import SurgicalTerm
from tstar_train.learner.update import update
from tstar_train.loop import (
    begin,
    build_trees,
    collect_groups,
    compute_advantages,
    draw_pairs,
    graft_thoughts,
    iterate,
    make_sequences,
)
from tstar_train.presets import with_options
from tstar_train.types import KeptPair

TASKS = [f"hotpotqa-mini-train-{n:04d}" for n in range(2)]
SMALL = Config(
    env="tstar/HotpotQA",
    env_options={"topk": 1, "horizon": 2},
    rollout=RolloutConfig(tasks_per_iteration=2, group_size=2, max_tokens=8, invalid_penalty=0.5),
    tree=TreeConfig(kl_samples=2),
    graft=GraftConfig(batch=3),
    optim=OptimConfig(learning_rate=1e-2, num_minibatches=2, clip_low=0.01, clip_high=0.01),
)
PAIRS = [KeptPair([10, 11, 12], [20 + n], [30, 40 + n], "z_plus", "", 0) for n in range(3)]


def small(algo, epochs):
    options = {"algo": algo, **options_set_by(algo), "optim.epochs": epochs}
    one = trainer(with_options(SMALL, options), random_policy(spread=0.02), TASKS)
    one.dataset = GraftDataset(PAIRS)
    return one


def state(one):
    """Everything that an update changes: policy, reference and critic."""
    parts = [one.policy.model.state_dict()]
    parts += [one.learner.average.state()] if one.learner.average is not None else []
    parts += [one.learner.critic.state_dict()] if one.learner.critic is not None else []
    return torch.cat([tensor.flatten() for part in parts for tensor in part.values()])


@pytest.mark.parametrize("algo", ["grpo", "ppo"])
def test_two_epochs_are_two_updates_by_hand(algo):
    twice, once, by_hand = small(algo, 2), small(algo, 1), small(algo, 1)
    figures, of_one = iterate(twice, 1).metrics, iterate(once, 1).metrics
    assert (twice.learner.steps, once.learner.steps) == (4, 2)

    data = begin(by_hand, 1, 0.0)
    for part in (collect_groups, build_trees, compute_advantages, graft_thoughts, draw_pairs, make_sequences):
        part(by_hand, data)
    steps = split_minibatches(data.sequences, data.pairs, 2)
    # The second update is of another policy than the one that sampled, which is no error.
    batching = by_hand.batching(data)._replace(most_difference=float("inf"))
    surgical = SurgicalTerm(SMALL.graft.surgical_weight, SMALL.graft.dpo_beta)
    terms = by_hand.algorithm.terms()
    first, second = (
        update(by_hand.learner, steps, terms, surgical, by_hand.world, factor=1.0, batching=batching)
        for _ in range(2)
    )
    by_hand.learner.end_iteration()
    assert torch.equal(state(twice), state(by_hand)) and not torch.equal(state(twice), state(once))

    names = ["base_loss", "clip_fraction", "gradient_norm"]
    names += ["value_loss"] if algo == "ppo" else ["surgical_loss", "surgical_accuracy"]
    for name in names:
        wanted = (getattr(first, name) + getattr(second, name)) / 2
        assert figures[name] == pytest.approx(wanted, rel=1e-6), name
    # The ratio is taken against the policy that sampled, so that later epochs have more to clip.
    assert second.clip_fraction > first.clip_fraction and second.base_loss < first.base_loss
    # The gap of sampler and trainer is measured before anything was learnt.
    for name in ("logprob_difference_max", "logprob_difference_mean"):
        assert figures[name] == pytest.approx(of_one[name]) and figures[name] < 1e-4
    assert second.logprob_difference_max > 1e-3


def test_every_epoch_has_the_same_minibatches():
    steps = split_minibatches([], PAIRS, 2, epochs=3)
    assert [step.pairs for step in steps] == [PAIRS[::2], PAIRS[1::2]] * 3
