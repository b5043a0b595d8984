"""Rows that share a beginning are computed as branches of it where that is cheaper, with the same numbers."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Qwen2Config

from scripts.studies.small_models import small_model
from tstar_train.distributed import SingleProcess
from tstar_train.learner.batch import forward, pair_micro_batches, sequence_micro_batches
from tstar_train.learner.prefixes import COPIED, Sharing, chunks_of, clusters_of, micro_batches, sharing_of
from tstar_train.learner.torch import TorchLearner
from tstar_train.policy.critic import Critic
from tstar_train.policy.model import recompute_layers
from tstar_train.types import Branch, Graft, TokenSequence

MODELS = [
    "qwen2",
    "gemma2",
    "gpt2",
    "phi4-mini",
    "smollm3",
]  # among them one that adds its mask, and one with learnt positions
rows_of_two_letters = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=6), min_size=1, max_size=6)


def common(rows):
    shortest = min(map(len, rows)) - 1  # every row keeps a token of its own
    return next((i for i in range(shortest) if len({row[i] for row in rows}) > 1), shortest)


def computed(rows, clusters):
    """Positions of forward passes: one less than tokens, and a branch feeds the last shared one again."""
    total = 0
    for members, shared in clusters:
        total += max(0, shared - 1) + sum(len(rows[i]) - max(1, shared) for i in members)
    return total


def partitions(items):
    if not items:
        yield []
        return
    first, *others = items
    for part in partitions(others):
        yield [[first], *part]
        for n, block in enumerate(part):
            yield [*part[:n], [first, *block], *part[n + 1 :]]


def cost(rows, clusters, sharing):
    """The clusters' cost, token by token: each token attends to those before it, in branches also to later ones of its row."""
    total = 0.0
    for members, shared in clusters:
        if shared > 1:
            total += sum(1 + sharing.pair * (place + 1) for place in range(shared - 1))
            total += sharing.branch * len(members)
        for length in (len(rows[i]) for i in members):
            if shared > 1:
                total += sum(1 + sharing.pair * (length - 1) for _ in range(shared - 1, length - 1))
            else:
                total += sum(1 + sharing.pair * (place + 1) for place in range(length - 1))
    return total


@given(rows_of_two_letters, st.sampled_from([0.0, 0.3, 2.0]), st.sampled_from([0.0, 0.5, 1.5]))
@settings(max_examples=200, deadline=None)
def test_no_partition_costs_less(rows, pair, branch):
    sharing = Sharing(pair, branch)
    clusters = clusters_of(rows, sharing)
    assert sorted(i for members, _ in clusters for i in members) == list(range(len(rows)))
    for members, shared in clusters:
        assert shared <= common([rows[i] for i in members])
    # A set of rows may share any beginning that all have, or none.
    least = min(
        sum(
            min(
                cost(rows, [(block, begun)], sharing)
                for begun in (0, *range(2, common([rows[i] for i in block]) + 1 if len(block) > 1 else 2))
            )
            for block in blocks
        )
        for blocks in partitions(list(range(len(rows))))
    )
    assert cost(rows, clusters, sharing) == pytest.approx(least)
    if not pair and not branch:
        assert cost(rows, clusters, sharing) == computed(rows, clusters)


def test_rows_share_a_prefix_only_where_that_pays():
    narrow, wide = (sharing_of(Qwen2Config(hidden_size=size)) for size in (128, 1024))
    assert narrow.pair > wide.pair > 0
    long, short, apart = [1] * 200, [1] * 9, [[2] * 3, [3] * 3]
    for sharing in (narrow, wide):
        assert [s for _, s in clusters_of([[*long, *end] for end in apart], sharing)] == [200]
        assert [s for _, s in clusters_of([[*short, *end] for end in apart], sharing)] == [0]
    assert [s for _, s in clusters_of([[*short, *end] for end in apart])] == [9]
    # Few tokens are saved of long rows, whose attention is then computed in full: it pays in a wide model alone.
    late = [[1] * 80 + [number] * 800 for number in range(2, 8)]
    assert [[s for _, s in clusters_of(late, sharing)] for sharing in (narrow, wide)] == [[0], [80]]


