"""Policies: any Hugging Face causal language model, or a built-in tiny model."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import snapshot_download
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from transformers.core_model_loading import revert_weight_conversion
from transformers.utils import logging

from tstar_envs import BadData, MissingData, TStarError, UnknownOption, file_kind, read_json, regular_file
from tstar_train.policy.chat import ChatCodec
from tstar_train.policy.codec import Codec, PlainCodec, named_ends
from tstar_train.policy.files import END, PAD, check_folder, model_source
from tstar_train.recipes.recipe import ModelRecipe

# Size of the biases per rotated pair at base 100: the attention score at the wanted distance is some 4 nats above its neighbours'.
_STRENGTH = 4.6
_BASE = 100.0
# Initial scale of a token's content in those scores, relative to an ordinary head.
_CONTENT = 0.1


def set_induction_heads(model: Qwen2ForCausalLM, offsets: Sequence[Sequence[int]], base: float) -> None:
    """Initialize heads to attend to the token at a fixed distance, in place.

    Args:
        model: newly initialized model.
        offsets: distances in tokens, per layer and head, starting with the first layer and head.
        base: base of the model's rotary embedding.
    """
    config = model.config
    size = config.hidden_size // config.num_attention_heads
    # Rotary embedding rotates the pair (i, i + size/2) of a head by the position times this angle.
    angles = _angles(base, size)
    # A larger base rotates fewer pairs between neighbours: the same 4 nats need larger biases.
    strength = _STRENGTH * float(((1 - _angles(_BASE, size).cos()).sum() / (1 - angles.cos()).sum()).sqrt())
    key = torch.cat([torch.full((size // 2,), strength), torch.zeros(size // 2)])
    with torch.no_grad():
        for layer, distances in zip(model.model.layers, offsets, strict=False):
            for head, distance in enumerate(distances):
                rows = slice(head * size, (head + 1) * size)
                attention = layer.self_attn
                attention.q_proj.weight[rows] *= _CONTENT
                attention.k_proj.weight[rows] *= _CONTENT
                attention.k_proj.bias[rows] = key
                # Rotate the key back by the distance: query and key then agree in every pair if the query is that much later.
                turn = angles * distance
                attention.q_proj.bias[rows] = strength * torch.cat([turn.cos(), -turn.sin()])


def _angles(base: float, size: int) -> torch.Tensor:
    return base ** (-torch.arange(size // 2) / (size // 2))


# All are tuned on the loss of the second half of repeated random tokens, before any training.
_MATCH, _WRITE, _OUT = 2.5, 0.25, 0.5
# Initial scale of the layers' other outputs: at full size they hide the marks.
_QUIET_MLP, _QUIET_ATTENTION = 0.05, 0.1
# Copying heads of the second layer; its first head attends to a fixed distance.
_HEADS = (1, 2)


def copy_heads(model: Qwen2ForCausalLM, seed: int) -> None:
    """Initialize induction heads that copy, in place: the first head of the first layer and two heads of the second.

    Args:
        model: newly initialized model whose first head attends to the previous token. The rotary base must be large (100,000 for contexts
            of some hundred tokens), since distant matches are found by the slowly rotating half of a head's pairs.
        seed: seed of the random subspaces.
    """
    config = model.config
    size = config.hidden_size // config.num_attention_heads
    rng = torch.Generator().manual_seed(seed)
    token, mark = _orthonormal(size, config.hidden_size, rng), _orthonormal(size, config.hidden_size, rng)
    # Rotary embedding rotates the pairs (i, i + size/2) more slowly for larger i.
    slow = torch.tensor([*range(size // 4, size // 2), *range(3 * size // 4, size)])
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.down_proj.weight *= _QUIET_MLP
            layer.self_attn.o_proj.weight *= _QUIET_ATTENTION
        first, second = (layer.self_attn for layer in model.model.layers[:2])
        first.v_proj.weight[:size], first.v_proj.bias[:size] = token, 0.0
        first.o_proj.weight[:, :size] = _WRITE * mark.T
        for half, head in enumerate(_HEADS):
            rows = slice(head * size, (head + 1) * size)
            part = slice(half * size // 2, (half + 1) * size // 2)
            for projection, seen in ((second.q_proj, token), (second.k_proj, mark)):
                projection.weight[rows], projection.bias[rows] = 0.0, 0.0
                projection.weight[head * size + slow] = _MATCH * seen[part]
            copied = _orthonormal(size, config.hidden_size, rng)
            second.v_proj.weight[rows] = copied
            second.o_proj.weight[:, rows] = _OUT * copied.T


def _orthonormal(rows: int, columns: int, rng: torch.Generator) -> Tensor:
    """Draw random orthonormal rows."""
    columnwise: Tensor = torch.linalg.qr(torch.randn(columns, rows, generator=rng))[0]
    return columnwise.T


def config_with_class_name(model: PreTrainedModel) -> PretrainedConfig:
    """Copy the configuration with its class name, which vLLM and llama.cpp's converter need.

    transformers writes the class name only if it saves the weights itself.
    """
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    return config


def renamed(model: PreTrainedModel, shapes: Iterable[tuple[str, Iterable[int]]]) -> bool:
    """Check whether a model's files use other names for some of its weights.

    Args:
        model: model of the weights.
        shapes: (name in memory, shape) of the weights.
    """
    ours = {name: torch.empty(tuple(shape), device="meta") for name, shape in shapes}
    return set(revert_weight_conversion(model, dict(ours))) != set(ours)


def by_file_names(
    model: PreTrainedModel, weights: Iterable[tuple[str, Tensor]]
) -> Iterator[tuple[str, Tensor]]:
    """Return a model's weights under the names used in its files."""
    yield from revert_weight_conversion(model, dict(weights)).items()


