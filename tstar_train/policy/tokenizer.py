"""Tokenizer of the tiny policy: byte-level BPE trained on the suite's own text.

Names are combinations of words from a closed lexicon, and each word is one token with its leading space, because a model of this size
copies names of several pieces wrongly. A space is inserted after an opening bracket ("search[ Sel ..."), so that a name has the same
tokens in a question, a passage and an action; decoding removes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tstar_train.policy.files import END, PAD

# Regular expression by which byte-level BPE splits text into words (GPT-2's, the default of ``ByteLevel``).
_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def train_tokenizer(
    texts: Iterable[str],
    vocabulary: int,
    symbols: str = "",
    fixed: Sequence[str] = (),
    units: Sequence[str] = (),
) -> PreTrainedTokenizerFast:
    """Train a tokenizer on text.

    Args:
        texts: lines as the policy will read them; words that must be single tokens should be frequent.
        vocabulary: vocabulary size, special tokens included.
        symbols: regular expression of characters that are always single tokens, such as the cells of a grid.
        fixed: texts that are always single tokens, in addition to ``vocabulary``.
        units: regular expressions of words that are not split between letters and digits, such as the parts of a product code.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Replace(Regex(r"\[(?=\S)"), "[ ")
    words: pre_tokenizers.PreTokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if units:
        own = pre_tokenizers.Split(Regex("|".join([*units, _WORDS])), "isolated")
        words = pre_tokenizers.Sequence(
            [own, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    tokenizer.pre_tokenizer = (
        pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(symbols), "isolated"), words])
        if symbols
        else words
    )
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Replace("[ ", "[")])
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[PAD, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in fixed])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, clean_up_tokenization_spaces=False
    )
