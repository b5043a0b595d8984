"""Micro-batches, shared prefixes, and the forward pass over them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache

from tstar_train.policy.attention import in_branches, last_layer_only_at, replaces_attention
from tstar_train.policy.critic import Critic
from tstar_train.policy.kv import BranchCache, attention_mask, common_prefix, output_logits, position_limit
from tstar_train.progress import progress
from tstar_train.types import Graft, KeptPair, TokenSequence

# Each row holds a copy of its prefix's keys and values. A copied token takes this share of the memory of a computed token: 2 to 2.5 times
# the hidden size, against 22 times or more.
COPIED = 0.125


class Chunk(NamedTuple):
    """Rows computed side by side as branches of one shared prefix.

    Attributes:
        rows: row numbers, by rising length.
        shared: length of the shared prefix: at least 2, and shorter than every row; 0 if each row is computed by itself.
    """

    rows: tuple[int, ...]
    shared: int


def chunks_of(rows: Sequence[Sequence[int]], most_tokens: int) -> list[Chunk]:
    """Split rows into chunks so that few tokens are computed in total.

    Args:
        rows: symbols of each row; equal symbols may share a computed token.
        most_tokens: see ``micro_batches``.
    """
    return [
        chunk for members, shared in clusters_of(rows) for chunk in _cut(rows, members, shared, most_tokens)
    ]


def clusters_of(rows: Sequence[Sequence[int]]) -> list[tuple[list[int], int]]:
    """Partition rows into (rows, shared prefix length) so that the fewest tokens are computed.

    The inner nodes of the rows' prefix tree are the points where rows diverge. Some of these become shared prefixes, and a row uses the
    deepest one on its path. The best choice at a node depends on its subtree and on the length of the deepest prefix above it.
    """
    if len(rows) < 2:
        return [([i], 0) for i in range(len(rows))]
    nodes = _parted(rows)
    # Possible lengths of the deepest prefix above each node; 1 means none.
    above: list[list[int]] = [[1] for _ in nodes]
    for number in reversed(range(len(nodes))):
        shared, below = nodes[number]
        for n in below:
            if n >= 0:
                above[n] = [*above[number], shared] if shared > 1 else above[number]
    best: list[
        dict[int, tuple[int, bool]]
    ] = []  # by that length: tokens computed at and below a node, and True if it is a shared prefix

    def cost(node: int, begun: int) -> int:
        return len(rows[-1 - node]) - begun if node < 0 else best[node][begun][0]

    for (shared, below), lengths in zip(nodes, above, strict=True):
        own = shared - 1 + sum(cost(n, shared) for n in below) if shared > 1 else None
        plain = {begun: sum(cost(n, begun) for n in below) for begun in lengths}
        best.append({b: (p, False) if own is None or p <= own else (own, True) for b, p in plain.items()})

    # Rows by the node that is their prefix; -1 means none.
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
    """List (prefix length, children) of every node where rows diverge, the root last; a negative child n is row -1 - n."""
    order = sorted(range(len(rows)), key=lambda i: tuple(rows[i]))
    nodes: list[tuple[int, list[int]]] = []
    open_ones: list[tuple[int, list[int]]] = []  # the path to the last row, from the root on

    def closed(last: int) -> int:
        open_ones[-1][1].append(last)
        nodes.append(open_ones.pop())
        return len(nodes) - 1

    last = -1 - order[0]
    for one, other in pairwise(order):
        # Each row keeps at least one token outside the prefix.
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
    """Batch chunks of similar length; either all chunks of a batch have a shared prefix, or none has.

    A batch has at most ``most_tokens`` padded tokens, or is a single chunk.

    Args:
        chunks: chunks to compute.
        lengths: length of every row.
        most_tokens: maximum number of padded tokens at once; a prefix token copied to a row counts as ``COPIED`` tokens.
    """
    batch: list[Chunk] = []
    # Whole rows come first and do not mix with branches: a row without a prefix would get one of padding.
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
    """Count the tokens fed for this row alone; the last shared token is fed again, because rows diverge after it."""
    return length - max(0, shared - 1)


def _fit(batch: Sequence[Chunk], lengths: Sequence[int], most_tokens: int) -> bool:
    shared, rows = max(chunk.shared for chunk in batch), sum(len(chunk.rows) for chunk in batch)
    longest = max(_fed(lengths[chunk.rows[-1]], chunk.shared) for chunk in batch)
    return _fits(len(batch), shared, rows, longest, most_tokens)


def _fits(prefixes: int, shared: int, rows: int, longest: int, most_tokens: int) -> bool:
    return prefixes * shared + rows * longest + COPIED * rows * shared <= most_tokens


def _cut(rows: Sequence[Sequence[int]], members: Sequence[int], shared: int, most_tokens: int) -> list[Chunk]:
    """Cut a cluster into chunks with little padding: the partition of its sorted rows with the fewest tokens."""
    members = sorted(members, key=lambda i: (len(rows[i]), i))
    if not shared:
        return [Chunk((i,), 0) for i in members]
    own = [_fed(len(rows[i]), shared) for i in members]
    best: list[tuple[int, int]] = [(0, 0)]  # entry n: (tokens, start of the last chunk) for the first n rows
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
        pairs: preference pairs of the surgical loss.
    """

    sequences: list[TokenSequence] = field(default_factory=list)
    pairs: Sequence[Graft | KeptPair] = ()

    @property
    def weight(self) -> float:
        """Summed weights of this rank's response tokens; the base loss is divided by the sum over ranks."""
        return sum(s.weight * s.num_response_tokens for s in self.sequences)


