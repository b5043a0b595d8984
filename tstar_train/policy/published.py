"""What a model's folder said beside its weights. A checkpoint says it too, so that it loads wherever the model did.

transformers 5 writes a tokenizer and a configuration in words of its own. What gets lost then is what others go by: ``tokenizer.model``
(without which llama.cpp's converter refuses Gemma), the class ``GPT2Tokenizer`` (by which it knows Phi-4-mini's), and the names that the
rotary embedding had before (transformers 4, which that converter requires, would compute with a base of 10,000 and say nothing).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from tstar_envs import read_json
from tstar_train.policy.description import described

# What a tokenizer is read from. Without any, transformers makes an empty one and says nothing.
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
    """What is kept of a model's folder; nothing where a model was made in memory.

    Attributes:
        rotary: of ``config.json``, the fields of the rotary embedding under their names before transformers 5.
        tokenizer_config: the file of this name.
        tokenizer: other files of the tokenizer, by name.
    """

    rotary: Mapping[str, Any] = field(default_factory=dict)
    tokenizer_config: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: Mapping[str, bytes] = field(default_factory=dict)


def read_published(source: str | Path) -> Published:
    """Read it, a few megabytes.

    Args:
        source: a folder, or a Hugging Face name that has just been loaded.

    Raises:
        TStarError: a file that is there cannot be read.
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
    """Write everything of an ordinary Hugging Face folder but the weights, plain files all.

    Args:
        folder: which is there.
        model: whose configuration it is, ``generation_config`` (what ends a turn) included.
        tokenizer: as it was loaded.
        published: what the model's own folder said.
    """
    described(model).save_pretrained(folder)
    config = read_json(folder / "config.json") | dict(published.rotary)
    # Programs that do not lie beside it, and are not needed: none was when the model was loaded.
    config.pop("auto_map", None)
    _write(folder / "config.json", config)
    model.generation_config.save_pretrained(folder)
    # Chat templates go into tokenizer_config.json, where every release looks for them: several would be a folder of files.
    tokenizer.save_pretrained(folder, save_jinja_files=False)
    for name, data in published.tokenizer.items():
        (folder / name).write_bytes(data)
    if published.tokenizer_config:
        path = folder / "tokenizer_config.json"
        template = {name: value for name, value in read_json(path).items() if name == "chat_template"}
        _write(path, dict(published.tokenizer_config) | template)


def _write(path: Path, record: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(record, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
