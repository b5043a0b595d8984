"""Text as token ids, where what a stranger wrote never becomes a control token.

A page, a task or a reply may hold the very characters of a chat template's markers (``<|im_end|>``, ``<s>``). Only the template's own
text may give their ids; anywhere else they are characters like all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase


class Piece(NamedTuple):
    """Part of a text.

    Attributes:
        text: its characters.
        trusted: whether it is the template's own, so that its markers are control tokens.
    """

    text: str
    trusted: bool = False


class Encoder:
    """Encodes for one tokenizer.

    Args:
        tokenizer: of the model.
        more: further control tokens besides those that the tokenizer calls special, e.g. what closes a turn.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, more: Iterable[int] = ()) -> None:
        self._tokenizer = tokenizer
        # The unknown token stands for characters that the vocabulary lacks, and controls nothing, unless it is the end as well.
        kept = {tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.pad_token_id}
        special = set(tokenizer.all_special_ids) - ({tokenizer.unk_token_id} - kept)
        self.controls = frozenset(special | set(more))
        # Some tokenizers put a space before whatever they are given; inside a context there is something before it already.
        self._before = "" if self.trusted("\na")[-1:] == self.trusted("a") else "\n"
        self._marks = {str(tokenizer.convert_ids_to_tokens(i)) for i in self.controls}

    def trusted(self, text: str) -> list[int]:
        """Ids of a template's own text."""
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def foreign(self, text: str) -> list[int]:
        """Ids of anybody's text inside a context, none of them a control token."""
        for split in (False, True):
            ids = self._inside(text, split)
            if self.controls.isdisjoint(ids):
                return ids
        # Not every tokenizer can, and none does it for markers that it does not call special: those are cut in two.
        where, mark = min((text.find(mark), mark) for mark in self._marks if mark in text)
        middle = where + max(1, len(mark) // 2)
        return [*self.foreign(text[:middle]), *self.foreign(text[middle:])]

    def _inside(self, text: str, split_special_tokens: bool) -> list[int]:
        def encode(what: str) -> list[int]:
            return list(
                self._tokenizer.encode(
                    what, add_special_tokens=False, split_special_tokens=split_special_tokens
                )
            )

        if self._before:
            before, ids = encode(self._before), encode(self._before + text)
            if ids[: len(before)] == before:
                return ids[len(before) :]
        return encode(text)

    def conversation(self, pieces: Sequence[Piece]) -> list[int]:
        """Ids of a text of which parts are foreign.

        Where no foreign part looks like a control token the whole is encoded at once, as the model's own template would be.
        """
        if self.controls.isdisjoint(self.trusted("".join(p.text for p in pieces if not p.trusted))):
            return self.trusted("".join(p.text for p in pieces))
        return [i for p in pieces for i in (self.trusted(p.text) if p.trusted else self.foreign(p.text))]
