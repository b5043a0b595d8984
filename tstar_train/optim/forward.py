"""Log-probabilities of given tokens by one forward pass, with what else the losses need of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tstar_train.optim.batch import Micro
from tstar_train.policy.critic import Critic
from tstar_train.policy.head import output_logits


@dataclass
class Outputs:
    """Of the wanted tokens of a micro-batch, in row-major order; each of shape (wanted tokens,).

    Attributes:
        logprobs: at the micro-batch's temperature, in nats.
        entropy: of the distributions that they are from, in nats; without a gradient.
        values: of a critic before each token, in units of reward; None without one.
    """

    logprobs: Tensor
    entropy: Tensor
    values: Tensor | None = None


def forward(model: PreTrainedModel, micro: Micro, critic: Critic | None = None) -> Outputs:
    """One pass over a micro-batch; the output matrix is computed for the wanted positions only.

    Args:
        model: causal LM; rows are padded on the right, so no attention mask is needed.
        micro: rows of ids.
        critic: asked for values too.
    """
    before = micro.wanted[:, 1:]  # what is known of a token is known one position earlier
    trunk = model.base_model(input_ids=micro.ids[:, :-1], use_cache=False).last_hidden_state
    hidden = trunk[before]
    logprobs = torch.log_softmax(output_logits(model, hidden) / micro.temperature, dim=-1)
    with torch.no_grad():
        entropy = -(logprobs.exp() * logprobs).sum(dim=-1)
    chosen = logprobs.gather(-1, micro.ids[:, 1:][before][:, None])[:, 0]
    return Outputs(chosen, entropy, None if critic is None else critic(micro.ids[:, :-1], trunk)[before])
