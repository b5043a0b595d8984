"""What an iteration's update is computed from: rows of tokens and preference pairs, dealt over its optimizer steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tstar_train.grafting.graft import Graft
from tstar_train.optim.branches import Chunk, chunks_of, micro_batches
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
    """The totals over all ranks' parts of an optimizer step, which its losses are divided by.

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
    return [
        Step([s for copies in distinct[k::steps] for s in copies], list(pairs[k::steps]))
        for k in range(steps)
    ]


def alike(sequences: Sequence[TokenSequence]) -> list[list[TokenSequence]]:
    """Sequences with the same ids and own tokens together, in order of first appearance."""
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], list[TokenSequence]] = {}
    for sequence in sequences:
        found.setdefault((tuple(sequence.ids), tuple(sequence.mask)), []).append(sequence)
    return list(found.values())


@dataclass
class Beginnings:
    """What several rows of a micro-batch begin with; each of those rows starts with the last token of it.

    Attributes:
        ids: shape (beginnings, longest), padded on the right.
        wanted: bool, that shape, as of a ``Micro``; these come before those of the rows.
        lengths: how many tokens stand before the rows' first, shape (beginnings,).
        of: the beginning of each row, shape (rows,).
    """

    ids: Tensor
    wanted: Tensor
    lengths: Tensor
    of: Tensor


@dataclass
class Micro:
    """Rows that are computed at once.

    Attributes:
        ids: shape (rows, longest), padded on the right, so that no attention mask is needed.
        wanted: bool, the same shape: the tokens whose log-probabilities are asked for; never the first of a row.
        temperature: of the distribution.
        beginnings: what rows begin with besides; None if every row is whole.
    """

    ids: Tensor
    wanted: Tensor
    temperature: float = 1.0
    beginnings: Beginnings | None = None


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
    """Preference pairs: two replies to one context each.

    Attributes:
        owner: for each wanted token whose it is, shape (wanted tokens,): the preferred replies come first, then the rejected ones.
        pairs: how many there are, half of the rows.
    """

    owner: Tensor = field(default_factory=lambda: torch.empty(0))
    pairs: int = 0


def sequence_micros(
    sequences: Sequence[TokenSequence],
    most_tokens: int,
    temperature: float,
    pad: int,
    device: torch.device,
    *,
    share: bool = True,
) -> Iterator[SequenceMicro]:
    """Rows in micro-batches, which change memory and float rounding, not the result.

    Args:
        sequences: the rows.
        most_tokens: most padded tokens at once.
        temperature: of the distribution.
        pad: id of padding.
        device: of the tensors.
        share: whether rows may be branches of a beginning that they have in common.
    """
    distinct = alike(sequences)
    # What is wanted is a part of the symbol: a shared token is the policy's own in all rows or in none.
    symbols = [[2 * i + m for i, m in zip(copies[0].ids, copies[0].mask, strict=True)] for copies in distinct]
    chunks = chunks_of(symbols, most_tokens) if share else [Chunk((i,), 0) for i in range(len(distinct))]
    for number, batch in enumerate(micro_batches(chunks, list(map(len, symbols)), most_tokens)):
        part = [distinct[i] for chunk in batch for i in chunk.rows]
        ids, wanted, beginnings = _laid_out(
            [(copies[0].ids, copies[0].mask) for copies in part], batch, pad, device
        )
        every = [s for copies in part for s in copies]
        yield SequenceMicro(
            ids,
            wanted,
            temperature,
            beginnings,
            _places(part, batch).to(device),
            old=_own_values(every, [s.old or s.logprobs for s in every], device),
            sampled=_own_values(every, [s.logprobs for s in every], device),
            advantages=_own_values(every, [s.advantages for s in every], device),
            weight=_own_values(every, [[s.weight] * len(s.ids) for s in every], device),
            old_values=_own_values(every, [s.values or [0.0] * len(s.ids) for s in every], device),
            returns=_own_values(every, [s.returns or [0.0] * len(s.ids) for s in every], device),
            copies=part,
            first=number == 0,
        )


