"""Codecs: turns to token ids and back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from transformers import PreTrainedTokenizerBase

from tstar_envs import BadData


class Piece(NamedTuple):
    """Part of a text.

    Attributes:
        text: the characters.
        trusted: True for the template's own text, whose markers are control tokens.
    """

    text: str
    trusted: bool = False


class Encoder:
    """Encodes text so that only trusted text can produce control tokens.

    Args:
        tokenizer: the model's tokenizer.
        more: control tokens besides the tokenizer's special tokens, e.g. the token that closes a turn.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, more: Iterable[int] = ()) -> None:
        self._tokenizer = tokenizer
        # The unknown token stands for characters outside the vocabulary. It is no control token, unless it is also eos, bos or pad.
        kept = {tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.pad_token_id}
        special = set(tokenizer.all_special_ids) - ({tokenizer.unk_token_id} - kept)
        self.controls = frozenset(special | set(more))
        # Some tokenizers put a space before every text; inside a context there is text before it already.
        self._before = "" if self.trusted("\na")[-1:] == self.trusted("a") else "\n"
        self._marks = {str(tokenizer.convert_ids_to_tokens(i)) for i in self.controls}

    def trusted(self, text: str) -> list[int]:
        """Encode a template's own text."""
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def foreign(self, text: str) -> list[int]:
        """Encode untrusted text inside a context, without control tokens."""
        for split in (False, True):
            ids = self._inside(text, split)
            if self.controls.isdisjoint(ids):
                return ids
        # Not every tokenizer can split special tokens, and none splits markers that it does not call special: cut those in two.
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
        """Encode a text with untrusted parts.

        If no untrusted part looks like a control token, the whole is encoded at once, as the model's own template would be.
        """
        if self.controls.isdisjoint(self.trusted("".join(p.text for p in pieces if not p.trusted))):
            return self.trusted("".join(p.text for p in pieces))
        return [i for p in pieces for i in (self.trusted(p.text) if p.trusted else self.foreign(p.text))]


def named_ends(tokenizer: PreTrainedTokenizerBase, generation_config: Any = None) -> frozenset[int]:
    """Return the stop tokens of the tokenizer and the model's ``generation_config.json``.

    Args:
        tokenizer: the model's tokenizer, with its end-of-sequence token.
        generation_config: the model's generation config; its ``eos_token_id`` is a number, a list of numbers, or None.
    """
    named = getattr(generation_config, "eos_token_id", None)
    listed = named if isinstance(named, list | tuple) else [named]
    ends = {tokenizer.eos_token_id, *listed} - {None}
    return frozenset(int(i) for i in ends if 0 <= int(i) < len(tokenizer))


def closing_token(tokenizer: PreTrainedTokenizerBase, between: str) -> tuple[str, int]:
    r"""Find the token that closes the assistant's turn in a chat template.

    Args:
        tokenizer: the model's tokenizer.
        between: the template's text between an assistant message and the next user message.

    Returns:
        (text before the closing token, the token): ``"\n"`` and ``<|EOT|>`` of ``"\n<|EOT|>\n### Instruction:\n"``.

    Raises:
        BadData: there is no special or added token in this text, so no token of the model would end its turn.
    """
    added = {str(token.content): number for number, token in tokenizer.added_tokens_decoder.items()}
    added |= dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))
    found = min(
        ((between.find(text), -len(text), text) for text in added if text and text in between), default=None
    )
    if found is None:
        raise BadData(
            f"the chat template of {tokenizer.name_or_path!r} closes the assistant's turn with {between!r:.60}, which has no special "
            f"token: no token of the model would end its turn. Use a model whose template closes turns, or remove chat_template from its "
            f"tokenizer's files to use it as a base model"
        )
    return between[: found[0]], added[found[2]]


ACTION_CUE = "Action:"


