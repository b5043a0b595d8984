"""HTTP limits: request timeouts, connections, bodies, allowed Host headers."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import resource
import signal
import socket
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import h11
import uvicorn
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

_OPEN_FILES = Path("/proc/self/fd")
_SPARE_FILES = 32
_SAME_MESSAGE_SECONDS = 10.0
# Raised by various servers when a client disconnects before its response; not an error.
_GONE = {"ClientDisconnect", "ClientDisconnected", "WebSocketDisconnect", "WebSocketDisconnected"}
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\nConnection: close\r\n"
    b'Content-Length: 54\r\n\r\n{"detail": "too many connections (see --connections)"}'
)


def limited_protocol(connections: int, head_seconds: float, stuck_seconds: float) -> type[H11Protocol]:
    """Create a uvicorn protocol class with limits on connections and time.

    Args:
        connections: Maximum open connections. A further one replaces the longest idle one, or is refused if none is idle.
        head_seconds: Timeout for the headers of a request, from the connection or its first byte. It also holds for the unread rest
            of a body.
        stuck_seconds: Timeout for a client that stops reading its response.
    """

    class Guarded(H11Protocol):
        _timer: asyncio.TimerHandle | None = None
        _seen: object = None
        _idle_since = 0.0
        _upgraded = False  # to a WebSocket, which has pings instead of timeouts

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
            super().connection_made(transport)
            self._idle_since = time.monotonic()  # until its first byte
            if (
                sum(not other.transport.is_closing() for other in self.connections) > connections
                and not self._make_room()
            ):
                transport.write(_FULL)
                transport.close()
            else:
                self._give_time()

        def _make_room(self) -> bool:
            idle = [
                other
                for other in self.connections
                if isinstance(other, Guarded)
                and other is not self
                and other._idle_since
                and not other.transport.is_closing()
            ]
            for other in sorted(idle, key=lambda one: one._idle_since)[:1]:
                other.transport.close()
            return bool(idle)

        def _give_time(self) -> None:
            if self._timer is None:
                self._timer = self.loop.call_later(head_seconds, self._abort)

        def _abort(self) -> None:
            self.transport.abort()

        def _stop_timer(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._upgraded:
                return
            if self._seen is None:
                self._idle_since = 0.0
            if self.cycle is not self._seen:  # a head is complete
                self._seen = self.cycle
                self._idle_since = 0.0
                self._stop_timer()
            elif self.cycle is None or self.cycle.response_complete:
                self._idle_since = 0.0
                self._give_time()

        def handle_websocket_upgrade(self, event: h11.Request) -> None:
            self._upgraded = True
            self._stop_timer()
            super().handle_websocket_upgrade(event)

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            super().connection_lost(exc)

        def on_response_complete(self) -> None:
            unread = self.conn.their_state is h11.SEND_BODY
            self._idle_since = time.monotonic()
            super().on_response_complete()
            if unread:
                # Not closed at once: a client that is still sending would lose the response.
                self._give_time()
            if left := self.transport.get_write_buffer_size():
                self.loop.call_later(stuck_seconds, self._drop_if_stuck, left)

        def _drop_if_stuck(self, before: int) -> None:
            left = self.transport.get_write_buffer_size()
            if left >= before:
                self.transport.abort()
            elif left:
                self.loop.call_later(stuck_seconds, self._drop_if_stuck, left)

    return Guarded


def run_until_stopped(server: uvicorn.Server, listener: socket.socket) -> None:
    """Serve until Ctrl-C or SIGTERM, then shut down cleanly."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    # Uvicorn handles both signals and re-raises them, except where the shell made the program ignore Ctrl-C.
    before = signal.signal(signal.SIGTERM, stop)
    try:
        with suppress(KeyboardInterrupt):
            server.run(sockets=[listener])
    finally:
        signal.signal(signal.SIGTERM, before)


def room_for(connections: int, backlog: int) -> int:
    """Limit the number of connections to the available file handles, after raising the process's limit.

    Args:
        connections: Desired number of connections.
        backlog: Connections that may be accepted before the limit takes effect.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = len(list(_OPEN_FILES.iterdir())) if _OPEN_FILES.exists() else 64
    needed = connections + backlog + opened + _SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
        soft = raised
    return (
        connections
        if soft == resource.RLIM_INFINITY
        else max(4, min(connections, soft - backlog - opened - _SPARE_FILES))
    )


class SparingFilter(logging.Filter):
    """Rate-limit a repeated log message to one every ten seconds.

    The next one gives the number omitted.
    """

    def __init__(self) -> None:
        """Create a filter that has seen no message."""
        super().__init__()
        self._said: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter.filter`."""
        message = record.getMessage()
        if message.startswith("Cancel ") or (
            record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError)
        ):
            return False  # cancelled by a shutdown, as requested
        error = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else ""
        if error in _GONE:
            return False
        now = time.monotonic()
        when, left_out = self._said.get(f"{error} {message}", (-_SAME_MESSAGE_SECONDS, 0))
        if now - when < _SAME_MESSAGE_SECONDS:
            self._said[f"{error} {message}"] = (when, left_out + 1)
            return False
        if len(self._said) > 1000:
            self._said.clear()
        self._said[f"{error} {message}"] = (now, 0)
        if left_out:
            record.msg, record.args = f"{message} ({left_out} more of these were left out)", ()
        return True


