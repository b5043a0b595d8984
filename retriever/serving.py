"""``serve``: one index, several shards or the mini corpus behind HTTP."""

import importlib.util
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console

from retriever.command_line import check_range, say
from retriever.corpus import normalise, read_corpus
from retriever.errors import BadIndex, BadSetting, MissingCorpus, import_optional
from retriever.index import MAX_TOPK, DenseIndex, HashedIndex, RemoteShard, Searcher, ShardedSearcher
from retriever.storage import load_index, read_manifest

_BACKLOG = 256  # connections that wait to be accepted
_MINI_CORPUS = Path("envs", "search_qa", "data", "corpus.jsonl.gz")


@dataclass(frozen=True, kw_only=True)
class Serve:
    """Serve an index over HTTP: POST /retrieve, GET /health, /ready, /info and /metrics."""

    index: tuple[str, ...] = ()
    """Index folder; default: the mini corpus that ships with tstar_envs. Several are the shards of one corpus in their order, each a folder
    or the address of another server (http://host:8000)."""
    port: int = 8000
    """TCP port to listen on; 0 takes a free one and prints it."""
    host: str = "127.0.0.1"
    """Address to listen on. There is no authentication: use addresses beyond loopback only in a trusted network."""
    topk: int = 3
    """Documents per query where a request gives no number, 1 to 100."""
    threads: int = 1
    """CPU threads of a search and of a transformer encoder."""
    effort: int | None = None
    """Search effort in an approximate index: lists (ivf_sq8) or graph nodes (hnsw) that a search visits; default: as built."""
    batch: int = 64
    """Maximum number of queries searched in one batch."""
    gather_ms: float | None = None
    """Milliseconds to wait for more queries after a batch of several; default: 2 for a transformer, else 0."""
    queue: int = 256
    """Maximum number of waiting requests; further ones get status 503 with Retry-After."""
    deadline: float = 60.0
    """Seconds after which a request that is still waiting gets status 503 (a large request: a portion of 256 queries of it)."""
    max_queries: int = 8_192
    """Maximum number of queries in one request."""
    max_query_characters: int = 16_384
    """Maximum number of characters in one query."""
    max_body_bytes: int = 16 << 20
    """Maximum number of bytes in the body of one request."""
    max_passages: int = 131_072
    """Maximum number of passages in one answer: queries times documents per query."""
    allow_host: tuple[str, ...] = ()
    """Additional host names to accept. On a loopback address only loopback names are accepted, as a protection against DNS rebinding."""
    connections: int = 1_000
    """Maximum number of open connections; a further one replaces the longest idle one, or is refused."""
    head_timeout: float = 30.0
    """Seconds within which the headers of a request must arrive."""
    body_timeout: float = 30.0
    """Seconds within which the body of a request must arrive, and within which a client must read some of an answer."""
    shutdown_timeout: int = 5
    """Seconds that running requests have to finish after a signal to stop."""
    # The port is open before anything is read, so a client can learn from /ready that the index is still loading.
    verify: Literal["before", "behind", "never"] = "before"
    """When the checksums of the index files are verified. before: before the first answer; behind: in the background; never."""


