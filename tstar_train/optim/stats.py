"""What an update measured, so that parts of ranks and micro-batches add up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class UpdateStats:
    """What an update measured.

    Losses and the clip fractions are means over the whole batch of an optimizer step (sums over a part, divided by
    whole-batch weights). Entropy and log-probability differences are sums over ``tokens``, the tokens of rows that were
    computed, and the KL is a sum over ``kl_tokens``: what only informs is measured on the part that is computed anyway.
    ``pairs`` counts grafts; ``surgical_steps`` the optimizer steps that had any, over which the surgical figures are averaged.
    Gradient norms are of all ranks together and belong to a step, not to a part.
    """

    base_loss: float = 0.0
    value_loss: float = 0.0
    value_clip_fraction: float = 0.0
    surgical_loss: float = 0.0
    surgical_accuracy: float = 0.0
    surgical_margin: float = 0.0
    kl_sum: float = 0.0
    kl_tokens: float = 0.0
    clip_fraction: float = 0.0
    gradient_norm: float = 0.0
    base_gradient_norm: float = 0.0
    surgical_gradient_norm: float = 0.0
    entropy_sum: float = 0.0
    logprob_difference_sum: float = 0.0
    logprob_difference_max: float = 0.0
    tokens: float = 0
    pairs: float = 0
    surgical_steps: float = 0

    @property
    def entropy(self) -> float | None:
        """Mean entropy of the next-token distribution, in nats; None where no row had an advantage, so that it was not measured."""
        return self.entropy_sum / self.tokens if self.tokens else None

    @property
    def logprob_difference_mean(self) -> float | None:
        """Mean |log pi(sampler) - log pi(trainer)|, in nats; None where it was not measured."""
        return self.logprob_difference_sum / self.tokens if self.tokens else None

    @property
    def kl_reference(self) -> float | None:
        """KL to the reference, in nats per token (k3); None where it was not measured."""
        return self.kl_sum / self.kl_tokens if self.kl_tokens else None

    def add(self, measured: dict[str, float]) -> None:
        """What a term of the loss measured on a micro-batch."""
        for name, value in measured.items():
            mine = getattr(self, name)
            setattr(self, name, max(mine, value) if name.endswith("_max") else mine + value)

    @classmethod
    def combined(cls, parts: Sequence[UpdateStats]) -> UpdateStats:
        """Combine the statistics of the parts of one step: sums (figures are already divided by whole-batch weights), maxima of maxima."""
        whole = cls()
        for name in vars(whole):
            values = [getattr(p, name) for p in parts]
            setattr(whole, name, max(values) if name.endswith("_max") else sum(values))
        return whole

    @classmethod
    def mean(cls, steps: Sequence[UpdateStats]) -> UpdateStats:
        """Average the statistics of an iteration's optimizer steps, at least one; log-probability differences are those of the first step.

        Before it sampler and trainer have the same weights, so that the difference is an error; afterwards the policy has moved.
        Surgical figures are means over the steps that had grafts: a step without any says nothing about them.
        """
        whole = cls.combined(steps)
        with_grafts = sum(step.pairs > 0 for step in steps)
        for name in vars(whole):
            count = with_grafts if name.startswith("surgical_") else len(steps)
            setattr(whole, name, getattr(whole, name) / count if count else 0.0)
        whole.surgical_steps = with_grafts
        measured = next((step for step in steps if step.tokens), steps[0])
        whole.logprob_difference_max = measured.logprob_difference_max
        whole.logprob_difference_sum = (measured.logprob_difference_mean or 0.0) * whole.tokens
        return whole
