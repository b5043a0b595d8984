"""Which rows are computed as branches of a beginning that they share, so that it is computed once.

The members of a group begin with the same rules and task, and often with the same turns; a preference pair is two replies to one context.
Keys and values of a beginning serve every row behind it, and its gradient is the sum of theirs, so the result differs by
float rounding only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from tstar_train.policy.prefix import common_prefix

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
    """A cluster as chunks in which little is padded: the partition of its rows, sorted by length, that computes the fewest tokens."""
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
