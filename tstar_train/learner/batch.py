"""MicroBatch-batches, shared prefixes, and the forward pass over them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache

from tstar_train.policy.critic import Critic
from tstar_train.policy.kv import BranchCache, attention_mask, common_prefix, output_logits, position_limit
from tstar_train.types import Graft, TokenSequence

# A row's copy of the keys and values of a beginning's token takes this share of what is kept of a token that is computed: 2 to 2.5 times
# the hidden size of 22 times or more.
COPIED = 0.125


class Chunk(NamedTuple):
    """Rows that are computed side by side as branches of one beginning.

    Attributes:
        rows: their numbers, by rising length.
        shared: tokens that all of them begin with, at least 2 and fewer than any of them has; 0 if each is computed by itself.
    """

    rows: tuple[int, ...]
    shared: int


def chunks_of(rows: Sequence[Sequence[int]], most_tokens: int) -> list[Chunk]:
    """Deal rows over chunks so that few tokens are computed in all.

    Args:
        rows: symbols, which are equal where tokens may be shared.
        most_tokens: see ``micro_batches``.
    """
    return [
        chunk for members, shared in clusters_of(rows) for chunk in _cut(rows, members, shared, most_tokens)
    ]


def clusters_of(rows: Sequence[Sequence[int]]) -> list[tuple[list[int], int]]:
    """(rows, tokens that all of them begin with) of the partition for which the fewest tokens are computed.

    A tree whose inner nodes are the places where rows part: some of these become beginnings, and a row belongs to the last of them that it
    passes. Whether a node should be one depends on what is below it and on how many tokens the last beginning above it has.
    """
    if len(rows) < 2:
        return [([i], 0) for i in range(len(rows))]
    nodes = _parted(rows)
    # Of which lengths the last beginning above may be; 1 is none.
    above: list[list[int]] = [[1] for _ in nodes]
    for number in reversed(range(len(nodes))):
        shared, below = nodes[number]
        for n in below:
            if n >= 0:
                above[n] = [*above[number], shared] if shared > 1 else above[number]
    best: list[
        dict[int, tuple[int, bool]]
    ] = []  # by that length: tokens computed at and below a node, whether it is a beginning

    def cost(node: int, begun: int) -> int:
        return len(rows[-1 - node]) - begun if node < 0 else best[node][begun][0]

    for (shared, below), lengths in zip(nodes, above, strict=True):
        own = shared - 1 + sum(cost(n, shared) for n in below) if shared > 1 else None
        plain = {begun: sum(cost(n, begun) for n in below) for begun in lengths}
        best.append({b: (p, False) if own is None or p <= own else (own, True) for b, p in plain.items()})

    # By the number of the node that is the beginning; -1 is none.
    found: dict[int, list[int]] = defaultdict(list)
    rest = [(len(nodes) - 1, -1)]
    while rest:
        node, beginning = rest.pop()
        if node < 0:
            found[beginning].append(-1 - node)
            continue
        if best[node][nodes[beginning][0] if beginning >= 0 else 1][1]:
            beginning = node
        rest += [(n, beginning) for n in nodes[node][1]]
    return [(members, nodes[beginning][0] if beginning >= 0 else 0) for beginning, members in found.items()]


def _parted(rows: Sequence[Sequence[int]]) -> list[tuple[int, list[int]]]:
    """(tokens shared by all rows below, nodes below) of every place where rows part, the root last; what is below 0 is the row -1 - it."""
    order = sorted(range(len(rows)), key=lambda i: tuple(rows[i]))
    nodes: list[tuple[int, list[int]]] = []
    open_ones: list[tuple[int, list[int]]] = []  # the path to the last row, from the root on

    def closed(last: int) -> int:
        open_ones[-1][1].append(last)
        nodes.append(open_ones.pop())
        return len(nodes) - 1

    last = -1 - order[0]
    for one, other in pairwise(order):
        # Each keeps a token of its own.
        shared = min(common_prefix(rows[one], rows[other]), len(rows[one]) - 1, len(rows[other]) - 1)
        while open_ones and open_ones[-1][0] > shared:
            last = closed(last)
        if open_ones and open_ones[-1][0] == shared:
            open_ones[-1][1].append(last)
        else:
            open_ones.append((shared, [last]))
        last = -1 - other
    while open_ones:
        last = closed(last)
    return nodes


def micro_batches(chunks: Sequence[Chunk], lengths: Sequence[int], most_tokens: int) -> Iterator[list[Chunk]]:
    """Chunks of similar length together, with beginnings in all of a batch or in none.

    A batch has at most ``most_tokens`` padded tokens, or is a single chunk.

    Args:
        chunks: to be computed.
        lengths: of all rows.
        most_tokens: that are computed at once; what of beginnings is copied for each row counts for as much as it takes (``COPIED``).
    """
    batch: list[Chunk] = []
    # Whole rows come first and do not mix with branches: a row without a beginning would have one of padding.
    for chunk in sorted(
        chunks, key=lambda c: (c.shared > 0, _fed(lengths[c.rows[-1]], c.shared), c.shared, c.rows)
    ):
        if batch and (
            (chunk.shared > 0) != (batch[0].shared > 0) or not _fit([*batch, chunk], lengths, most_tokens)
        ):
            yield batch
            batch = []
        batch.append(chunk)
    if batch:
        yield batch


def _fed(length: int, shared: int) -> int:
    """Tokens of a row that are fed for it alone: the last shared one is fed again, since what follows it differs."""
    return length - max(0, shared - 1)


def _fit(batch: Sequence[Chunk], lengths: Sequence[int], most_tokens: int) -> bool:
    shared, rows = max(chunk.shared for chunk in batch), sum(len(chunk.rows) for chunk in batch)
    longest = max(_fed(lengths[chunk.rows[-1]], chunk.shared) for chunk in batch)
    return _fits(len(batch), shared, rows, longest, most_tokens)


def _fits(beginnings: int, shared: int, rows: int, longest: int, most_tokens: int) -> bool:
    return beginnings * shared + rows * longest + COPIED * rows * shared <= most_tokens


def _cut(rows: Sequence[Sequence[int]], members: Sequence[int], shared: int, most_tokens: int) -> list[Chunk]:
    """Cut a cluster into chunks with little padding: the partition of its sorted rows with the fewest tokens."""
    members = sorted(members, key=lambda i: (len(rows[i]), i))
    if not shared:
        return [Chunk((i,), 0) for i in members]
    own = [_fed(len(rows[i]), shared) for i in members]
    best: list[tuple[int, int]] = [(0, 0)]  # (tokens, where the last chunk begins) of the first so many rows
    for end in range(1, len(members) + 1):
        options = []
        for start in range(end - 1, -1, -1):
            count, longest = end - start, own[end - 1]
            if count > 1 and not _fits(1, shared, count, longest, most_tokens):
                break
            options.append((best[start][0] + shared + count * longest, start))
        best.append(min(options))
    found, end = [], len(members)
    while end:
        start = best[end][1]
        found.append(Chunk(tuple(members[start:end]), shared if end - start > 1 else 0))
        end = start
    return found


@dataclass
class Step:
    """Minibatch of one optimizer step, this rank's part.

    Attributes:
        sequences: rows of the base loss.
        pairs: grafts of the surgical loss.
    """

    sequences: list[TokenSequence] = field(default_factory=list)
    pairs: list[Graft] = field(default_factory=list)

    @property
    def weight(self) -> float:
        """Summed weights of the policy's own tokens, this rank's part of what the base loss is divided by."""
        return sum(s.weight * s.num_response_tokens for s in self.sequences)


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


def split_minibatches(sequences: Sequence[TokenSequence], pairs: Sequence[Graft], steps: int) -> list[Step]:
    """Split an iteration's rows and pairs into minibatches; rows with equal ids stay together."""
    distinct = deduplicate(sequences)
    return [
        Step([s for copies in distinct[k::steps] for s in copies], list(pairs[k::steps]))
        for k in range(steps)
    ]


