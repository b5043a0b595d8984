"""Rows, joined sequences and the update: the same loss however turns are cut and batched."""

from __future__ import annotations

import copy
import math
import random

import numpy as np
import pytest
import torch
from policies import HOTPOT, Given, random_policy

from tstar_train.algorithms.grpo import GRPO
from tstar_train.config import Config, GraftConfig, OptimConfig, RolloutConfig
from tstar_train.distributed import SingleProcess
from tstar_train.engines.check import EngineMismatch, max_logprob_difference
from tstar_train.engines.local import LocalEngine
from tstar_train.learner.base import Norms
from tstar_train.learner.batch import Step, split_minibatches
from tstar_train.learner.prefixes import Chunk, micro_batches
from tstar_train.learner.reference import CopiedReference
from tstar_train.learner.rows import make_rows
from tstar_train.learner.terms import KLTerm, PolicyTerm, SurgicalTerm
from tstar_train.learner.torch import TorchLearner
from tstar_train.learner.update import Batching, update
from tstar_train.policy.codec import thought_length
from tstar_train.rollout.collect import EnvSpec, collect
from tstar_train.rollout.player import Sampling
from tstar_train.rollout.sample import sample_groups
from tstar_train.types import Branch, Graft, Group, IterationData, TokenSequence, join_rows, rows_of


@pytest.fixture(scope="module")
def played():
    policy = random_policy()
    tasks = list(HOTPOT.load_class()(split="train").task_ids("train"))[:3]
    spec = EnvSpec("hotpotqa", {"topk": 1})
    kwargs = {"size": 2, "split": "train", "seed": "rows"}
    concat = collect(spec, LocalEngine(policy), policy.codec, tasks, sampling=Sampling(12), **kwargs)
    step = collect(
        spec,
        LocalEngine(policy),
        policy.codec,
        tasks,
        sampling=Sampling(12, context="step", history=1),
        **kwargs,
    )
    return policy, concat, step


def rows_with_random_advantages(trajectories):
    chance = random.Random(3)
    return [row for t in trajectories for row in rows_of(t, [chance.gauss(0, 1) for _ in t.turns])]


def single(row):
    return TokenSequence(row.ids, row.response_mask, row.logprobs, [row.advantage] * len(row.ids))


class Kept(TorchLearner):
    """Keeps the step's gradient and takes no step."""

    def apply(self, factor):
        return Norms(0.0, {})


def gradient(policy, sequences, config, reference=None, pairs=(), graft=None, temperature=1.0):
    """Of one optimizer step, and what it measured."""
    average = None if reference is None else CopiedReference(policy.model, reference)
    learner = Kept(policy.model, average, SingleProcess(), learning_rate=0.0)
    terms = [PolicyTerm(config.clip_low, config.clip_high), KLTerm(config.kl_coefficient)]
    surgical = None if graft is None else SurgicalTerm(graft.surgical_weight, graft.dpo_beta)
    batching = Batching(config.micro_tokens, temperature, policy.codec.pad, policy.model.device)
    stats = update(
        learner,
        [Step(list(sequences), list(pairs))],
        terms,
        surgical,
        SingleProcess(),
        factor=1.0,
        batching=batching,
    )
    return learner.gradient, stats


def thought_logprobs(model, spans, temperature):
    """By the plain model, one span after the other."""
    sums = []
    for context, thought in spans:
        logits = model(torch.tensor([[*context, *thought]])).logits[0, len(context) - 1 : -1] / temperature
        sums.append(torch.log_softmax(logits, dim=-1).gather(-1, torch.tensor(thought)[:, None]).sum())
    return sums


def test_contexts_are_what_the_transcript_says(played):
    policy, concat, step = played
    for trajectory in concat:
        for before, after in zip(trajectory.turns, trajectory.turns[1:], strict=False):
            assert after.context[: len(before.context) + len(before.reply)] == before.context + before.reply
        assert len(trajectory.turns) == len(trajectory.steps)
    longest = max(len(t.turns) for t in step)
    assert longest > 2
    for trajectory in step:
        observations = [trajectory.episode.first_observation, *(s.observation for s in trajectory.steps)]
        for number, turn in list(enumerate(trajectory.turns))[2:]:
            shown = f"{trajectory.episode.instruction}\n{observations[number - 1]}"
            last = trajectory.turns[number - 1].reply
            ending = [] if last[-1] == policy.codec.end else [policy.codec.end]
            assert turn.context == [
                *policy.codec.start("", shown),
                *last,
                *ending,
                *policy.codec.observation(observations[number]),
            ]


