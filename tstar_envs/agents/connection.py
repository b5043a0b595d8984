"""HTTP connections to an endpoint: one for each request at once, kept open; proxies and certificates of the environment."""

from __future__ import annotations

import base64
import os
import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass

from tstar_envs.data.files import MODEL_REPLY_BYTES
from tstar_envs.errors import MissingExtra

if TYPE_CHECKING:
    from aiohttp import ClientSession


OPENAI = "https://api.openai.com/v1"
PROXY_VARIABLES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")
NETWORK_VARIABLES = (*map(str.lower, PROXY_VARIABLES), *PROXY_VARIABLES, "SSL_CERT_FILE", "SSL_CERT_DIR")
HANDLES = 2  # open files of a connection: its own, and that of one which is being closed
_OF_OPENAI = {"OPENAI_ORG_ID": "OpenAI-Organization", "OPENAI_PROJECT_ID": "OpenAI-Project"}
_IDLE_SECONDS = 60.0  # a connection without a request is closed then: an environment's step may take as long
_REFUSAL_BYTES = 65_536  # maximum bytes read of an error response
_LONGEST_HEADER = 65_536  # bytes


class Response(NamedTuple):
    """Response of an endpoint.

    Attributes:
        status: HTTP status.
        headers: headers with lower-case names.
        content: body, of an error its first bytes.
    """

    status: int
    headers: Mapping[str, str]
    content: bytes


class Connections:
    """Connections to one endpoint, opened as requests need them.

    Proxies come from ``HTTP_PROXY``, ``HTTPS_PROXY``, ``ALL_PROXY`` and ``NO_PROXY``, certificates from ``SSL_CERT_FILE`` or
    ``SSL_CERT_DIR``, else from certifi. A name and password in the URL replace the key.

    Args:
        base_url: base URL of the endpoint; None for OpenAI's.
        key: API key.

    Attributes:
        base_url: base URL, with a slash at its end.

    Raises:
        MissingExtra: ``aiohttp`` is not installed.
        ValueError: a proxy of the environment is unusable.
        OSError: the certificates cannot be read.
    """

    def __init__(self, base_url: str | None, key: str) -> None:
        try:
            import aiohttp
        except ModuleNotFoundError as error:
            raise MissingExtra("an agent behind an endpoint", error.name or "aiohttp", "bench") from error
        self._aiohttp = aiohttp
        parts = urlsplit(base_url or OPENAI)
        self.base_url = urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/"))
        who, at, host = parts.netloc.rpartition("@")
        self._url = urlunsplit(
            parts._replace(netloc=host, path=f"{parts.path.rstrip('/')}/chat/completions", fragment="")
        )
        self._headers = {
            "Accept": "application/json",
            "Content-Type": "application/json",
            "User-Agent": "tstar",
            "Authorization": f"Basic {_basic(who)}" if at else f"Bearer {key}",
            **{
                name: os.environ[variable]
                for variable, name in _OF_OPENAI.items()
                if os.environ.get(variable)
            },
        }
        self._proxy, self._socks = _proxy(parts.scheme, parts.hostname or "", parts.port)
        self._certificates = _certificates()
        self._session: ClientSession | None = None

    async def post(self, body: bytes) -> Response:
        """Send one request and receive its response.

        Raises:
            BadData: the response exceeds the size limit.
            Exception: any error of the connection.
        """
        content = bytearray()
        async with self._opened().post(self._url, data=body, proxy=self._proxy) as response:
            refused = response.status >= 400
            async for piece in response.content.iter_any():
                content += piece
                if refused and len(content) > _REFUSAL_BYTES:
                    del content[_REFUSAL_BYTES:]
                    break
                if not refused:
                    MODEL_REPLY_BYTES.check(len(content), "the answer")
            headers = {name.lower(): value for name, value in response.headers.items()}
            return Response(response.status, headers, bytes(content))

    async def close(self) -> None:
        """Close the connections; the next request opens new ones."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _opened(self) -> ClientSession:
        """Return the session of this event loop, to which its connections belong."""
        if self._session is None or self._session.closed:
            self._session = self._aiohttp.ClientSession(
                connector=self._connector(),
                headers=self._headers,
                timeout=self._aiohttp.ClientTimeout(total=None, sock_connect=None),
                max_line_size=_LONGEST_HEADER,
                max_field_size=_LONGEST_HEADER,
            )
        return self._session

    def _connector(self) -> Any:
        # As many connections as requests at once: the runner bounds those.
        chosen: dict[str, Any] = {
            "limit": 0,
            "ssl": self._certificates,
            "keepalive_timeout": _IDLE_SECONDS,
        }
        if self._socks is None:
            return self._aiohttp.TCPConnector(**chosen)
        from aiohttp_socks import ProxyConnector

        return ProxyConnector.from_url(self._socks, rdns=True, **chosen)


def _basic(who: str) -> str:
    """Encode the name and password of a URL for a header."""
    return base64.b64encode(unquote(who).encode("utf-8")).decode("ascii")


def _proxy(scheme: str, host: str, port: int | None) -> tuple[str | None, str | None]:
    """Find the proxy for an address among those of the environment, all of which must be usable.

    Returns:
        The HTTP proxy and the SOCKS proxy; at most one is not None.
    """
    given = {name: url if "://" in url else f"http://{url}" for name, url in getproxies().items()}
    for name in ("http", "https", "all"):
        if name in given:
            _check_proxy(given[name])
    chosen = given.get(scheme) or given.get("all")
    netloc = host if port is None else f"{host}:{port}"
    if chosen is None or proxy_bypass(host) or proxy_bypass(netloc):
        return None, None
    if not chosen.startswith("socks"):
        return chosen, None
    try:
        import aiohttp_socks  # noqa: F401 - used when a connection is opened
    except ModuleNotFoundError as error:
        raise ValueError(
            "a SOCKS proxy needs the package aiohttp-socks: pip install aiohttp-socks"
        ) from error
    return None, chosen.replace("socks5h://", "socks5://", 1)


def _check_proxy(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https", "socks5", "socks5h") or not parts.hostname:
        raise ValueError(
            f"unusable proxy {parts.scheme}://{parts.netloc.rpartition('@')[2]}: http://, https:// and socks5:// are known"
        )
    _ = parts.port  # raises if it is no number


def _certificates() -> ssl.SSLContext:
    """Load the certificates of authorities that are trusted."""
    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if file:
        context = ssl.create_default_context(cafile=file)
    elif folder:
        context = ssl.create_default_context(capath=folder)
    else:
        import certifi

        context = ssl.create_default_context(cafile=certifi.where())
    context.set_alpn_protocols(["http/1.1"])
    return context


def proxies_said() -> str:
    """List the variables of the environment that a connection depends on, with their values."""
    given = [f"{name}={os.environ[name]}" for name in NETWORK_VARIABLES if os.environ.get(name)]
    return ", ".join(given) or f"none of {', '.join(NETWORK_VARIABLES[-5:])}"
