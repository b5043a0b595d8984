"""Errors that a user can act on.

Each message says what happened and what to do.
"""

import importlib
from typing import Any


class RetrieverError(Exception):
    """Base class of all errors of this package."""


class MissingDependency(RetrieverError, ImportError):
    """An optional library is not installed; the message has the install command."""


class BadCorpus(RetrieverError, ValueError):
    """A corpus file or document is malformed; the message names file, line and field."""


class MissingCorpus(RetrieverError, FileNotFoundError):
    """No index was given and the mini corpus is not installed."""


class MissingModel(RetrieverError, FileNotFoundError):
    """A transformer cannot be loaded; the message names it."""


class Unavailable(RetrieverError):
    """The service cannot answer now; retry after `retry_after` seconds."""

    def __init__(self, reason: str, retry_after: int) -> None:
        """Create an error with a reason and a delay in seconds."""
        super().__init__(reason)
        self.retry_after = retry_after


class BadSetting(RetrieverError, ValueError):
    """A setting is out of range; the message names it, its value and the range."""


class EncoderFailed(RetrieverError, RuntimeError):
    """An encoder raised, or returned no vectors of its dimension; the message names it."""


class SearchFailed(RetrieverError, RuntimeError):
    """An HTTP search service refused a request or replied in another format; the message says what to change."""


class BadIndex(RetrieverError, ValueError):
    """An index folder is incomplete, damaged or of another format; the message names the file."""


class WriteFailed(RetrieverError, OSError):
    """An index folder could not be written; the message says what is kept."""


def _extra(name: str) -> str:
    """Name the extra that installs a library: ``search``, ``retriever`` or ``encoders``."""
    if name in ("torch", "transformers"):
        return "encoders"
    return "search" if name in ("faiss", "bm25s", "requests") else "retriever"


def import_optional(name: str) -> Any:
    """Import an optional library at first use.

    Search is optional for users of the other packages, so importing `retriever` imports none of them.

    Args:
        name: Module name, for example ``"faiss"``.

    Returns:
        The module, typed ``Any``: these libraries ship no types.

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