def test_joined_rows_give_the_gradient_of_single_rows(played):
    policy, concat, _ = played
    rows = rows_with_random_advantages(concat)
    joined = join_rows(rows)
    assert len(joined) == len(concat) < len(rows)
    one, first = gradient(policy, [single(r) for r in rows], OptimConfig())
    other, second = gradient(policy, joined, OptimConfig())
    np.testing.assert_allclose(one, other, atol=2e-6)
    assert first.tokens == second.tokens and math.isclose(first.base_loss, second.base_loss, abs_tol=1e-6)


def test_step_contexts_do_not_join(played):
    _, _, step = played
    rows = rows_with_random_advantages(step)
    long = [t for t in step if len(t.turns) > 3]
    assert len(join_rows(rows)) > len(step) - len(long)


def copied(sequence, chance):
    """The same ids, as another member of the group wrote them: with other advantages, of another weight, under an older policy."""
    old = [
        p + chance.gauss(0, 0.3) * m for p, m in zip(sequence.logprobs, sequence.response_mask, strict=True)
    ]
    advantages = [chance.gauss(0, 1)] * len(sequence.ids)
    return TokenSequence(sequence.ids, sequence.response_mask, old, advantages, chance.uniform(0.1, 2))


@pytest.mark.parametrize("kl", [0.0, 0.3])
def test_rows_with_the_same_ids_give_the_gradient_of_each_alone(played, kl):
    policy, _, step = played
    chance = random.Random(5)
    single_rows = [single(r) for r in rows_with_random_advantages(step)][:9]
    sequences = [copied(s, chance) for s in single_rows for _ in range(chance.randrange(1, 5))]
    chance.shuffle(sequences)
    reference = random_policy(seed=4).model if kl else None
    config = OptimConfig(kl_coefficient=kl, micro_tokens=900)

    together, stats = gradient(policy, sequences, config, reference)
    alone = [gradient(policy, [s], config, reference) for s in sequences]
    shares = [s.weight * s.num_response_tokens for s in sequences]  # each alone is divided by its own weight
    np.testing.assert_allclose(
        together * sum(shares), sum(g * w for (g, _), w in zip(alone, shares, strict=True)), atol=2e-4
    )
    for name in ("kl_sum", "kl_tokens", "entropy_sum", "logprob_difference_sum", "tokens"):
        assert getattr(stats, name) == pytest.approx(
            sum(getattr(s, name) for _, s in alone), rel=1e-4, abs=1e-6
        ), name
    losses = sum(s.base_loss * w for (_, s), w in zip(alone, shares, strict=True))
    assert stats.base_loss * sum(shares) == pytest.approx(losses, rel=1e-4, abs=1e-4)
    assert stats.clip_fraction > 0


def test_a_row_is_computed_once_however_many_wrote_it(played, monkeypatch):
    policy, _, step = played
    chance = random.Random(6)
    distinct = [single(r) for r in rows_with_random_advantages(step)][:6]
    computed = []
    forward = policy.model.base_model.forward
    monkeypatch.setattr(
        policy.model.base_model,
        "forward",
        lambda *a, **k: (computed.append(len(k["input_ids"])), forward(*a, **k))[1],
    )
    gradient(policy, distinct, OptimConfig())
    once = list(computed)
    computed.clear()
    gradient(policy, [copied(s, chance) for s in distinct for _ in range(4)], OptimConfig())
    assert once and computed == once


@pytest.mark.parametrize("steps", [1, 3, 4])
def test_dealing_loses_no_row_and_keeps_equal_ones_together(played, steps):
    _, _, step = played
    chance = random.Random(7)
    sequences = [
        copied(single(r), chance)
        for r in rows_with_random_advantages(step)
        for _ in range(chance.randrange(1, 4))
    ]
    chance.shuffle(sequences)
    dealt = [step.sequences for step in split_minibatches(sequences, [], steps)]
    assert sorted(map(id, (s for part in dealt for s in part))) == sorted(map(id, sequences))
    homes = {}
    for number, part in enumerate(dealt):
        for sequence in part:
            assert homes.setdefault(tuple(sequence.ids), number) == number
    distinct = [len({tuple(s.ids) for s in part}) for part in dealt]
    assert max(distinct) - min(distinct) <= 1


