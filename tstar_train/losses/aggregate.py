"""How the losses of tokens become one number."""

from __future__ import annotations

from typing import Literal, TypeVar, get_args

from torch import Tensor

Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"]

Count = TypeVar("Count", float, Tensor)


def token_weight(own_tokens: Count, aggregation: Aggregation) -> Count:
    """The weight of each of a sequence's tokens in the sum that is divided by ``loss_denominator``.

    L = sum_i w_i sum_t l_it / D, over the own tokens t of sequences i. With n_i own tokens, w_i = 1 / n_i for "seq-mean-token-mean",
    else 1.

    Args:
        own_tokens: how many tokens of the sequence the policy wrote, at least 1; a number or a tensor of any shape.
        aggregation: "token-mean" weighs tokens equally (DAPO), "seq-mean-token-mean" sequences (the original GRPO),
            "seq-mean-token-sum" sums within a sequence and averages over sequences.

    Raises:
        ValueError: an unknown aggregation.

    Source: verl `agg_loss`; the loss types "grpo", "bnpo" and "dapo" of TRL's `GRPOTrainer`.
    """
    if aggregation not in get_args(Aggregation):
        raise ValueError(f"aggregation is {aggregation!r}: choose one of {', '.join(get_args(Aggregation))}")
    # A power of 0 is 1 of the same type and shape.
    return 1 / own_tokens if aggregation == "seq-mean-token-mean" else own_tokens**0


def loss_denominator(mask: Tensor, aggregation: Aggregation = "token-mean") -> float:
    """What an aggregation divides by: D = sum_i n_i, the number of own tokens, for "token-mean", else that of rows with any.

    Args:
        mask: [B, L], 1 (True) on the policy's own tokens.
        aggregation: as in `token_weight`.

    Returns:
        The count. The counts of micro-batches add up to that of the batch.

    Raises:
        ValueError: an unknown aggregation.

    Source: verl `agg_loss`. Dr. GRPO (there "seq-mean-token-sum-norm", in TRL "dr_grpo") divides the sum by a constant instead.
    """
    if aggregation not in get_args(Aggregation):
        raise ValueError(f"aggregation is {aggregation!r}: choose one of {', '.join(get_args(Aggregation))}")
    own = mask.bool()
    return float(own.sum() if aggregation == "token-mean" else own.any(dim=-1).sum())
