"""Critic of PPO: a value before every token, from shared or separate layers."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


class Critic(nn.Module):
    """Linear value head, initialized to 0, so that the first advantages depend on the rewards alone.

    Args:
        policy: model whose layers are shared or copied.
        separate: True for a copy of the layers: twice the memory, but the value loss does not change the policy's weights.
    """

    def __init__(self, policy: PreTrainedModel, separate: bool) -> None:
        super().__init__()
        self.trunk: Any = copy.deepcopy(policy.base_model).requires_grad_(True) if separate else None
        weight = policy.get_output_embeddings().weight
        self.head = nn.Linear(weight.shape[1], 1, device=weight.device, dtype=torch.float32)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Compute values in units of reward.

        Args:
            hidden: last hidden states of ``trunk`` if separate, else of the policy; shape (..., width).

        Returns:
            Value after each position, that is before the next token; shape (...).
        """
        values: Tensor = self.head(hidden.float())[..., 0]
        return values
