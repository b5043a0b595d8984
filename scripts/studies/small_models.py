"""Random models of public architectures, small enough to be made on the spot (for ``smoke_models.py`` and the tests)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

try:
    from scripts.studies.small_tokenizers import shaped
except ModuleNotFoundError:  # run as a script of this folder
    from small_tokenizers import shaped

POSITIONS = 2048


def _config(kind: type[PretrainedConfig], vocabulary: int, **changed: Any) -> PretrainedConfig:
    sizes = {
        "vocab_size": vocabulary,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": POSITIONS,
        "pad_token_id": None,
        "eos_token_id": 1,
        "bos_token_id": None,
    }
    return kind(**{**sizes, **changed})


def _long_rope(vocabulary: int) -> PretrainedConfig:
    """Phi-4-mini's: beyond the positions it was first trained on every angle is another one."""
    scaling = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 16,
        "long_factor": [4.0] * 16,
        "factor": 8.0,
        "original_max_position_embeddings": POSITIONS,
        "partial_rotary_factor": 1.0,
    }
    longest = 8 * POSITIONS
    return _config(
        hf.Phi3Config,
        vocabulary,
        max_position_embeddings=longest,
        original_max_position_embeddings=POSITIONS,
        rope_parameters=scaling,
        sliding_window=2 * longest,
    )


def _nested(vocabulary: int) -> PretrainedConfig:
    sight = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
    }
    text = _config(hf.Gemma3TextConfig, vocabulary, head_dim=32)
    return hf.Gemma3Config(text_config=text.to_dict(), vision_config=sight)


def _latent(vocabulary: int) -> PretrainedConfig:
    return _config(
        hf.DeepseekV3Config,
        vocabulary,
        num_key_value_heads=2,
        moe_intermediate_size=32,
        n_routed_experts=4,
        n_group=1,
        topk_group=1,
        num_experts_per_tok=2,
        first_k_dense_replace=1,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=16,
    )


# name -> (shape of its tokenizer, with a chat template or as a base model, configuration for a vocabulary)
MODELS: dict[str, tuple[str, bool, Callable[[int], PretrainedConfig]]] = {
    "qwen2": ("qwen2", True, lambda v: _config(hf.Qwen2Config, v)),
    "qwen3": ("qwen3", True, lambda v: _config(hf.Qwen3Config, v, head_dim=32)),
    "llama3": ("llama3", True, lambda v: _config(hf.LlamaConfig, v)),
    "llama2-base": ("llama2", False, lambda v: _config(hf.LlamaConfig, v)),
    "mistral": ("llama2", True, lambda v: _config(hf.MistralConfig, v, sliding_window=None)),
    "gemma": ("gemma2", True, lambda v: _config(hf.GemmaConfig, v, head_dim=32)),
    "gemma2": ("gemma2", True, lambda v: _config(hf.Gemma2Config, v, head_dim=32, sliding_window=POSITIONS)),
    "gemma3": ("gemma2", True, lambda v: _config(hf.Gemma3TextConfig, v, head_dim=32, sliding_window=1024)),
    "phi3": ("phi4", True, lambda v: _config(hf.Phi3Config, v)),
    "phi4-mini": ("phi4", True, _long_rope),
    "smollm3": ("smollm3", True, lambda v: _config(hf.SmolLM3Config, v)),
    "gpt2": (
        "qwen2",
        False,
        lambda v: hf.GPT2Config(
            vocab_size=v, n_embd=64, n_layer=2, n_head=2, n_positions=1024, eos_token_id=1, bos_token_id=None
        ),
    ),
    "opt": (
        "zephyr",
        False,
        lambda v: hf.OPTConfig(
            vocab_size=v,
            hidden_size=64,
            ffn_dim=96,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=POSITIONS,
            word_embed_proj_dim=64,
            eos_token_id=2,
            bos_token_id=1,
            pad_token_id=0,
        ),
    ),
    "gpt-neox": (
        "deepseek",
        False,
        lambda v: hf.GPTNeoXConfig(
            vocab_size=v,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=POSITIONS,
        ),
    ),
    "olmo2": ("zephyr", True, lambda v: _config(hf.Olmo2Config, v)),
    "granite": ("qwen2", True, lambda v: _config(hf.GraniteConfig, v, logits_scaling=8.0)),
    "cohere": ("qwen2", True, lambda v: _config(hf.CohereConfig, v, logit_scale=0.25)),
    "mixtral": (
        "llama2",
        True,
        lambda v: _config(hf.MixtralConfig, v, num_local_experts=4, sliding_window=None),
    ),
    "starcoder2": ("zephyr", False, lambda v: _config(hf.Starcoder2Config, v, sliding_window=None)),
    "mistral-window": ("llama2", True, lambda v: _config(hf.MistralConfig, v, sliding_window=16)),
    "bloom": ("zephyr", False, lambda v: hf.BloomConfig(vocab_size=v, hidden_size=64, n_layer=2, n_head=2)),
    "falcon": (
        "zephyr",
        False,
        lambda v: hf.FalconConfig(
            vocab_size=v, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, alibi=True
        ),
    ),
    "gpt-neo": (
        "qwen2",
        False,
        lambda v: hf.GPTNeoConfig(
            vocab_size=v,
            hidden_size=64,
            num_layers=2,
            num_heads=2,
            attention_types=[[["global", "local"], 1]],
            window_size=32,
            max_position_embeddings=POSITIONS,
            eos_token_id=1,
            bos_token_id=None,
        ),
    ),
    "mamba": ("qwen2", False, lambda v: hf.MambaConfig(vocab_size=v, hidden_size=64, num_hidden_layers=2)),
    "deepseek3": ("deepseek", True, _latent),
    "gemma3-multimodal": ("gemma2", True, _nested),
}
REFUSED = {"mistral-window", "bloom", "falcon", "gpt-neo", "mamba", "deepseek3", "gemma3-multimodal"}


def small_model(name: str, vocabulary: int) -> PreTrainedModel:
    """A model of this architecture with random weights, the same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            MODELS[name][2](vocabulary), dtype=torch.float32
        ).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def save_small(name: str, folder: Path) -> None:
    """Write it as an ordinary Hugging Face folder."""
    shape, chat, _ = MODELS[name]
    tokenizer = shaped(shape, chat)
    model = small_model(name, len(tokenizer))
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
