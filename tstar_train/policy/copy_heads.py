"""Induction heads of tiny policies."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import Qwen2ForCausalLM

# Size of the biases per rotated pair at base 100: the score of the wanted distance is some 4 nats above that of its neighbours.
_STRENGTH = 4.6
_BASE = 100.0
# What the content of a token adds to those scores at the start, against an ordinary head.
_CONTENT = 0.1


def look_back(model: Qwen2ForCausalLM, offsets: Sequence[Sequence[int]], base: float) -> None:
    """Set the first heads of the first layers, in place.

    Args:
        model: freshly initialised.
        offsets: for each layer from the first on, one distance in tokens per head from the first on.
        base: of its rotary embedding.
    """
    config = model.config
    size = config.hidden_size // config.num_attention_heads
    # Rotary embedding turns the pair (i, i + size/2) of a head by the position times this angle.
    angles = _angles(base, size)
    # A larger base turns fewer pairs between neighbours: the same 4 nats take larger biases.
    strength = _STRENGTH * float(((1 - _angles(_BASE, size).cos()).sum() / (1 - angles.cos()).sum()).sqrt())
    key = torch.cat([torch.full((size // 2,), strength), torch.zeros(size // 2)])
    with torch.no_grad():
        for layer, distances in zip(model.model.layers, offsets, strict=False):
            for head, distance in enumerate(distances):
                rows = slice(head * size, (head + 1) * size)
                attention = layer.self_attn
                attention.q_proj.weight[rows] *= _CONTENT
                attention.k_proj.weight[rows] *= _CONTENT
                attention.k_proj.bias[rows] = key
                # The key turned back by the distance: both agree in every pair where the query stands that much later.
                turn = angles * distance
                attention.q_proj.bias[rows] = strength * torch.cat([turn.cos(), -turn.sin()])


def _angles(base: float, size: int) -> torch.Tensor:
    return base ** (-torch.arange(size // 2) / (size // 2))


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