def require_text_config(config: Any, name: str) -> None:
    """Check from its configuration that a model is a causal language model.

    Args:
        config: the model's configuration.
        name: the user's name for the model, for error messages.

    Raises:
        BadData: the model is not supported; the message says why.
    """
    kind = config.model_type
    if config.get_text_config() is not config:
        raise BadData(
            f"{name} ({kind}) holds its language model inside a larger one (text_config): name a text-only model"
        )
    if not getattr(config, "num_attention_heads", None):
        raise BadData(
            f"{name} ({kind}) has no attention with keys to cache between turns: name a transformer"
        )


def require_text_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Check that a model is a causal language model and embeds all tokens of its tokenizer.

    Args:
        model: the loaded model.
        tokenizer: the loaded tokenizer.
        name: the user's name for the model, for error messages.

    Raises:
        BadData: the model or its tokenizer is not supported; the message says why.
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


# Vocabulary files of a tokenizer. Without any, transformers silently makes an empty tokenizer.
VOCABULARIES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
)
_TOKENIZER = (*VOCABULARIES, "merges.txt", "added_tokens.json", "special_tokens_map.json")
_ROTARY = (
    "rope_theta",
    "rope_scaling",
    "rope_local_base_freq",
    "partial_rotary_factor",
    "rotary_pct",
    "rotary_emb_base",
)


@dataclass(frozen=True)
class Published:
    """Files kept from a model's folder; empty for a model made in memory.

    Attributes:
        rotary: rotary embedding fields of ``config.json``, with their names before transformers 5.
        tokenizer_config: content of ``tokenizer_config.json``.
        tokenizer: other files of the tokenizer, by name.
    """

    rotary: Mapping[str, Any] = field(default_factory=dict)
    tokenizer_config: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: Mapping[str, bytes] = field(default_factory=dict)


def read_published(source: str | Path) -> Published:
    """Read the files of a model that its checkpoints keep, a few megabytes.

    Args:
        source: a folder, or a Hugging Face name that has just been loaded.

    Raises:
        TStarError: an existing file cannot be read.
    """
    names = ["config.json", "tokenizer_config.json", *_TOKENIZER]
    folder = source if isinstance(source, Path) else Path(snapshot_download(source, allow_patterns=names))
    config = read_json(folder / "config.json")
    path = folder / "tokenizer_config.json"
    return Published(
        rotary={name: config[name] for name in _ROTARY if name in config},
        tokenizer_config=read_json(path) if path.is_file() else {},
        tokenizer={name: (folder / name).read_bytes() for name in _TOKENIZER if (folder / name).is_file()},
    )


def save_description(
    folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, published: Published
) -> None:
    """Write all files of an ordinary Hugging Face folder except the weights.

    Args:
        folder: an existing folder.
        model: model with the configuration and ``generation_config`` (stop tokens) to write.
        tokenizer: the loaded tokenizer.
        published: files kept from the model's own folder.
    """
    config_with_class_name(model).save_pretrained(folder)
    config = read_json(folder / "config.json") | dict(published.rotary)
    # auto_map names custom code, which is not in this folder and was not used to load the model.
    config.pop("auto_map", None)
    _write(folder / "config.json", config)
    model.generation_config.save_pretrained(folder)
    # Chat templates go into tokenizer_config.json, where all releases look; separate files would need a folder for several templates.
    tokenizer.save_pretrained(folder, save_jinja_files=False)
    for name, data in published.tokenizer.items():
        (folder / name).write_bytes(data)
    if published.tokenizer_config:
        path = folder / "tokenizer_config.json"
        template = {name: value for name, value in read_json(path).items() if name == "chat_template"}
        _write(path, dict(published.tokenizer_config) | template)


