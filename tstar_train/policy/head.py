"""Hidden states from ids over a cache, and logits from hidden states, as the model's own forward pass computes them."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from tstar_train.policy.kv import attention_mask
from tstar_train.policy.limit import position_limit


def hidden_states(
    model: PreTrainedModel, ids: Tensor, positions: Tensor, seen: Tensor, cache: Cache
) -> Tensor:
    """Last hidden states of new tokens, shape (rows, tokens, width).

    Args:
        model: causal LM.
        ids: shape (rows, tokens); so are ``positions``. Padding may stand beyond the last position that there is: nobody looks at it.
        positions: of the tokens.
        seen: True where something is seen, shape (rows, 1, tokens, span).
        cache: holds the keys and values before them, and takes in theirs.
    """
    hidden: Tensor = model.base_model(
        input_ids=ids,
        position_ids=positions.clamp(max=position_limit(model.config) - 1),
        attention_mask=attention_mask(model, seen),
        past_key_values=cache,
        use_cache=True,
    ).last_hidden_state
    return hidden


def output_logits(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """Logits of some positions only, which saves most of the work of a large vocabulary.

    Some families scale what the output matrix gives (Granite divides by ``logits_scaling``, Cohere multiplies by
    ``logit_scale``) or bound it (Gemma 2, ``final_logit_softcapping``); ``engines.check`` compares the result with the model's
    forward pass and stops at what is not known here.

    Args:
        model: causal LM.
        hidden: shape (..., hidden size), after the last norm.

    Returns:
        Shape (..., vocabulary), in at least single precision.
    """
    logits: Tensor = model.get_output_embeddings()(hidden)
    # Half precision is too coarse for probabilities.
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    config = model.config
    divided, multiplied = getattr(config, "logits_scaling", None), getattr(config, "logit_scale", None)
    if divided:
        logits = logits / divided
    if multiplied:
        logits = logits * multiplied
    bound = getattr(config, "final_logit_softcapping", None)
    if bound:
        logits = bound * torch.tanh(logits / bound)
    return logits