@pytest.mark.parametrize("most", [300, 1000])
def test_micro_batches_change_nothing(played, most):
    policy, concat, _ = played
    joined = join_rows(rows_with_random_advantages(concat))
    whole, _ = gradient(policy, joined, OptimConfig(micro_tokens=10**6))
    parts, stats = gradient(policy, joined, OptimConfig(micro_tokens=most))
    np.testing.assert_allclose(whole, parts, atol=2e-6)
    assert stats.logprob_difference_mean < 1e-6 and stats.logprob_difference_max < 1e-4


def test_micro_batches_hold_every_index_once():
    lengths = [random.Random(1).randrange(1, 90) for _ in range(50)]
    batches = [
        [i for chunk in b for i in chunk.rows]
        for b in micro_batches([Chunk((i,), 0) for i in range(50)], lengths, 200)
    ]
    assert sorted(i for b in batches for i in b) == list(range(50))
    assert all(len(b) == 1 or len(b) * max(lengths[i] for i in b) <= 200 for b in batches)


def a_graft(policy):
    codec = policy.codec
    context = codec.start("", "Question: Who founded Velbar Press?")
    rejected = codec.reply("Thought: I read that again.\nAction: search[x]")
    better = codec.reply("Thought: First I look up Velbar Press.\nAction: search[Velbar Press]")
    cut, other = thought_length(codec, rejected), thought_length(codec, better)
    nothing = Branch("", "", "")
    return (
        Graft(
            0, context, better[:other], rejected[:cut], "model", 1, 1.0, 1, 1, nothing, nothing, "", (0, 0)
        ),
        rejected,
        better,
    )


def test_thought_length_ends_where_the_action_begins():
    codec = random_policy().codec
    for thought in ("I need to find it.", "A. B; C, 1901", "no cue Action? yes"):
        reply = codec.reply(f"Thought: {thought}\nAction: finish[yes]")
        cut = thought_length(codec, reply)
        assert codec.decode(reply[:cut]) == f"Thought: {thought}\n" and codec.decode(reply[cut:]).startswith(
            "Action:"
        )
    assert thought_length(codec, codec.reply("Action: finish[yes]")) == 0
    assert thought_length(codec, codec.reply("Thought: never acts")) == 0


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_surgical_gradient_by_finite_differences(temperature):
    policy, reference = random_policy(), random_policy(seed=1).model.double()
    graft, *_ = a_graft(policy)
    config = GraftConfig(surgical_weight=0.5, dpo_beta=0.7)
    spans = [(graft.context, graft.rectified), (graft.context, graft.rejected)]

    def loss(model):
        with torch.no_grad():
            ours, theirs = (
                thought_logprobs(model, spans, temperature),
                thought_logprobs(reference, spans, temperature),
            )
            margin = (ours[0] - theirs[0]) - (ours[1] - theirs[1])
            return float(-config.surgical_weight * torch.nn.functional.logsigmoid(config.dpo_beta * margin))

    policy.model = model = copy.deepcopy(policy.model).double()
    vector, _ = gradient(policy, [], OptimConfig(), reference, [graft], config, temperature)
    names = [n for n, _ in model.named_parameters()]
    sizes = [p.numel() for p in model.parameters()]
    place = next(i for i, n in enumerate(names) if n.endswith("layers.1.mlp.up_proj.weight"))
    parameter = list(model.parameters())[place]
    direction = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    analytic = float((vector.split(sizes)[place].view_as(parameter) * direction).sum())
    # The model's norms compute in single precision, so a smaller step would measure their rounding.
    step = 1e-4
    with torch.no_grad():
        parameter.add_(step * direction)
        up = loss(model)
        parameter.sub_(2 * step * direction)
        down = loss(model)
    assert math.isclose(analytic, (up - down) / (2 * step), rel_tol=1e-2)


