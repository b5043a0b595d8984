"""Chat templates, and conversations as token ids."""

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

BYTES = 1 << 30  # beyond what the process holds
SECONDS = 5.0  # of this thread's own computing; the templates of models in use take some milliseconds
_COMPILED = "<template>"  # what Jinja calls the code that it makes of a template


class _TooSlow(Exception):
    """Raised inside the template's code."""


@contextmanager
def _bounded_memory() -> Iterator[None]:
    """Let Python raise MemoryError where the block asks for more than ``BYTES``: ``'x' * 10**10`` is one instruction of a template."""
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except (ImportError, OSError):  # another system, where only time is bounded
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

    Transformers runs templates in Jinja's sandbox, which keeps them from files and programs, but not from nested loops.

    Args:
        tokenizer: has a ``chat_template``.
        messages: each with ``role`` and ``content``.

    Raises:
        BadData: the template fails, computes for seconds, or asks for gigabytes.
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
            f"the chat template of {tokenizer.name_or_path!r} asks for more than {BYTES >> 30} GiB on {len(messages)} messages: it is "
            f"broken or made to fill the memory; use another model, or one whose tokenizer has no chat_template"
        ) from None
    except _TooSlow:
        raise BadData(
            f"the chat template of {tokenizer.name_or_path!r} computes for more than {SECONDS:g} seconds on {len(messages)} "
            f"messages: it is broken or made to hang; use another model, or one whose tokenizer has no chat_template"
        ) from None
    except Exception as error:  # it is a program: whatever it raises is its own fault
        cause = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise BadData(
            f"the chat template of {tokenizer.name_or_path!r} fails ({cause:.300}): use another model"
        ) from error
    finally:
        sys.settrace(before)


# Stand for the words of a message while a template is read.
_FIRST, _SECOND = "\u241etstar\u241f", "\u241ftstar\u241e"


class ChatCodec(PlainCodec):
    """Codec by a model's own chat template: rules as system message, observations as user messages.

    A template without a system message gets the rules at the head of the first user message.

    Args:
        tokenizer: has a ``chat_template``.
        generation_config: of the model, which may name further ends of a turn.

    Attributes:
        reply_header: text between a user's message and the reply to it.

    Raises:
        BadData: the template fails, does not show every message once, or closes no turn.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, generation_config: Any = None) -> None:
        # What the template puts around words is found once, by rendering it around markers.
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
        # Encoded with its closing token in front, which is then left out: what follows it is cut into tokens as in the whole.
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
        """See ``Codec``; the request is a user's message of its own, or the end of the last one where the template allows no second."""
        # Its first token grew together with the words before it.
        if list(context[-len(self._header) :]) != self._header:
            return [*context, *self._closing, self.end, *self.observation(text)]
        more = [Piece(self._again, True)] if self._again else [Piece("\n\n", True)]
        said = self._encoder.conversation([*more, Piece(self._words(text)), Piece(self.reply_header, True)])
        return [*context[: -len(self._header)], *said]

    def _words(self, text: str) -> str:
        return text.strip() if self._trims else text


class SearchR1Codec(PlainCodec):
    """The conversation that Search-R1's checkpoints were trained on (``LLMGenerationManager`` in its public code).

    Rules and question are one user message. All that follows is a single turn of the assistant: a reply is cut behind its first
    ``</search>`` (or else ``</answer>``), encoded again, and what the environment says stands right behind it, as it is.

    Args:
        tokenizer: one with a ``chat_template`` renders the user message by it; one without has it as plain text.
        ends: the tokens by which the model ends a turn.
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


def _around(tokenizer: PreTrainedTokenizerBase, messages: Sequence[dict[str, str]]) -> tuple[str, str, str]:
    """Return the template's text before the first marker, between the two, and after the second.

    Raises:
        BadData: the template fails, or does not show both once, in this order.
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
    except BadData:  # it takes no system message, or drops it
        return _around(tokenizer, [{"role": "user", "content": f"{_FIRST}\n\n{_SECOND}"}])


def _keeps_space(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Check whether the template keeps white space at the ends of a message."""
    return f"  {_FIRST}  " in render(tokenizer, [{"role": "user", "content": f"  {_FIRST}  "}])


def _lead(tokenizer: PreTrainedTokenizerBase, after: str) -> str:
    """White space that the template writes between what opens the assistant's turn and the assistant's words."""
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