def log_sparingly() -> None:
    """Rate-limit log messages of asyncio and uvicorn, so that no client fills the disk."""
    for name in ("asyncio", "uvicorn.error"):
        logging.getLogger(name).addFilter(SparingFilter())


class HostNames:
    """Accepted values of the ``Host`` and ``Origin`` headers.

    This prevents DNS rebinding, by which a web page reads a private corpus from a loopback service. ``Origin`` is checked because
    browsers open WebSockets for any page.

    Args:
        bound: Address of the server.
        added: Additional names. If there are none and ``bound`` is not a loopback address, every name is accepted.
    """

    def __init__(self, bound: str, added: Iterable[str] = ()) -> None:
        self._names = {_name(name) for name in (bound, *added)} | {"localhost"}
        self._all = not is_loopback(bound) and not list(added)

    def refuse(self, host: str | None, origin: str | None = None) -> str:
        """Explain why a request is refused; "" if it is accepted.

        Without these headers it is not from a browser.
        """
        if host is not None and not self._all and not self._known(name := _name(host)):
            return _not_here("host name", name)
        if origin is None:
            return ""
        # A page of this server itself is allowed, under whatever name.
        name = _name(origin.rpartition("//")[2])
        return (
            ""
            if self._known(name) or (host is not None and name == _name(host))
            else _not_here("origin", name)
        )

    def _known(self, name: str) -> bool:
        return name in self._names or is_loopback(name)


def _not_here(what: str, name: str) -> str:
    return f"the {what} {name!r:.200} is not served here; serve with --allow-host {name:.200} if it should be"


def _name(host: str) -> str:
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return (host.partition(":")[0] if host.count(":") == 1 else host).rstrip(".")


def is_loopback(host: str) -> bool:
    """Check whether an address or name is a loopback one."""
    try:
        return ipaddress.ip_address(_name(host)).is_loopback
    except ValueError:
        return _name(host) == "localhost"


# Larger bodies share a memory limit; a small body is never refused because of them.
_SMALL_BODY_BYTES = 64 << 10
_LARGE_BODIES = 4


class Refused(Exception):
    """A refused request.

    Attributes:
        status: HTTP status of the response.
        detail: Error message.
        headers: Additional headers of the response.
    """

    def __init__(self, status: int, detail: str, headers: dict[str, str] | None = None) -> None:
        """Create a refusal."""
        super().__init__(detail)
        self.status, self.detail, self.headers = status, detail, headers


class Bodies:
    """Request bodies, with a limit for each and for all large ones in progress.

    Args:
        most: Maximum size of one body, in bytes.
        seconds: Timeout for receiving a body.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self._most, self._seconds = most, seconds
        self._held = 0

    @asynccontextmanager
    async def held(self, request: Request) -> AsyncIterator[bytes]:
        """Read the body; its memory counts until the ``async with`` block ends.

        Raises:
            Refused: The body is too large, too many large ones are in progress, or it does not arrive in time.
            ClientDisconnect: The client disconnected.
        """
        body = bytearray()
        large = 0
        try:
            try:
                async with asyncio.timeout(self._seconds):
                    async for chunk in request.stream():
                        body += chunk
                        if len(body) > _SMALL_BODY_BYTES:
                            self._held += len(body) - large
                            large = len(body)
                        if len(body) > self._most:
                            raise Refused(
                                413,
                                f"the body is larger than {self._most} bytes; send several, or serve with a higher --max-body-bytes",
                            )
                        if large and self._held > _LARGE_BODIES * self._most:
                            raise Refused(
                                503,
                                f"bodies of more than {_LARGE_BODIES * self._most} bytes are being read",
                                {"Retry-After": "1"},
                            )
            except TimeoutError:
                raise Refused(
                    408, f"the body did not arrive within {self._seconds:g} s (--body-timeout)"
                ) from None
            yield bytes(body)
        finally:
            self._held -= large


class Doorkeeper:
    """ASGI middleware that checks ``Host``, ``Origin`` and body size of requests and WebSockets.

    Args:
        app: The wrapped application.
        hosts: Accepted host names.
        bodies: Reader of request bodies.
    """

    def __init__(self, app: ASGIApp, hosts: HostNames, bodies: Bodies) -> None:
        self._app, self._hosts, self._bodies = app, hosts, bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = HTTPConnection(scope).headers
        reason = self._hosts.refuse(headers.get("host"), headers.get("origin"))
        if scope["type"] == "websocket":
            if reason:
                await send(
                    {"type": "websocket.close", "code": 1008, "reason": reason}
                )  # before it is accepted: 403
            else:
                await self._app(scope, receive, send)
            return
        async with AsyncExitStack() as stack:
            try:
                body = await stack.enter_async_context(self._bodies.held(Request(scope, receive)))
                if reason:
                    raise Refused(403, reason)
            except Refused as refused:
                answer = JSONResponse({"detail": refused.detail}, refused.status, refused.headers)
                await answer(scope, receive, send)
                return
            except ClientDisconnect:
                return
            await self._app(scope, _replayed(body, receive), send)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Replay a body that was already read, then receive the rest."""
    whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return whole.pop() if whole else await receive()

    return next_message
