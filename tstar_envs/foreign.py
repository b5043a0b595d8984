"""Calls of code that others wrote (environments, agents, loggers): whatever it raises becomes one sentence.

Nothing of it may end a run with a traceback, or with success: ``sys.exit()`` in an agent, a ``StopIteration`` that ends somebody else's
loop, a ``CancelledError`` that nobody asked for. Only Ctrl-C and the suite's own errors pass as they are.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import os
import reprlib
import sysconfig
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NoReturn, SupportsFloat, SupportsIndex, cast

from tstar_envs.errors import EnvironmentFailed, TStarError

_HERE = Path(__file__).parent
# Beginnings of file names whose lines say little about what failed: Python's library, installed packages, frozen modules, and
# those of ours that call others' code.
_INSTALLED = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
_CALLERS = [str(_HERE / name) for name in ("bench", "cli", "core.py", "foreign.py", "group.py", "playing.py")]
_BETWEEN = (*_INSTALLED, "<", *_CALLERS)
_LONGEST = 300  # characters of what is quoted
_SHOWN = reprlib.Repr()
_SHOWN.maxstring = _SHOWN.maxother = 60


def called(
    who: str, failed: type[TStarError], function: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Call a function that somebody else wrote.

    Args:
        who: whose it is, for the message: "the agent", "the environment".
        failed: the error to raise for whatever it raises.
        function: called with the other arguments.

    Raises:
        TStarError: ``failed``, or an error of the suite that the function raised itself.
        KeyboardInterrupt: Ctrl-C.
    """
    process = os.getpid()
    try:
        return function(*args, **kwargs)
    except BaseException as error:  # sys.exit() and the like must not end the run either
        if os.getpid() != process:
            _end_child(error)
        if isinstance(error, KeyboardInterrupt | TStarError):
            raise
        raise failed(raised(who, error, _name_of(function))) from error


def _end_child(error: BaseException) -> NoReturn:
    """End a process that foreign code forked and is done with: what comes behind the call is its parent's to do."""
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        os._exit((error.code or 0) & 0xFF)
    traceback.print_exception(error)
    os._exit(1)


async def awaited(who: str, failed: type[TStarError], method: str, awaitable: Awaitable[Any]) -> Any:
    """Wait for what a coroutine that somebody else wrote gives; see ``called``."""
    task = asyncio.current_task()
    try:
        return await awaitable
    except (KeyboardInterrupt, TStarError):
        raise
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError | GeneratorExit) and _leaving(task):
            raise
        raise failed(raised(who, error, method)) from error


def _leaving(task: asyncio.Task[Any] | None) -> bool:
    """Whether we asked this coroutine to end: else the cancellation was made up by the code that is waited for."""
    try:
        running = asyncio.current_task()
    except RuntimeError:  # the loop has ended: Python closes what is left
        return True
    return task is None or running is not task or task.cancelling() > 0


def raised(who: str, error: BaseException, method: str = "") -> str:
    """One line on what foreign code raised, and where: its last line in code that is neither installed nor the harness."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_BETWEEN)]
    last = (own or frames)[-1] if frames else None
    where = f"{last.filename}, line {last.lineno}, in {last.name}" if last is not None else ""
    if method and (not own or own[-1].name != method):
        where = f"{where}, called as {method}" if where else f"in {method}"
    return f"{who} raised {type(error).__name__}: {said(error)}{f' ({where})' if where else ''}"


def said(error: BaseException) -> str:
    """The message of an error in one line; an error may be of any class, and its text of any kind."""
    try:
        text = str(error)
    except Exception as second:  # noqa: BLE001 - its __str__ is foreign too
        text = f"(its message raised {type(second).__name__})"
    text = " ".join(text.encode("utf-8", "backslashreplace").decode("utf-8").split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def shown(value: object) -> str:
    """A value for a message: short, in one line, whatever it is."""
    try:
        text = _SHOWN.repr(value)
    except Exception:  # noqa: BLE001 - its __repr__ is foreign too
        return f"a {type(value).__name__}"
    return " ".join(text.encode("utf-8", "backslashreplace").decode("utf-8").split())[:_LONGEST]


def as_bool(value: object) -> bool | None:
    """A truth value, NumPy's included; None for anything else, "no" and 0 among it."""
    if type(value) is bool:
        return value
    return bool(value) if type(value).__name__ in ("bool_", "bool") and _of_numpy(value) else None


def as_number(value: object) -> float | None:
    """A finite number, NumPy's included; None for anything else."""
    if isinstance(value, bool) or not (isinstance(value, int | float) or _of_numpy(value)):
        return None
    try:
        number = float(cast(SupportsFloat | SupportsIndex, value))
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _of_numpy(value: object) -> bool:
    """Whether it is one value of NumPy's (a scalar); arrays are none."""
    return type(value).__module__ == "numpy" and getattr(value, "shape", None) == ()


def wrong(method: str, must: str, value: object) -> EnvironmentFailed:
    """The error for a value that a method of an environment must not return."""
    dismiss(value)
    return EnvironmentFailed(f"the environment's {method} {must}, found {shown(value)}")


def dismiss(value: object) -> None:
    """Close a coroutine that nobody will wait for: Python would complain of it beside the error."""
    if inspect.iscoroutine(value):
        value.close()


def _name_of(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", ""))
