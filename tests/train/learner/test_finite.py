"""What is no number never reaches the weights: losses, log-probabilities and gradients, in every process and in the warm start."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import math
import pickle

import pytest
import torch
from policies import HOTPOT, random_policy, trainer

from tstar_envs import find_entry
from tstar_train import loop
from tstar_train.__main__ import main
from tstar_train.config import Config, GraftConfig, OptimConfig, RolloutConfig, TreeConfig
from tstar_train.distributed import launched
from tstar_train.engines.local import LocalEngine
from tstar_train.finite import NotFinite, checked_norm
from tstar_train.learner.batch import split_minibatches
from tstar_train.learner.update import UpdateStats
from tstar_train.loop import iterate
from tstar_train.recipes.recipe import ImitationSchedule
from tstar_train.warmstart import Row, imitate

# Replies of 8 random tokens are never an action: with this penalty every row has a gradient.
PENALISED = Config(
    env="tstar/HotpotQA",
    tstar=False,
    env_options={"topk": 1},
    rollout=RolloutConfig(tasks_per_iteration=2, group_size=2, max_tokens=8, horizon=2, invalid_penalty=0.5),
    tree=TreeConfig(kl_samples=2),
    graft=GraftConfig(),
)
TASKS = ["hotpotqa-mini-train-0000", "hotpotqa-mini-train-0001"]


def one_of(config):
    return trainer(config, random_policy(spread=0.02), TASKS)


def state(one):
    return copy.deepcopy([one.policy.model.state_dict(), one.learner.optimizer.state_dict()])


def unchanged(one, before):
    assert all(torch.equal(before[0][name], value) for name, value in one.policy.model.state_dict().items())
    assert one.learner.optimizer.state_dict()["state"] == before[1]["state"] == {} and one.whole


WRONG = (
    "advantage",
    "large advantage",
    "sampling log-probability",
    "gradient",
    "loss by overflow",
    "exploding loss",
)


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("tstar", [False, True])
def test_the_step_is_not_taken_and_the_batch_handed_over(what, tstar, monkeypatch):
    one = one_of(dataclasses.replace(PENALISED, tstar=tstar))
    before, dealt = state(one), []

    def spoil(*arguments):
        steps = split_minibatches(*arguments)
        row = steps[0].sequences[-1]
        own = row.response_mask.index(1)
        if "advantage" in what:
            row.advantages[own] = math.nan if what == "advantage" else 1e300
        elif what == "sampling log-probability":
            row.logprobs[own] = -math.inf
        elif what == "exploding loss":
            row.advantages = [1e7] * len(row.ids)
        elif what == "loss by overflow":
            row.advantages = [3e38] * len(row.ids)
        else:
            next(one.policy.model.parameters()).register_hook(lambda gradient: gradient * math.nan)
        dealt.extend(steps)
        return steps

    monkeypatch.setattr(loop, "split_minibatches", spoil)
    with pytest.raises(NotFinite, match="NaN or infinite|overflows|has exploded") as caught:
        iterate(one, 0)
    unchanged(one, before)
    batch = caught.value.batch
    assert (
        batch["loss"] == "base"
        and batch["optimizer_step"] == 0
        and len(batch["rows"]) == len(dealt[0].sequences)
    )
    assert str(pickle.loads(pickle.dumps(caught.value)).batch) == str(batch), "it travels from a helper"
    assert str(batch["rows"]) == str([dataclasses.asdict(s) for s in dealt[0].sequences])


def broken_helper(world):
    """A rank whose penalties are no numbers any more once they are numbers of single precision."""
    spoilt = dataclasses.replace(
        PENALISED, rollout=dataclasses.replace(PENALISED.rollout, invalid_penalty=1e300)
    )
    iterate(trainer(spoilt, random_policy(spread=0.02), TASKS, world), 0)


@pytest.mark.slow
def test_a_helpers_share_counts_as_much():
    with launched(2, broken_helper, 5.0) as world:
        one = trainer(PENALISED, random_policy(spread=0.02), TASKS, world)  # what this process plays is sound
        before = state(one)
        with pytest.raises(NotFinite, match="log-probabilities, advantages and weights") as caught:
            iterate(one, 0)
        unchanged(one, before)
        assert caught.value.batch["rows"]


def test_broken_weights_are_reported_where_they_are_first_used():
    policy = random_policy()
    with torch.no_grad():
        next(policy.model.parameters())[3] = math.nan
    engine = LocalEngine(policy)
    with pytest.raises(NotFinite, match="sampled tokens"):
        engine.generate([[3, 4, 5]], ["s"], max_tokens=3)
    with pytest.raises(NotFinite, match="given continuations"):
        engine.logprobs([[3, 4, 5]], [[[6, 7]]])


def test_a_reference_that_is_broken(monkeypatch):
    config = dataclasses.replace(PENALISED, optim=OptimConfig(kl_coefficient=0.1))
    one = one_of(config)
    with torch.no_grad():
        next(one.learner.average.model.parameters()).fill_(math.inf)
    before = state(one)
    with pytest.raises(NotFinite, match="reference"):
        iterate(one, 0)
    unchanged(one, before)


@pytest.mark.parametrize("entries", [[1.0, math.nan], [math.inf], [-math.inf, 0.0], [3e38, 3e38]])
def test_norms(entries):
    with pytest.raises(NotFinite):
        checked_norm(torch.tensor(entries), "g")
    assert checked_norm(torch.tensor([3.0, 4.0]), "g") == 5.0


def test_the_command_says_so_and_keeps_the_batch(tmp_path, capsys):
    run = tmp_path / "run"
    arguments = (
        "--env hotpotqa --iterations 2 --rollout.tasks-per-iteration 2 --rollout.group-size 2 "
        "--rollout.max-tokens 4 --rollout.horizon 1 --processes 1 "
        "--rollout.invalid-penalty 1e300 --evaluation.tasks 2 --evaluation.samples 1 --evaluation.no-greedy --no-tstar"
    ).split()
    assert main([*arguments, "--out", str(run)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "NaN or infinite" in error and f"{run / 'broken_batch.json'}" in error
    record = json.loads((run / "broken_batch.json").read_text())
    assert record["iteration"] == 1 and len(record["rows"]) == 4
    assert not (run / "metrics.jsonl").exists()


class Rows:
    """Demonstrations of which one batch has nothing to learn from: the mean over no tokens is NaN."""

    def __init__(self, wrong: int) -> None:
        self.wrong = wrong

    def __iter__(self):
        for number in itertools.count():
            own = number < self.wrong
            yield Row([3, 4, 5, 6], [0, 0, int(own), int(own)])


def test_the_warm_start_stops_before_the_update_that_would_break_it():
    policy = random_policy()
    reported: list[int] = []
    with pytest.raises(NotFinite, match="update 2 of the imitation has a loss of nan") as caught:
        imitate(
            policy.model,
            iter(Rows(2)),
            ImitationSchedule(steps=3, batch=2),
            0,
            lambda step, *_: reported.append(step),
            every=1,
        )
    assert reported == [1] and len(caught.value.batch["rows"]) == 2
    assert all(bool(torch.isfinite(p).all()) for p in policy.model.parameters())


@pytest.mark.parametrize(("steps", "reported"), [(1, [1]), (2, [2]), (3, [2, 3])])
def test_a_short_warm_start_has_a_loss(steps, reported):
    losses: list[tuple[int, float]] = []
    imitate(
        random_policy().model,
        iter(Rows(10**9)),
        ImitationSchedule(steps=steps, batch=2),
        0,
        lambda s, loss, _: losses.append((s, loss)),
        2,
    )
    assert [step for step, _ in losses] == reported and all(math.isfinite(loss) for _, loss in losses)


def test_figures_are_of_the_steps_that_had_something_to_measure():
    two = UpdateStats.mean(
        [UpdateStats(surgical_loss=math.log(2), pairs=3, base_loss=1.0), UpdateStats(base_loss=3.0)]
    )
    assert two.surgical_loss == math.log(2) and two.base_loss == 2.0 and two.surgical_steps == 1
    assert two.entropy is None and two.logprob_difference_mean is None and two.kl_reference is None
    four = [
        UpdateStats(tokens=2, entropy_sum=1.0, logprob_difference_sum=0.5, logprob_difference_max=0.4),
        UpdateStats(),
    ]
    assert UpdateStats.mean(four).entropy == 0.5 and UpdateStats.mean(four).logprob_difference_max == 0.4
    assert UpdateStats.mean([UpdateStats()]).surgical_steps == 0


def test_an_iteration_of_equal_groups_has_figures_for_what_was_there_alone():
    config = dataclasses.replace(
        PENALISED, tstar=True, rollout=dataclasses.replace(PENALISED.rollout, invalid_penalty=0.0)
    )
    metrics = iterate(one_of(config), 0).metrics
    assert (
        metrics["zero_variance_groups"] == metrics["invalid_rate"] == 1.0 and metrics["gradient_norm"] == 0.0
    )
    for name in (
        "entropy",
        "clip_fraction",
        "logprob_difference_mean",
        "logprob_difference_max",
        "surgical_loss",
        "surgical_accuracy",
        "surgical_margin",
        "surgical_gradient_norm",
        "anchor_reuse",
        "grafts_best_members",
        "weight_change",
        "kl_reference",
    ):
        assert metrics[name] is None, name
    assert metrics["grafting_coverage"] == 0.0, "there were failures, and none of them has a graft"
    assert find_entry(HOTPOT.id) == HOTPOT


@pytest.mark.parametrize("size", [1000, 1_000_000])
def test_a_norm_is_exact_however_long_the_gradient(size):
    gradient = torch.randn(size, generator=torch.Generator().manual_seed(0)) * torch.rand(size) ** 4 * 1e-5
    assert checked_norm(gradient, "it") == pytest.approx(
        math.sqrt(math.fsum(x * x for x in gradient.tolist())), rel=1e-9
    )
    with pytest.raises(NotFinite, match="its norm overflows, its largest entry is 1e"):
        checked_norm(torch.full((size,), 1e25), "it")
    for bad in (math.nan, math.inf):
        with pytest.raises(NotFinite, match=f"1 of {size} values are NaN or infinite"):
            checked_norm(torch.cat([gradient[1:], torch.tensor([bad])]), "it")
