"""What of a model is asked once, before anything is measured or written: whether the trainer can compute with it at all."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from tstar_envs import BadData


def require_text_config(config: Any, name: str) -> None:
    """Refuse what is no causal language model, by its configuration alone.

    Args:
        config: of the model.
        name: as the user gave it.

    Raises:
        BadData: one sentence that says what stands against it.
    """
    kind = config.model_type
    if config.get_text_config() is not config:
        raise BadData(
            f"{name} ({kind}) holds its language model inside a larger one (text_config): name a text-only model"
        )
    if not getattr(config, "num_attention_heads", None):
        raise BadData(
            f"{name} ({kind}) has no attention whose keys could be kept from turn to turn: name a transformer"
        )


def require_text_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Refuse what is no causal language model over its tokenizer's own tokens.

    Args:
        model: as loaded.
        tokenizer: as loaded.
        name: as the user gave it.

    Raises:
        BadData: one sentence that says what stands against it.
    """
    require_text_config(model.config, name)
    size = int(torch.as_tensor(model.get_input_embeddings().weight).shape[0])
    ids = tokenizer.get_vocab()
    beyond = max(ids, key=lambda token: ids[token], default="")
    if ids and ids[beyond] >= size >= len(tokenizer):
        raise BadData(
            f"the tokenizer of {name} gives {beyond!r:.60} the id {ids[beyond]}, and the model embeds the ids below {size}: take the "
            "tokenizer that the model was made with"
        )
    if len(tokenizer) > size:
        raise BadData(
            f"the tokenizer of {name} has {len(tokenizer)} tokens and the model embeds {size}: resize the embedding and save the model "
            f"again (model.resize_token_embeddings({len(tokenizer)})), or take the tokenizer that it was made with"
        )
