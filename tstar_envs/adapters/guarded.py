"""The server that an adapter's application runs in: the retriever's guard in front of it, so that no client holds up another.

The guard is part of this distribution and needs what every ASGI server brings (uvicorn, starlette, h11), no search library.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from retriever.http_limits import (
    Bodies,
    Doorkeeper,
    HostNames,
    limited_protocol,
    log_sparingly,
    room_for,
    run_until_stopped,
)

if TYPE_CHECKING:
    import uvicorn

__all__ = ["Limits", "behind_guard", "run_until_stopped", "server_of"]

BACKLOG = 256  # connections that wait to be accepted
_SHUTDOWN_SECONDS = 3


@dataclass(frozen=True)
class Limits:
    """What a client may ask of a server; the options of ``serve`` say what each is for."""

    connections: int = 1_000
    head_seconds: float = 30.0
    body_seconds: float = 30.0
    body_bytes: int = 4 << 20


def behind_guard(app: Any, host: str, allowed: Iterable[str], limits: Limits) -> Doorkeeper:
    """An application that answers only by the names of its host and no page of a foreign site, with bodies bounded.

    Args:
        app: an ASGI application.
        host: the address that is listened on.
        allowed: further names.
        limits: bounds of bodies.
    """
    return Doorkeeper(app, HostNames(host, allowed), Bodies(limits.body_bytes, limits.body_seconds))


def server_of(app: Any, limits: Limits) -> uvicorn.Server:
    """A server for an application, with bounds on connections and slow clients, and few words about what clients do."""
    import uvicorn

    log_sparingly()
    config = uvicorn.Config(
        app,
        http=limited_protocol(
            room_for(limits.connections, BACKLOG), limits.head_seconds, limits.body_seconds
        ),
        ws_max_size=limits.body_bytes,
        backlog=BACKLOG,
        log_level="warning",
        access_log=False,
        timeout_keep_alive=600,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
    )
    return uvicorn.Server(config)
