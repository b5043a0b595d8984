"""The command line: build an index folder, serve one (or the mini corpus), measure."""

import importlib.util
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal

import tyro
from rich.console import Console

from retriever.build import Plan, build_index
from retriever.corpus_files import read_corpus
from retriever.errors import BadIndex, BadSetting, MissingCorpus, RetrieverError, import_optional
from retriever.index import MAX_TOPK, DenseIndex, HashedIndex, Searcher
from retriever.progress import progress
from retriever.shards import RemoteShard, ShardedSearcher
from retriever.storage import Manifest, load_index, read_manifest
from retriever.text import normalise
from retriever.transformer import Pooling, TransformerSettings, settings_for
from retriever.vectors import Kind

_INTERRUPTED = 130  # what a shell reports for a program ended by Ctrl-C
_BACKLOG = 256  # connections that wait to be accepted
_MINI_CORPUS = Path("envs", "search_qa", "data", "corpus.jsonl.gz")


@dataclass(frozen=True, kw_only=True)
class Build:
    """Build an index folder from a corpus file; a build that was killed goes on where it stopped."""

    corpus: Path
    """JSON lines with "id" and "contents" (Search-R1's form) or "title" and "text", a JSON list, or DPR's .tsv; plain or .gz."""
    out: Path
    """The folder to write; must not exist yet, or be empty."""
    encoder: Annotated[str, tyro.conf.arg(aliases=["--kind"])] = "hashed"
    """hashed: TF-IDF vectors, no model; bm25: words; else a transformer by name or folder, as intfloat/e5-base-v2."""
    type: Kind = "flat"
    """Of the vectors. Exhaustive: flat (float32), fp16, sq8 (8 bits). Approximate: ivf_sq8 (lists), hnsw (graph)."""
    dim: int = 512
    """Vector length of the hashed encoder, a multiple of 8."""
    pooling: Pooling | None = None
    """Of a transformer: mean or cls; by default what its folder says, else mean."""
    query_prefix: str | None = None
    """Of a transformer, put before queries; by default "query: " for E5, else nothing."""
    passage_prefix: str | None = None
    """Of a transformer, put before passages; by default "passage: " for E5, else nothing."""
    max_tokens: int | None = None
    """Of a transformer; by default what its folder says, else 512."""
    shard: str = "0/1"
    """I/N: only the I-th of N equal parts of the corpus, from 0/N to N-1/N."""
    chunk: int = 4096
    """Passages between two marks; a killed build loses one chunk at most."""
    threads: int = 1
    """CPU threads of encoder and FAISS."""


@dataclass(frozen=True, kw_only=True)
class Serve:
    """Serve POST /retrieve, GET /health, /ready, /info and /metrics."""

    index: tuple[str, ...] = ()
    """Index folder; without one, the mini corpus that ships with tstar_envs. Several are the shards of one corpus,
    in order: folders, or addresses of other servers (http://host:8000)."""
    port: int = 8000
    """TCP port; 0 takes a free one and prints it."""
    host: str = "127.0.0.1"
    """Address to bind. There is no authentication: think before you leave loopback."""
    topk: int = 3
    """Documents per query where a request names no number, 1 to 100."""
    threads: int = 1
    """CPU threads of a search and of a transformer."""
    effort: int | None = None
    """Of an approximate index: lists (ivf_sq8) or graph nodes (hnsw) that a search visits; by default as built."""
    batch: int = 64
    """The most queries searched for at once."""
    gather_ms: float | None = None
    """How long to wait for more queries after a batch of several; by default 2 for a transformer, else 0."""
    queue: int = 256
    """Requests that may wait; more are answered 503 with Retry-After."""
    deadline: float = 60.0
    """Seconds after which a request that still waits (of a large one: a portion of 256 queries) is answered 503."""
    max_queries: int = 8_192
    """Queries in one request."""
    max_query_characters: int = 16_384
    """Characters in one query."""
    max_body_bytes: int = 16 << 20
    """Bytes in the body of one request."""
    max_passages: int = 131_072
    """Passages in one answer: queries times documents per query."""
    allow_host: tuple[str, ...] = ()
    """Further host names to answer to. Bound to the loopback, only names of the loopback are answered (DNS rebinding)."""
    connections: int = 1_000
    """Open at one time; one more ends the one that is idle for longest, or is refused."""
    head_timeout: float = 30.0
    """Seconds in which the head of a request has to arrive."""
    body_timeout: float = 30.0
    """Seconds in which the body of a request has to arrive, and in which some of an answer has to be taken."""
    shutdown_timeout: int = 5
    """Seconds that running requests have after a signal to end."""
    # The port is open before anything is read, so nobody is kept waiting without being told (/ready) that it loads.
    verify: Literal["before", "behind", "never"] = "before"
    """When to compare all bytes with the manifest: before the first answer, behind the answers, never."""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Measure on this machine: the service under load, flat search in batches, the opening of a large index."""

    what: tuple[Literal["service", "large", "flat", "open"], ...] = ("service", "large", "flat", "open")
    """service: beside a server of one search per request; large: thousands of queries a request over the mini corpus; flat:
    beside FAISS's defaults; open: 1M x 384."""
    encoder: str | None = None
    """Transformer for `service`, or hashed; without one, a random one of all-MiniLM-L6-v2's shape."""
    passages: int = 20_000
    """Of `service`."""
    clients: tuple[int, ...] = (1, 32)
    """How many ask at one time."""
    seconds: float = 5.0
    """Of each turn of `service`."""
    rounds: int = 3
    """Turns of each server and number of clients; requests of `large`."""
    threads: int = 1
    """CPU threads of a search."""
    queries: int = 2_560
    """In one request of `large`: Search-R1's training script sends 512 questions x 5 samples."""
    vectors: int = 100_000
    """Of `flat`."""
    dim: int = 768
    """Of `flat`, a multiple of 8."""
    folder: Path | None = None
    """Where temporary files go (2 GB for `open`); by default where the system puts them."""


