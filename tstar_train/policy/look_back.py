"""Attention heads that start by looking a fixed number of tokens back.

Copying "what followed X" or "what stood before X" needs a head that moves each token's identity one place on (Olsson et al.
2022, "In-context Learning and Induction Heads"). A model of a million parameters takes most of its warm start to find that
head. Under rotary position embeddings the biases of queries and keys alone can say "this far back", so nothing but initial
values differs from the plain architecture, and all of them are trained.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
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
