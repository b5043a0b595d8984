"""The tiny policy's tokenizer: byte-level BPE trained on the suite's own text.

Names are combinations of words from a closed lexicon, and each word is one token with its leading space: a name cut in
pieces is copied wrongly by a model of this size. An opening bracket is followed by a space in token space ("search[ Sel
..."), so that a name is the same token in a question, a passage and an action; decoding takes the space out again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tstar_train.policy.files import END, PAD

# How byte-level BPE cuts text into words (GPT-2's rule, which ``ByteLevel`` applies by default).
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
        texts: lines as the policy will see them; words that must be single tokens should be frequent.
        vocabulary: size, special tokens included.
        symbols: regular expression of characters that are always a token of their own (the cells of a grid, whose place in a
            row must not change how they are cut).
        fixed: texts that are always one token each; they come on top of ``vocabulary``.
        units: regular expressions of texts that are words of their own whatever they are made of, so that letters and digits in
            one are not parted (the parts of a product's code).
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