def _write(path: Path, record: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(record, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


# Models with fewer parameters use one thread: two threads on a busy machine were 8 times slower.
ONE_THREAD_BELOW = 5_000_000
_OWN_TOKENIZERS = ("TokenizersBackend", "PreTrainedTokenizerFast")


@dataclass
class Policy:
    """A model with its codec.

    Attributes:
        model: causal LM in eval mode.
        codec: codec between turns and token ids.
        tokenizer: the codec's tokenizer.
        name: name or path given by the user.
        published: files kept from the folder that the model was loaded from.
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
    """Return the configuration of the built-in architecture: Qwen2, about 1.1M parameters.

    ``base`` is the base of the rotary position embedding (``ModelRecipe.rope_base``).
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
    """Make a tiny model with random weights by seed, its attention heads initialised by the recipe."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(
            tiny_config(len(tokenizer), tokenizer.pad_token_id, tokenizer.eos_token_id, recipe.rope_base)
        )
    set_induction_heads(model, recipe.look_back, recipe.rope_base)
    if recipe.copying:
        copy_heads(model, seed)
    model.eval()
    return model


def save_tiny(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a tiny model in float16 (about 2.3 MB) with its tokenizer.

    float16 instead of bfloat16: weights are below 100 in size, so the range suffices, and the mantissa has three more bits.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # The tied output matrix is stored once.
    state = {
        k: v.detach().to(torch.float16).contiguous()
        for k, v in model.state_dict().items()
        if k != "lm_head.weight"
    }
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    config_with_class_name(model).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def load_policy(name: str, built_in: str, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Policy:
    """Load a policy.

    Args:
        name: ``tiny`` (shipped with the package), or a Hugging Face name or path.
        built_in: the shipped policy that ``tiny`` stands for (see ``recipes.recipe.policy_name``).
        device: torch device.
        dtype: dtype of the weights.

    Raises:
        MissingData: ``tiny`` has no weights for ``built_in``, or there is no model at that name or path.
        BadData: the files of a folder cannot be read as a model.

    Example:
        >>> policy = load_policy("tiny", "blocksworld")
        >>> ids = policy.codec.text("Action: stack red on blue")
        >>> policy.codec.decode(ids)
        'Action: stack red on blue'
    """
    source = model_source(name, built_in)
    logging.disable_progress_bar()  # it would disturb the trainer's own progress bar
    try:
        if isinstance(source, Path):
            check_model_folder(source)
        else:
            require_no_kernel(AutoConfig.from_pretrained(source, trust_remote_code=False), name)
        tokenizer = load_tokenizer(source)
        # safetensors only and no remote code: loading weights must not run foreign code.
        read: Any = AutoModelForCausalLM.from_pretrained(
            source, dtype=dtype, use_safetensors=True, trust_remote_code=False, output_loading_info=True
        )
        model: PreTrainedModel = read[0]
        check_weights(model, read[1]["missing_keys"], source)
        published = read_published(source)
    except Exception as error:  # libraries raise many error types for unreadable files, even a bare Exception
        if "trust_remote_code" in str(error):
            raise BadData(
                f"the model {name} needs custom code, which is never run here: name one of an architecture that transformers "
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
    # A tiny policy (shipped, or its checkpoint) was trained without the environment's rules in its context.
    ours = (tokenizer.pad_token, tokenizer.eos_token) == (PAD, END)
    settings = model.generation_config
    codec: Codec = (
        ChatCodec(tokenizer, settings)
        if tokenizer.chat_template
        else PlainCodec(tokenizer, with_prompt=not ours, ends=named_ends(tokenizer, settings))
    )
    return Policy(model, codec, tokenizer, name, published)


def set_threads(policy: Policy, threads: int | None = None) -> None:
    """Set the number of torch's threads in this process; without one asked for, small models get one thread."""
    if threads is not None or policy.parameters < ONE_THREAD_BELOW:
        torch.set_num_threads(threads or 1)


def recompute_layers(model: PreTrainedModel) -> None:
    """Enable gradient checkpointing, which is active in training mode, and set every dropout to 0.

    Raises:
        UnknownOption: the architecture does not support it.
    """
    try:
        # Older releases of transformers 5 only have the second name.
        getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
    except ValueError as error:
        raise UnknownOption(
            f"--optim.gradient-checkpointing: {model.config.model_type} does not support it ({error})"
        ) from error
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name in ("attention_dropout", "dropout", "activation_dropout", "layerdrop"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)


def has_few_parameters(name: str, built_in: str) -> bool:
    """Check from its files if a model is so small that one thread is fastest; False for a Hugging Face name."""
    source = model_source(name, built_in, weights=False)
    if not isinstance(source, Path):
        return False
    return (
        0 < stored_size(source)[1] < ONE_THREAD_BELOW
    )  # 0: a configuration without weights, which is enough for a plan


def load_tokenizer(source: str | Path) -> PreTrainedTokenizerBase:
    """Load the saved tokenizer instead of the architecture's default.

    transformers 5 picks the class by the model's ``model_type``. For a Qwen2 model with a custom tokenizer it would silently build Qwen2's,
    which splits digits and drops the normalizer.

    Raises:
        MissingData: a folder has no tokenizer.
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


_SLACK = 1_000_000  # parameters; small models have tables that are not in their files


_INDEX = "model.safetensors.index.json"


def check_model_folder(folder: Path) -> None:
    """Check a model's folder: its files match their checksums, and its configuration is not larger than its weights.

    A configuration with a million layers, or a vocabulary of a trillion, would be filled with random numbers for hours before the first
    missing tensor is noticed.

    Raises:
        BadData, MissingData: a check fails, or a file cannot be read.
    """
    read_json(folder / "config.json")
    check_folder(folder)
    tensors, elements = stored_size(folder)
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    require_no_kernel(config, folder)
    layers = int(getattr(config.get_text_config(), "num_hidden_layers", 0) or 0)
    if layers > tensors:
        raise BadData(f"{folder / 'config.json'} names {layers:,} layers, the files hold {tensors} tensors")
    with torch.device("meta"):  # shapes without numbers
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    configured = sum(p.numel() for p in model.parameters())
    if configured > 2 * elements + _SLACK:
        raise BadData(
            f"{folder / 'config.json'} describes a model of {configured:,} parameters, the files hold {elements:,}"
        )


def require_no_kernel(config: Any, where: object) -> None:
    """Refuse a configuration with an attention kernel from a hub: transformers would download and run its code.

    Raises:
        BadData: the configuration names such a kernel.
    """
    for part in (config, *(getattr(config, name, None) for name in getattr(config, "sub_configs", ()))):
        kernel = getattr(part, "_attn_implementation", None)
        if isinstance(kernel, str) and "/" in kernel:
            raise BadData(
                f"{where}: config.json names the attention kernel {kernel!r:.100}, foreign code that is never downloaded here; remove "
                "its field attn_implementation"
            )


def check_weights(model: PreTrainedModel, absent: Any, where: object) -> None:
    """Check that all weights of a model were loaded and are finite.

    Args:
        model: the loaded model.
        absent: names of tensors that are in no file, so that transformers initialized them at random.
        where: name or path for error messages.

    Raises:
        BadData: a weight is missing, NaN or infinite.
    """
    if absent:
        raise BadData(
            f"{where}: no weights for {', '.join(sorted(absent)[:3])}{' ...' if len(absent) > 3 else ''}"
        )
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise BadData(
                f"{where}: the weights {name} are not all finite numbers; they are damaged, or from a failed training"
            )


def stored_size(folder: Path) -> tuple[int, int]:
    """Count (tensors, elements) of a folder's weight files from their headers.

    Raises:
        BadData: a file is not in safetensors format, such as a Git LFS pointer.
    """
    if (folder / "model.safetensors").exists():
        files = [folder / "model.safetensors"]
    elif (folder / _INDEX).is_file():
        named = read_json(folder / _INDEX).get("weight_map")
        names = set(named.values()) if isinstance(named, dict) else set()
        if not names or not all(isinstance(name, str) and Path(name).name == name for name in names):
            raise BadData(f"{folder / _INDEX}: no 'weight_map' to files of this folder")
        files = [folder / name for name in sorted(names)]
    else:
        files = sorted(folder.glob("*.safetensors"))
    tensors = elements = 0
    for file in files:
        regular_file(file)
        try:
            with safe_open(file, framework="pt") as content:
                for name in content.keys():  # noqa: SIM118 - not a mapping
                    tensors += 1
                    elements += math.prod(content.get_slice(name).get_shape())
        except (SafetensorError, OSError) as error:
            size = file.stat().st_size
            found = file_kind(file) or (f"{size:,} bytes ({error})" if size else "an empty file")
            raise BadData(f"{file}: not weights in safetensors format but {found}") from None
    return tensors, elements
