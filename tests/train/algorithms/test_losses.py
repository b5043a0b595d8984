"""Losses against numbers worked by hand, finite differences, and themselves in micro-batches."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tstar_train.losses import (
    Aggregation,
    clipped_policy_loss,
    kl_k3,
    loss_denominator,
    surgical_loss,
    token_weight,
    value_loss,
)

AGGREGATIONS: tuple[Aggregation, ...] = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum")


def batch(rows: int = 6, length: int = 5) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log-probabilities now and then, advantages, and a mask with one row that has no own token."""
    generator = torch.Generator().manual_seed(0)
    shape = (rows, length)
    old = -torch.rand(shape, generator=generator, dtype=torch.float64) * 3
    now = old + 0.4 * torch.randn(shape, generator=generator, dtype=torch.float64)
    mask = torch.rand(shape, generator=generator) < 0.6
    mask[1] = False
    return now, old, torch.randn(shape, generator=generator, dtype=torch.float64), mask


def numbers(*scalars: Tensor) -> list[float]:
    return [x.item() for x in scalars]


def gradient(loss: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    leaf = at.clone().requires_grad_()
    loss(leaf).backward()  # type: ignore[no-untyped-call]
    assert leaf.grad is not None
    return leaf.grad


def finite_differences(loss: Callable[[Tensor], Tensor], at: Tensor, h: float = 1e-6) -> Tensor:
    result = torch.zeros_like(at)
    for k in range(at.numel()):
        step = torch.zeros_like(at)
        step.view(-1)[k] = h
        result.view(-1)[k] = (loss(at + step) - loss(at - step)) / (2 * h)
    return result


def test_clipped_policy_loss_by_hand() -> None:
    ratios = torch.tensor([[1.5, 0.5, 1.1, 7.0], [1.5, 0.5, 0.9, 7.0]])
    advantages = torch.tensor([[2.0], [-2.0]])
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 0]])
    # A > 0: gains stop at 1.2, losses do not. A < 0: the other way round, and nothing bounds a large ratio.
    losses = torch.tensor([[-2 * 1.2, -2 * 0.5, -2 * 1.1], [2 * 1.5, 2 * 0.8, 2 * 0.9]])
    got = clipped_policy_loss(ratios.log(), torch.zeros(2, 4), advantages, mask)
    assert got.loss == pytest.approx(losses.mean().item(), rel=1e-6)
    assert got.clip_fraction == pytest.approx(2 / 6)
    assert got.ratio_mean == pytest.approx((1.5 + 0.5 + 1.1 + 1.5 + 0.5 + 0.9) / 6, rel=1e-6)
    assert got.approx_kl == pytest.approx(-sum(map(math.log, (1.5, 0.5, 1.1, 1.5, 0.5, 0.9))) / 6, rel=1e-6)
    assert got.tokens == 6
    wide = clipped_policy_loss(
        ratios.log(), torch.zeros(2, 4), advantages, mask, clip_low=0.6, clip_high=0.28
    )
    # Only 1.5 > 1.28 is clipped now.
    losses = torch.tensor([-2 * 1.28, -2 * 0.5, -2 * 1.1, 2 * 1.5, 2 * 0.5, 2 * 0.9])
    assert wide.loss == pytest.approx(losses.mean().item(), rel=1e-4)


def test_aggregations_by_hand() -> None:
    now = torch.zeros(3, 3)
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0]])
    advantages = torch.tensor([[1.0, 1, 1], [5, 0, 0], [9, 9, 9]])
    losses = {
        a: clipped_policy_loss(now, now, advantages, mask, aggregation=a).loss.item() for a in AGGREGATIONS
    }
    assert losses == {"token-mean": -2.0, "seq-mean-token-mean": -3.0, "seq-mean-token-sum": -4.0}
    assert [loss_denominator(mask, a) for a in AGGREGATIONS] == [4, 2, 2]
    assert [token_weight(4.0, a) for a in AGGREGATIONS] == [1.0, 0.25, 1.0]


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_micro_batches_add_up_to_the_batch(aggregation: Aggregation) -> None:
    now, old, advantages, mask = batch()

    def whole(x: Tensor) -> Tensor:
        return clipped_policy_loss(x, old, advantages, mask, aggregation=aggregation).loss

    def parts(x: Tensor) -> Tensor:
        total = loss_denominator(mask, aggregation)
        return torch.stack(
            [
                clipped_policy_loss(
                    x[rows],
                    old[rows],
                    advantages[rows],
                    mask[rows],
                    aggregation=aggregation,
                    denominator=total,
                ).loss
                for rows in (slice(0, 1), slice(1, 2), slice(2, 6))
            ]
        ).sum()

    assert parts(now) == pytest.approx(whole(now).item())
    torch.testing.assert_close(gradient(parts, now), gradient(whole, now))
    torch.testing.assert_close(gradient(whole, now), finite_differences(whole, now), atol=1e-7, rtol=1e-5)