@given(rows_of_two_letters, st.integers(1, 40))
@settings(max_examples=150, deadline=None)
def test_batches_hold_every_row_once_within_their_bounds(rows, most):
    lengths = list(map(len, rows))
    batches = list(micro_batches(chunks_of(rows, most), lengths, most))
    assert sorted(i for b in batches for chunk in b for i in chunk.rows) == list(range(len(rows)))
    for batch in batches:
        for chunk in batch:
            assert len({tuple(rows[i][: chunk.shared]) for i in chunk.rows}) == 1 and chunk.shared < min(
                lengths[i] for i in chunk.rows
            )
            assert (chunk.shared > 1) == (batch[0].shared > 1) and chunk.shared != 1
        count, shared = sum(len(c.rows) for c in batch), max(c.shared for c in batch)
        longest = max(lengths[i] - max(0, c.shared - 1) for c in batch for i in c.rows)
        assert count == 1 or len(batch) * shared + count * longest + COPIED * count * shared <= most


def test_a_thousand_rows_that_part_one_by_one():
    rows = [[0] * n + [1] * 3 for n in range(1200)]
    assert sorted(i for members, _ in clusters_of(rows) for i in members) == list(range(1200))


def sequences(size, seed=0):
    """Groups whose members begin alike, some beyond their first reply; rows of their own; and copies."""
    chance, made = random.Random(seed), []
    for group in range(3):
        prompt = [chance.randrange(2, size) for _ in range(30 + 4 * group)]
        reply = [chance.randrange(2, size) for _ in range(4 + 18 * group)]
        for member in range(4):
            ids, mask = list(prompt), [0] * len(prompt)
            for turn in range(1 + member % 3):
                said = reply if turn == 0 and member < 3 else [chance.randrange(2, size) for _ in range(3)]
                shown = [7, 8] if turn == 0 and member < 3 else [chance.randrange(2, size) for _ in range(2)]
                ids, mask = [*ids, *said, *shown], [*mask, *[1] * len(said), *[0] * len(shown)]
            made.append(
                TokenSequence(
                    ids[:-2], mask[:-2], [-1.0] * (len(ids) - 2), [chance.uniform(-1, 1)] * (len(ids) - 2)
                )
            )
    made.append(TokenSequence([5, 6, 9], [0, 1, 1], [-1.0] * 3, [0.5] * 3))
    return made + copy.deepcopy(made[::3])


def numbers(model, rows, sharing, critic=None, most=100):
    """(every own token's log-probability, entropy and value, the gradient of a sum that weighs every token differently)."""
    micros = list(sequence_micro_batches(rows, most, 0.7, 0, torch.device("cpu"), sharing=sharing))
    model.zero_grad()
    said, entropies, values = {}, {}, {}
    for micro in micros:
        outputs = forward(model, micro, critic)
        (outputs.logprobs[micro.which] * micro.advantages).sum().backward()
        own = [
            (id(s), at)
            for copies in micro.copies
            for s in copies
            for at, m in enumerate(s.response_mask)
            if m
        ]
        said.update(zip(own, outputs.logprobs[micro.which].tolist(), strict=True))
        entropies.update(zip(own, outputs.entropy[micro.which].tolist(), strict=True))
        if outputs.values is not None:
            values.update(zip(own, outputs.values[micro.which].tolist(), strict=True))
    own = [(id(s), at) for s in rows for at, m in enumerate(s.response_mask) if m]
    tables = [torch.tensor([table[key] for key in own]) for table in (said, entropies, values) if table]
    gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    return micros, tables, gradient


