"""One update: L = L_base + lambda * L_surgical over an iteration's rows and grafts (eq:hybrid_objective).

Losses are sums over micro-batches divided by whole-batch weights, so the size of a micro-batch changes memory and nothing
else. Where contexts are short, the members of a group often say the same in the same state (two thirds of the rows of a Sokoban
group): rows with the same ids are computed once, and each gives its own loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tstar_train.config import GraftConfig, OptimConfig
from tstar_train.finite import require_finite
from tstar_train.grafting.graft import Graft
from tstar_train.losses import clipped_policy_loss, kl_k3, surgical_loss
from tstar_train.policy.head import output_logits
from tstar_train.rollout.types import TokenSequence


@dataclass
class UpdateStats:
    """What an update measured.

    Losses and the clip fraction are means over the whole batch of an optimizer step (sums over a share's part, divided by
    whole-batch weights). Entropy and log-probability differences are sums over ``tokens``, the tokens of rows that have an
    advantage, and the KL is a sum over ``kl_tokens``: what only informs is measured on the part that is computed anyway.
    ``pairs`` counts grafts; ``surgical_steps`` the optimizer steps that had any, over which the surgical figures are averaged.
    """

    base_loss: float = 0.0
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

    @classmethod
    def combined(cls, parts: Sequence[UpdateStats]) -> UpdateStats:
        """Of several shares of one step: sums (every figure is divided by whole-batch weights already), maximum of the maxima."""
        whole = cls()
        for name in vars(whole):
            values = [getattr(p, name) for p in parts]
            setattr(whole, name, max(values) if name.endswith("_max") else sum(values))
        return whole

    @classmethod
    def mean(cls, steps: Sequence[UpdateStats]) -> UpdateStats:
        """Of an iteration's optimizer steps, at least one: means, but of the log-probability differences those of the first step.

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