def test_on_policy_gradient_is_that_of_the_advantage_weighted_log_likelihood() -> None:
    now, _, advantages, mask = batch()
    grad = gradient(lambda x: clipped_policy_loss(x, x, advantages, mask).loss, now)
    torch.testing.assert_close(grad, -advantages * mask / mask.sum())


def test_padding_is_never_read() -> None:
    now, old, advantages, mask = batch()
    junk = [
        torch.where(mask, x, bad) for x, bad in ((now, -math.inf), (old, math.nan), (advantages, math.inf))
    ]
    clean = gradient(lambda x: clipped_policy_loss(x, old, advantages, mask).loss, now)
    torch.testing.assert_close(
        gradient(lambda x: clipped_policy_loss(x, junk[1], junk[2], mask).loss, junk[0]), clean
    )
    assert value_loss(junk[0], junk[1], junk[2], mask).loss == value_loss(now, old, advantages, mask).loss
    assert gradient(lambda x: value_loss(x, junk[1], junk[2], mask).loss, junk[0]).isfinite().all()


def test_nothing_to_learn_from_gives_a_zero_that_can_be_backpropagated() -> None:
    now, old, advantages, mask = batch()
    none = torch.zeros_like(mask)
    for aggregation in AGGREGATIONS:
        got = clipped_policy_loss(now, old, advantages, none, aggregation=aggregation)
        assert numbers(got.loss, got.clip_fraction, got.ratio_mean) == [0, 0, 0]
    assert not gradient(lambda x: clipped_policy_loss(x, old, advantages, none).loss, now).any()
    assert not gradient(lambda x: value_loss(x, old, advantages, none).loss, now).any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip_low": 1.0}, r"clip_low is 1\.0"),
        ({"clip_high": -0.1}, r"clip_high -0\.1"),
        ({"denominator": 0.0}, r"denominator is 0\.0"),
        ({"aggregation": "mean"}, "aggregation is 'mean'.*token-mean"),
        ({"mask": torch.ones(2, 3)}, r"\(6, 5\), \(6, 5\), \(2, 3\)"),
        ({"advantages": torch.ones(6)}, r"advantages have shape \(6,\)"),
    ],
)
def test_policy_loss_errors(options: dict[str, object], message: str) -> None:
    now, old, advantages, mask = batch()
    arguments = {"logprobs": now, "old_logprobs": old, "advantages": advantages, "mask": mask} | options
    with pytest.raises(ValueError, match=message):
        clipped_policy_loss(**arguments)  # type: ignore[arg-type]


def test_the_kl_estimate_averages_to_the_divergence_and_is_never_negative() -> None:
    policy = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    reference = torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64)
    truth = (policy * (policy / reference).log()).sum().item()
    log_p, log_q = policy.log(), reference.log()
    # The expectation over tokens drawn from the policy, in full.
    assert (policy * kl_k3(log_p, log_q)).sum() == pytest.approx(truth)
    assert kl_k3(log_p, log_q).min() >= 0
    assert kl_k3(log_p, log_q)[0] == pytest.approx(0.8 - 1 + math.log(1.25))


def test_kl_is_bounded_where_the_reference_finds_a_token_impossible_or_certain() -> None:
    now, reference = torch.tensor([-200.0, -0.1, -0.1]), torch.tensor([-0.1, -60.0, -math.inf])
    assert kl_k3(now, reference)[0] == 10
    assert kl_k3(now, reference)[1:].tolist() == [10, 10]
    assert not gradient(lambda x: kl_k3(x, reference).sum(), now).isnan().any()
    tiny = torch.tensor([1e-5], dtype=torch.float64)
    assert kl_k3(tiny, torch.zeros_like(tiny)) == pytest.approx(0.5e-10, rel=1e-4)
    with pytest.raises(ValueError, match=r"\(3,\) and \(1,\)"):
        kl_k3(now, tiny)


def test_value_loss_by_hand() -> None:
    values, returns = torch.tensor([[1.0, 0.1, 5.0]]), torch.tensor([[1.0, 1.0, 0.0]])
    old, mask = torch.tensor([[0.5, 0.0, 0.0]]), torch.tensor([[1, 1, 0]])
    # The first has moved by 0.5 > 0.2: its clipped self, 0.7, is further off. The second is judged as it is.
    got = value_loss(values, returns, old, mask, clip=0.2)
    assert got.loss == pytest.approx(0.5 * (0.3**2 + 0.9**2) / 2) and got.clip_fraction == 0.5
    assert value_loss(values, returns, old, mask, clip=None).loss == pytest.approx(0.5 * 0.81 / 2)
    halves = [
        value_loss(values[:, part], returns[:, part], old[:, part], mask[:, part], 0.2, denominator=2.0).loss
        for part in (slice(0, 1), slice(1, 3))
    ]
    assert sum(halves) == pytest.approx(got.loss.item())
    grad = gradient(lambda x: value_loss(x, returns, old, mask, clip=0.2).loss, values)
    assert grad.tolist() == [[0.0, pytest.approx(-0.45), 0.0]]
    for options, message in (({"clip": -1.0}, "clip is -1"), ({"denominator": 0.0}, "denominator is 0")):
        with pytest.raises(ValueError, match=message):
            value_loss(values, returns, old, mask, **options)
    with pytest.raises(ValueError, match=r"\(1, 3\), \(1, 3\), \(1, 3\), \(3,\)"):
        value_loss(values, returns, old, mask[0])