def test_surgical_gradient_enters_at_the_thought_span_alone():
    policy, reference = random_policy(), random_policy(seed=1).model
    graft, *_ = a_graft(policy)
    entered = []
    final = policy.model.base_model.norm  # what the output matrix reads, position by position

    def watch(module, inputs, output):
        output.register_hook(lambda g: entered.append(g.abs().sum(dim=-1) > 0))

    handle = final.register_forward_hook(watch)
    gradient(policy, [], OptimConfig(), reference, [graft], GraftConfig())
    handle.remove()
    # One sequence: the context once for both, without its last token; then each thought's branch, from the token that predicts its first.
    ((places,),) = entered
    before, thoughts = len(graft.context) - 1, len(graft.rectified) + len(graft.rejected)
    assert places.tolist() == [False] * before + [True] * thoughts


def test_first_surgical_loss_is_ln_2():
    policy = random_policy()
    graft, *_ = a_graft(policy)
    _, stats = gradient(policy, [], OptimConfig(), copy.deepcopy(policy.model), [graft], GraftConfig())
    assert math.isclose(stats.surgical_loss, math.log(2), rel_tol=1e-6)


def test_episode_mean_is_the_mean_of_each_episodes_own_gradient(played):
    policy, _, _ = played
    tasks = list(HOTPOT.load_class()(split="train").task_ids("train"))[:4]
    for context in ("concat", "step"):
        config = Config(
            env="hotpotqa",
            tstar=False,
            env_options={"topk": 1},
            rollout=RolloutConfig(max_tokens=12, context=context, history=1, group_size=4),
            optim=OptimConfig(aggregation="episode-mean", micro_tokens=700),
        )
        played = IterationData()
        groups = sample_groups(
            config, GRPO(config), LocalEngine(policy), policy.codec, Given(tasks), 0, SingleProcess(), played
        )
        results = [Group(g.trajectories, GRPO(config).episode_advantages(g.trajectories)) for g in groups]
        rows = [sequence for _, sequences in make_rows(config, results) for sequence in sequences]
        episodes = {}
        for chance, sequence in enumerate(rows):
            # A random policy earns nothing: advantages are put in by hand.
            sequence.advantages = [math.sin(chance + 1)] * len(sequence.ids)
            episodes.setdefault(round(1 / sequence.weight), []).append(sequence)
        assert len({s.weight for s in rows}) > 1
        weight = Step(rows).weight
        assert weight == pytest.approx(len(tasks) * 4)
        ours, _ = gradient(policy, rows, config.optim)
        # Episodes of one length are taken together: every token of theirs counts alike.
        total = 0.0
        for own, sequences in episodes.items():
            plain = [TokenSequence(s.ids, s.response_mask, s.logprobs, s.advantages) for s in sequences]
            count = sum(s.num_response_tokens for s in plain) / own
            assert count == pytest.approx(round(count))
            total = total + count * gradient(policy, plain, OptimConfig())[0]
        np.testing.assert_allclose(ours, total / weight, atol=2e-6)


@pytest.mark.parametrize("off", [0.0, 0.2])
def test_a_sampler_of_other_weights_stops_the_run_before_its_first_step(played, off):
    policy, _, step = played
    rows = rows_with_random_advantages(step[:2])
    for row in rows:
        row.logprobs = [
            p + off * (n % 3 == 0) * m
            for n, (p, m) in enumerate(zip(row.logprobs, row.response_mask, strict=True))
        ]
    model = copy.deepcopy(policy.model)
    learner = TorchLearner(model, None, SingleProcess(), learning_rate=1e-3)
    steps = [Step([single(r) for r in rows[:2]], []), Step([single(r) for r in rows[2:]], [])]
    batching = Batching(512, 1.0, policy.codec.pad, model.device, max_logprob_difference(policy, None))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    if off:
        with pytest.raises(
            EngineMismatch, match=r"0\.2 nats about a sampled token, and 0\.05 is the maximum"
        ):
            update(
                learner, steps, [PolicyTerm(0.2, 0.2)], None, SingleProcess(), factor=1.0, batching=batching
            )
        assert learner.steps == 0 and all(
            torch.equal(before[name], tensor) for name, tensor in model.state_dict().items()
        )
        assert all(p.grad is None for p in model.parameters())
    else:  # the second step is after the policy has moved: it may differ
        update(learner, steps, [PolicyTerm(0.2, 0.2)], None, SingleProcess(), factor=100.0, batching=batching)
        assert learner.steps == 2
