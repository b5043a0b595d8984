"""Turns of an episode as token ids: token in, token out, history is never re-encoded.

A conversation is ``start(...)``, then for each turn the policy's own ids and ``observation(...)``. A sampled reply is
kept as the ids that were sampled; only what the environment says is encoded, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from transformers import PreTrainedTokenizerBase

from tstar_envs import BadData
from tstar_train.policy.chat_template import render

ACTION_CUE = "Action:"


class Codec(Protocol):
    """What the rollout, the tree and grafting need of a tokenizer."""

    end: int
    pad: int

    def start(self, prompt: str, observation: str) -> list[int]:
        """The context of the first reply."""

    def observation(self, text: str) -> list[int]:
        """What follows a reply (which ends with ``end``) up to the next reply."""

    def reply(self, text: str) -> list[int]:
        """A reply written by somebody else (expert, graft), with its end."""

    def closed(self, reply: Sequence[int]) -> list[int]:
        """A sampled reply as it stands in a context; a reply cut at its longest lacks its end and gets it."""

    def text(self, text: str) -> list[int]:
        """Plain text inside a context."""

    def decode(self, ids: Sequence[int]) -> str:
        """Ids as text, special tokens left out."""


class PlainCodec:
    """Codec without a chat template: lines of text, a special token ends a reply.

    Args:
        tokenizer: its ``eos_token`` ends a reply.
        with_prompt: whether a context starts with the environment's rules; a policy trained on one family needs none.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, with_prompt: bool) -> None:
        if tokenizer.eos_token_id is None:
            raise BadData(f"the tokenizer {tokenizer.name_or_path!r} has no eos_token, which ends a reply; set one in its config")
        self._tokenizer = tokenizer
        self._with_prompt = with_prompt
        self.end = int(tokenizer.eos_token_id)
        self.pad = int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id)

    def start(self, prompt: str, observation: str) -> list[int]:
        """See ``Codec``."""
        return self.text(f"{prompt}\n\n{observation}\n" if self._with_prompt else f"{observation}\n")

    def observation(self, text: str) -> list[int]:
        """See ``Codec``."""
        return self.text(f"\nObservation: {text}\n")

    def reply(self, text: str) -> list[int]:
        """See ``Codec``."""
        return [*self.text(text), self.end]

    def closed(self, reply: Sequence[int]) -> list[int]:
        """See ``Codec``."""
        return [*reply] if reply[-1] == self.end else [*reply, self.end]

    def text(self, text: str) -> list[int]:
        """See ``Codec``."""
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: Sequence[int]) -> str:
        """See ``Codec``."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))


class ChatCodec(PlainCodec):
    """Codec by a model's own chat template: rules as system message, observations as user messages.

    Args:
        tokenizer: has a ``chat_template``.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__(tokenizer, with_prompt=True)
        # What the template puts between a reply and the next one is found once, by rendering around markers.
        marker = "\u241etstar\u241f"
        asked = [{"role": "user", "content": "?"}, {"role": "assistant", "content": marker}, {"role": "user", "content": marker}]
        whole = render(tokenizer, asked)
        parts = whole.split(marker)
        if len(parts) != 3:
            raise BadData(f"the chat template of {tokenizer.name_or_path!r} does not show every message once; use another model")
        self._between, self._after = parts[1], parts[2]
        ending = self.text(self._between)
        self.end = ending[0] if ending else self.end  # the token by which the template closes the assistant's turn
        self._between_rest = self._tokenizer.decode(ending[1:]) if ending else self._between

    def start(self, prompt: str, observation: str) -> list[int]:
        """See ``Codec``."""
        messages = [{"role": "system", "content": prompt}, {"role": "user", "content": observation}]
        return self.text(render(self._tokenizer, messages))

    def observation(self, text: str) -> list[int]:
        """See ``Codec``."""
        return self.text(f"{self._between_rest}{text}{self._after}")


class SearchR1Codec(PlainCodec):
    """The conversation that Search-R1's checkpoints were trained on (``LLMGenerationManager`` in its public code).

    Rules and question are one user message. All that follows is a single turn of the assistant: a reply is cut behind its first
    ``</search>`` (or else ``</answer>``), encoded again, and what the environment says stands right behind it, as it is.

    Args:
        tokenizer: one with a ``chat_template`` renders the user message by it; one without has it as plain text.
        end: the token by which the model ends a turn.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, end: int) -> None:
        super().__init__(tokenizer, with_prompt=True)
        self.end = end

    def start(self, prompt: str, observation: str) -> list[int]:
        """See ``Codec``."""
        asked = f"{prompt}{observation}"
        if self._tokenizer.chat_template:
            messages = [{"role": "user", "content": asked}]
            asked = render(self._tokenizer, messages)
        return self.text(asked)

    def observation(self, text: str) -> list[int]:
        """See ``Codec``."""
        return self.text(text)

    def reply(self, text: str) -> list[int]:
        """See ``Codec``; the tag that closes it is its end."""
        return self.text(text)

    def closed(self, reply: Sequence[int]) -> list[int]:
        """See ``Codec``; what was written behind the closing tag is dropped, as is the end."""
        text = self.decode(reply)
        for tag in ("</search>", "</answer>"):
            before, found, _ = text.partition(tag)
            if found:
                return self.text(before + tag)
        return self.text(text)


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
    while low < high:  # decoding grows with the number of tokens, so the last prefix inside the thought is found by halving
        middle = (low + high + 1) // 2
        if len(codec.decode(reply[:middle])) <= cut:
            low = middle
        else:
            high = middle - 1
    return low