@dataclass(frozen=True)
class Totals:
    """Denominators of an optimizer step's losses, summed over all ranks.

    Attributes:
        weight: summed weights of the response tokens.
        tokens: number of response tokens.
        pairs: number of preference pairs.
        targets: number of response tokens with a target of the critic's value.
    """

    weight: float
    tokens: float
    pairs: float
    targets: float = 1.0


def split_minibatches(
    sequences: Sequence[TokenSequence], pairs: Sequence[Graft | KeptPair], steps: int, epochs: int = 1
) -> list[Step]:
    """Split an iteration's rows and pairs into minibatches, repeated ``epochs`` times; rows with equal ids stay together."""
    distinct = deduplicate(sequences)
    return epochs * [
        Step([s for copies in distinct[k::steps] for s in copies], list(pairs[k::steps]))
        for k in range(steps)
    ]


def deduplicate(sequences: Sequence[TokenSequence]) -> list[list[TokenSequence]]:
    """Group sequences with the same ids and response mask, in order of first appearance."""
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], list[TokenSequence]] = {}
    for sequence in sequences:
        found.setdefault((tuple(sequence.ids), tuple(sequence.response_mask)), []).append(sequence)
    return list(found.values())


@dataclass
class SharedPrefixes:
    """Shared prefixes of the rows of a micro-batch; each row starts with its prefix's last token.

    Attributes:
        ids: shape (prefixes, longest), padded on the right.
        wanted: bool, same shape, as in ``MicroBatch``; their outputs come before those of the rows.
        lengths: number of prefix tokens before a row's first token, shape (prefixes,).
        of: index of each row's prefix, shape (rows,).
    """

    ids: Tensor
    wanted: Tensor
    lengths: Tensor
    of: Tensor


@dataclass
class MicroBatch:
    """Rows computed in one forward pass.

    Attributes:
        ids: shape (rows, longest), padded on the right, so that no attention mask is needed.
        wanted: bool, the same shape: tokens whose log-probabilities are needed; never the first of a row.
        temperature: temperature of the log-probabilities.
        prefixes: shared prefixes of the rows; None if every row is whole.
    """

    ids: Tensor
    wanted: Tensor
    temperature: float = 1.0
    prefixes: SharedPrefixes | None = None