class Codec(Protocol):
    """Codec between texts and token ids, for rollout, tree and grafting."""

    end: int
    """Stop token appended to a reply without one."""
    pad: int

    @property
    def ends(self) -> frozenset[int]:
        """Stop tokens: every token that ends a reply."""

    @property
    def line_ends(self) -> frozenset[int]:
        """Every token whose text contains a line break."""

    def start(self, prompt: str, observation: str) -> list[int]:
        """Encode the context of the first reply."""

    def observation(self, text: str) -> list[int]:
        """Encode the text between a reply (which ends with one of ``ends``) and the next reply."""

    def reply(self, text: str) -> list[int]:
        """Encode a reply that was not sampled (expert, graft), with its stop token."""

    def closed(self, reply: Sequence[int]) -> list[int]:
        """Close a sampled reply for use in a context; a truncated reply gets its stop token."""

    def asked(self, context: Sequence[int], text: str) -> list[int]:
        """Append a request to a context; the next reply answers it."""

    def text(self, text: str) -> list[int]:
        """Encode plain text inside a context, never with control tokens."""

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids to text without special tokens."""


class PlainCodec:
    """Codec without a chat template: lines of text, and a stop token ends a reply.

    Args:
        tokenizer: the model's tokenizer.
        with_prompt: True if a context starts with the environment's rules; a policy trained on one family needs none.
        ends: stop tokens; None is the tokenizer's ``eos_token``.

    Raises:
        BadData: there is no stop token.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, with_prompt: bool, ends: Collection[int] | None = None
    ) -> None:
        own = tokenizer.eos_token_id
        self._ends = named_ends(tokenizer) if ends is None else frozenset(ends)
        if not self._ends:
            raise BadData(
                f"the tokenizer {tokenizer.name_or_path!r} has no eos_token, which ends a reply; set one in its config"
            )
        self._tokenizer = tokenizer
        self._with_prompt = with_prompt
        self.end = int(own) if own in self._ends else min(self._ends)
        self.pad = int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else self.end)
        self._encoder = Encoder(tokenizer, self._ends)

    @property
    def ends(self) -> frozenset[int]:
        """See ``Codec``."""
        return self._ends

    @cached_property
    def line_ends(self) -> frozenset[int]:
        """See ``Codec``."""
        texts = self._tokenizer.batch_decode([[i] for i in range(len(self._tokenizer))])
        return frozenset(i for i, text in enumerate(texts) if "\n" in text) - self._ends

    def start(self, prompt: str, observation: str) -> list[int]:
        """See ``Codec``; the context starts with the tokenizer's ``bos_token`` if it has one."""
        begin = self._tokenizer.bos_token_id
        said = self.text(f"{prompt}\n\n{observation}\n" if self._with_prompt else f"{observation}\n")
        return said if begin is None else [int(begin), *said]

    def observation(self, text: str) -> list[int]:
        """See ``Codec``."""
        return self.text(f"\nObservation: {text}\n")

    def reply(self, text: str) -> list[int]:
        """See ``Codec``."""
        return [*self.text(text), self.end]

    def closed(self, reply: Sequence[int]) -> list[int]:
        """See ``Codec``."""
        return [*reply] if reply[-1] in self._ends else [*reply, self.end]

    def asked(self, context: Sequence[int], text: str) -> list[int]:
        """See ``Codec``; the request is appended as plain text."""
        return [*context, *self.text(text)]

    def text(self, text: str) -> list[int]:
        """See ``Codec``."""
        return self._encoder.foreign(text)

    def decode(self, ids: Sequence[int]) -> str:
        """See ``Codec``."""
        kept = list(ids)
        while kept and kept[-1] in self._ends:  # not every stop token is special for the tokenizer
            kept.pop()
        return str(self._tokenizer.decode(kept, skip_special_tokens=True))


def thought_length(codec: Codec, reply: Sequence[int]) -> int:
    """Count the leading tokens of a reply that are its thought, with its cue and line break; 0 without a thought.

    The span ends at the action cue. A token with characters of both counts as action: a tokenizer may merge a line break with the cue's
    first letters.
    """
    text = codec.decode(reply)
    cut = text.find(ACTION_CUE)
    if cut <= 0 or not text[:cut].strip():
        return 0
    low, high = 0, len(reply)
    # Decoded length grows with the number of tokens: binary search for the longest prefix inside the thought.
    while low < high:
        middle = (low + high + 1) // 2
        if len(codec.decode(reply[:middle])) <= cut:
            low = middle
        else:
            high = middle - 1
    return low
