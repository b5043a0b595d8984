"""Imitation training: cross-entropy on the expert's tokens, with a schedule fixed in steps so that it can be repeated."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tstar_train.finite import NotFinite
from tstar_train.policy.head import output_logits
from tstar_train.recipes.warm_start import ImitationSchedule
from tstar_train.warmstart.demonstrations import Row


def batches_of(rows: Sequence[Row], schedule: ImitationSchedule) -> list[list[Row]]:
    """Rows in batches of ``schedule.batch``, shortest first: padding is computed for nothing, so similar lengths share a batch."""
    length: Callable[[Row], int] = {
        "row": lambda r: len(r.ids),
        "context": lambda r: len(r.ids) - sum(r.mask),
    }[schedule.alike]
    ordered = sorted(rows, key=length)
    return [ordered[i : i + schedule.batch] for i in range(0, len(ordered), schedule.batch)]


def pad_rows(rows: Sequence[Row], pad: int) -> tuple[Tensor, Tensor]:
    """Ids and masks as tensors of shape (rows, longest), padded on the right."""
    longest = max(len(r.ids) for r in rows)
    ids = torch.tensor([r.ids + [pad] * (longest - len(r.ids)) for r in rows])
    mask = torch.tensor([r.mask + [0] * (longest - len(r.ids)) for r in rows], dtype=torch.bool)
    return ids, mask


def imitation_loss(model: PreTrainedModel, ids: Tensor, mask: Tensor) -> Tensor:
    """Mean cross-entropy, in nats per masked token; the output matrix is applied to masked positions only."""
    # Padding stands on the right, so causal attention needs no mask.
    hidden = model.base_model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
    wanted = mask[:, 1:]
    return torch.nn.functional.cross_entropy(output_logits(model, hidden[wanted]), ids[:, 1:][wanted])


def optimizers(model: PreTrainedModel, schedule: ImitationSchedule) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the layers, AdamW for everything else."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    chosen = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in chosen]
    return [
        torch.optim.Muon(matrices, lr=schedule.matrix_rate, weight_decay=0.0),
        torch.optim.AdamW(others, lr=schedule.other_rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def imitate(
    model: PreTrainedModel,
    rows: Iterator[Row],
    schedule: ImitationSchedule,
    pad: int,
    report: Callable[[int, float, float], None],
    every: int = 200,
    average: Callable[[PreTrainedModel], None] | None = None,
    told: Callable[[int], None] = lambda step: None,
) -> int:
    """Train a policy in place by imitation.

    Args:
        model: changed in place.
        rows: endless demonstrations.
        schedule: steps, batch and rates.
        pad: padding id.
        report: called every ``every`` steps, and at the end, with the step, the mean loss since the last call and the CPU seconds so far.
        every: see ``report``.
        average: makes the gradients the mean over processes, where there are several.
        told: called after every step with its number, from 1.

    Returns:
        the number of updates.

    Raises:
        NotFinite: a loss or gradient is no number; the weights are those of before that update, and it holds the batch.
    """
    optimizer_list = optimizers(model, schedule)
    peaks = [[g["lr"] for g in o.param_groups] for o in optimizer_list]
    started, total, summed = time.process_time(), 0.0, 0
    model.train()
    for step in itertools.count():
        factor = schedule.rate(step, time.process_time() - started)
        if factor <= 0:
            break
        if step % 8 == 0:
            batches = batches_of([next(rows) for _ in range(8 * schedule.batch)], schedule)
        ids, mask = pad_rows(batches[step * 5 % 8], pad)
        for optimizer, rates in zip(optimizer_list, peaks, strict=True):
            for group, peak in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = peak * factor
        loss = imitation_loss(model, ids, mask)
        loss.backward()
        if average is not None:
            average(model)
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        if not (math.isfinite(norm) and math.isfinite(loss.item())):
            batch = {"update": step + 1, "rows": [asdict(row) for row in batches[step * 5 % 8]]}
            raise NotFinite(
                f"update {step + 1} of the imitation has a loss of {loss.item()} and a gradient of norm {norm}",
                batch,
            )
        for optimizer in optimizer_list:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        total, summed = total + loss.item(), summed + 1
        told(step + 1)
        if (step + 1) % every == 0:
            report(step + 1, total / summed, time.process_time() - started)
            total, summed = 0.0, 0
    if summed:
        report(step, total / summed, time.process_time() - started)
    model.eval()
    return step
