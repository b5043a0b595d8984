"""One request to a search service and its whole reply, within a time and a size, whoever answers.

``requests`` bounds the time between two bytes only, and what a packed reply unpacks to not at all: a service that sends a byte a
second, or a small archive of zeros, would hold or fill the process. So a reply is read in a thread of its own, which is left
behind when the time is over. One keep-alive connection per process and host, whatever the number of environments.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tstar_envs.data.limits import REPLY_BYTES, REPLY_SECONDS
from tstar_envs.errors import BadData, RetrieverError
from tstar_envs.redaction import redacted

_SILENCE_SECONDS = 60.0
_PIECE = 1 << 16


class Reply(NamedTuple):
    """What a service answered."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def text(self) -> str:
        """The content for a message, whatever it is."""
        return self.content.decode("utf-8", "replace")


class NoReplyError(Exception):
    """The service sent no reply or only a part of one; another try may help."""


def exchange(method: str, url: str, body: object = None) -> Reply:
    """Send a request and read its reply.

    Args:
        method: ``GET`` or ``POST``.
        url: where to.
        body: sent as JSON; None sends none.

    Raises:
        NoReplyError: the service cannot be reached, or breaks off.
        RetrieverError: its reply takes longer, or is larger, than ``TSTAR_MAX_REPLY_SECONDS`` and ``TSTAR_MAX_REPLY_BYTES`` say.
    """
    line = _line(os.getpid(), urlsplit(url).netloc)
    with line.lock:  # the time of a request begins when the connection is free
        return line.exchange(method, url, body)


@lru_cache(maxsize=64)
def _line(process: int, host: str) -> _Line:
    """The connection of a process to a host: a forked child must not write into its parent's."""
    return _Line()


class _Line:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._session = _new_session()

    def exchange(self, method: str, url: str, body: object) -> Reply:
        given_up = threading.Event()
        results: queue.SimpleQueue[Reply | Exception] = queue.SimpleQueue()
        arguments = (self._session, method, url, body, given_up, results)
        threading.Thread(target=_read_into, args=arguments, name="search reply", daemon=True).start()
        seconds = REPLY_SECONDS.value()
        try:
            result = results.get(timeout=seconds)
        # Ctrl-C too: the connection is still being read, so the next request needs another.
        except BaseException as error:
            given_up.set()
            self._session = _new_session()
            if not isinstance(error, queue.Empty):
                raise
            raise RetrieverError(
                f"{redacted(url)} did not finish its reply within {seconds} s. Ask it for less, give it more room, or set "
                f"{REPLY_SECONDS.variable} to a higher number"
            ) from None
        if isinstance(result, Exception):
            raise result
        return result


def _new_session() -> Any:
    import requests
    from requests.adapters import HTTPAdapter

    class Session(requests.Session):
        def get_redirect_target(self, resp: Any) -> None:
            """Return None, which follows no redirection: ``requests`` would first read the whole body of one, whatever its size."""

    session = Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(pool_maxsize=1, pool_block=True))
    return session


def _read_into(
    session: Any,
    method: str,
    url: str,
    body: object,
    given_up: threading.Event,
    results: queue.SimpleQueue[Reply | Exception],
) -> None:
    try:
        results.put(_read(session, method, url, body, given_up))
    # Whatever goes wrong is raised again in the thread that waits.
    except Exception as error:  # noqa: BLE001
        results.put(error)


def _read(session: Any, method: str, url: str, body: object, given_up: threading.Event) -> Reply:
    import requests
    import urllib3

    content = bytearray()
    try:
        with session.request(method, url, json=body, timeout=_SILENCE_SECONDS, stream=True) as response:
            if response.is_redirect:
                target = response.headers["Location"]
                raise RetrieverError(
                    f"{redacted(url)} sends its callers on to {redacted(target)!r:.200}: if you trust it, give that address instead"
                )
            for piece in response.iter_content(_PIECE):
                content += piece
                REPLY_BYTES.check(len(content), f"the reply of {redacted(url)}")
                if given_up.is_set():
                    break
            return Reply(response.status_code, response.headers, bytes(content))
    except RetrieverError:  # an OSError too
        raise
    except BadData as error:
        raise RetrieverError(str(error)) from error
    # What breaks off inside a reply comes from several layers.
    except (requests.RequestException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        raise NoReplyError(type(error).__name__) from error