@pytest.mark.parametrize("name", MODELS)
def test_branches_give_the_numbers_of_whole_rows(name):
    model, rows = small_model(name, 300), sequences(300)
    whole, expected, slope = numbers(model, rows, sharing=None)
    assert all(micro.prefixes is None for micro in whole)
    for most in (90, 200, 10_000):
        shared, found, other = numbers(model, rows, sharing=Sharing(), most=most)
        assert any(micro.prefixes is not None for micro in shared)
        for one, two in zip(expected, found, strict=True):
            torch.testing.assert_close(one, two, atol=2e-5, rtol=1e-5)
        torch.testing.assert_close(slope, other, atol=1e-4, rtol=1e-4)
    sizes = [
        sum(m.ids.numel() + (0 if m.prefixes is None else m.prefixes.ids.numel()) for m in micros)
        for micros in (whole, shared)
    ]
    assert sizes[1] < 0.8 * sizes[0]
    assert any(
        m.prefixes is not None and bool(m.prefixes.wanted.any()) for m in shared
    )  # replies are shared, not prompts alone


@pytest.mark.parametrize("separate", [None, False, True])
@pytest.mark.parametrize("name", MODELS)
def test_gradients_come_in_the_order_of_whole_rows(name, separate):
    """ZeRO sums over the ranks in the order in which they come, whether a rank computes branches or not."""
    model, rows, order = small_model(name, 300), sequences(300), []
    critic = None if separate is None else Critic(model, separate)
    modules = [model] if critic is None else [model, critic]
    for number, parameter in enumerate(p for module in modules for p in module.parameters()):
        parameter.register_hook(lambda gradient, number=number: order.append(number))
    orders = set()
    for sharing in (None, Sharing()):
        for micro in sequence_micro_batches(rows, 200, 1.0, 0, torch.device("cpu"), sharing=sharing):
            outputs = forward(model, micro, critic)
            (
                outputs.logprobs.sum()
                if outputs.values is None
                else outputs.logprobs.sum() + outputs.values.sum()
            ).backward()
            orders.add((micro.prefixes is not None, tuple(order)))
            order.clear()
    assert {shared for shared, _ in orders} == {False, True} and len(
        {of_micro for _, of_micro in orders}
    ) == 1


@pytest.mark.parametrize("separate", [False, True])
def test_values_of_a_critic_are_those_of_whole_rows(separate):
    model, rows = small_model("qwen2", 300), sequences(300, seed=1)
    critic = Critic(model, separate)
    torch.nn.init.normal_(critic.head.weight, generator=torch.Generator().manual_seed(0))
    _, expected, _ = numbers(model, rows, None, critic)
    _, found, _ = numbers(model, rows, Sharing(), critic)
    assert len(expected) == 3 and float(expected[2].std()) > 0.01
    for one, two in zip(expected, found, strict=True):
        torch.testing.assert_close(one, two, atol=2e-5, rtol=1e-5)


def some_pairs():
    """Pairs of replies that begin alike, to contexts of different lengths."""
    chance, nothing = random.Random(2), Branch("", "", "")

    def graft(context):
        tail = [chance.randrange(2, 300) for _ in range(3)]  # both replies begin with it
        better, worse = ([*tail, *[chance.randrange(2, 300) for _ in range(n)]] for n in (2, 5))
        return Graft(0, context, better, worse, "model", 1, 1.0, 1, 1, nothing, nothing, "", (0, 0))

    return [graft([chance.randrange(2, 300) for _ in range(n)]) for n in (12, 20, 13, 1)]


