"""Update: optimizer steps of an iteration, and their statistics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tstar_train.distributed import Communicator, raise_on_any_rank
from tstar_train.engines.check import require_agreement
from tstar_train.finite import NotFinite, require_bounded, require_finite, rounding_subnormals
from tstar_train.learner.base import Learner
from tstar_train.learner.batch import (
    MicroBatch,
    Outputs,
    SequenceMicroBatch,
    Step,
    Totals,
    pair_micro_batches,
    sequence_micro_batches,
)
from tstar_train.learner.terms import Reference, SurgicalTerm, Term
from tstar_train.types import TokenSequence


@dataclass
class UpdateStats:
    """Measurements of an update.

    Losses and clip fractions are means over the whole batch of an optimizer step: sums over a part, divided by whole-batch weights.
    Entropy and log-probability differences are sums over ``tokens``, the tokens of computed rows. The KL is a sum over ``kl_tokens``.
    These are only reported, so they are measured on rows that are computed anyway.
    ``pairs`` counts preference pairs. ``surgical_steps`` counts optimizer steps with pairs; surgical statistics are averaged over these.
    Gradient norms belong to a step and are computed over all ranks.
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
        """Mean entropy of the next-token distribution, in nats; None if it was not measured because no row had an advantage."""
        return self.entropy_sum / self.tokens if self.tokens else None

    @property
    def logprob_difference_mean(self) -> float | None:
        """Mean |log pi(sampler) - log pi(trainer)|, in nats; None if not measured."""
        return self.logprob_difference_sum / self.tokens if self.tokens else None

    @property
    def kl_reference(self) -> float | None:
        """KL to the reference, in nats per token (k3); None if not measured."""
        return self.kl_sum / self.kl_tokens if self.kl_tokens else None

    def add(self, measured: dict[str, float]) -> None:
        """Add the measurements of a loss term on a micro-batch."""
        for name, value in measured.items():
            mine = getattr(self, name)
            setattr(self, name, max(mine, value) if name.endswith("_max") else mine + value)

    @classmethod
    def combined(cls, parts: Sequence[UpdateStats]) -> UpdateStats:
        """Combine the statistics of the parts of one step: add values, which are already divided by whole-batch weights; take maxima."""
        whole = cls()
        for name in vars(whole):
            values = [getattr(p, name) for p in parts]
            setattr(whole, name, max(values) if name.endswith("_max") else sum(values))
        return whole

    @classmethod
    def mean(cls, steps: Sequence[UpdateStats]) -> UpdateStats:
        """Average the statistics of an iteration's optimizer steps, at least one.

        Steps of all epochs count alike. Log-probability differences are those of the first step: only before it sampler and trainer have
        the same weights, so that a difference is an error. Surgical statistics are means over the steps with pairs.
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


class Batching(NamedTuple):
    """Options of batched forward passes.

    Attributes:
        micro_tokens: maximum number of padded tokens at once; changes memory use and float rounding, not the result.
        temperature: sampling temperature of the rows; all log-probabilities are computed at it, those of pairs too.
        pad: padding id.
        device: device of the learner's model.
        most_difference: see ``engines.check.require_agreement``.
        most_loss: maximum absolute loss; a larger one stops the run as exploded.
    """

    micro_tokens: int
    temperature: float
    pad: int
    device: torch.device
    most_difference: float = math.inf
    most_loss: float = math.inf

    @property
    def rows(self) -> tuple[int, float, int, torch.device]:
        """Arguments of ``sequence_micro_batches`` and ``pair_micro_batches`` after the rows."""
        return self.micro_tokens, self.temperature, self.pad, self.device


@rounding_subnormals()
def update(
    learner: Learner,
    steps: Sequence[Step],
    terms: Sequence[Term],
    surgical: SurgicalTerm | None,
    world: Communicator,
    *,
    factor: float,
    batching: Batching,
    before_step: Callable[[int], None] | None = None,
) -> UpdateStats:
    """Take the iteration's optimizer steps; all ranks call it with the same number of steps.

    Args:
        learner: learner that takes the steps.
        steps: this rank's rows and pairs of each step.
        terms: terms of the base loss.
        surgical: term over preference pairs, None without one.
        world: communicator between the ranks.
        factor: multiplier of the learning rates.
        batching: options of the forward passes.
        before_step: called before each step with its number, from 0; it may change the rows' advantages and old log-probabilities.

    Returns:
        Statistics: on rank 0 over all ranks, on the others over their own part.

    Raises:
        NotFinite: a loss, log-probability or gradient is NaN or infinite; that step is not taken, and the error holds its rows.
        EngineMismatch: log-probabilities of sampler and trainer differ too much; no step is taken.
    """
    measured, norms, before = [], [], learner.steps
    for number, step in enumerate(steps):
        if before_step is not None:
            before_step(number)
        totals = totals_of(step, world)
        stats = UpdateStats()
        with _whole_or_not_at_all(learner, world, "base", number, step.sequences):
            for micro in sequence_micro_batches(
                needed(step.sequences, terms), *batching.rows, sharing=learner.sharing
            ):
                accumulate(learner, micro, terms, totals, stats, batching.most_loss)
            # Only before the first step: afterwards the policy differs from the one that sampled.
            if learner.steps == before:
                require_agreement(stats.logprob_difference_max, batching.most_difference)
            learner.end_part("base")
        learner.add_part("base")
        added = ["base"]
        if totals.pairs and surgical is not None:
            with _whole_or_not_at_all(learner, world, "surgical", number, step.pairs):
                for pairs in pair_micro_batches(step.pairs, *batching.rows, sharing=learner.sharing):
                    reference = _reference(learner, pairs)
                    loss, figures = surgical(learner.forward(pairs), pairs, totals, reference)
                    require_bounded(loss.detach(), "the surgical loss", batching.most_loss)
                    learner.backward(loss)
                    stats.add(figures)
                learner.end_part("surgical")
            learner.add_part("surgical")
            added.append("surgical")
        taken = learner.apply(factor)
        measured.append(stats)
        norms.append(
            {"gradient_norm": taken.whole}
            | {f"{what}_gradient_norm": taken.parts.get(what, math.nan) for what in added}
        )
    parts = world.gather(measured) or [measured]
    whole = [UpdateStats.combined(of_ranks) for of_ranks in zip(*parts, strict=True)]
    for stats, norm in zip(whole, norms, strict=True):
        stats.add(norm)
    return UpdateStats.mean(whole)


def totals_of(step: Step, world: Communicator) -> Totals:
    """Compute the denominators of a step's losses over all ranks; at least 1, so that an empty step has loss 0."""
    own = sum(s.num_response_tokens for s in step.sequences)
    aimed = sum(
        m and not math.isnan(r)
        for s in step.sequences
        for m, r in zip(s.response_mask, s.returns, strict=False)
    )
    counts = torch.tensor([step.weight, own, len(step.pairs), aimed], dtype=torch.float64)
    weight, tokens, pairs, targets = world.all_reduce(counts).tolist()
    return Totals(weight or 1.0, tokens or 1.0, pairs, targets or 1.0)


