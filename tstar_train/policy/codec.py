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


def named_ends(tokenizer: PreTrainedTokenizerBase, generation_config: Any = None) -> frozenset[int]:
    """Return the stop tokens of the tokenizer and the model's ``generation_config.json``.

    Args:
        tokenizer: of the model; its end-of-sequence token.
        generation_config: of the model; its ``eos_token_id`` is a number, a list of them, or nothing.
    """
    named = getattr(generation_config, "eos_token_id", None)
    listed = named if isinstance(named, list | tuple) else [named]
    ends = {tokenizer.eos_token_id, *listed} - {None}
    return frozenset(int(i) for i in ends if 0 <= int(i) < len(tokenizer))


def closing_token(tokenizer: PreTrainedTokenizerBase, between: str) -> tuple[str, int]:
    r"""Find the stop tokens of a chat template: its text after the assistant's message, up to the closing token.

    Args:
        tokenizer: of the model.
        between: the template's text between the assistant's words and the next user's.

    Returns:
        (text before the closing token, the token): ``"\n"`` and ``<|EOT|>`` of ``"\n<|EOT|>\n### Instruction:\n"``.

    Raises:
        BadData: no token of the vocabulary's own stands there, so that nothing the model can say would end its turn.
    """
    added = {str(token.content): number for number, token in tokenizer.added_tokens_decoder.items()}
    added |= dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))
    found = min(
        ((between.find(text), -len(text), text) for text in added if text and text in between), default=None
    )
    if found is None:
        raise BadData(
            f"the chat template of {tokenizer.name_or_path!r} closes the assistant's turn with {between!r:.60}, in which there is no token "
            f"made for it: nothing the model can say would end its turn. Use a model whose template closes turns, or take chat_template "
            f"out of its tokenizer's files to use it as a base model"
        )
    return between[: found[0]], added[found[2]]


ACTION_CUE = "Action:"


class Codec(Protocol):
    """Codec between texts and token ids, for rollout, tree and grafting."""

    end: int
    """The token that is written behind a reply that lacks its end."""
    pad: int

    @property
    def ends(self) -> frozenset[int]:
        """Every token that ends a reply."""

    @property
    def line_ends(self) -> frozenset[int]:
        """Every token whose text has a line break in it."""

    def start(self, prompt: str, observation: str) -> list[int]:
        """Encode the context of the first reply."""

    def observation(self, text: str) -> list[int]:
        """Encode the text between a reply (which ends with one of ``ends``) and the next reply."""

    def reply(self, text: str) -> list[int]:
        """Encode a reply that was not sampled (expert, graft), with its stop token."""

    def closed(self, reply: Sequence[int]) -> list[int]:
        """Close a sampled reply for use in a context; a truncated reply gets its stop token."""

    def asked(self, context: Sequence[int], text: str) -> list[int]:
        """Append a request to a context, for the next reply to answer."""

    def text(self, text: str) -> list[int]:
        """Plain text inside a context; no control token, whatever it says."""

    def decode(self, ids: Sequence[int]) -> str:
        """Ids as text, special tokens left out."""


class PlainCodec:
    """Codec without a chat template: lines of text, a special token ends a reply.

    Args:
        tokenizer: its ``eos_token`` ends a reply.
        with_prompt: whether a context starts with the environment's rules; a policy trained on one family needs none.
        ends: tokens that end a reply; None: the tokenizer's ``eos_token``.

    Raises:
        BadData: there is none.
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
        """See ``Codec``; a document begins with the tokenizer's ``bos_token`` where it has one."""
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
        """See ``Codec``; the request simply stands there."""
        return [*context, *self.text(text)]

    def text(self, text: str) -> list[int]:
        """See ``Codec``."""
        return self._encoder.foreign(text)

    def decode(self, ids: Sequence[int]) -> str:
        """See ``Codec``."""
        kept = list(ids)
        while kept and kept[-1] in self._ends:  # not every end is called special by its tokenizer
            kept.pop()
        return str(self._tokenizer.decode(kept, skip_special_tokens=True))


def thought_length(codec: Codec, reply: Sequence[int]) -> int:
    """Count the leading tokens of a reply that are its thought, with cue and line break; 0 without a thought.

    The span ends where the action cue starts. A token that holds both (a tokenizer may join a line break and the cue's
    first letters) counts as action, so the span never leaks into it.
    """
    text = codec.decode(reply)
    cut = text.find(ACTION_CUE)
    if cut <= 0 or not text[:cut].strip():
        return 0
    low, high = 0, len(reply)
    # Decoding grows with the number of tokens, so the last prefix inside the thought is found by halving.
    while low < high:
        middle = (low + high + 1) // 2
        if len(codec.decode(reply[:middle])) <= cut:
            low = middle
        else:
            high = middle - 1
    return low
