"""Convert a checkpoint with llama.cpp's own converter, and compare the outputs of llama.cpp with those of transformers.

    python scripts/studies/check_llamacpp.py LLAMA_CPP [NAME ...] [--python PYTHON]

LLAMA_CPP is a checkout of llama.cpp, or ``vendor/llama.cpp`` in the source distribution of llama-cpp-python
(``pip download --no-deps --no-binary :all: llama-cpp-python``). It holds the vocabularies of public models, with which small random
models are made and trained for one iteration each, and the converter. PYTHON runs the converter (transformers and torch are what it
needs) and, where it has ``llama_cpp``, the converted model, whose greedy tokens must be transformers' own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from small_models import MODELS
from small_tokenizers import SHAPES
from smoke_models import run
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

_LETTERS = r"|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SHORT = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
# model -> (llama.cpp's vocabulary, how the published tokenizer cuts words: None is GPT-2's way, the class that its files name)
VOCABULARIES: dict[str, tuple[str, str | None, str]] = {
    "qwen2": ("qwen2", _SHORT + _LETTERS % r"\p{N}", "Qwen2Tokenizer"),
    "llama3": ("llama-bpe", _SHORT + _LETTERS % r"\p{N}{1,3}", "PreTrainedTokenizerFast"),
    "mixtral": ("llama-bpe", _SHORT + _LETTERS % r"\p{N}{1,3}", "PreTrainedTokenizerFast"),
    "phi4-mini": ("gpt-2", None, "GPT2Tokenizer"),
    "gpt2": ("gpt-2", None, "GPT2Tokenizer"),
}
TEXT = "You are on a grid, 3 by 12. What's 1234 + 5678? Ich weiß: 工作 🚀\n\nAction: push left"
NEW = 24
GREEDY = """
import json, sys
import llama_cpp
model = llama_cpp.Llama(sys.argv[1], n_ctx=256, n_threads=1, verbose=False)
ids = model.tokenize(sys.argv[2].encode(), add_bos=False, special=False)
made = []
for token in model.generate(ids, temp=0.0, top_k=1, repeat_penalty=1.0):
    made.append(token)
    if len(made) == int(sys.argv[3]):
        break
print(json.dumps([ids, made]))
"""


def save_tokenizer(name: str, llama: Path, folder: Path) -> int:
    """Write the tokenizer that a public model of this name has, as it is published; the size of its vocabulary."""
    vocabulary, words, kind = VOCABULARIES[name]
    shape, chat, _ = MODELS[name]
    template, special, eos, bos, _ = SHAPES[shape]
    sys.path.insert(1, str(llama / "gguf-py"))
    from gguf import GGUFReader  # of this llama.cpp

    fields = GGUFReader(llama / "models" / f"ggml-vocab-{vocabulary}.gguf").fields
    tokens, types, merges = (
        fields[f"tokenizer.ggml.{key}"].contents() for key in ("tokens", "token_type", "merges")
    )
    normal = {token: i for i, token in enumerate(tokens) if types[i] == 1}
    made = Tokenizer(
        models.BPE(
            vocab=normal,
            merges=[tuple(pair.split(" ")) for pair in merges],
            ignore_merges=vocabulary == "llama-bpe",
        )
    )
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words is None)
    cut = [] if words is None else [pre_tokenizers.Split(Regex(words), "isolated")]
    made.pre_tokenizer = pre_tokenizers.Sequence([*cut, byte_level])
    made.decoder = decoders.ByteLevel()
    if vocabulary == "qwen2":
        made.normalizer = normalizers.NFC()
    # What was added to the vocabulary lies behind it, in its own order; places that nothing has (type 5) stay empty.
    made.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for i, token in enumerate(tokens)
            if types[i] in (3, 4)
        ]
    )
    if chat:
        made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    else:
        eos = bos = "<|endoftext|>"
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))
    said: dict[str, Any] = {"tokenizer_class": kind, "eos_token": eos, "clean_up_tokenization_spaces": False}
    said |= {"bos_token": bos} if bos else {}
    said |= {"chat_template": template} if chat else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(said, indent=1))
    return max(len(tokens), made.get_vocab_size())


def save_model(name: str, llama: Path, folder: Path) -> None:
    """A small random model with a public model's tokenizer."""
    size = save_tokenizer(name, llama, folder)
    torch.manual_seed(0)
    config = MODELS[name][2](size)
    end = AutoTokenizer.from_pretrained(folder).eos_token_id
    config.eos_token_id = end
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    model.generation_config.eos_token_id = end
    model.save_pretrained(folder)
    # What public models say was written by earlier releases, under other names.
    path = folder / "config.json"
    said = json.loads(path.read_text())
    if name == "gpt2":
        said["n_ctx"] = said["n_positions"]
    else:
        scaling = said.pop("rope_parameters")
        said["rope_theta"] = 500_000.0  # another than a reader would assume
        if scaling["rope_type"] == "longrope":
            said["rope_scaling"] = {"type": "longrope"} | {
                key: scaling[key] for key in ("short_factor", "long_factor")
            }
    path.write_text(json.dumps(said, indent=1))


