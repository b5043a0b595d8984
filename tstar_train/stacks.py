"""Where this process is: the stacks of its threads, as text."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Collection


def stacks(without: Collection[int] = ()) -> str:
    """The stacks of all threads, the main thread's first.

    Args:
        without: identifiers of threads that are left out.
    """
    main = threading.main_thread().ident
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sorted(sys._current_frames().items(), key=lambda item: item[0] != main)
    return "".join(
        f"  thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in frames
        if ident not in without
    )


def position() -> str:
    """The innermost line of the main thread, as ``module:line, function``."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return (
        "nowhere"
        if frame is None
        else f"{frame.f_globals.get('__name__')}:{frame.f_lineno}, {frame.f_code.co_name}"
    )
