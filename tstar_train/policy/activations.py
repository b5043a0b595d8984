"""What a forward pass without gradients holds beside weights, keys and values, by arithmetic, and how much of a context fits into one."""

from __future__ import annotations

from typing import Any, NamedTuple

# Of one forward pass over contexts. Fewer tokens than a 3B model has room for here (13,000) leave a GPU idle, and the built-in policies'
# 256 rows of a WebShop page (some 500 tokens of 9 KB) are still one pass.
BOUND = 2 << 30
# At the peak, which is in the block behind the attention: the gate, its activation and their product with the other side; the residual,
# its norm, and what the attention beside it takes. Adapters, in single precision, hold two results more, theirs and the sum.
_WIDE, _HIDDEN = 3, 4
_WIDE_UNDER_ADAPTER, _WIDE_OF_ADAPTER = 2, 2
_SINGLE = 4  # bytes


class Activations(NamedTuple):
    """Bytes of a forward pass.

    Attributes:
        token: of each new token.
        seen: of each new token and each token of the span that it may see: the mask, and scores where attention is written out.
        repeated: of each token of a row's span, where several heads share keys and values, which are repeated for them.
    """

    token: int
    seen: int
    repeated: int

    def of_row(self, count: int, span: int) -> int:
        """Bytes of ``count`` new tokens of one row that then has ``span`` tokens."""
        return count * (self.token + self.seen * span) + span * self.repeated

    def rows(self, count: int, span: int) -> int:
        """How many such rows one forward pass may hold, at least one."""
        return max(1, BOUND // self.of_row(count, span))

    def most(self, rows: int, limit: int) -> int:
        """Bytes of the largest forward pass over so many rows, each fed as many tokens as it may have."""
        return min(BOUND, rows * self.of_row(limit, limit))

    def tokens(self, span: int) -> int:
        """How many new tokens of a single row one forward pass may hold; what its keys and values take is left half the room at most."""
        room = max(BOUND // 2, BOUND - span * self.repeated)
        return max(1, room // (self.token + self.seen * span))


def intermediate_size(config: Any) -> int:
    """Width of the block behind the attention; four hidden sizes where a configuration does not name it."""
    return int(getattr(config, "intermediate_size", None) or 4 * config.hidden_size)


def activations_of(config: Any, itemsize: int, adapters: bool) -> Activations:
    """Estimated from a model's configuration.

    On an H200 a feed of 130,816 tokens of Qwen2.5-3B in half precision with adapters of rank 32 took 163 KB a token; this says 169.

    Args:
        config: of the model, with the way its attention is computed.
        itemsize: bytes of a number of the model.
        adapters: whether it has adapters.
    """
    wide = intermediate_size(config)
    own = wide * (
        _WIDE_UNDER_ADAPTER * itemsize + _WIDE_OF_ADAPTER * _SINGLE if adapters else _WIDE * itemsize
    )
    heads = int(config.num_attention_heads)
    size = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    shared = int(getattr(config, "num_key_value_heads", None) or heads) < heads
    # Torch's own attention takes a mask of numbers in place of ours; written out, it holds scores in both precisions.
    seen = 1 + itemsize
    if getattr(config, "_attn_implementation", None) == "eager":
        seen += heads * (itemsize + 2 * _SINGLE)
    return Activations(
        own + _HIDDEN * config.hidden_size * itemsize, seen, 2 * heads * size * itemsize * shared
    )
