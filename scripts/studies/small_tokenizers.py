"""Tokenizers and chat templates in the shapes of public models, small enough to be made on the spot (for tests and smoke_models.py)."""

from __future__ import annotations

from functools import cache, lru_cache

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tstar_envs import find_entry

CHATML = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QWEN3 = (  # it shows the thought of the last reply alone, and an empty one where there was none
    "{% set ns = namespace(last=-1) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last and loop.index0 > ns.last %}<think>\n\n</think>\n\n{% endif %}"
    "{{ m.content.lstrip('\n') if m.role == 'assistant' else m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SMOLLM3 = (  # whatever the system message says comes under a heading of the template's own
    "<|im_start|>system\n## Metadata\n\nKnowledge Cutoff Date: June 2025\nReasoning Mode: /think\n\n## Custom Instructions\n\n"
    "{% if messages[0].role == 'system' %}{{ messages[0].content.replace('/no_think', '').rstrip() }}{% else %}"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face.{% endif %}\n\n<|im_end|>\n"
    "{% for m in messages if m.role != 'system' %}<|im_start|>{{ m.role }}\n"
    "{{ m.content.lstrip('\n') if m.role == 'assistant' else m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
PHI4 = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% else %}{{ eos_token }}{% endif %}"
)
_ALTERNATING = (
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}"
)
GEMMA2 = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}"
    + _ALTERNATING
    + "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ m.content | trim }}<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
LLAMA2 = (  # the system message is dropped in silence, as some published templates do
    "{% set messages = messages | rejectattr('role', 'equalto', 'system') | list %}{% for m in messages %}"
    + _ALTERNATING
    + "{% if m.role == 'user' %}{{ bos_token }}[INST] {{ m.content }} [/INST]{% else %} {{ m.content }} {{ eos_token }}{% endif %}"
    "{% endfor %}"
)
DEEPSEEK = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% elif m.role == 'user' %}### Instruction:\n"
    "{{ m.content }}\n{% else %}### Response:\n{{ m.content }}\n<|EOT|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}### Response:\n{% endif %}"
)
ZEPHYR = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
OPEN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"

# name -> (template, special tokens, eos, bos, the token that closes a turn)
SHAPES = {
    "qwen2": (CHATML, ["<|im_start|>", "<|im_end|>", "<|endoftext|>"], "<|im_end|>", None, "<|im_end|>"),
    "qwen3": (QWEN3, ["<|im_start|>", "<|im_end|>", "<|endoftext|>"], "<|im_end|>", None, "<|im_end|>"),
    "smollm3": (SMOLLM3, ["<|im_start|>", "<|im_end|>", "<|endoftext|>"], "<|im_end|>", None, "<|im_end|>"),
    "llama3": (
        LLAMA3,
        [
            "<|begin_of_text|>",
            "<|end_of_text|>",
            "<|start_header_id|>",
            "<|end_header_id|>",
            "<|eot_id|>",
            "<|eom_id|>",
        ],
        "<|end_of_text|>",
        "<|begin_of_text|>",
        "<|eot_id|>",
    ),
    "phi4": (
        PHI4,
        ["<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"],
        "<|endoftext|>",
        None,
        "<|end|>",
    ),
    "gemma2": (
        GEMMA2,
        ["<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"],
        "<eos>",
        "<bos>",
        "<end_of_turn>",
    ),
    "llama2": (LLAMA2, ["<unk>", "<s>", "</s>"], "</s>", "<s>", "</s>"),
    "deepseek": (DEEPSEEK, ["<|begin|>", "<|eos|>", "<|EOT|>"], "<|eos|>", "<|begin|>", "<|EOT|>"),
    "zephyr": (ZEPHYR, ["<unk>", "<s>", "</s>"], "</s>", "<s>", "</s>"),
}


@lru_cache(maxsize=1)
def _texts() -> tuple[str, ...]:
    return tuple(
        find_entry(name).load_class()().prompt() for name in ("hotpotqa", "sokoban-easy", "alfworld")
    )


@cache
def _trained(special: tuple[str, ...], sentencepiece: bool) -> Tokenizer:
    unknown = special[0] if sentencepiece else None
    tokenizer = Tokenizer(models.BPE(unk_token=unknown, byte_fallback=sentencepiece))
    if sentencepiece:
        lines = pre_tokenizers.Split("\n", "isolated")  # a line break is a token of its own, as in Llama 2
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Metaspace(prepend_scheme="first"), lines]
        )
        tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
    alphabet = [*map(chr, range(33, 127)), "\n"] if sentencepiece else pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=[AddedToken(s, special=True) for s in special],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(), trainer)
    return tokenizer


def shaped(name: str, chat: bool = True) -> PreTrainedTokenizerFast:
    """A tokenizer of this shape, with its chat template or as that of the base model."""
    template, special, eos, bos, _ = SHAPES[name]
    made = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_trained(tuple(special), name in ("llama2", "zephyr")).to_str()),
        eos_token=eos,
        bos_token=bos,
        unk_token="<unk>" if "<unk>" in special else None,
        additional_special_tokens=[s for s in special if s not in (eos, bos, "<unk>")],
        clean_up_tokenization_spaces=False,
    )
    if chat:
        made.chat_template = template
    return made
