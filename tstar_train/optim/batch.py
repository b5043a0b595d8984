"""What an iteration's update is computed from: rows of tokens and preference pairs, dealt over its optimizer steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tstar_train.grafting.graft import Graft
from tstar_train.rollout.types import TokenSequence


@dataclass
class Step:
    """What one optimizer step is computed from, this rank's part.

    Attributes:
        sequences: rows of the base loss.
        pairs: grafts of the surgical loss.
    """

    sequences: list[TokenSequence] = field(default_factory=list)
    pairs: list[Graft] = field(default_factory=list)

    @property
    def weight(self) -> float:
        """Summed weights of the policy's own tokens, this rank's part of what the base loss is divided by."""
        return sum(s.weight * s.own_tokens for s in self.sequences)


@dataclass(frozen=True)
class Totals:
    """Of all ranks' parts of an optimizer step: what its losses are divided by.

    Attributes:
        weight: summed weights of the policy's own tokens.
        tokens: the policy's own tokens.
        pairs: preference pairs.
    """

    weight: float
    tokens: float
    pairs: float


def dealt_steps(sequences: Sequence[TokenSequence], pairs: Sequence[Graft], steps: int) -> list[Step]:
    """An iteration's rows and pairs for each of its optimizer steps, in turn; rows with the same ids go to the same one."""
    distinct = alike(sequences)
    return [Step([s for copies in distinct[k::steps] for s in copies], list(pairs[k::steps])) for k in range(steps)]


def alike(sequences: Sequence[TokenSequence]) -> list[list[TokenSequence]]:
    """Sequences with the same ids and own tokens together, in order of first appearance."""
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], list[TokenSequence]] = {}
    for sequence in sequences:
        found.setdefault((tuple(sequence.ids), tuple(sequence.mask)), []).append(sequence)
    return list(found.values())


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


@dataclass
class Micro:
    """Rows that are computed at once.

    Attributes:
        ids: shape (rows, longest), padded on the right, so that no attention mask is needed.
        wanted: bool, the same shape: the tokens whose log-probabilities are asked for; never the first of a row.
        temperature: of the distribution.
    """

    ids: Tensor
    wanted: Tensor
    temperature: float = 1.0


@dataclass
class SequenceMicro(Micro):
    """Rows of the base loss. Rows with the same ids are computed once, and each copy gives its own loss: members of a group often say
    the same in the same state (two thirds of the rows of a Sokoban group).

    Attributes:
        which: for each own token of every copy of every row its place among the wanted tokens, shape (own tokens of all copies,).
        old: log-probabilities before the update, in nats, that shape; so are the following.
        sampled: as the sampler saw them; the same where it computes as the trainer does.
        advantages: of the tokens.
        weight: of the tokens in the weighted mean that is the loss.
        old_values: what the critic said before the update; 0 where there is none.
        returns: what it should have said.
        copies: the rows, each with all that share its ids.
        first: whether this is the step's first micro-batch.
    """

    which: Tensor = field(default_factory=lambda: torch.empty(0))
    old: Tensor = field(default_factory=lambda: torch.empty(0))
    sampled: Tensor = field(default_factory=lambda: torch.empty(0))
    advantages: Tensor = field(default_factory=lambda: torch.empty(0))
    weight: Tensor = field(default_factory=lambda: torch.empty(0))
    old_values: Tensor = field(default_factory=lambda: torch.empty(0))
    returns: Tensor = field(default_factory=lambda: torch.empty(0))
    copies: list[list[TokenSequence]] = field(default_factory=list)
    first: bool = False


@dataclass
class PairMicro(Micro):
    """Preference pairs: the contexts with the preferred thoughts, then the same contexts with the rejected ones.

    Attributes:
        owner: for each wanted token its row, shape (wanted tokens,).
        pairs: how many there are, half of the rows.
    """

    owner: Tensor = field(default_factory=lambda: torch.empty(0))
    pairs: int = 0


def sequence_micros(
    sequences: Sequence[TokenSequence], most_tokens: int, temperature: float, pad: int, device: torch.device
) -> Iterator[SequenceMicro]:
    """Rows in micro-batches of at most ``most_tokens`` padded tokens, which change memory and float rounding, not the result."""
    distinct = alike(sequences)
    for number, batch in enumerate(micro_batches([len(copies[0].ids) for copies in distinct], most_tokens)):
        part = [distinct[i] for i in batch]
        ids, mask = _padded([(copies[0].ids, copies[0].mask) for copies in part], pad, device)
        every = [s for copies in part for s in copies]
        yield SequenceMicro(
            ids, mask, temperature, _places(part).to(device),
            old=_own_values(every, [s.old or s.logprobs for s in every], device),
            sampled=_own_values(every, [s.logprobs for s in every], device),
            advantages=_own_values(every, [s.advantages for s in every], device),
            weight=_own_values(every, [[s.weight] * len(s.ids) for s in every], device),
            old_values=_own_values(every, [s.values or [0.0] * len(s.ids) for s in every], device),
            returns=_own_values(every, [s.returns or [0.0] * len(s.ids) for s in every], device),
            copies=part, first=number == 0,
        )  # fmt: skip


def pair_micros(
    pairs: Sequence[Graft], most_tokens: int, temperature: float, pad: int, device: torch.device
) -> Iterator[PairMicro]:
    """Preference pairs in micro-batches of at most ``most_tokens`` padded tokens."""
    for batch in micro_batches([len(g.context) + max(len(g.rectified), len(g.rejected)) for g in pairs], most_tokens // 2):
        part = [pairs[i] for i in batch]
        spans = [(g.context, g.rectified) for g in part] + [(g.context, g.rejected) for g in part]
        ids, wanted, owner = spans_padded(spans, pad, device)
        yield PairMicro(ids, wanted, temperature, owner=owner, pairs=len(part))


def spans_padded(spans: Sequence[tuple[list[int], list[int]]], pad: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """(ids, wanted, owner of each wanted token) of continuations after their contexts."""
    ids, wanted = _padded([([*c, *t], [0] * len(c) + [1] * len(t)) for c, t in spans], pad, device)
    owner = torch.arange(len(spans), device=device)[:, None].expand_as(wanted)[wanted]
    return ids, wanted, owner


def _padded(rows: Sequence[tuple[Sequence[int], Sequence[int]]], pad: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids and marked tokens, shape (rows, longest)."""
    longest = max(len(ids) for ids, _ in rows)
    ids = torch.tensor([[*ids, *[pad] * (longest - len(ids))] for ids, _ in rows], device=device)
    mask = torch.tensor([[*mask, *[0] * (longest - len(mask))] for _, mask in rows], dtype=torch.bool, device=device)
    return ids, mask


def _places(part: Sequence[Sequence[TokenSequence]]) -> Tensor:
    """For each own token of every copy of every row: its place among the own tokens of the rows, shape (own tokens of all copies,)."""
    places, first = [], 0
    for copies in part:
        count = copies[0].own_tokens
        places += [torch.arange(first, first + count)] * len(copies)
        first += count
    return torch.cat(places)


def _own_values(sequences: Sequence[TokenSequence], values: Sequence[Sequence[float]], device: torch.device) -> Tensor:
    """What stands at the policy's own tokens, shape (own tokens of all sequences,)."""
    own = [v for s, row in zip(sequences, values, strict=True) for v, m in zip(row, s.mask, strict=True) if m]
    return torch.tensor(own, dtype=torch.float32, device=device)
