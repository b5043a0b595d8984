"""Log-probabilities of given tokens by one forward pass, with what else the losses need of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache

from tstar_train.optim.batch import Micro
from tstar_train.policy.critic import Critic
from tstar_train.policy.head import output_logits
from tstar_train.policy.kv import BranchCache, attention_mask
from tstar_train.policy.limit import position_limit


@dataclass
class Outputs:
    """Outputs for the wanted tokens of a micro-batch, those of beginnings first, in row-major order; each of shape (wanted tokens,).

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
        model: causal LM.
        micro: rows of ids.
        critic: asked for values too.
    """
    hidden = _before_wanted(model.base_model, micro)
    logprobs = torch.log_softmax(output_logits(model, hidden) / micro.temperature, dim=-1)
    with torch.no_grad():
        entropy = -(logprobs.exp() * logprobs).sum(dim=-1)
    message = micro.ids[micro.wanted]
    if micro.beginnings is not None:
        message = torch.cat([micro.beginnings.ids[micro.beginnings.wanted], message])
    values = None
    if critic is not None:
        values = critic(hidden if critic.trunk is None else _before_wanted(critic.trunk, micro))
    return Outputs(logprobs.gather(-1, message[:, None])[:, 0], entropy, values)


def _before_wanted(trunk: Any, micro: Micro) -> Tensor:
    """Last hidden states one position before each wanted token, where what is known of it is known; shape (wanted tokens, width)."""
    ids, before = micro.ids[:, :-1], micro.wanted[:, 1:]
    begun = micro.beginnings
    if begun is None:  # padded on the right, so no attention mask is needed
        whole: Tensor = trunk(input_ids=ids, use_cache=False).last_hidden_state
        return whole[before]
    kept = DynamicCache()
    first = trunk(input_ids=begun.ids[:, :-1], past_key_values=kept, use_cache=True).last_hidden_state
    branches = BranchCache(kept, begun.of)
    positions, seen = branches.place(begun.lengths[begun.of], ids.shape[1])
    hidden = trunk(
        input_ids=ids,
        position_ids=positions.clamp(max=position_limit(trunk.config) - 1),
        attention_mask=attention_mask(trunk, seen),
        past_key_values=branches,
        use_cache=True,
    ).last_hidden_state
    # Of a beginning without wanted tokens too: so all its layers are in the graph, and gradients come in the order of whole rows.
    return torch.cat([first[begun.wanted[:, 1:]], hidden[before]])