def pairs(count: int = 4) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    drawn = [-10 * torch.rand(count, generator=generator, dtype=torch.float64) for _ in range(4)]
    return drawn[0], drawn[1], drawn[2], drawn[3]


def test_surgical_loss_by_hand() -> None:
    got = surgical_loss(
        torch.tensor([-2.0, -5.0]),
        torch.tensor([-4.0, -5.0]),
        torch.tensor([-1.0, -3.0]),
        torch.tensor([0.0, -4.0]),
        beta=0.5,
    )
    # Delta = 2 - (-1) = 3 and 0 - 1 = -1.
    assert got.loss == pytest.approx((math.log1p(math.exp(-1.5)) + math.log1p(math.exp(0.5))) / 2)
    assert numbers(got.margin, got.accuracy) == [1, 0.5]


def test_surgical_loss_starts_at_ln_2() -> None:
    rect, _, rejected, _ = pairs()
    got = surgical_loss(rect, rect, rejected, rejected)
    assert numbers(*got) == pytest.approx([math.log(2), 0, 0])
    grad = gradient(lambda x: surgical_loss(x, x, rejected, rejected, beta=0.1).loss, rect)
    assert grad.tolist() == pytest.approx([-0.1 / 2 / 4] * 4), "the reference takes no part in the gradient"
    grad = gradient(lambda x: surgical_loss(rect, rect, x, x, beta=0.1).loss, rejected)
    assert grad.tolist() == pytest.approx([0.1 / 2 / 4] * 4)


def test_surgical_gradients_are_finite_differences() -> None:
    rect, rect_ref, rejected, rejected_ref = pairs()

    def of_rect(x: Tensor) -> Tensor:
        return surgical_loss(x, rect_ref, rejected, rejected_ref, beta=0.7).loss

    def of_rejected(x: Tensor) -> Tensor:
        return surgical_loss(rect, rect_ref, x, rejected_ref, beta=0.7).loss

    torch.testing.assert_close(
        gradient(of_rect, rect), finite_differences(of_rect, rect), atol=1e-8, rtol=1e-6
    )
    torch.testing.assert_close(gradient(of_rejected, rejected), -gradient(of_rect, rect))
    torch.testing.assert_close(finite_differences(of_rejected, rejected), -gradient(of_rect, rect))


def test_surgical_micro_batches_and_extremes() -> None:
    a, b, c, d = pairs()
    parts = [
        surgical_loss(a[rows], b[rows], c[rows], d[rows], denominator=4.0).loss
        for rows in (slice(0, 1), slice(1, 4))
    ]
    assert sum(parts) == pytest.approx(surgical_loss(a, b, c, d).loss.item())
    far = surgical_loss(torch.tensor([-1e5]), torch.zeros(1), torch.zeros(1), torch.zeros(1), beta=1.0)
    assert far.loss == pytest.approx(1e5), "no overflow"


@pytest.mark.parametrize("with_graph", [False, True])
def test_no_pairs(with_graph: bool) -> None:
    weight = torch.ones(1, requires_grad=True)
    empty = torch.zeros(0)
    rect = (weight * torch.zeros(1))[:0] if with_graph else empty
    got = surgical_loss(rect, empty, empty, empty)
    assert numbers(*got) == [0, 0, 0]
    (weight.sum() + 0.15 * got.loss).backward()  # type: ignore[no-untyped-call]
    surgical_loss(empty, empty, empty, empty).loss.backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None and weight.grad.isfinite().all()


def test_surgical_errors() -> None:
    rect, rect_ref, rejected, rejected_ref = pairs()
    with pytest.raises(ValueError, match=r"\(4,\), \(4,\), \(4,\), \(3,\)"):
        surgical_loss(rect, rect_ref, rejected, rejected_ref[:3])
    with pytest.raises(ValueError, match=r"all must be \[N\]"):
        surgical_loss(rect[None], rect_ref[None], rejected[None], rejected_ref[None])
    with pytest.raises(ValueError, match="beta is 0"):
        surgical_loss(rect, rect_ref, rejected, rejected_ref, beta=0.0)
    with pytest.raises(ValueError, match="denominator is -1"):
        surgical_loss(rect, rect_ref, rejected, rejected_ref, denominator=-1.0)
