"""Turns of an episode as token ids: token in, token out, history is never re-encoded.

A conversation is ``start(...)``, then for each turn the policy's own ids and ``observation(...)``. A sampled reply is
kept as the ids that were sampled; only what the environment says is encoded, once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Protocol

from transformers import PreTrainedTokenizerBase

from tstar_envs import BadData
from tstar_train.policy.encoder import Encoder
from tstar_train.policy.turn_end import named_ends

ACTION_CUE = "Action:"


class Codec(Protocol):
    """What the rollout, the tree and grafting need of a tokenizer."""

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
        """The context of the first reply."""

    def observation(self, text: str) -> list[int]:
        """What follows a reply (which ends with one of ``ends``) up to the next reply."""

    def reply(self, text: str) -> list[int]:
        """A reply written by somebody else (expert, graft), with its end."""

    def closed(self, reply: Sequence[int]) -> list[int]:
        """A sampled reply as it stands in a context; a reply cut at its longest lacks its end and gets it."""

    def asked(self, context: Sequence[int], text: str) -> list[int]:
        """A context whose next reply shall answer a request."""

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
    """How many leading tokens of a reply are its thought, cue and line break included; 0 if it has none.

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