def deduplicate(sequences: Sequence[TokenSequence]) -> list[list[TokenSequence]]:
    """Sequences with the same ids and own tokens together, in order of first appearance."""
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], list[TokenSequence]] = {}
    for sequence in sequences:
        found.setdefault((tuple(sequence.ids), tuple(sequence.response_mask)), []).append(sequence)
    return list(found.values())


@dataclass
class SharedPrefixes:
    """Shared prefixes of the rows of a micro-batch; each row starts with its prefix's last token.

    Attributes:
        ids: shape (beginnings, longest), padded on the right.
        wanted: bool, that shape, as of a ``MicroBatch``; these come before those of the rows.
        lengths: how many tokens stand before the rows' first, shape (beginnings,).
        of: the beginning of each row, shape (rows,).
    """

    ids: Tensor
    wanted: Tensor
    lengths: Tensor
    of: Tensor


@dataclass
class MicroBatch:
    """Rows that are computed at once.

    Attributes:
        ids: shape (rows, longest), padded on the right, so that no attention mask is needed.
        wanted: bool, the same shape: tokens whose log-probabilities are needed; never the first of a row.
        temperature: of the distribution.
        beginnings: what rows begin with besides; None if every row is whole.
    """

    ids: Tensor
    wanted: Tensor
    temperature: float = 1.0
    beginnings: SharedPrefixes | None = None