@torch.no_grad()
def test_a_pairs_replies_branch_off_from_their_context():
    model, pairs = small_model("qwen2", 300), some_pairs()

    begun = []

    def sums(sharing):
        found = {}
        for micro in pair_micro_batches(pairs, 90, 1.0, 0, torch.device("cpu"), sharing=sharing):
            assert sharing or micro.prefixes is None
            begun.append(micro.prefixes)
            totals = torch.zeros(2 * micro.pairs).index_add(
                0, micro.owner, forward(model, micro).logprobs.detach()
            )
            lengths = torch.zeros(2 * micro.pairs).index_add(0, micro.owner, torch.ones(len(micro.owner)))
            for n in range(micro.pairs):
                assert lengths[n] == 5 and lengths[micro.pairs + n] == 8
                found[len(found)] = (float(totals[n]), float(totals[micro.pairs + n]))
        return sorted(found.values())

    assert sums(Sharing()) == [pytest.approx(pair, abs=1e-4) for pair in sums(None)]
    assert any(begun) and len(pairs) == len(sums(Sharing()))
    for better, worse in sums(Sharing()):
        plain = []
        for g in pairs:
            both = []
            for reply in (g.rectified, g.rejected):
                logits = model(torch.tensor([[*g.context, *reply]])).logits[0, len(g.context) - 1 : -1]
                both.append(
                    float(torch.log_softmax(logits, -1).gather(-1, torch.tensor(reply)[:, None]).sum())
                )
            plain.append(tuple(both))
        assert any((better, worse) == pytest.approx(pair, abs=1e-4) for pair in plain)


@torch.no_grad()
@pytest.mark.parametrize("sharing", [None, Sharing()])
def test_the_beginning_of_a_batch_has_the_numbers_of_the_whole(sharing):
    model, sizes = small_model("qwen2", 300), set()
    for micro in sequence_micro_batches(sequences(300), 2000, 0.7, 0, torch.device("cpu"), sharing=sharing):
        whole = forward(model, micro).logprobs
        for most in (1, 150, 400, 10_000):
            part, own = micro.beginning(most)
            torch.testing.assert_close(forward(model, part).logprobs, whole[own], atol=2e-5, rtol=1e-5)
            begun = 0 if part.prefixes is None else part.prefixes.ids.numel()
            assert part.ids.numel() + begun <= most or len(part.ids) == 1 or len(part.prefixes.ids) == 1
            sizes.add((micro.prefixes is None, len(part.ids) < len(micro.ids)))
        assert own.all()
    assert {(sharing is None, True), (sharing is None, False)} <= sizes


@pytest.mark.parametrize("name", MODELS)
def test_pairs_without_padding_have_the_numbers_and_gradients_of_whole_rows(name):
    """Gradients also come in the same order (see above)."""
    model, pairs = small_model(name, 300), some_pairs()
    order, orders, found = [], set(), []
    for number, parameter in enumerate(model.parameters()):
        parameter.register_hook(lambda gradient, number=number: order.append(number))
    for sharing in (None, Sharing()):
        model.zero_grad()
        sums = []
        for micro in pair_micro_batches(pairs, 10_000, 1.0, 0, torch.device("cpu"), sharing=sharing):
            of_replies = torch.zeros(2 * micro.pairs).index_add(
                0, micro.owner, forward(model, micro).logprobs
            )
            better, worse = of_replies.view(2, -1)
            (better - 2 * worse).sum().backward()
            sums += zip(better.tolist(), worse.tolist(), strict=True)
            orders.add(tuple(order))
            order.clear()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        found.append((torch.tensor(sorted(sums)), gradient))
    assert len(orders) == 1
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, atol=1e-4, rtol=1e-4)


def test_a_pass_over_pairs_computes_no_padding():
    model, pairs, seen = small_model("qwen2", 300), some_pairs()[:3], []
    first, last = model.model.layers[0].mlp, model.model.layers[-1].mlp
    for mlp in (first, last):
        mlp.register_forward_hook(lambda module, given, output: seen.append(given[0].shape[:-1].numel()))
    (micro,) = pair_micro_batches(pairs, 10_000, 1.0, 0, torch.device("cpu"))
    forward(model, micro)
    replies = sum(len(g.rectified) + len(g.rejected) for g in pairs)
    # A branch feeds the last token of its context and not its own last.
    assert seen == [sum(len(g.context) - 1 for g in pairs) + replies, replies]


def test_recomputed_layers_share_nothing():
    model = small_model("qwen2", 300)
    recompute_layers(model)
    assert not TorchLearner(model, None, SingleProcess(), learning_rate=0.0, recompute=True).sharing
    assert TorchLearner(small_model("qwen2", 300), None, SingleProcess(), learning_rate=0.0).sharing