def pair_micros(
    pairs: Sequence[Graft],
    most_tokens: int,
    temperature: float,
    pad: int,
    device: torch.device,
    *,
    share: bool = True,
) -> Iterator[PairMicro]:
    """Preference pairs in micro-batches, the two of a pair in the same one; arguments as of ``sequence_micros``."""
    spans = [(g.context, reply) for g in pairs for reply in (g.rectified, g.rejected)]
    rows = [([*context, *reply], [0] * len(context) + [1] * len(reply)) for context, reply in spans]
    chunks = []
    for number, g in enumerate(pairs):
        shorter, longer = sorted((2 * number, 2 * number + 1), key=lambda i: len(rows[i][0]))
        chunks.append(Chunk((shorter, longer), len(g.context) if share and len(g.context) > 1 else 0))
    for batch in micro_batches(chunks, [len(ids) for ids, _ in rows], most_tokens):
        order = [i for chunk in batch for i in chunk.rows]
        ids, wanted, beginnings = _laid_out([rows[i] for i in order], batch, pad, device)
        place = {chunk.rows[0] // 2: n for n, chunk in enumerate(batch)}
        # The preferred ones first.
        owners = torch.tensor([place[i // 2] + len(batch) * (i % 2) for i in order], device=device)
        yield PairMicro(
            ids,
            wanted,
            temperature,
            beginnings,
            owner=owners[:, None].expand_as(wanted)[wanted],
            pairs=len(batch),
        )


def _laid_out(
    rows: Sequence[tuple[Sequence[int], Sequence[int]]],
    batch: Sequence[Chunk],
    pad: int,
    device: torch.device,
) -> tuple[Tensor, Tensor, Beginnings | None]:
    """Ids, wanted tokens and beginnings of the rows of a batch's chunks."""
    if not batch[0].shared:
        return *_padded(rows, pad, device), None
    owner = [n for n, chunk in enumerate(batch) for _ in chunk.rows]
    shared = [chunk.shared for chunk in batch]
    heads = {n: (ids[: shared[n]], mask[: shared[n]]) for n, (ids, mask) in zip(owner, rows, strict=True)}
    # The first token of a branch is only an input: it is predicted as the last token of the shared beginning.
    branches = [
        (ids[shared[n] - 1 :], [0, *mask[shared[n] :]]) for n, (ids, mask) in zip(owner, rows, strict=True)
    ]
    ids, wanted = _padded([heads[n] for n in range(len(batch))], pad, device)
    lengths, of = torch.tensor(shared, device=device) - 1, torch.tensor(owner, device=device)
    return *_padded(branches, pad, device), Beginnings(ids, wanted, lengths, of)


def _padded(
    rows: Sequence[tuple[Sequence[int], Sequence[int]]], pad: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Ids and marked tokens, shape (rows, longest)."""
    longest = max(len(ids) for ids, _ in rows)
    ids = torch.tensor([[*ids, *[pad] * (longest - len(ids))] for ids, _ in rows], device=device)
    mask = torch.tensor(
        [[*mask, *[0] * (longest - len(mask))] for _, mask in rows], dtype=torch.bool, device=device
    )
    return ids, mask


def _places(part: Sequence[Sequence[TokenSequence]], batch: Sequence[Chunk]) -> Tensor:
    """The place of each own token of every copy of every row among the wanted ones: those of beginnings first, then those of rows.

    Shape (own tokens of all copies,).
    """
    rows = iter(part)
    members = [[next(rows) for _ in chunk.rows] for chunk in batch]
    inside = [sum(row[0][0].mask[: chunk.shared]) for row, chunk in zip(members, batch, strict=True)]
    places, begun, first = [], 0, sum(inside)
    for row, shared in zip(members, inside, strict=True):
        for copies in row:
            own = copies[0].own_tokens - shared
            places += [torch.arange(begun, begun + shared), torch.arange(first, first + own)] * len(copies)
            first += own
        begun += shared
    return torch.cat(places)


def _own_values(
    sequences: Sequence[TokenSequence], values: Sequence[Sequence[float]], device: torch.device
) -> Tensor:
    """What stands at the policy's own tokens, shape (own tokens of all sequences,)."""
    own = [v for s, row in zip(sequences, values, strict=True) for v, m in zip(row, s.mask, strict=True) if m]
    return torch.tensor(own, dtype=torch.float32, device=device)