def bench(command: Bench, console: Console) -> None:
    """Run ``bench``.

    Raises:
        RetrieverError, OSError: With a message for the user.
    """
    from retriever.bench import flat, large, opening, service

    def say(line: str) -> None:
        _say(console, line)

    _check_range("threads", command.threads, 1, 1024)
    _check_range("rounds", command.rounds, 1, 1_000_000)
    _check_range("passages", command.passages, 1, 100_000_000)
    _check_range("queries", command.queries, 1, 8_192)
    _check_range("vectors", command.vectors, 64, 100_000_000)
    _check_range("seconds", command.seconds, 0.1, 86_400)
    _check_range("clients", min(command.clients, default=0), 1, 10_000)
    for what in command.what:
        with TemporaryDirectory(prefix="retriever-bench-", dir=command.folder) as name:
            folder = Path(name)
            if what == "service":
                service(
                    folder,
                    command.passages,
                    command.encoder,
                    command.clients,
                    command.seconds,
                    command.rounds,
                    command.threads,
                    say,
                )
            elif what == "large":
                large(folder, _mini_corpus(), command.queries, command.rounds, command.threads, say)
            elif what == "flat":
                flat(command.vectors, command.dim, 10 * command.rounds, command.threads, say)
            else:
                opening(folder, 1_000_000, 384, say)


def build(command: Build, console: Console) -> None:
    """Run ``build``: read, encode, index, write.

    Raises:
        RetrieverError, OSError: With a message for the user.
    """
    _check_range("threads", command.threads, 1, 1024)
    plan = Plan(
        corpus=command.corpus,
        out=command.out,
        encoder=_encoder(command),
        kind=command.type,
        dim=command.dim,
        shard=_shard(command.shard),
        chunk=command.chunk,
        threads=command.threads,
    )
    with progress(console) as report:
        recall = build_index(plan, report)
    manifest = read_manifest(command.out)
    name = manifest["settings"]["index"]
    _say(
        console,
        f"wrote {command.out}: {name} index of {manifest['ntotal']} documents, {_size(manifest)} on disk",
    )
    if recall:
        shares = ", ".join(f"recall{depth} {share:.4f}" for depth, share in recall.items())
        _say(console, f"against flat float32 search, on word sequences cut from the passages: {shares}")


def _encoder(command: Build) -> Literal["hashed", "bm25"] | TransformerSettings:
    said = (command.pooling, command.query_prefix, command.passage_prefix, command.max_tokens)
    name: Literal["hashed", "bm25"]
    for name in ("hashed", "bm25"):
        if command.encoder != name:
            continue
        if any(value is not None for value in said):
            raise BadSetting(
                f"--pooling, --query-prefix, --passage-prefix and --max-tokens are for transformers, not for {name}."
            )
        return name
    return settings_for(command.encoder, *said)