@dataclass
class SequenceMicroBatch(MicroBatch):
    """Rows of the base loss.

    Rows with the same ids are computed once, and each copy has its own loss. Members of a group often write the same reply in the same
    state (two thirds of the rows of a Sokoban group).

    Attributes:
        which: index of each response token among the wanted tokens, for every copy of every row; shape (response tokens of all copies,).
        owner: index of the sequence that each response token belongs to, from 0 in this micro-batch, same shape; a sequence is never split
            over micro-batches. It is an episode, or a turn where the context is not kept (``rollout.context step``).
        old_logprobs: log-probabilities before the update, in nats, same shape; so are the following.
        sampled: log-probabilities reported by the sampler; equal to ``old_logprobs`` if it computes as the trainer does.
        advantages: advantage of each token.
        weight: weight of each token in the loss's weighted mean.
        old_values: the critic's values before the update; 0 without a critic.
        returns: targets of the critic's values, NaN where there is none.
        copies: the rows, each with all sequences that share its ids.
        first: True for the step's first micro-batch.
    """

    which: Tensor = field(default_factory=lambda: torch.empty(0))
    owner: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    old_logprobs: Tensor = field(default_factory=lambda: torch.empty(0))
    sampled: Tensor = field(default_factory=lambda: torch.empty(0))
    advantages: Tensor = field(default_factory=lambda: torch.empty(0))
    weight: Tensor = field(default_factory=lambda: torch.empty(0))
    old_values: Tensor = field(default_factory=lambda: torch.empty(0))
    returns: Tensor = field(default_factory=lambda: torch.empty(0))
    copies: list[list[TokenSequence]] = field(default_factory=list)
    first: bool = False

    def beginning(self, most_tokens: int) -> tuple[MicroBatch, Tensor]:
        """Take the first rows, with their prefixes.

        Args:
            most_tokens: maximum number of their padded tokens; at least one row, or one prefix with its rows, is taken.

        Returns:
            These rows, and for each wanted token True if it is theirs.
        """
        begun, width = self.prefixes, self.ids.shape[1]
        if begun is None:
            count = max(1, most_tokens // width)
            own = torch.arange(len(self.ids), device=self.ids.device) < count
            part = MicroBatch(self.ids[:count], self.wanted[:count], self.temperature)
            return part, own[:, None].expand_as(self.wanted)[self.wanted]
        rows = torch.bincount(begun.of).cumsum(0)  # of the first prefixes; each has at least two
        tokens = torch.arange(1, len(rows) + 1, device=rows.device) * begun.ids.shape[1] + rows * width
        prefixes = max(1, int((tokens <= most_tokens).sum()))
        count = int(rows[prefixes - 1])
        first = SharedPrefixes(
            begun.ids[:prefixes], begun.wanted[:prefixes], begun.lengths[:prefixes], begun.of[:count]
        )
        part = MicroBatch(self.ids[:count], self.wanted[:count], self.temperature, first)
        theirs = [
            (torch.arange(len(wanted), device=wanted.device) < taken)[:, None].expand_as(wanted)[wanted]
            for wanted, taken in ((begun.wanted, prefixes), (self.wanted, count))
        ]
        return part, torch.cat(theirs)


@dataclass
class PairMicroBatch(MicroBatch):
    """Preference pairs: two replies to the same context.

    Attributes:
        owner: index of the reply that each wanted token belongs to, shape (wanted tokens,); preferred replies first, then rejected ones.
        pairs: number of pairs, half of the rows.
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
    """Batch rows into micro-batches; their size changes memory use and float rounding, not the result.

    Args:
        sequences: the rows.
        most_tokens: maximum number of padded tokens at once.
        temperature: temperature of the log-probabilities.
        pad: padding id.
        device: device of the tensors.
        share: True to compute shared prefixes once.
    """
    distinct = deduplicate(sequences)
    # The symbol includes the response mask: a shared token is a response token in all rows or in none.
    symbols = [
        [2 * i + m for i, m in zip(copies[0].ids, copies[0].response_mask, strict=True)]
        for copies in distinct
    ]
    chunks = chunks_of(symbols, most_tokens) if share else [Chunk((i,), 0) for i in range(len(distinct))]
    for number, batch in enumerate(micro_batches(chunks, list(map(len, symbols)), most_tokens)):
        part = [distinct[i] for chunk in batch for i in chunk.rows]
        ids, wanted, prefixes = _laid_out(
            [(copies[0].ids, copies[0].response_mask) for copies in part], batch, pad, device
        )
        every = [s for copies in part for s in copies]
        yield SequenceMicroBatch(
            ids,
            wanted,
            temperature,
            prefixes,
            _places(part, batch).to(device),
            owner=torch.arange(len(every), device=device).repeat_interleave(
                torch.tensor([s.num_response_tokens for s in every], device=device)
            ),
            old_logprobs=_own_values(every, [s.old_logprobs or s.logprobs for s in every], device),
            sampled=_own_values(every, [s.logprobs for s in every], device),
            advantages=_own_values(every, [s.advantages for s in every], device),
            weight=_own_values(every, [[s.weight] * len(s.ids) for s in every], device),
            old_values=_own_values(every, [s.values or [0.0] * len(s.ids) for s in every], device),
            returns=_own_values(every, [s.returns or [math.nan] * len(s.ids) for s in every], device),
            copies=part,
            first=number == 0,
        )


def pair_micro_batches(
    pairs: Sequence[Graft | KeptPair],
    most_tokens: int,
    temperature: float,
    pad: int,
    device: torch.device,
    *,
    share: bool = True,
) -> Iterator[PairMicroBatch]:
    """Batch preference pairs into micro-batches, both replies of a pair in the same one.

    See ``sequence_micro_batches`` for the arguments.
    """
    spans = [(g.context, reply) for g in pairs for reply in (g.rectified, g.rejected)]
    rows = [([*context, *reply], [0] * len(context) + [1] * len(reply)) for context, reply in spans]
    chunks = []
    for number, g in enumerate(pairs):
        shorter, longer = sorted((2 * number, 2 * number + 1), key=lambda i: len(rows[i][0]))
        chunks.append(Chunk((shorter, longer), len(g.context) if share and len(g.context) > 1 else 0))
    for batch in micro_batches(chunks, [len(ids) for ids, _ in rows], most_tokens):
        order = [i for chunk in batch for i in chunk.rows]
        ids, wanted, prefixes = _laid_out([rows[i] for i in order], batch, pad, device)
        place = {chunk.rows[0] // 2: n for n, chunk in enumerate(batch)}
        # Preferred replies first.
        owners = torch.tensor([place[i // 2] + len(batch) * (i % 2) for i in order], device=device)
        yield PairMicroBatch(
            ids,
            wanted,
            temperature,
            prefixes,
            owner=owners[:, None].expand_as(wanted)[wanted],
            pairs=len(batch),
        )


def _laid_out(
    rows: Sequence[tuple[Sequence[int], Sequence[int]]],
    batch: Sequence[Chunk],
    pad: int,
    device: torch.device,
) -> tuple[Tensor, Tensor, SharedPrefixes | None]:
    """Lay out a batch's chunks as (ids, wanted tokens, shared prefixes)."""
    if not batch[0].shared:
        return *_padded(rows, pad, device), None
    owner = [n for n, chunk in enumerate(batch) for _ in chunk.rows]
    shared = [chunk.shared for chunk in batch]
    heads = {n: (ids[: shared[n]], mask[: shared[n]]) for n, (ids, mask) in zip(owner, rows, strict=True)}
    # The first token of a branch is only an input: it is predicted as the last token of the shared prefix.
    branches = [
        (ids[shared[n] - 1 :], [0, *mask[shared[n] :]]) for n, (ids, mask) in zip(owner, rows, strict=True)
    ]
    ids, wanted = _padded([heads[n] for n in range(len(batch))], pad, device)
    lengths, of = torch.tensor(shared, device=device) - 1, torch.tensor(owner, device=device)
    return *_padded(branches, pad, device), SharedPrefixes(ids, wanted, lengths, of)


def _padded(
    rows: Sequence[tuple[Sequence[int], Sequence[int]]], pad: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Pad ids and masks on the right; each has shape (rows, longest)."""
    longest = max(len(ids) for ids, _ in rows)
    ids = torch.tensor([[*ids, *[pad] * (longest - len(ids))] for ids, _ in rows], device=device)
    mask = torch.tensor(
        [[*mask, *[0] * (longest - len(mask))] for _, mask in rows], dtype=torch.bool, device=device
    )
    return ids, mask


def _places(part: Sequence[Sequence[TokenSequence]], batch: Sequence[Chunk]) -> Tensor:
    """Map each response token of every row copy to its index among the wanted tokens: prefixes first, then rows.

    Shape (response tokens of all copies,).
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
    """Outputs for the wanted tokens of a micro-batch.

    Tokens of shared prefixes come first; both parts are in row-major order. Each tensor has shape (wanted tokens,).

    Attributes:
        logprobs: log-probabilities at the micro-batch's temperature, in nats.
        entropy: entropy of each token's distribution, in nats, without a gradient.
        values: critic's value before each token, in units of reward; None without a critic.
    """

    logprobs: Tensor
    entropy: Tensor
    values: Tensor | None = None


def forward(model: PreTrainedModel, micro: MicroBatch, critic: Critic | None = None) -> Outputs:
    """Run one forward pass over a micro-batch; logits are computed for the wanted positions only.

    Args:
        model: causal LM.
        micro: rows to compute.
        critic: critic that computes ``Outputs.values``; None without one.
    """
    progress.advance()
    hidden = _before_wanted(model.base_model, micro)
    message = micro.ids[micro.wanted]
    if micro.prefixes is not None:
        message = torch.cat([micro.prefixes.ids[micro.prefixes.wanted], message])
    logprobs, entropy = token_logprobs(model, hidden, message, micro.temperature)
    values = None
    if critic is not None:
        values = critic(hidden if critic.trunk is None else _before_wanted(critic.trunk, micro))
    return Outputs(logprobs, entropy, values)


# Peak bytes of the loss per token and vocabulary entry: float32 logits, scaled logits, log-softmax, the two factors of the entropy, and
# gradients in the backward pass.
LOSS_BYTES = 24
MOST_LOSS_BYTES = 1 << 30


def token_logprobs(
    model: PreTrainedModel, hidden: Tensor, ids: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Compute log-probabilities of tokens, and entropies of their distributions, in chunks within 1 GiB.

    Several chunks keep no logits for the backward pass, which computes them again.

    Args:
        model: causal LM.
        hidden: last hidden states, one position before each token, shape (tokens, width).
        ids: the tokens, shape (tokens,).
        temperature: of the distribution.

    Returns:
        Log-probabilities and entropies (without a gradient) in nats, each of shape (tokens,).
    """

    def of(states: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        logprobs = torch.log_softmax(output_logits(model, states) / temperature, dim=-1)
        with torch.no_grad():
            entropy = -(logprobs.exp() * logprobs).sum(dim=-1)
        return logprobs.gather(-1, chosen[:, None])[:, 0], entropy

    most = max(1, MOST_LOSS_BYTES // (LOSS_BYTES * int(model.config.vocab_size)))
    if len(ids) <= most:
        return of(hidden, ids)
    found = [
        checkpoint(of, states, chosen, use_reentrant=False, preserve_rng_state=False)
        if torch.is_grad_enabled()
        else of(states, chosen)
        for states, chosen in zip(hidden.split(most), ids.split(most), strict=True)
    ]
    return torch.cat([logprobs for logprobs, _ in found]), torch.cat([entropy for _, entropy in found])


def _before_wanted(trunk: Any, micro: MicroBatch) -> Tensor:
    """Compute the last hidden states one position before each wanted token, shape (wanted tokens, width)."""
    ids, before = micro.ids[:, :-1], micro.wanted[:, 1:]
    begun = micro.prefixes
    if begun is None:  # padded on the right, so no attention mask is needed
        with last_layer_only_at(trunk, before):
            whole: Tensor = trunk(input_ids=ids, use_cache=False).last_hidden_state
        return whole[before]
    layers = getattr(trunk, "layers", None)
    if replaces_attention(trunk) and layers and not begun.wanted.any():
        return _without_padding(trunk, micro, begun, len(layers) - 1)
    kept = DynamicCache()
    with last_layer_only_at(trunk, begun.wanted[:, 1:]):
        first = trunk(input_ids=begun.ids[:, :-1], past_key_values=kept, use_cache=True).last_hidden_state
    branches = BranchCache(kept, begun.of)
    positions, seen = branches.place(begun.lengths[begun.of], ids.shape[1])
    with last_layer_only_at(trunk, before):
        hidden = trunk(
            input_ids=ids,
            position_ids=positions.clamp(max=position_limit(trunk.config) - 1),
            attention_mask=attention_mask(trunk, seen),
            past_key_values=branches,
            use_cache=True,
        ).last_hidden_state
    # Prefixes without wanted tokens are included: all layers are then in the graph, and gradients arrive in the order of whole rows.
    return torch.cat([first[begun.wanted[:, 1:]], hidden[before]])


def _without_padding(trunk: Any, micro: MicroBatch, begun: SharedPrefixes, last: int) -> Tensor:
    """Compute the same in one pass over the tokens of all prefixes and rows; no prefix has wanted tokens."""
    before = micro.wanted[:, 1:]
    columns = torch.arange(before.shape[1])
    rows = columns < (before * (columns + 1)).amax(dim=1)[:, None]  # up to the last before a wanted one
    places = torch.arange(int(begun.lengths.max()))
    heads = places < begun.lengths[:, None]
    ids = torch.cat([begun.ids[:, : len(places)][heads], micro.ids[:, :-1][rows]])
    positions = torch.cat(
        [places.expand_as(heads)[heads], (begun.lengths[begun.of][:, None] + columns)[rows]]
    )
    used = torch.cat([torch.zeros(int(heads.sum()), dtype=torch.bool), before[rows]])
    with last_layer_only_at(trunk, used[None]), in_branches(heads, rows, begun.of, last):
        hidden: Tensor = trunk(
            input_ids=ids[None],
            position_ids=positions[None],
            attention_mask=torch.ones((1, 1, 1, 1), dtype=torch.bool),  # the attention has its own
            use_cache=False,
        ).last_hidden_state
    return hidden[0][used]
