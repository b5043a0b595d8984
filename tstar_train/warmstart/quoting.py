"""Rows that teach nothing but quoting: random tokens, then pieces of them again.

Most of what a reply says stands in its context: names, codes, options. A policy that can already go on with what it has begun to
quote learns an environment in a fraction of the updates. From heads that start by copying (``policy.copy_heads``) this takes some
300 updates of short rows; without those heads nothing is learnt in that time.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from tstar_train.warmstart.demonstrations import Row

_SHORTEST, _LONGEST, _QUOTED = 8, 100, 24
_PIECE = (2, 8)
_FIRST_TOKEN = 2  # those before it are special


def quoting_rows(vocabulary: int, seed: int) -> Iterator[Row]:
    """Rows without end: 8 to 100 random tokens, then pieces of 2 to 8 of them in random order; all but the first of a piece count.

    Args:
        vocabulary: number of tokens.
        seed: same seed, same rows.
    """
    rng = random.Random(f"quoting/{seed}")
    while True:
        length = rng.randint(_SHORTEST, _LONGEST)
        ids = [rng.randrange(_FIRST_TOKEN, vocabulary) for _ in range(length)]
        row = Row(list(ids), [0] * length)
        while len(row.ids) < length + _QUOTED:
            first = rng.randrange(length - _PIECE[0])
            piece = ids[first : first + rng.randint(*_PIECE)]
            row.ids += piece
            row.mask += [0] + [1] * (len(piece) - 1)
        yield row
