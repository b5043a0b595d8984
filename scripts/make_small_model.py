"""Make a small random Hugging Face model for an environment, to try the chain of docs/chain.md without a download.

    python scripts/make_small_model.py --env sokoban-easy --out small

The result is an ordinary folder: a Qwen2 of 1M parameters with random weights, a byte-level tokenizer trained on some of the experts'
episodes, and the ChatML template. It can say nothing before it is trained (``python -m tstar_train warmstart --model small``).
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from transformers.utils import logging

from tstar_envs import EnvEntry, TStarError, UnknownOption, find_entry, parse_options
from tstar_train.policy.model import new_tiny
from tstar_train.recipes.recipe import DemonstrationStyle, ModelRecipe
from tstar_train.warmstart import demonstrate

try:
    from scripts.studies.small_tokenizers import SHAPES
except ModuleNotFoundError:  # run as a script
    from studies.small_tokenizers import SHAPES

EPISODES, VOCABULARY = 400, 1024
# Cells of a grid are tokens of their own, and a place is one token: a model of this size would have to learn to put it together.
UNITS = r" ?\(\d+, \d+\)|[#_√OXPS](?![a-z])|\n"
WORDS = r" ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def texts(entry: EnvEntry, options: dict[str, object]) -> Iterator[str]:
    """The rules, then what is seen and said in the experts' episodes on practice tasks."""
    env = entry.load_class().practice("make_small_model", **{**entry.kwargs, **options})
    yield env.prompt()
    rng, style = random.Random(0), DemonstrationStyle(0.0, 0.0, 0.0, 4, 1.0)
    for task in itertools.islice(itertools.cycle(env.task_ids("train")), EPISODES):
        shown = demonstrate(env, task, rng, style)
        if shown is not None:
            yield shown.observation
            yield from (text for turn in shown.turns for text in (turn.reply, turn.observation))


def made_tokenizer(lines: Iterator[str]) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer with Qwen2's special tokens and chat template."""
    template, special, end, _, _ = SHAPES["qwen2"]
    tokenizer = Tokenizer(models.BPE())
    words = pre_tokenizers.Split(Regex(f"{UNITS}|{WORDS}"), "isolated")
    bytewise = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, bytewise])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[AddedToken(text, special=True) for text in special],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=end,
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )
    made.chat_template = template
    return made


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--env", default="sokoban-easy", help="environment whose texts the tokenizer is made for"
    )
    parser.add_argument("--env-option", metavar="KEY=VALUE", action="append", default=[], help="option of it")
    parser.add_argument("--out", metavar="FOLDER", type=Path, required=True, help="new or empty folder")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights (default: 0)")
    asked = parser.parse_args()
    try:
        if asked.out.exists() and (not asked.out.is_dir() or any(asked.out.iterdir())):
            raise UnknownOption(f"{asked.out} is not empty: choose another --out")
        entry = find_entry(asked.env)
        tokenizer = made_tokenizer(texts(entry, parse_options(entry, asked.env_option)))
    except TStarError as error:
        print(f"make_small_model: {error}", file=sys.stderr)
        return 2
    # A head that looks at the token before is what a small model takes longest to find.
    model = new_tiny(tokenizer, asked.seed, ModelRecipe(rope_base=100.0, look_back=((1, 7, 8), (1,))))
    model.config.use_cache = True
    logging.disable_progress_bar()
    model.save_pretrained(asked.out)
    tokenizer.save_pretrained(asked.out)
    print(f"{asked.out}: {sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens")
    return 0


if __name__ == "__main__":
    sys.exit(main())