def needed(sequences: Sequence[TokenSequence], terms: Sequence[Term]) -> list[TokenSequence]:
    """Select the rows to compute; rows of groups with equal rewards count in the mean but have no gradient."""
    return [s for s in sequences if any(term.needs(s) for term in terms)]


def compute_old_logprobs_and_values(
    learner: Learner, sequences: Sequence[TokenSequence], batching: Batching, *, values: bool, old: bool
) -> None:
    """Compute old log-probabilities and critic values of the response tokens, before the update.

    Args:
        learner: learner; needs a critic if ``values``.
        sequences: rows whose ``values`` and ``old_logprobs`` are set; 0 at tokens that are not response tokens.
        batching: options of the forward passes.
        values: True to compute the critic's value before each token.
        old: True to compute the trainer's log-probabilities, in nats, for a sampler that rounds differently. The ratio of an iteration's
            first step is then 1, as it should be. The sampler's own log-probabilities are kept for comparison.

    Raises:
        NotFinite: a value or log-probability is NaN or infinite.
        ValueError: ``values`` is set and the learner has no critic.
    """
    if not values and not old:
        return
    for micro in sequence_micro_batches(sequences, *batching.rows, sharing=learner.sharing):
        outputs = learner.frozen(micro)
        if values:
            if outputs.values is None:
                raise ValueError("values need a critic: give the learner one")
            _write("values", outputs.values, micro, "the critic's values")
        if old:
            _write("old_logprobs", outputs.logprobs, micro, "the policy's log-probabilities of what it wrote")


