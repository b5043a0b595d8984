"""Codecs by a model's chat template, and bounded rendering of templates."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from transformers import PreTrainedTokenizerBase

from tstar_envs import BadData
from tstar_train.policy.codec import Piece, PlainCodec, closing_token, named_ends

BYTES = 1 << 30  # memory limit of rendering, beyond what the process has allocated
SECONDS = 5.0  # CPU time limit of rendering in this thread; common models' templates take some milliseconds
_COMPILED = "<template>"  # Jinja's file name for the compiled code of a template


class _TooSlow(Exception):
    """The template exceeded its CPU time; raised inside the template's code."""


@contextmanager
def _bounded_memory() -> Iterator[None]:
    """Raise MemoryError if the block allocates more than ``BYTES``: a template may contain ``'x' * 10**10``."""
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except (ImportError, OSError):  # not Linux: only the time is limited
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = pages * resource.getpagesize() + BYTES
    limits = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min([most, *limits]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def render(tokenizer: PreTrainedTokenizerBase, messages: Sequence[dict[str, str]]) -> str:
    """Render a conversation up to the start of the assistant's turn.

    Transformers runs templates in Jinja's sandbox, which blocks files and programs but does not limit time or memory.

    Args:
        tokenizer: tokenizer with a ``chat_template``.
        messages: messages, each with ``role`` and ``content``.

    Raises:
        BadData: the template fails, or exceeds ``SECONDS`` or ``BYTES``.
    """
    end = time.thread_time() + SECONDS

    def watch(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename != _COMPILED:
            return None
        if time.thread_time() > end:
            raise _TooSlow
        return watch

    before = sys.gettrace()
    sys.settrace(watch)
    try:
        with _bounded_memory():
            return str(
                tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
            )
    except (MemoryError, OverflowError):
        raise BadData(
            f"the chat template of {tokenizer.name_or_path!r} needs more than {BYTES >> 30} GiB on {len(messages)} messages: it is "
            f"broken or made to fill the memory; use another model, or one whose tokenizer has no chat_template"
        ) from None
    except _TooSlow:
        raise BadData(
            f"the chat template of {tokenizer.name_or_path!r} computes for more than {SECONDS:g} seconds on {len(messages)} "
            f"messages: it is broken or made to hang; use another model, or one whose tokenizer has no chat_template"
        ) from None
    except Exception as error:  # a template is a program and may raise anything
        cause = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise BadData(
            f"the chat template of {tokenizer.name_or_path!r} fails ({cause:.300}): use another model"
        ) from error
    finally:
        sys.settrace(before)


# Markers in place of message contents, to find the template's own text.
_FIRST, _SECOND = "\u241etstar\u241f", "\u241ftstar\u241e"


class ChatCodec(PlainCodec):
    """Codec by a model's own chat template: rules as system message, observations as user messages.

    If the template has no system message, the rules start the first user message.

    Args:
        tokenizer: tokenizer with a ``chat_template``.
        generation_config: the model's generation config, which may name more stop tokens.

    Attributes:
        reply_header: the template's text between a user message and the reply.

    Raises:
        BadData: the template fails, does not show every message once, or closes no turn.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, generation_config: Any = None) -> None:
        # The template's text around message contents is found once, by rendering markers.
        asked = [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": _FIRST},
            {"role": "user", "content": _SECOND},
        ]
        _, between, self.reply_header = _around(tokenizer, asked)
        before_end, end = closing_token(tokenizer, between)
        super().__init__(tokenizer, with_prompt=True, ends=named_ends(tokenizer, generation_config) | {end})
        self.end = end
        self._closing = self._encoder.trusted(before_end)
        # Encoded with the closing token in front, which is then removed: so the rest is tokenized as inside the whole conversation.
        self._between = between[len(before_end) :]
        self._frame = _opening(tokenizer)
        self._lead = _lead(tokenizer, self.reply_header)
        self._trims = not _keeps_space(tokenizer)
        self._again = _between_users(tokenizer)
        self._header = self._encoder.trusted(self.reply_header)

    def start(self, prompt: str, observation: str) -> list[int]:
        """See ``Codec``."""
        before, middle, after = self._frame
        return self._encoder.conversation(
            [
                Piece(before, True),
                Piece(self._words(prompt)),
                Piece(middle, True),
                Piece(self._words(observation)),
                Piece(after, True),
            ]
        )

    def observation(self, text: str) -> list[int]:
        """See ``Codec``."""
        ids = self._encoder.conversation(
            [Piece(self._between, True), Piece(self._words(text)), Piece(self.reply_header, True)]
        )
        return ids[ids.index(self.end) + 1 :]

    def reply(self, text: str) -> list[int]:
        """See ``Codec``."""
        return [*self.text(self._lead + text), *self._closing, self.end]

    def closed(self, reply: Sequence[int]) -> list[int]:
        """See ``Codec``."""
        return [*reply] if reply[-1] in self.ends else [*reply, *self._closing, self.end]

    def asked(self, context: Sequence[int], text: str) -> list[int]:
        """See ``Codec``; the request is a new user message, or appended to the last one if the template allows no second."""
        # The header's first token may have merged with the text before it.
        if list(context[-len(self._header) :]) != self._header:
            return [*context, *self._closing, self.end, *self.observation(text)]
        more = [Piece(self._again, True)] if self._again else [Piece("\n\n", True)]
        said = self._encoder.conversation([*more, Piece(self._words(text)), Piece(self.reply_header, True)])
        return [*context[: -len(self._header)], *said]

    def _words(self, text: str) -> str:
        return text.strip() if self._trims else text


class SearchR1Codec(PlainCodec):
    """Conversation format of Search-R1's checkpoints (``LLMGenerationManager`` in its public code).

    Rules and question are one user message. Everything after it is a single assistant turn. A reply is cut after its first ``</search>``
    (or else ``</answer>``) and encoded again. The observation follows it unchanged.

    Args:
        tokenizer: renders the user message by its ``chat_template``; without one the message is plain text.
        ends: the model's stop tokens.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, ends: Collection[int]) -> None:
        super().__init__(tokenizer, with_prompt=True, ends=ends)
        user = [{"role": "user", "content": _FIRST}]
        self._frame = render(tokenizer, user).partition(_FIRST)[::2] if tokenizer.chat_template else ("", "")

    def start(self, prompt: str, observation: str) -> list[int]:
        """See ``Codec``."""
        before, after = self._frame
        return self._encoder.conversation(
            [Piece(before, True), Piece(f"{prompt}{observation}"), Piece(after, True)]
        )

    def observation(self, text: str) -> list[int]:
        """See ``Codec``."""
        return self.text(text)

    def reply(self, text: str) -> list[int]:
        """See ``Codec``; the closing tag ends a reply, so no stop token is added."""
        return self.text(text)

    def closed(self, reply: Sequence[int]) -> list[int]:
        """See ``Codec``; text after the closing tag and the stop token are dropped."""
        text = self.decode(reply)
        for tag in ("</search>", "</answer>"):
            before, found, _ = text.partition(tag)
            if found:
                return self.text(before + tag)
        return self.text(text)


def _around(tokenizer: PreTrainedTokenizerBase, messages: Sequence[dict[str, str]]) -> tuple[str, str, str]:
    """Return the template's text before the first marker, between the two, and after the second.

    Raises:
        BadData: the template fails, or does not show both markers once, in this order.
    """
    whole = render(tokenizer, messages)
    before, found, rest = whole.partition(_FIRST)
    between, again, after = rest.partition(_SECOND)
    if not (found and again) or _FIRST in rest or _SECOND in before + after:
        raise BadData(
            f"the chat template of {tokenizer.name_or_path!r} does not show every message once; use another model"
        )
    return before, between, after


def _opening(tokenizer: PreTrainedTokenizerBase) -> tuple[str, str, str]:
    """Return the template's text around the rules and the first observation."""
    user = {"role": "user", "content": _SECOND}
    try:
        return _around(tokenizer, [{"role": "system", "content": _FIRST}, user])
    except BadData:  # the template rejects or drops system messages
        return _around(tokenizer, [{"role": "user", "content": f"{_FIRST}\n\n{_SECOND}"}])


def _keeps_space(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Check whether the template keeps white space at the ends of a message."""
    return f"  {_FIRST}  " in render(tokenizer, [{"role": "user", "content": f"  {_FIRST}  "}])


def _lead(tokenizer: PreTrainedTokenizerBase, after: str) -> str:
    """Return the white space that the template writes between the assistant's header and the message."""
    _, between, _ = _around(
        tokenizer, [{"role": "user", "content": _FIRST}, {"role": "assistant", "content": _SECOND}]
    )
    lead = between.removeprefix(after)
    return "" if lead.strip() else lead


def _between_users(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the template's text between two user messages, "" if it allows only one."""
    try:
        return _around(
            tokenizer, [{"role": "user", "content": _FIRST}, {"role": "user", "content": _SECOND}]
        )[1]
    except BadData:
        return ""
