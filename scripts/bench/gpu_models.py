"""Random models of the published shapes of Qwen2.5 whose nonsense plays: folders as Hugging Face's, made on the spot (``check_gpu.py``).

A GPU machine may have no network, and a random model with a real vocabulary writes nothing that an environment takes for an action: no
reward ever differs, no tree is built, and replies never end. Here all 151,936 words have equal chances, and some of them are line breaks,
actions of a question with the answer yes or no, and ends of a reply. So replies are some hundred tokens of thought with an action, half of
those that answer are right, and every part of T-STAR has work.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

sys.path.append(str(Path(__file__).resolve().parents[2]))
from scripts.studies.small_tokenizers import SHAPES, shaped

# name -> (hidden size, layers, heads, heads of keys and values, intermediate size, words): the published configurations.
SIZES = {
    "3B": (2048, 36, 16, 2, 11008, 151_936),
    "0.5B": (896, 24, 14, 2, 4864, 151_936),
    "tiny": (64, 2, 2, 1, 128, 4_096),  # to try the parts without a GPU
}
# Of 1,000 words: how many have a line break, ask, say yes, say no, end a reply. A thought is then about 100 words long.
LINES, SEARCHES, YES, NO, ENDS = 80, 5, 2, 2, 2
ACTIONS = {"search": "search[river", "yes": "finish[yes", "no": "finish[no"}


def qwen(size: str) -> Qwen2Config:
    """The configuration of a size."""
    hidden, layers, heads, shared, wide, words = SIZES[size]
    return Qwen2Config(
        vocab_size=words,
        hidden_size=hidden,
        intermediate_size=wide,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=shared,
        max_position_embeddings=32768,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        dtype="bfloat16",
    )


def words_of(count: int) -> tuple[PreTrainedTokenizerFast, list[int]]:
    """A tokenizer of so many words in Qwen's chat form, and the words that end a reply."""
    base = shaped("qwen2")
    content = json.loads(base.backend_tokenizer.to_str())
    vocabulary = content["model"]["vocab"]
    ends = []
    for number in range(len(base), count):
        kind = number % 1000
        bounds = [LINES, SEARCHES, YES, NO, ENDS]
        starts = [sum(bounds[:n]) for n in range(len(bounds) + 1)]
        word = f"Ġw{number}"  # Ġ is a space, Ċ a line break, as byte-level vocabularies write them
        if kind < starts[1]:
            word = f"Ċw{number}"
        elif kind < starts[4]:
            action = ("search", "yes", "no")[sum(kind >= start for start in starts[2:4])]
            # Words differ by what an environment takes off again: blanks behind the action's line.
            word = f"ĊAction:Ġ{ACTIONS[action]}]ĊĠw{number}"
        elif kind < starts[5]:
            ends.append(number)
        vocabulary[word] = number
    _, special, eos, _, _ = SHAPES["qwen2"]
    made = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(content)),
        eos_token=eos,
        additional_special_tokens=[token for token in special if token != eos],
        clean_up_tokenization_spaces=False,
    )
    made.chat_template = base.chat_template
    return made, ends


def make(size: str, folder: Path, device: str) -> None:
    """Write a random model in bfloat16 with its tokenizer, the same each time on one kind of device."""
    if (folder / "config.json").is_file():
        return
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            model = Qwen2ForCausalLM(qwen(size))
    finally:
        torch.set_default_dtype(before)
    tokenizer, ends = words_of(qwen(size).vocab_size)
    model.generation_config = GenerationConfig(eos_token_id=[tokenizer.eos_token_id, *ends])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)  # the configuration comes last of what ``is_file`` asks for


if __name__ == "__main__":  # a process of its own, which leaves nothing on the GPU
    size, folder, device = sys.argv[1:]
    make(size, Path(folder), device)
