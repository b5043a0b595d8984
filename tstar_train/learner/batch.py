"""Micro-batches of rows and pairs, and the forward pass over them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache

from tstar_train.learner.prefixes import FEWEST_TOKENS, Chunk, Sharing, chunks_of, micro_batches
from tstar_train.policy.attention import in_branches, last_layer_only_at, replaces_attention
from tstar_train.policy.critic import Critic
from tstar_train.policy.kv import BranchCache, attention_mask, output_logits, position_limit
from tstar_train.progress import progress
from tstar_train.types import Graft, KeptPair, TokenSequence


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
    sharing: Sharing | None = FEWEST_TOKENS,
) -> Iterator[SequenceMicroBatch]:
    """Batch rows into micro-batches; their size changes memory use and float rounding, not the result.

    Args:
        sequences: the rows.
        most_tokens: maximum number of padded tokens at once.
        temperature: temperature of the log-probabilities.
        pad: padding id.
        device: device of the tensors.
        sharing: costs that decide which prefixes are computed once; None computes each row whole.
    """
    distinct = deduplicate(sequences)
    # The symbol includes the response mask: a shared token is a response token in all rows or in none.
    symbols = [
        [2 * i + m for i, m in zip(copies[0].ids, copies[0].response_mask, strict=True)]
        for copies in distinct
    ]
    alone = [Chunk((i,), 0) for i in range(len(distinct))]
    chunks = alone if sharing is None else chunks_of(symbols, most_tokens, sharing)
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
    sharing: Sharing | None = FEWEST_TOKENS,
) -> Iterator[PairMicroBatch]:
    """Batch preference pairs into micro-batches, both replies of a pair in the same one, as branches of their context.

    See ``sequence_micro_batches`` for the arguments; ``sharing`` is None to compute both whole.
    """
    spans = [(g.context, reply) for g in pairs for reply in (g.rectified, g.rejected)]
    rows = [([*context, *reply], [0] * len(context) + [1] * len(reply)) for context, reply in spans]
    chunks = []
    for number, g in enumerate(pairs):
        shorter, longer = sorted((2 * number, 2 * number + 1), key=lambda i: len(rows[i][0]))
        begun = sharing is not None and len(g.context) > 1
        chunks.append(Chunk((shorter, longer), len(g.context) if begun else 0))
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
    if replaces_attention(trunk) and layers:
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
    """Compute the same in one pass over the tokens of all prefixes and rows."""
    before = micro.wanted[:, 1:]
    columns = torch.arange(before.shape[1])
    rows = columns < (before * (columns + 1)).amax(dim=1)[:, None]  # up to the last before a wanted one
    places = torch.arange(int(begun.lengths.max()))
    heads = places < begun.lengths[:, None]
    ids = torch.cat([begun.ids[:, : len(places)][heads], micro.ids[:, :-1][rows]])
    positions = torch.cat(
        [places.expand_as(heads)[heads], (begun.lengths[begun.of][:, None] + columns)[rows]]
    )
    of_heads = begun.wanted[:, 1 : 1 + len(places)][heads]
    used = torch.cat([of_heads, before[rows]])
    with (
        last_layer_only_at(trunk, used[None]),
        in_branches(heads, rows, begun.of, None if of_heads.any() else last),
    ):
        hidden: Tensor = trunk(
            input_ids=ids[None],
            position_ids=positions[None],
            attention_mask=torch.ones((1, 1, 1, 1), dtype=torch.bool),  # the attention has its own
            use_cache=False,
        ).last_hidden_state
    return hidden[0][used]