def _write(name: str, said: Tensor, micro: SequenceMicroBatch, what: str) -> None:
    """Write one number per wanted token of a micro-batch into its rows."""
    require_finite(said, what)
    numbers = iter(said[micro.which].tolist())
    for sequence in (s for copies in micro.copies for s in copies):
        setattr(sequence, name, [next(numbers) if m else 0.0 for m in sequence.response_mask])


def accumulate(
    learner: Learner,
    micro: Any,
    terms: Sequence[Term],
    totals: Totals,
    stats: UpdateStats,
    most_loss: float = math.inf,
) -> None:
    """Add the gradient of the base loss over one micro-batch.

    Args:
        learner: learner that accumulates the gradient.
        micro: rows, a ``SequenceMicroBatch``.
        terms: terms of the base loss.
        totals: denominators of the optimizer step.
        stats: statistics to add to.
        most_loss: maximum absolute loss; a larger one is an error.
    """
    outputs = learner.forward(micro)
    require_finite(outputs.logprobs, "the policy's log-probabilities of what it wrote")
    given = torch.stack([micro.old_logprobs, micro.advantages, micro.weight])
    require_finite(given, "log-probabilities, advantages and weights of the sampled tokens")
    reference = _reference(learner, micro) if learner.has_reference else None
    stats.add(_agreement(outputs, micro))
    losses = []
    for term in terms:
        loss, figures = term(outputs, micro, totals, reference)
        stats.add(figures)
        if loss is not None:
            losses.append(loss)
    total = sum(losses[1:], losses[0])
    require_bounded(total.detach(), "the base loss", most_loss)
    learner.backward(total)


def _reference(learner: Learner, micro: MicroBatch) -> Reference:
    """Give the terms the reference's log-probabilities of a micro-batch."""

    def logprobs(part: MicroBatch | None = None) -> Tensor:
        return learner.reference(micro if part is None else part)

    return logprobs


def _agreement(outputs: Outputs, micro: SequenceMicroBatch) -> dict[str, float]:
    """Measure entropy and the sampler's log-probability difference, independent of the loss terms."""
    logprobs = outputs.logprobs.detach()[micro.which]
    gap = (logprobs - micro.sampled).abs()
    return {
        "tokens": len(logprobs),
        "entropy_sum": float(outputs.entropy[micro.which].sum()),
        "logprob_difference_sum": float(gap.sum()),
        "logprob_difference_max": float(gap.max()),
    }


@contextmanager
def _whole_or_not_at_all(
    learner: Learner, world: Communicator, loss: str, step: int, rows: Sequence[Any]
) -> Iterator[None]:
    """Drop the step on all ranks if one of them fails; a ``NotFinite`` error holds the rows of the batch."""
    try:
        with raise_on_any_rank(world):
            try:
                with _abandoned_on_error(learner):
                    yield
            except NotFinite as error:
                batch = {"loss": loss, "optimizer_step": step, "rows": [asdict(row) for row in rows]}
                raise NotFinite(f"{error} (optimizer step {step + 1} of the iteration)", batch) from error
    except BaseException:
        learner.discard()
        raise


@contextmanager
def _abandoned_on_error(learner: Learner) -> Iterator[None]:
    """Call ``Learner.abandon`` on an error: other ranks may wait in a collective backward pass."""
    try:
        yield
    except Exception:
        learner.abandon()
        raise
