"""The critic of PPO: a value before every token, from the policy's own layers or from layers of its own."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


class Critic(nn.Module):
    """A linear value head; it begins at 0, so that the first advantages are those of the rewards alone.

    Args:
        policy: its layers are shared, or copied.
        separate: whether the critic has layers of its own (twice the memory, but values and policy do not pull at the same weights).
    """

    def __init__(self, policy: PreTrainedModel, separate: bool) -> None:
        super().__init__()
        self.trunk: Any = copy.deepcopy(policy.base_model).requires_grad_(True) if separate else None
        weight = policy.get_output_embeddings().weight
        self.head = nn.Linear(weight.shape[1], 1, device=weight.device, dtype=torch.float32)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Values in units of reward.

        Args:
            hidden: last hidden states, of ``trunk`` where there is one, else of the policy, shape (..., width).

        Returns:
            Shape (...): the value after each position, that is before the token that follows it.
        """
        values: Tensor = self.head(hidden.float())[..., 0]
        return values
