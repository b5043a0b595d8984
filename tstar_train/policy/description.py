"""What a model's ``config.json`` says of it, so that others load its folder as it stands."""

from __future__ import annotations

import copy

from transformers import PretrainedConfig, PreTrainedModel


def described(model: PreTrainedModel) -> PretrainedConfig:
    """A copy of its configuration that names its class: vLLM and llama.cpp's converter choose their own by it.

    transformers writes it where it saves weights itself; a trainer that writes them by its own names it here.
    """
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    return config
