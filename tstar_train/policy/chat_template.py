"""Rendering a conversation by a model's own chat template, which is a program of a stranger's and gets bounded time and memory."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from transformers import PreTrainedTokenizerBase

from tstar_envs import BadData

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
    """The text of a conversation, up to where the assistant goes on.

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
