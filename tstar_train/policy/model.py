"""Policies: the built-in tiny model, or any Hugging Face causal LM by name or path."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from transformers.utils import logging

from tstar_envs import BadData, MissingData, TStarError, UnknownOption, read_json
from tstar_train.policy.capability import require_text_model
from tstar_train.policy.chat import ChatCodec
from tstar_train.policy.claims import check_claims, check_weights, require_no_kernel, stored_size
from tstar_train.policy.codec import Codec, PlainCodec
from tstar_train.policy.copy_heads import copy_heads
from tstar_train.policy.description import described
from tstar_train.policy.look_back import look_back
from tstar_train.policy.published import VOCABULARIES, Published, read_published
from tstar_train.policy.shipped import END, PAD, model_source
from tstar_train.policy.turn_end import named_ends
from tstar_train.recipes.recipe import ModelRecipe

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
        published: what the folder that it was loaded from says beside the weights.
    """

    model: PreTrainedModel
    codec: Codec
    tokenizer: PreTrainedTokenizerBase
    name: str
    published: Published = field(default_factory=Published)

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(p.numel() for p in self.model.parameters())


def tiny_config(vocabulary: int, pad: int, end: int, base: float) -> Qwen2Config:
    """The built-in architecture: Qwen2, about 1.1M parameters.

    ``base`` is that of the rotary position embedding (``ModelRecipe.rope_base``).
    """
    return Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": base},
        tie_word_embeddings=True,
        attention_dropout=0.0,
        initializer_range=0.08,
        pad_token_id=pad,
        eos_token_id=end,
        bos_token_id=None,
        use_cache=False,
    )


def new_tiny(tokenizer: PreTrainedTokenizerBase, seed: int, recipe: ModelRecipe) -> Qwen2ForCausalLM:
    """A tiny model with random weights, the same for the same seed, whose heads begin as the recipe says."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(
            tiny_config(len(tokenizer), tokenizer.pad_token_id, tokenizer.eos_token_id, recipe.rope_base)
        )
    look_back(model, recipe.look_back, recipe.rope_base)
    if recipe.copying:
        copy_heads(model, seed)
    model.eval()
    return model


def save_tiny(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a tiny model in half precision (about 2.3 MB) with its tokenizer.

    float16 rather than bfloat16: weights are below 100 in size, and three more bits of mantissa cost nothing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # The tied output matrix is stored once.
    state = {
        k: v.detach().to(torch.float16).contiguous()
        for k, v in model.state_dict().items()
        if k != "lm_head.weight"
    }
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    described(model).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def load_policy(name: str, built_in: str, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Policy:
    """Load a policy.

    Args:
        name: ``tiny`` (shipped with the package), or a Hugging Face name or path.
        built_in: which of the shipped ones ``tiny`` is (see ``recipes.built_in.policy_name``).
        device: torch device.
        dtype: of the weights.

    Raises:
        MissingData: ``tiny`` has no weights of this name, or nothing is at that name or path.
        BadData: the files of a folder cannot be read as a model.
    """
    source = model_source(name, built_in)
    logging.disable_progress_bar()  # a bar for reading one small file would only disturb ours
    try:
        if isinstance(source, Path):
            check_claims(source)
        else:
            require_no_kernel(AutoConfig.from_pretrained(source, trust_remote_code=False), name)
        tokenizer = load_tokenizer(source)
        # safetensors only and never remote code: loading weights must not run anybody's program.
        read: Any = AutoModelForCausalLM.from_pretrained(
            source, dtype=dtype, use_safetensors=True, trust_remote_code=False, output_loading_info=True
        )
        model: PreTrainedModel = read[0]
        check_weights(model, read[1]["missing_keys"], source)
        published = read_published(source)
    except (
        Exception
    ) as error:  # each library has errors of its own for what it cannot read, down to a bare Exception
        if "trust_remote_code" in str(error):
            raise BadData(
                f"the model {name} brings code of its own, which is never run here: name one of an architecture that transformers "
                f"{transformers.__version__} knows"
            ) from error
        kind = "" if isinstance(error, TStarError) else f"{type(error).__name__}: "
        cause = f"{kind}{' '.join(str(error).split())}"
        if isinstance(source, Path):
            raise BadData(
                f"the model in {source} cannot be read ({cause:.400}): copy or make it again, or name another"
            ) from error
        raise MissingData(
            f"no model {name!r}: no such folder here, and as a Hugging Face name it cannot be loaded ({cause:.400})"
        ) from error
    require_text_model(model, tokenizer, name)
    torch.nn.Module.to(model, device)
    model.eval()
    # A policy of ours (shipped, or a checkpoint of one) never saw the environment's rules in its context.
    ours = (tokenizer.pad_token, tokenizer.eos_token) == (PAD, END)
    settings = model.generation_config
    codec: Codec = (
        ChatCodec(tokenizer, settings)
        if tokenizer.chat_template
        else PlainCodec(tokenizer, with_prompt=not ours, ends=named_ends(tokenizer, settings))
    )
    return Policy(model, codec, tokenizer, name, published)


def recompute_layers(model: PreTrainedModel) -> None:
    """Let layers be computed again in the backward pass wherever the model is in training mode, in which nothing is dropped.

    Raises:
        UnknownOption: the architecture cannot.
    """
    try:
        # Older releases of transformers 5 know the second name alone.
        getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
    except ValueError as error:
        raise UnknownOption(
            f"--optim.recompute: {model.config.model_type} cannot compute its layers again ({error})"
        ) from error
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name in ("attention_dropout", "dropout", "activation_dropout", "layerdrop"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)


def has_few_parameters(name: str, built_in: str) -> bool:
    """Whether a model in a folder is so small that one thread computes it fastest, without loading it; a mere name may be of any size."""
    source = model_source(name, built_in, weights=False)
    if not isinstance(source, Path):
        return False
    return (
        0 < stored_size(source)[1] < ONE_THREAD_BELOW
    )  # 0: a configuration alone, which can be planned with


def load_tokenizer(source: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer that was saved, not the one that its architecture usually has.

    transformers 5 picks the class by the model's ``model_type``: for a Qwen2 model with a tokenizer of its own it would build
    Qwen2's, which splits digits and drops the normalizer, without a word.

    Raises:
        MissingData: a folder holds none.
    """
    if isinstance(source, Path) and not any((source / name).is_file() for name in VOCABULARIES):
        raise MissingData(
            f"no tokenizer in {source} (none of {', '.join(VOCABULARIES)}): copy the files of the one it was trained with"
        )
    path = Path(source) / "tokenizer_config.json"
    if path.exists() and read_json(path).get("tokenizer_class") in _OWN_TOKENIZERS:
        tokenizer: PreTrainedTokenizerBase = PreTrainedTokenizerFast.from_pretrained(
            source, trust_remote_code=False
        )
        return tokenizer
    chosen: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    return chosen