def greedy(checkpoint: Path) -> tuple[list[int], list[int]]:
    """The ids of ``TEXT``, and what transformers goes on with."""
    tokenizer, model = (
        AutoTokenizer.from_pretrained(checkpoint),
        AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32),
    )
    ids = tokenizer(TEXT, add_special_tokens=False).input_ids
    given = torch.tensor([ids])
    model.generation_config.eos_token_id = None  # nothing ends it before so many tokens, as in llama.cpp
    made = model.generate(given, attention_mask=torch.ones_like(given), do_sample=False, max_new_tokens=NEW)
    return ids, made[0, len(ids) :].tolist()


def check(name: str, llama: Path, python: str, folder: Path) -> tuple[bool, str]:
    """(whether all went well, what was seen) for one model."""
    model, out = folder / name, folder / f"{name}-run"
    save_model(name, llama, model)
    result, said = run(model, "sokoban-easy", out)
    if result != "trained":
        return False, f"{result}: {said}"
    checkpoint, gguf = out / "checkpoints" / "000001", folder / f"{name}.gguf"
    command = [
        python,
        str(llama / "convert_hf_to_gguf.py"),
        str(checkpoint),
        "--outtype",
        "f32",
        "--outfile",
        str(gguf),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        return False, f"not converted: {done.stderr.strip()[-600:]}"
    if subprocess.run([python, "-c", "import llama_cpp"], capture_output=True).returncode:
        return True, "converted (not loaded: no llama_cpp)"
    done = subprocess.run(
        [python, "-c", GREEDY, str(gguf), TEXT, str(NEW)], capture_output=True, text=True, timeout=600
    )
    if done.returncode:
        return False, f"converted, not loaded: {done.stderr.strip()[-600:]}"
    theirs, ours = tuple(json.loads(done.stdout.splitlines()[-1])), greedy(checkpoint)
    if theirs != ours:
        return False, f"converted, but llama.cpp's ids and greedy tokens are {theirs}, transformers' {ours}"
    return True, f"converted, loaded, the same {len(ours[0])} ids and {NEW} greedy tokens"


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("llama", type=Path, metavar="LLAMA_CPP", help="folder of a llama.cpp checkout, built")
    parser.add_argument(
        "names",
        nargs="*",
        default=[],
        metavar="NAME",
        help=f"models to check, of {', '.join(VOCABULARIES)} (default: all)",
    )
    parser.add_argument(
        "--python", default=sys.executable, help="Python that runs the converter (default: this one)"
    )
    asked = parser.parse_args()
    needed = [asked.llama / "convert_hf_to_gguf.py", asked.llama / "models" / "ggml-vocab-qwen2.gguf"]
    for path in needed:
        if not path.is_file():
            parser.error(
                f"{path} is missing: LLAMA_CPP is a checkout of llama.cpp, or vendor/llama.cpp of llama-cpp-python's sources"
            )
    logging.disable_progress_bar()
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in asked.names or VOCABULARIES:
            well, said = check(name, asked.llama, asked.python, Path(folder))
            print(f"{name}: {said}", flush=True)
            wrong += not well
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
