"""Policies: the built-in tiny model, or any Hugging Face causal LM by name or path."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from transformers.utils import logging

from tstar_train.policy.codec import ChatCodec, Codec, PlainCodec
from tstar_train.policy.tokenizer import END, PAD

WEIGHTS = Path(__file__).parent / "weights"
# Models below this many parameters compute on one thread: with more, two threads on a busy machine were 8 times slower.
ONE_THREAD_BELOW = 5_000_000
_OWN_TOKENIZERS = ("TokenizersBackend", "PreTrainedTokenizerFast")


@dataclass
class Policy:
    """A model with its codec.

    Attributes:
        model: a causal LM in eval mode.
        codec: how turns become ids.
        tokenizer: behind the codec.
        name: as given by the user.
    """

    model: PreTrainedModel
    codec: Codec
    tokenizer: PreTrainedTokenizerBase
    name: str

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(p.numel() for p in self.model.parameters())


def tiny_config(vocabulary: int, pad: int, end: int) -> Qwen2Config:
    """The built-in architecture: Qwen2, about 1.1M parameters.

    RoPE's base is 100: contexts are some hundred tokens long, and the usual base of 10,000 leaves most of a 32-dimensional
    head's rotations unused there.
    """
    return Qwen2Config(
        vocab_size=vocabulary, hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=4096, rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        tie_word_embeddings=True, attention_dropout=0.0, initializer_range=0.08, pad_token_id=pad, eos_token_id=end,
        bos_token_id=None, use_cache=False,
    )  # fmt: skip


def new_tiny(tokenizer: PreTrainedTokenizerBase, seed: int) -> Qwen2ForCausalLM:
    """A tiny model with random weights, the same for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(tiny_config(len(tokenizer), tokenizer.pad_token_id, tokenizer.eos_token_id))
    model.eval()
    return model


def save_tiny(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a tiny model in half precision (about 2.3 MB) with its tokenizer.

    float16 rather than bfloat16: weights are below 100 in size, and three more bits of mantissa cost nothing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # The tied output matrix is stored once.
    state = {k: v.detach().to(torch.float16).contiguous() for k, v in model.state_dict().items() if k != "lm_head.weight"}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    model.config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def load_policy(name: str, family: str, device: str = "cpu") -> Policy:
    """Load a policy.

    Args:
        name: ``tiny`` (shipped with the package, one file per family), or a Hugging Face name or path.
        family: environment family, for ``tiny``.
        device: torch device.

    Raises:
        FileNotFoundError: ``tiny`` has no weights for this family.
        OSError: nothing at that name or path (from transformers, whose message names it).
    """
    source: str | Path = name
    if name == "tiny":
        source = WEIGHTS / family
        if not has_tiny(family):
            trained = sorted(p.name for p in WEIGHTS.iterdir()) if WEIGHTS.is_dir() else []
            raise FileNotFoundError(
                f"the tiny model has no weights for family {family!r} (it has: {', '.join(trained) or 'none'}); "
                f"make them with: python -m tstar_train warmstart"
            )
    logging.disable_progress_bar()  # a bar for reading one small file would only disturb ours
    tokenizer = load_tokenizer(source)
    # safetensors only and never remote code: loading weights must not run anybody's program.
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, use_safetensors=True, trust_remote_code=False)
    torch.nn.Module.to(model, device)
    model.eval()
    # A policy of ours (shipped, or a checkpoint of one) never saw the environment's rules in its context.
    ours = (tokenizer.pad_token, tokenizer.eos_token) == (PAD, END)
    codec: Codec = ChatCodec(tokenizer) if tokenizer.chat_template else PlainCodec(tokenizer, with_prompt=not ours)
    return Policy(model, codec, tokenizer, name)


def load_tokenizer(source: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer that was saved, not the one that its architecture usually has.

    transformers 5 picks the class by the model's ``model_type``: for a Qwen2 model with a tokenizer of its own it would build
    Qwen2's, which splits digits and drops the normalizer, without a word.
    """
    path = Path(source) / "tokenizer_config.json"
    if path.is_file() and json.loads(path.read_text(encoding="utf-8")).get("tokenizer_class") in _OWN_TOKENIZERS:
        tokenizer: PreTrainedTokenizerBase = PreTrainedTokenizerFast.from_pretrained(source)
        return tokenizer
    chosen: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(source)
    return chosen


def is_tiny(name: str) -> bool:
    """Whether a name is ``tiny`` or the path of a policy of that kind (a checkpoint, or what ``warmstart`` wrote)."""
    path = Path(name) / "tokenizer_config.json"
    if name == "tiny" or not path.is_file():
        return name == "tiny"
    record = json.loads(path.read_text(encoding="utf-8"))
    return (record.get("pad_token"), record.get("eos_token")) == (PAD, END)


def has_tiny(family: str) -> bool:
    """Whether the package ships tiny weights for an environment family."""
    return (WEIGHTS / family / "model.safetensors").is_file()