def _shard(text: str) -> tuple[int, int]:
    part, slash, parts = text.partition("/")
    if not (slash and part.isdecimal() and parts.isdecimal()):
        raise BadSetting(f"--shard {text} is not of the form I/N, as 0/4.")
    return int(part), int(parts)


def _size(manifest: Manifest) -> str:
    return f"{sum(manifest['bytes'].values()) / 1e6:,.1f} MB"


def serve(command: Serve, console: Console) -> None:
    """Run ``serve`` until a signal ends it.

    Raises:
        RetrieverError, OSError: With a message for the user; an index that fails to load ends the server.
    """
    _check_range("port", command.port, 0, 65535)
    _check_range("topk", command.topk, 1, MAX_TOPK)
    _check_range("threads", command.threads, 1, 1024)
    _check_range("batch", command.batch, 1, 4096)
    _check_range("queue", command.queue, 1, 1_000_000)
    _check_range("gather-ms", command.gather_ms or 0, 0, 1000)
    _check_range("deadline", command.deadline, 0.001, 86_400)
    _check_range("max-queries", command.max_queries, 1, 10_000_000)
    _check_range("max-query-characters", command.max_query_characters, 1, 1 << 30)
    _check_range("max-body-bytes", command.max_body_bytes, 1024, 1 << 32)
    _check_range("max-passages", command.max_passages, 1, 1_000_000_000)
    _check_range("connections", command.connections, 4, 1_000_000)
    _check_range("head-timeout", command.head_timeout, 0.1, 86_400)
    _check_range("body-timeout", command.body_timeout, 0.1, 86_400)
    _check_range("shutdown-timeout", command.shutdown_timeout, 0, 86_400)
    import_optional("fastapi")
    uvicorn = import_optional("uvicorn")
    # Here and not above, so that `build` works where only the search libraries are installed.
    from retriever.app import create_app
    from retriever.guard import HostNames, guarded, log_sparingly, room_for
    from retriever.schema import Limits
    from retriever.service import SearchService

    lexical = _lexical(command)
    failures: list[Exception] = []

    def on_loaded(searcher: Searcher) -> None:
        _say(console, f"ready: {searcher.ntotal} documents")

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
        _say(console, f"listening on http://{shown}:{port}, loading the index")
        try:
            server.run(sockets=[listener])
        except KeyboardInterrupt:
            _say(console, "stopped")
    if failures:
        raise failures[0]


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise BadSetting(f"--{name} {value} is out of range; choose from {low} to {high}.")


def _is_address(part: str) -> bool:
    return part.startswith(("http://", "https://"))


def _lexical(command: Serve) -> bool:
    """Check what can be checked at once, so that a wrong path fails before the port opens; tell whether case and
    punctuation are nothing to all the encoders.
    """
    kinds = {"remote" if _is_address(part) else read_manifest(Path(part))["kind"] for part in command.index}
    if not command.index:
        _mini_corpus()
    return kinds <= {"hashed", "bm25"}


def _loader(command: Serve, on_damage: Callable[[BadIndex], None]) -> Callable[[], Searcher]:
    if not command.index:
        corpus = _mini_corpus()
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


def _mini_corpus() -> Path:
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


def _say(console: Console, message: str) -> None:
    # Paths and messages as they are: no markup, no colours, no line breaks at the terminal's width.
    console.print(message, markup=False, highlight=False, soft_wrap=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and run it.

    Args:
        arguments: Without the program's name; None takes them from the process.

    Returns:
        Exit code: 0; 2 for anything the user can mend, told in one message; 130 after Ctrl-C.
    """
    command = tyro.cli(
        Annotated[Build, tyro.conf.subcommand("build")]
        | Annotated[Serve, tyro.conf.subcommand("serve")]
        | Annotated[Bench, tyro.conf.subcommand("bench")],
        prog="python -m retriever",
        description="A search service for agents, drop-in compatible with Search-R1's.",
        args=arguments,
    )
    console = Console()
    try:
        if isinstance(command, Build):
            build(command, console)
        elif isinstance(command, Bench):
            bench(command, console)
        else:
            serve(command, console)
    except (RetrieverError, OSError) as error:
        _say(Console(stderr=True), f"error: {error}")
        return 2
    except KeyboardInterrupt:
        again = (
            " What is finished is kept: run the same command again to go on."
            if isinstance(command, Build)
            else ""
        )
        _say(Console(stderr=True), f"stopped.{again}")
        return _INTERRUPTED
    return 0
