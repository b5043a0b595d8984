"""Attention heads that start by copying what followed the present token before.

A head that looks one token back (``look_back``) marks every place with the token before it; a head in the next layer that looks
for the mark of the present token finds the places behind its earlier occurrences, and copies what stands there: an induction
head (Olsson et al. 2022, "In-context Learning and Induction Heads"). A policy of a million parameters takes thousands of
updates to find that circuit in long pages; here its first layers start with a rough one. The architecture is the plain one, and
everything is trained.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import Qwen2ForCausalLM

# All are measured by the loss on the second half of repeated random tokens, before any training.
_MATCH, _WRITE, _OUT = 2.5, 0.25, 0.5
# What else the layers write at the start: at full size it drowns the marks.
_QUIET_MLP, _QUIET_ATTENTION = 0.05, 0.1
# The heads of the second layer that copy; its first one looks back.
_HEADS = (1, 2)


def copy_heads(model: Qwen2ForCausalLM, seed: int) -> None:
    """Set the first head of the first layer and two heads of the second, in place.

    Args:
        model: freshly initialised, its first head looks one back; the rotary base must be large (100,000 for contexts of some
            hundred tokens), since a match far away is found by the slowly turning half of a head's pairs.
        seed: of the random subspaces.
    """
    config = model.config
    size = config.hidden_size // config.num_attention_heads
    rng = torch.Generator().manual_seed(seed)
    token, mark = _orthonormal(size, config.hidden_size, rng), _orthonormal(size, config.hidden_size, rng)
    # Rotary embedding turns the pairs (i, i + size/2) the more slowly the larger i is.
    slow = torch.tensor([*range(size // 4, size // 2), *range(3 * size // 4, size)])
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.down_proj.weight *= _QUIET_MLP
            layer.self_attn.o_proj.weight *= _QUIET_ATTENTION
        first, second = (layer.self_attn for layer in model.model.layers[:2])
        first.v_proj.weight[:size], first.v_proj.bias[:size] = token, 0.0
        first.o_proj.weight[:, :size] = _WRITE * mark.T
        for half, head in enumerate(_HEADS):
            rows = slice(head * size, (head + 1) * size)
            part = slice(half * size // 2, (half + 1) * size // 2)
            for projection, seen in ((second.q_proj, token), (second.k_proj, mark)):
                projection.weight[rows], projection.bias[rows] = 0.0, 0.0
                projection.weight[head * size + slow] = _MATCH * seen[part]
            copied = _orthonormal(size, config.hidden_size, rng)
            second.v_proj.weight[rows] = copied
            second.o_proj.weight[:, rows] = _OUT * copied.T


def _orthonormal(rows: int, columns: int, rng: torch.Generator) -> Tensor:
    """Random orthonormal rows."""
    columnwise: Tensor = torch.linalg.qr(torch.randn(columns, rows, generator=rng))[0]
    return columnwise.T