def token_logprobs(
    model: PreTrainedModel, ids: Tensor, wanted: Tensor, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the wanted tokens, computing the output matrix for those positions only.

    Args:
        model: causal LM; rows are padded on the right, so no attention mask is needed.
        ids: shape (rows, length).
        wanted: bool, same shape; the first position is never wanted.
        temperature: of the distribution.

    Returns:
        (log-probabilities, entropies), each of shape (number of wanted tokens,), in nats, in row-major order.
    """
    hidden = model.base_model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
    logits = output_logits(model, hidden[wanted[:, 1:]]) / temperature
    logprobs = torch.log_softmax(logits, dim=-1)
    with torch.no_grad():
        entropy = -(logprobs.exp() * logprobs).sum(dim=-1)
    return logprobs.gather(-1, ids[:, 1:][wanted[:, 1:]][:, None])[:, 0], entropy


def micro_batches(lengths: Sequence[int], most_tokens: int) -> Iterator[list[int]]:
    """Indexes in batches of similar length, each at most ``most_tokens`` padded tokens (or a single row)."""
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        if batch and (len(batch) + 1) * lengths[index] > most_tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def base_backward(
    model: PreTrainedModel,
    reference: PreTrainedModel | None,
    sequences: Sequence[TokenSequence],
    config: OptimConfig,
    temperature: float,
    pad: int,
    total: float,
    stats: UpdateStats,
) -> None:
    """Add the gradient of the base loss, a weighted sum over own tokens divided by ``total``; fills ``stats``."""
    # Groups of equal rewards have advantage 0: they count in the mean, but have no gradient to compute.
    distinct = _alike([s for s in sequences if config.kl_coefficient or any(s.advantages)])
    for number, batch in enumerate(micro_batches([len(copies[0].ids) for copies in distinct], config.micro_tokens)):
        part = [distinct[i] for i in batch]
        ids, mask = _rows([copies[0] for copies in part], pad, model.device)
        which = _owners(part, model.device)
        computed, entropy = token_logprobs(model, ids, mask, temperature)
        logprobs, entropy = computed[which], entropy[which]
        old, advantages, weight = _own_values(part, model.device)
        require_finite(computed, "the policy's log-probabilities of what it wrote")
        require_finite(torch.stack([old, advantages, weight]), "log-probabilities, advantages and weights of the sampled tokens")
        # The losses take one row per sequence; all wanted tokens in one row is the same token mean.
        ones = torch.ones_like(logprobs)[None]
        # The loss is linear in the advantages where they are scaled by a positive number: a weight is such a scale.
        result = clipped_policy_loss(
            logprobs[None], old[None], (advantages * weight)[None], ones,
            clip_low=config.clip_low, clip_high=config.clip_high, denominator=float(total),
        )  # fmt: skip
        loss = result.loss
        share = float(weight.sum()) / total
        # Without a penalty the KL is only reported: one micro-batch tells it at a fraction of the cost.
        if reference is not None and (config.kl_coefficient or number == 0):
            with torch.no_grad():
                ref, _ = token_logprobs(reference, ids, mask, temperature)
            require_finite(ref, "the reference's log-probabilities")
            penalty = kl_k3(logprobs, ref[which])
            stats.kl_sum += float(penalty.detach().sum())
            stats.kl_tokens += len(logprobs)
            if config.kl_coefficient:
                loss = loss + config.kl_coefficient * (weight * penalty).sum() / total
        require_finite(loss.detach(), "the base loss")
        loss.backward()
        gap = (logprobs.detach() - old).abs()
        stats.logprob_difference_sum += float(gap.sum())
        stats.tokens += len(logprobs)
        stats.logprob_difference_max = max(stats.logprob_difference_max, float(gap.max()))
        stats.base_loss += result.loss.item()
        stats.clip_fraction += float(result.clip_fraction) * share
        stats.entropy_sum += float(entropy.sum())


def surgical_backward(
    model: PreTrainedModel, reference: PreTrainedModel, grafts: Sequence[Graft], config: GraftConfig, most_tokens: int, pad: int,
    count: int, stats: UpdateStats,
) -> None:  # fmt: skip
    """Add lambda times the gradient of the surgical loss, a sum over pairs divided by ``count``.

    Only the thought tokens at the divergence receive any.
    """
    for batch in micro_batches([len(g.context) + max(len(g.rectified), len(g.rejected)) for g in grafts], most_tokens // 2):
        part = [grafts[i] for i in batch]
        spans = [(g.context, g.rectified) for g in part] + [(g.context, g.rejected) for g in part]
        sums = thought_logprobs(model, spans, pad)
        with torch.no_grad():
            reference_sums = thought_logprobs(reference, spans, pad)
        require_finite(torch.stack([sums.detach(), reference_sums]), "the log-probabilities of grafted thoughts")
        n = len(part)
        result = surgical_loss(
            sums[:n], reference_sums[:n], sums[n:], reference_sums[n:], beta=config.beta, denominator=float(count)
        )
        (config.weight * result.loss).backward()
        stats.surgical_loss += result.loss.item()
        stats.surgical_accuracy += float(result.accuracy) * n / count
        stats.surgical_margin += float(result.margin) * n / count
        stats.pairs += n


def thought_logprobs(model: PreTrainedModel, spans: Sequence[tuple[list[int], list[int]]], pad: int) -> Tensor:
    """Summed log-probability of each continuation after its context, shape (spans,), in nats."""
    longest = max(len(c) + len(t) for c, t in spans)
    ids = torch.tensor([[*c, *t, *[pad] * (longest - len(c) - len(t))] for c, t in spans], device=model.device)
    wanted = torch.tensor(
        [[False] * len(c) + [True] * len(t) + [False] * (longest - len(c) - len(t)) for c, t in spans], device=model.device
    )
    logprobs, _ = token_logprobs(model, ids, wanted)
    owner = torch.arange(len(spans), device=model.device)[:, None].expand_as(wanted)[wanted]
    return torch.zeros(len(spans), device=model.device, dtype=logprobs.dtype).index_add(0, owner, logprobs)


def deal(sequences: Sequence[TokenSequence], steps: int) -> list[list[TokenSequence]]:
    """An iteration's rows for each of its optimizer steps, in turn; rows with the same ids go to the same one."""
    distinct = _alike(sequences)
    return [[s for copies in distinct[k::steps] for s in copies] for k in range(steps)]


def _alike(sequences: Sequence[TokenSequence]) -> list[list[TokenSequence]]:
    """Sequences with the same ids and own tokens together, in order of first appearance."""
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], list[TokenSequence]] = {}
    for sequence in sequences:
        found.setdefault((tuple(sequence.ids), tuple(sequence.mask)), []).append(sequence)
    return list(found.values())


def _rows(sequences: Sequence[TokenSequence], pad: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids and own tokens, shape (sequences, longest)."""
    longest = max(len(s.ids) for s in sequences)
    ids = torch.tensor([[*s.ids, *[pad] * (longest - len(s.ids))] for s in sequences], device=device)
    mask = torch.tensor([[*s.mask, *[0] * (longest - len(s.ids))] for s in sequences], dtype=torch.bool, device=device)
    return ids, mask


def _owners(part: Sequence[Sequence[TokenSequence]], device: torch.device) -> Tensor:
    """For each own token of every copy of every row: its place among the own tokens of the rows, shape (own tokens of all copies,)."""
    places, first = [], 0
    for copies in part:
        count = copies[0].own_tokens
        places += [torch.arange(first, first + count)] * len(copies)
        first += count
    return torch.cat(places).to(device)


def _own_values(part: Sequence[Sequence[TokenSequence]], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Sampling log-probabilities, advantages and weights, each of shape (own tokens of all copies,)."""
    own = [(p, a, s.weight) for copies in part for s in copies for p, a, m in zip(s.logprobs, s.advantages, s.mask, strict=True) if m]
    values = torch.tensor(own, dtype=torch.float32, device=device)
    return values[:, 0], values[:, 1], values[:, 2]
