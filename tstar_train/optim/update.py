"""One update: L = L_base + lambda * L_surgical over an iteration's rows and grafts (eq:hybrid_objective).

Losses are sums over micro-batches and ranks divided by whole-batch weights, so neither the size of a micro-batch nor the number of
ranks changes more than float rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tstar_train.engines.check import require_agreement
from tstar_train.finite import NotFinite, require_bounded, require_finite
from tstar_train.optim.batch import SequenceMicro, Step, Totals, pair_micros, sequence_micros
from tstar_train.optim.forward import Outputs
from tstar_train.optim.learner import Learner
from tstar_train.optim.stats import UpdateStats
from tstar_train.optim.terms import SurgicalTerm, Term
from tstar_train.rollout.types import TokenSequence
from tstar_train.world import World, together


class Batching(NamedTuple):
    """How rows are computed.

    Attributes:
        micro_tokens: most padded tokens at once; changes memory and float rounding, not the result.
        temperature: at which the rows were sampled, and so at which all log-probabilities are taken, those of the pairs too.
        pad: id of padding.
        device: of the learner's model.
        most_difference: see ``engines.check.require_agreement``.
        most_loss: beyond it a loss has exploded.
    """

    micro_tokens: int
    temperature: float
    pad: int
    device: torch.device
    most_difference: float = math.inf
    most_loss: float = math.inf

    @property
    def rows(self) -> tuple[int, float, int, torch.device]:
        """What ``sequence_micros`` and ``pair_micros`` take besides the rows."""
        return self.micro_tokens, self.temperature, self.pad, self.device


def update(
    learner: Learner,
    steps: Sequence[Step],
    terms: Sequence[Term],
    surgical: SurgicalTerm | None,
    world: World,
    *,
    factor: float,
    batching: Batching,
) -> UpdateStats:
    """The iteration's optimizer steps; all ranks call it with as many.

    Args:
        learner: takes them.
        steps: this rank's rows and pairs of each.
        terms: of the base loss.
        surgical: the term over pairs, None without one.
        world: the ranks.
        factor: of the learning rates.
        batching: how rows are computed.

    Returns:
        What was measured: on the first rank of all ranks together, on the others of their own part.

    Raises:
        NotFinite: a loss, log-probability or gradient is no number; that step is not taken, and the error holds its rows.
        EngineMismatch: sampler and trainer disagree about what was sampled; no step is taken.
    """
    measured, norms, before = [], [], learner.steps
    for number, step in enumerate(steps):
        totals = totals_of(step, world)
        stats = UpdateStats()
        with _whole_or_not_at_all(learner, world, "base", number, step.sequences):
            for micro in sequence_micros(needed(step.sequences, terms), *batching.rows, share=learner.shares):
                accumulate(learner, micro, terms, totals, stats, batching.most_loss)
            # Afterwards the policy has moved, and differs from the one that sampled.
            if learner.steps == before:
                require_agreement(stats.logprob_difference_max, batching.most_difference)
            learner.end_part("base")
        norm = {"base_gradient_norm": learner.reduce("base")}
        if totals.pairs and surgical is not None:
            with _whole_or_not_at_all(learner, world, "surgical", number, step.pairs):
                for pairs in pair_micros(step.pairs, *batching.rows, share=learner.shares):
                    loss, figures = surgical(
                        learner.forward(pairs), pairs, totals, partial(learner.reference, pairs)
                    )
                    require_bounded(loss.detach(), "the surgical loss", batching.most_loss)
                    learner.backward(loss)
                    stats.add(figures)
                learner.end_part("surgical")
            norm["surgical_gradient_norm"] = learner.reduce("surgical")
        norm["gradient_norm"] = learner.apply(factor)
        measured.append(stats)
        norms.append(norm)
    parts = world.gather(measured) or [measured]
    whole = [UpdateStats.combined(of_ranks) for of_ranks in zip(*parts, strict=True)]
    for stats, norm in zip(whole, norms, strict=True):
        stats.add(norm)
    return UpdateStats.mean(whole)


def totals_of(step: Step, world: World) -> Totals:
    """What the step's losses are divided by, over all ranks; at least 1, so that a step without rows has a loss of 0."""
    counts = [step.weight, float(sum(s.own_tokens for s in step.sequences)), float(len(step.pairs))]
    weight, tokens, pairs = world.sum(torch.tensor(counts, dtype=torch.float64)).tolist()
    return Totals(weight or 1.0, tokens or 1.0, pairs)


def needed(sequences: Sequence[TokenSequence], terms: Sequence[Term]) -> list[TokenSequence]:
    """The rows that have to be computed: those of groups of equal rewards count in the mean, but have no gradient."""
    return [s for s in sequences if any(term.needs(s) for term in terms)]


def annotate(
    learner: Learner, sequences: Sequence[TokenSequence], batching: Batching, *, values: bool, old: bool
) -> None:
    """Write down how policy and critic see each of the policy's tokens before the update.

    Args:
        learner: with a critic, where values are asked for.
        sequences: their ``values`` and ``old`` are written, 0 at what the policy did not write.
        batching: how rows are computed.
        values: what the critic says before each token.
        old: log-probabilities, in nats: those of the trainer where the sampler's are rounded otherwise. The ratio of an iteration's first
            step is then 1, as it should be, and what the sampler said stays to be compared with.

    Raises:
        NotFinite: a value or log-probability is no number.
        ValueError: values are asked for and there is no critic.
    """
    if not values and not old:
        return
    for micro in sequence_micros(sequences, *batching.rows, share=learner.shares):
        outputs = learner.frozen(micro)
        if values:
            if outputs.values is None:
                raise ValueError("values need a critic: give the learner one")
            _write("values", outputs.values, micro, "the critic's values")
        if old:
            _write("old", outputs.logprobs, micro, "the policy's log-probabilities of what it wrote")


def _write(name: str, said: Tensor, micro: SequenceMicro, what: str) -> None:
    """Put a number for each of a micro-batch's wanted tokens into its rows."""
    require_finite(said, what)
    numbers = iter(said[micro.which].tolist())
    for sequence in (s for copies in micro.copies for s in copies):
        setattr(sequence, name, [next(numbers) if m else 0.0 for m in sequence.mask])


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
        learner: accumulates it.
        micro: rows, a ``SequenceMicro``.
        terms: of the loss.
        totals: of the optimizer step.
        stats: what is measured is added to it.
        most_loss: beyond it a loss has exploded.
    """
    outputs = learner.forward(micro)
    require_finite(outputs.logprobs, "the policy's log-probabilities of what it wrote")
    given = torch.stack([micro.old, micro.advantages, micro.weight])
    require_finite(given, "log-probabilities, advantages and weights of the sampled tokens")
    reference = partial(learner.reference, micro) if learner.has_reference else None
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


def _agreement(outputs: Outputs, micro: SequenceMicro) -> dict[str, float]:
    """The policy's entropy, and how far the sampler was from the trainer: measured whatever the terms of the loss are."""
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
    learner: Learner, world: World, loss: str, step: int, rows: Sequence[Any]
) -> Iterator[None]:
    """What is no number on one rank ends the step on all, and comes with the rows that it was computed from."""
    try:
        with together(world):
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
    """Whose backward passes are calls that all ranks make together must hear that one of them will make no more."""
    try:
        yield
    except Exception:
        learner.abandon()
        raise
