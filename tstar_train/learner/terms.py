"""Terms of the loss: clipped policy gradient, KL, value loss and surgical loss."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from tstar_train.finite import require_finite
from tstar_train.learner.batch import MicroBatch, Outputs, PairMicroBatch, SequenceMicroBatch, Totals
from tstar_train.losses import clipped_policy_loss, kl_k3, surgical_loss, value_loss
from tstar_train.types import TokenSequence


class Reference(Protocol):
    """The reference's log-probabilities, called only if a term needs them."""

    def __call__(self, part: MicroBatch | None = None) -> Tensor:
        """Compute them for the wanted tokens of the micro-batch, or of a part of it."""


# Padded tokens of a step whose KL to the reference is measured where it is no part of the loss.
MEASURED_TOKENS = 1024


class Term(Protocol):
    """One term of the base loss."""

    def needs(self, sequence: TokenSequence) -> bool:
        """Check whether this term needs a row; rows that no term needs count only in the totals."""

    def __call__(
        self, outputs: Outputs, micro: SequenceMicroBatch, totals: Totals, reference: Reference | None
    ) -> tuple[Tensor | None, dict[str, float]]:
        """Return (loss, or None if the term adds none here; statistics by their names in ``UpdateStats``)."""


class PolicyTerm:
    """Clipped policy gradient, a weighted mean over the tokens (``losses.clipped_policy_loss``).

    Args:
        clip_low: ratios below 1 - clip_low are clipped.
        clip_high: ratios above 1 + clip_high are clipped.
    """

    def __init__(self, clip_low: float, clip_high: float) -> None:
        self._clip_low, self._clip_high = clip_low, clip_high

    def needs(self, sequence: TokenSequence) -> bool:
        """See ``Term``: without an advantage there is no gradient to compute."""
        return any(sequence.advantages)

    def __call__(
        self, outputs: Outputs, micro: SequenceMicroBatch, totals: Totals, reference: Reference | None
    ) -> tuple[Tensor | None, dict[str, float]]:
        """See ``Term``."""
        logprobs = outputs.logprobs[micro.which]
        # The loss takes one row per sequence; one row with all wanted tokens gives the same token mean. Scaling the advantages by a
        # positive weight scales the loss by it.
        result = clipped_policy_loss(
            logprobs[None],
            micro.old_logprobs[None],
            (micro.advantages * micro.weight)[None],
            torch.ones_like(logprobs)[None],
            clip_low=self._clip_low,
            clip_high=self._clip_high,
            denominator=totals.weight,
        )
        return result.loss, {
            "base_loss": result.loss.item(),
            "clip_fraction": float(result.clip_fraction) * float(micro.weight.sum()) / totals.weight,
        }


class KLTerm:
    """KL to the reference (k3).

    Args:
        coefficient: weight in the loss; 0 only reports the KL, measured on the step's first rows to save time.
    """

    def __init__(self, coefficient: float) -> None:
        self._coefficient = coefficient

    def needs(self, sequence: TokenSequence) -> bool:
        """See ``Term``."""
        return self._coefficient > 0

    def __call__(
        self, outputs: Outputs, micro: SequenceMicroBatch, totals: Totals, reference: Reference | None
    ) -> tuple[Tensor | None, dict[str, float]]:
        """See ``Term``."""
        if reference is None or not (self._coefficient or micro.first):
            return None, {}
        which, logprobs = micro.which, outputs.logprobs
        if self._coefficient:
            theirs = reference()
        else:
            part, own = micro.beginning(MEASURED_TOKENS)
            which, theirs = which[own[which]], torch.zeros_like(logprobs.detach())
            theirs[own] = reference(part)
        penalty = kl_k3(logprobs[which], theirs[which])
        measured = {"kl_sum": float(penalty.detach().sum()), "kl_tokens": float(len(penalty))}
        if not self._coefficient:
            return None, measured
        return self._coefficient * (micro.weight * penalty).sum() / totals.weight, measured


class ValueTerm:
    """Value loss of the critic, a mean over the tokens that have a target (``losses.value_loss``).

    Args:
        weight: weight of the value loss in the total loss.
        clip: maximum change of a value from its old one, in units of reward; None for no limit.
    """

    def __init__(self, weight: float, clip: float | None) -> None:
        self._weight, self._clip = weight, clip

    def needs(self, sequence: TokenSequence) -> bool:
        """See ``Term``."""
        return True

    def __call__(
        self, outputs: Outputs, micro: SequenceMicroBatch, totals: Totals, reference: Reference | None
    ) -> tuple[Tensor | None, dict[str, float]]:
        """See ``Term``.

        Raises:
            ValueError: the forward pass had no critic.
        """
        if outputs.values is None:
            raise ValueError("the value term needs a critic: give the learner one")
        values = outputs.values[micro.which]
        require_finite(values, "the critic's values")
        aimed = ~torch.isnan(micro.returns)
        result = value_loss(
            values,
            micro.returns,
            micro.old_values,
            aimed,
            clip=self._clip,
            denominator=totals.targets,
        )
        share = int(aimed.sum()) / totals.targets
        measured = {
            "value_loss": result.loss.item(),
            "value_clip_fraction": float(result.clip_fraction) * share,
        }
        return self._weight * result.loss, measured


class SurgicalTerm:
    """Surgical loss, a mean over preference pairs (``losses.surgical_loss``); only thought tokens receive a gradient.

    Args:
        weight: weight of the surgical loss, the paper's lambda.
        beta: inverse temperature of the preference.
    """

    def __init__(self, weight: float, beta: float) -> None:
        self._weight, self._beta = weight, beta

    def __call__(
        self, outputs: Outputs, micro: PairMicroBatch, totals: Totals, reference: Reference
    ) -> tuple[Tensor, dict[str, float]]:
        """Compute the loss and statistics as ``Term`` does, over preference pairs."""
        n = micro.pairs
        sums, reference_sums = (
            span_sums(outputs.logprobs, micro.owner, 2 * n),
            span_sums(reference(), micro.owner, 2 * n),
        )
        require_finite(
            torch.stack([sums.detach(), reference_sums]), "the log-probabilities of grafted thoughts"
        )
        result = surgical_loss(
            sums[:n],
            reference_sums[:n],
            sums[n:],
            reference_sums[n:],
            beta=self._beta,
            denominator=totals.pairs,
        )
        return self._weight * result.loss, {
            "surgical_loss": result.loss.item(),
            "surgical_accuracy": float(result.accuracy) * n / totals.pairs,
            "surgical_margin": float(result.margin) * n / totals.pairs,
            "pairs": n,
        }


def span_sums(logprobs: Tensor, owner: Tensor, spans: int) -> Tensor:
    """Sum the log-probabilities of tokens by span, shape (spans,), in nats."""
    return torch.zeros(spans, device=logprobs.device, dtype=logprobs.dtype).index_add(0, owner, logprobs)