def serve(command: Serve, console: Console) -> None:
    """Run ``serve`` until a signal ends it.

    Raises:
        RetrieverError, OSError: With a message for the user; an index that fails to load ends the server.
    """
    check_range("port", command.port, 0, 65535)
    check_range("topk", command.topk, 1, MAX_TOPK)
    check_range("threads", command.threads, 1, 1024)
    check_range("batch", command.batch, 1, 4096)
    check_range("queue", command.queue, 1, 1_000_000)
    check_range("gather-ms", command.gather_ms or 0, 0, 1000)
    check_range("deadline", command.deadline, 0.001, 86_400)
    check_range("max-queries", command.max_queries, 1, 10_000_000)
    check_range("max-query-characters", command.max_query_characters, 1, 1 << 30)
    check_range("max-body-bytes", command.max_body_bytes, 1024, 1 << 32)
    check_range("max-passages", command.max_passages, 1, 1_000_000_000)
    check_range("connections", command.connections, 4, 1_000_000)
    check_range("head-timeout", command.head_timeout, 0.1, 86_400)
    check_range("body-timeout", command.body_timeout, 0.1, 86_400)
    check_range("shutdown-timeout", command.shutdown_timeout, 0, 86_400)
    import_optional("fastapi")
    uvicorn = import_optional("uvicorn")
    # Here and not above, so that `build` works where only the search libraries are installed.
    from retriever.app import Limits, create_app
    from retriever.http_limits import HostNames, guarded, log_sparingly, room_for, run_until_stopped
    from retriever.service import SearchService

    lexical = _lexical(command)
    failures: list[Exception] = []

    def on_loaded(searcher: Searcher) -> None:
        say(console, f"ready: {searcher.ntotal} documents")

    def on_failed(error: Exception) -> None:
        failures.append(error)
        server.should_exit = True

    service = SearchService(
        _loader(command, lambda error: service.fail(error)),
        capacity=command.queue,
        on_loaded=on_loaded,
        on_failed=on_failed,
        cache_key=normalise if lexical else str,
        batch=command.batch,
        gather_seconds=((0 if lexical else 2) if command.gather_ms is None else command.gather_ms) / 1000,
        deadline_seconds=command.deadline,
    )
    # A trainer thinks for minutes between searches; its connection should still be there afterwards.
    limits = Limits(
        command.max_queries, command.max_query_characters, command.max_body_bytes, command.max_passages
    )
    app = create_app(
        service, command.topk, limits, command.body_timeout, HostNames(command.host, command.allow_host)
    )
    connections = room_for(command.connections, _BACKLOG)
    config = uvicorn.Config(
        app,
        http=guarded(connections, command.head_timeout, command.body_timeout),
        ws="none",
        backlog=_BACKLOG,
        log_level="warning",
        access_log=False,
        timeout_keep_alive=600,
        timeout_graceful_shutdown=command.shutdown_timeout,
    )
    server = uvicorn.Server(config)
    log_sparingly()
    with _bind(command.host, command.port) as listener:
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        say(console, f"listening on http://{shown}:{port}, loading the index")
        run_until_stopped(server, listener)
    if failures:
        raise failures[0]
    say(console, "stopped")


def _is_address(part: str) -> bool:
    return part.startswith(("http://", "https://"))


def _lexical(command: Serve) -> bool:
    """Check what can be checked at once, so that a wrong path fails before the port opens; return whether all
    encoders ignore case and punctuation.
    """
    kinds = {"remote" if _is_address(part) else read_manifest(Path(part))["kind"] for part in command.index}
    if not command.index:
        mini_corpus()
    return kinds <= {"hashed", "bm25"}


def _loader(command: Serve, on_damage: Callable[[BadIndex], None]) -> Callable[[], Searcher]:
    if not command.index:
        corpus = mini_corpus()
        return lambda: HashedIndex.build(read_corpus(corpus), threads=command.threads)

    def load_part(part: str) -> Searcher:
        if _is_address(part):
            return RemoteShard(part)
        index = load_index(part, command.threads, command.verify, on_damage)
        if command.effort is not None:
            if not isinstance(index, DenseIndex):
                raise BadSetting("--effort is for approximate indexes, not for BM25.")
            index.look_further(command.effort)
        return index

    def load() -> Searcher:
        parts = [load_part(part) for part in command.index]
        return parts[0] if len(parts) == 1 else ShardedSearcher(parts)

    return load


def mini_corpus() -> Path:
    """Find the mini corpus as package data, by path: nothing of `tstar_envs` is imported."""
    spec = importlib.util.find_spec("tstar_envs")
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    for folder in folders:
        if (path := Path(folder) / _MINI_CORPUS).is_file():
            return path
    reason = f"{Path(folders[0]) / _MINI_CORPUS} is missing" if folders else "tstar_envs is not installed"
    raise MissingCorpus(
        f"no --index given, and the mini corpus was not found: {reason}. Install the whole package, or run: "
        "python -m retriever build --corpus FILE --out FOLDER, then: python -m retriever serve --index FOLDER"
    )


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            # As every server does: a port in the TIME_WAIT of a predecessor is free.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            # At once: two sockets may be bound to one port until one of them listens.
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise BadSetting(
            f"cannot listen on {host} port {port}: {reason}. Choose another --port or --host."
        ) from error
    return listener