@dataclass
class SequenceMicroBatch(MicroBatch):
    """Rows of the base loss. Rows with the same ids are computed once, and each copy gives its own loss: members of a group often say
    the same in the same state (two thirds of the rows of a Sokoban group).

    Attributes:
        which: for each own token of every copy of every row its place among the wanted tokens, shape (own tokens of all copies,).
        old_logprobs: log-probabilities before the update, in nats, that shape; so are the following.
        sampled: as the sampler saw them; the same where it computes as the trainer does.
        advantages: of the tokens.
        weight: of the tokens in the weighted mean that is the loss.
        old_values: what the critic said before the update; 0 where there is none.
        returns: what it should have said.
        copies: the rows, each with all that share its ids.
        first: whether this is the step's first micro-batch.
    """

    which: Tensor = field(default_factory=lambda: torch.empty(0))
    old_logprobs: Tensor = field(default_factory=lambda: torch.empty(0))
    sampled: Tensor = field(default_factory=lambda: torch.empty(0))
    advantages: Tensor = field(default_factory=lambda: torch.empty(0))
    weight: Tensor = field(default_factory=lambda: torch.empty(0))
    old_values: Tensor = field(default_factory=lambda: torch.empty(0))
    returns: Tensor = field(default_factory=lambda: torch.empty(0))
    copies: list[list[TokenSequence]] = field(default_factory=list)
    first: bool = False


@dataclass
class PairMicroBatch(MicroBatch):
    """Preference pairs: two replies to one context each.

    Attributes:
        owner: for each wanted token whose it is, shape (wanted tokens,): the preferred replies come first, then the rejected ones.
        pairs: how many there are, half of the rows.
    """

    owner: Tensor = field(default_factory=lambda: torch.empty(0))
    pairs: int = 0


def sequence_micro_batches(
    sequences: Sequence[TokenSequence],
    most_tokens: int,
    temperature: float,
    pad: int,
    device: torch.device,
    *,
    share: bool = True,
) -> Iterator[SequenceMicroBatch]:
    """Rows in micro-batches, which change memory and float rounding, not the result.

    Args:
        sequences: the rows.
        most_tokens: most padded tokens at once.
        temperature: of the distribution.
        pad: id of padding.
        device: of the tensors.
        share: whether rows may be branches of a beginning that they have in common.
    """
    distinct = deduplicate(sequences)
    # What is wanted is a part of the symbol: a shared token is the policy's own in all rows or in none.
    symbols = [
        [2 * i + m for i, m in zip(copies[0].ids, copies[0].response_mask, strict=True)]
        for copies in distinct
    ]
    chunks = chunks_of(symbols, most_tokens) if share else [Chunk((i,), 0) for i in range(len(distinct))]
    for number, batch in enumerate(micro_batches(chunks, list(map(len, symbols)), most_tokens)):
        part = [distinct[i] for chunk in batch for i in chunk.rows]
        ids, wanted, beginnings = _laid_out(
            [(copies[0].ids, copies[0].response_mask) for copies in part], batch, pad, device
        )
        every = [s for copies in part for s in copies]
        yield SequenceMicroBatch(
            ids,
            wanted,
            temperature,
            beginnings,
            _places(part, batch).to(device),
            old_logprobs=_own_values(every, [s.old_logprobs or s.logprobs for s in every], device),
            sampled=_own_values(every, [s.logprobs for s in every], device),
            advantages=_own_values(every, [s.advantages for s in every], device),
            weight=_own_values(every, [[s.weight] * len(s.ids) for s in every], device),
            old_values=_own_values(every, [s.values or [0.0] * len(s.ids) for s in every], device),
            returns=_own_values(every, [s.returns or [0.0] * len(s.ids) for s in every], device),
            copies=part,
            first=number == 0,
        )


