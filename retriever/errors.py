"""The errors of the retriever that a user can act on: each message says what happened and what to do."""

import importlib
from typing import Any


class RetrieverError(Exception):
    """Base of every error that this package raises on purpose."""


class MissingDependency(RetrieverError, ImportError):
    """An optional library is not installed; the message holds the command that installs it."""


class BadCorpus(RetrieverError, ValueError):
    """A corpus file or document breaks the format; the message names file, line and field."""


class MissingCorpus(RetrieverError, FileNotFoundError):
    """No index was named and the mini corpus is not on this machine."""


class MissingModel(RetrieverError, FileNotFoundError):
    """The transformer of an encoder cannot be loaded; the message names it."""


class Unavailable(RetrieverError):
    """The service cannot take this request now; it may be repeated after `retry_after` seconds."""

    def __init__(self, reason: str, retry_after: int) -> None:
        """Say why and for how long."""
        super().__init__(reason)
        self.retry_after = retry_after


class BadSetting(RetrieverError, ValueError):
    """A setting is out of range; the message names it, its value and the range."""


class BadIndex(RetrieverError, ValueError):
    """An index folder is incomplete, damaged or of another format; the message names the file."""


class WriteFailed(RetrieverError, OSError):
    """An index folder could not be written; the message names it and what is left."""


def _extra(name: str) -> str:
    """The extra that brings a library: searching needs less than serving, and that less than a transformer."""
    if name in ("torch", "transformers"):
        return "encoders"
    return "search" if name in ("faiss", "bm25s", "requests") else "retriever"


def import_optional(name: str) -> Any:
    """Import a library of the ``search``, ``retriever`` or ``encoders`` extra at first use.

    Searching is optional for users of the other packages, so none of these libraries is imported
    when `retriever` is.

    Args:
        name: Module name, for example ``"faiss"``.

    Returns:
        The module. Typed ``Any``: these libraries ship no type information.

    Raises:
        MissingDependency: The module is not installed.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise MissingDependency(
            f'retriever needs the module "{error.name}", which is not installed; '
            f"in a clone run: pip install -c constraints.txt -e '.[{_extra(name)}]'",
            name=error.name,
        ) from error
