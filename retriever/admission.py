"""What a request must be to be let in: of this host, no page's of a foreign site, its body bounded in bytes and seconds.

`python -m retriever serve` uses the parts in its own application; `Doorkeeper` puts them in front of another one
(`python -m tstar_envs serve`).
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retriever.guard import HostNames

# Bodies larger than this are held within a bound for all of them; a small one is never refused for the large ones of others.
_SMALL_BODY_BYTES = 64 << 10
_LARGE_BODIES = 4


class Refused(Exception):
    """A request that is not taken.

    Attributes:
        status: Of the answer.
        detail: What is said.
        headers: Of the answer.
    """

    def __init__(self, status: int, detail: str, headers: dict[str, str] | None = None) -> None:
        """Say how and why."""
        super().__init__(detail)
        self.status, self.detail, self.headers = status, detail, headers


class Bodies:
    """Reads bodies, within a bound for each and for all that are held until they are answered: a hundred large ones are refused.

    Args:
        most: Bytes of one body.
        seconds: In which a body has to arrive.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self._most, self._seconds = most, seconds
        self._held = 0

    @asynccontextmanager
    async def held(self, request: Request) -> AsyncIterator[bytes]:
        """The body, for the time of an ``async with`` block.

        Raises:
            Refused: It is too large (as soon as that shows), too much is held already, or it does not arrive.
            ClientDisconnect: The client went away.
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
    """An application behind checks of ``Host``, ``Origin`` and body, for requests and WebSockets.

    Args:
        app: The application.
        hosts: The names that are answered.
        bodies: How bodies are read.
    """

    def __init__(self, app: ASGIApp, hosts: HostNames, bodies: Bodies) -> None:
        self._app, self._hosts, self._bodies = app, hosts, bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
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
    """A body that was read already, and then what else is received."""
    whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return whole.pop() if whole else await receive()

    return next_message