def pair_micro_batches(
    pairs: Sequence[Graft],
    most_tokens: int,
    temperature: float,
    pad: int,
    device: torch.device,
    *,
    share: bool = True,
) -> Iterator[PairMicroBatch]:
    """Preference pairs in micro-batches, the two of a pair in the same one; arguments as of ``sequence_micro_batches``."""
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
        yield PairMicroBatch(
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
) -> tuple[Tensor, Tensor, SharedPrefixes | None]:
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
    return *_padded(branches, pad, device), SharedPrefixes(ids, wanted, lengths, of)


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
    """Map each response token of every row copy to its index among the wanted tokens: prefixes first, then rows.

    Shape (own tokens of all copies,).
    """
    rows = iter(part)
    members = [[next(rows) for _ in chunk.rows] for chunk in batch]
    inside = [sum(row[0][0].response_mask[: chunk.shared]) for row, chunk in zip(members, batch, strict=True)]
    places, begun, first = [], 0, sum(inside)
    for row, shared in zip(members, inside, strict=True):
        for copies in row:
            own = copies[0].num_response_tokens - shared
            places += [torch.arange(begun, begun + shared), torch.arange(first, first + own)] * len(copies)
            first += own
        begun += shared
    return torch.cat(places)


def _own_values(
    sequences: Sequence[TokenSequence], values: Sequence[Sequence[float]], device: torch.device
) -> Tensor:
    """Select the values at response tokens, shape (response tokens of all sequences,)."""
    own = [
        v
        for s, row in zip(sequences, values, strict=True)
        for v, m in zip(row, s.response_mask, strict=True)
        if m
    ]
    return torch.tensor(own, dtype=torch.float32, device=device)


@dataclass
class Outputs:
    """Outputs for the wanted tokens of a micro-batch, those of beginnings first, in row-major order; each of shape (wanted tokens,).

    Attributes:
        logprobs: at the micro-batch's temperature, in nats.
        entropy: of the distributions that they are from, in nats; without a gradient.
        values: of a critic before each token, in units of reward; None without one.
    """

    logprobs: Tensor
    entropy: Tensor
    values: Tensor | None = None


def forward(model: PreTrainedModel, micro: MicroBatch, critic: Critic | None = None) -> Outputs:
    """One pass over a micro-batch; the output matrix is computed for the wanted positions only.

    Args:
        model: causal LM.
        micro: rows of ids.
        critic: asked for values too.
    """
    hidden = _before_wanted(model.base_model, micro)
    logprobs = torch.log_softmax(output_logits(model, hidden) / micro.temperature, dim=-1)
    with torch.no_grad():
        entropy = -(logprobs.exp() * logprobs).sum(dim=-1)
    message = micro.ids[micro.wanted]
    if micro.beginnings is not None:
        message = torch.cat([micro.beginnings.ids[micro.beginnings.wanted], message])
    values = None
    if critic is not None:
        values = critic(hidden if critic.trunk is None else _before_wanted(critic.trunk, micro))
    return Outputs(logprobs.gather(-1, message[:, None])[:, 0], entropy, values)


def _before_wanted(trunk: Any, micro: MicroBatch) -> Tensor:
    """Last hidden states one position before each wanted token, where what is known of it is known; shape (wanted tokens, width)."""
    ids, before = micro.ids[:, :-1], micro.wanted[:, 1:]
    begun = micro.beginnings
    if begun is None:  # padded on the right, so no attention mask is needed
        whole: Tensor = trunk(input_ids=ids, use_cache=False).last_hidden_state
        return whole[before]
    kept = DynamicCache()
    first = trunk(input_ids=begun.ids[:, :-1], past_key_values=kept, use_cache=True).last_hidden_state
    branches = BranchCache(kept, begun.of)
    positions, seen = branches.place(begun.lengths[begun.of], ids.shape[1])
    hidden = trunk(
        input_ids=ids,
        position_ids=positions.clamp(max=position_limit(trunk.config) - 1),
        attention_mask=attention_mask(trunk, seen),
        past_key_values=branches,
        use_cache=True,
    ).last_hidden_state
    # Of a beginning without wanted tokens too: so all its layers are in the graph, and gradients come in the order of whole rows.
    return torch.cat([first[begun.wanted[:, 1:]], hidden[before]])
