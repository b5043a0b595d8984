"""``serve``: an environment behind a socket, for harnesses that speak OpenEnv."""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

import tyro
from rich.console import Console

from tstar_envs.cli.console import say
from tstar_envs.cli.options import parse_options
from tstar_envs.errors import MissingExtra, UnknownOption
from tstar_envs.registry import find_entry

_BACKLOG = 2048


@dataclass(frozen=True, kw_only=True)
class ServeCommand:
    """Serve an environment by OpenEnv's protocol, with sessions and tasks, until Ctrl-C. No authentication: keep it on loopback."""

    env: str
    """Environment id or short name, for example tstar/HotpotQA or hotpotqa."""
    split: str = "test"
    """Split that tasks come from unless a client names another one."""
    host: str = "127.0.0.1"
    """Address to listen on; the default can be reached only from this machine."""
    port: int = 8000
    """Port to listen on, 0 to 65535; 0 takes a free one, which is printed."""
    sessions: int = 64
    """Maximum number of sessions, each with one episode, at the same time."""
    idle_seconds: float = 600.0
    """Seconds without a call after which a session is closed."""
    option: tyro.conf.UseAppendAction[Annotated[tuple[str, ...], tyro.conf.arg(metavar="KEY=VALUE")]] = ()
    """Option of the environment, for example topk=1; may be repeated."""


def run(command: ServeCommand, console: Console) -> int:
    """Serve until Ctrl-C or SIGTERM.

    Returns:
        0.

    Raises:
        UnknownOption: no such environment or option, or an address that cannot be listened on.
        MissingExtra: the packages of the server are not installed.
    """
    if not 0 <= command.port <= 65_535:
        raise UnknownOption(f"--port must be from 0 to 65535, got {command.port}")
    entry = find_entry(command.env)
    options = parse_options(entry, command.option, {"split": "--split"})
    # Before the imports, which take seconds, so that a port already in use is reported at once.
    with _listen(command.host, command.port) as listener:
        try:
            import uvicorn

            from tstar_envs.adapters.openenv import create_app
        except MissingExtra:
            raise
        except ImportError as error:
            raise MissingExtra("the OpenEnv server", error.name or "uvicorn", "openenv") from error
        app = create_app(
            entry.id,
            sessions=command.sessions,
            idle_seconds=command.idle_seconds,
            split=command.split,
            **options,
        )
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        say(
            console,
            f"{entry.id} for OpenEnv is listening on http://{shown}:{port} ({command.sessions} sessions); Ctrl-C ends it",
        )
        config = uvicorn.Config(
            app, backlog=_BACKLOG, log_level="warning", access_log=False, timeout_graceful_shutdown=3
        )
        # Uvicorn ends by Ctrl-C itself and raises it again, but not where a shell made the program deaf to it.
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])
        say(console, "stopped")
    return 0


def _listen(host: str, port: int) -> socket.socket:
    """A socket that already listens before the server starts, so that the printed address is the real one."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise UnknownOption(
            f"cannot listen on {host} port {port}: {error.strerror or error}; choose another --port or --host"
        ) from error
    return listener
