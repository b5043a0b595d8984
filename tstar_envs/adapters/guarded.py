"""HTTP server for an adapter's application, behind the retriever's request limits.

The limits are part of this distribution and need only what every ASGI server installs (uvicorn, starlette, h11), no search library.
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

BACKLOG = 256  # connections waiting to be accepted
_SHUTDOWN_SECONDS = 3


@dataclass(frozen=True)
class Limits:
    """HTTP limits of a server; the options of ``serve`` describe each."""

    connections: int = 1_000
    head_seconds: float = 30.0
    body_seconds: float = 30.0
    body_bytes: int = 4 << 20


def behind_guard(app: Any, host: str, allowed: Iterable[str], limits: Limits) -> Doorkeeper:
    """Wrap an application with checks of Host and Origin headers and a limit on request bodies.

    Args:
        host: address that the server listens on.
        allowed: additional host names.
    """
    return Doorkeeper(app, HostNames(host, allowed), Bodies(limits.body_bytes, limits.body_seconds))


def server_of(app: Any, limits: Limits) -> uvicorn.Server:
    """Make a server for an application, with limits on connections and slow clients, and little logging."""
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
