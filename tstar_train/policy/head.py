"""From hidden states to logits, as the model's own forward pass does it."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel


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
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))  # half precision is too coarse for probabilities
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
