"""Rows that share a prefix: the cheapest way to compute them as its branches, and micro-batches of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from transformers import PreTrainedConfig

from tstar_train.policy.kv import common_prefix

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


class Sharing(NamedTuple):
    """Costs that decide whether rows share a prefix, in computed tokens.

    Attributes:
        pair: attention of one token to another. A whole row skips the later half of its pairs; a branch of a prefix does not.
        branch: laying out one row as a branch.
    """

    pair: float = 0.0
    branch: float = 0.0

    def row(self, length: int, begun: int) -> float:
        """Return the cost of a row of ``length`` tokens that branches off after ``begun``; 1 or less if it is computed whole."""
        if begun <= 1:
            return (length - 1) * (1 + self.pair * length / 2)
        return (length - begun) * (1 + self.pair * (length - 1)) + self.branch


FEWEST_TOKENS = Sharing()
# Measured with scripts/bench/bench_sharing.py: short prefixes of short rows cost more than they save.
_BRANCH = 8.0


def sharing_of(config: PreTrainedConfig) -> Sharing:
    """Return a model's costs: a layer multiplies twice its width for a pair, and about 13 times the width's square for a token."""
    return Sharing(2 / (13 * int(config.get_text_config().hidden_size)), _BRANCH)


def chunks_of(
    rows: Sequence[Sequence[int]], most_tokens: int, sharing: Sharing = FEWEST_TOKENS
) -> list[Chunk]:
    """Split rows into chunks so that their computation costs little in total.

    Args:
        rows: symbols of each row; equal symbols may share a computed token.
        most_tokens: see ``micro_batches``.
        sharing: costs; by default only computed tokens count.
    """
    return [
        chunk
        for members, shared in clusters_of(rows, sharing)
        for chunk in _cut(rows, members, shared, most_tokens)
    ]


def clusters_of(
    rows: Sequence[Sequence[int]], sharing: Sharing = FEWEST_TOKENS
) -> list[tuple[list[int], int]]:
    """Partition rows into (rows, shared prefix length) at the least cost.

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
        dict[int, tuple[float, bool]]
    ] = []  # by that length: cost at and below a node, and True if it is a shared prefix

    def kept(node: int, begun: int) -> float:
        return sharing.row(len(rows[-1 - node]), begun) if node < 0 else best[node][begun][0]

    def cost(node: int, begun: int) -> float:
        # Rows need not use a prefix that others share.
        return min(kept(node, begun), kept(node, 1))

    for (shared, below), lengths in zip(nodes, above, strict=True):
        own = sharing.row(shared, 1) + sum(cost(n, shared) for n in below) if shared > 1 else None
        plain = {begun: sum(cost(n, begun) for n in below) for begun in lengths}
        best.append({b: (p, False) if own is None or p <= own else (own, True) for b, p in plain.items()})

    # Rows by the node that is their prefix; -1 means none.
    found: dict[int, list[int]] = defaultdict(list)
    rest = [(len(nodes) - 1, -1)]
    while rest:
        node, beginning = rest.pop()
        if beginning >= 0 and kept(node, 1) < kept(node, nodes[beginning][0]):
            beginning = -1
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
