"""Command line of the retriever: build, serve, bench."""

from __future__ import annotations

import importlib.util
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal

import tyro
from rich.console import Console

from retriever.build import Plan, build_index
from retriever.corpus import normalise, read_corpus
from retriever.encoders import Pooling, TransformerSettings, encoder_class, is_named, settings_for
from retriever.errors import BadIndex, BadSetting, MissingCorpus, RetrieverError, import_optional
from retriever.index import MAX_TOPK, DenseIndex, HashedIndex, RemoteShard, Searcher, ShardedSearcher
from retriever.rerank import CrossEncoder, RerankedSearcher
from retriever.resume import progress
from retriever.storage import Manifest, load_index, read_manifest
from retriever.vectors import Kind
from retriever.web import HttpSource, WebSearcher


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Check that the value of an option is in its range.

    Raises:
        BadSetting: The value is out of range.
    """
    if not low <= value <= high:
        raise BadSetting(f"--{name} {value} is out of range; choose from {low} to {high}.")


def say(console: Console, message: str) -> None:
    """Print a line without markup, colours or wrapping."""
    console.print(message, markup=False, highlight=False, soft_wrap=True)


_BACKLOG = 256  # connections waiting to be accepted
_MINI_CORPUS = Path("envs", "search_qa", "data", "corpus.jsonl.gz")


@dataclass(frozen=True, kw_only=True)
class Serve:
    """Serve an index over HTTP: POST /retrieve, GET /health, /ready, /info and /metrics."""

    index: tuple[str, ...] = ()
    """Index folder; default: the mini corpus that ships with tstar_envs. Give several for the shards of one corpus, in order; each is a
    folder or the address of another server (http://host:8000)."""
    backend: Literal["index", "http"] = "index"
    """index: search the folders of --index; http: ask the HTTP search service of --http.url, such as a web search engine."""
    http: HttpSource = field(default_factory=HttpSource)
    """Search service of --backend http."""
    rerank: str | None = None
    """Cross-encoder that ranks the best passages again: a folder, or a name on the Hugging Face hub. Default: none."""
    rerank_candidates: int = 50
    """Passages per query that the cross-encoder reads, 1 to 100."""
    rerank_max_tokens: int = 512
    """Maximum length of query and passage together, in tokens, for the cross-encoder."""
    port: int = 8000
    """TCP port to listen on; 0 takes a free one and prints it."""
    host: str = "127.0.0.1"
    """Address to listen on. There is no authentication: use a non-loopback address only in a trusted network."""
    topk: int = 3
    """Documents per query if a request does not say, 1 to 100."""
    threads: int = 1
    """CPU threads for search and for a transformer encoder."""
    effort: int | None = None
    """Search effort of an approximate index: lists (ivf_sq8, ivf_pq) or graph nodes (hnsw) visited per search; default: as built."""
    rescored: int | None = None
    """ivf_pq: candidates per wanted passage that are scored again with their 8-bit rows, 1 to 128; default: as built."""
    batch: int = 64
    """Maximum number of queries searched in one batch."""
    gather_ms: float | None = None
    """Milliseconds to wait for more queries before the next batch, while several clients search; default: 2 for a transformer, else 0."""
    queue: int = 256
    """Maximum number of requests in progress; further ones get status 503 with Retry-After."""
    deadline: float = 60.0
    """Seconds before a waiting request gets status 503. In a large request each portion of 256 queries has this deadline."""
    max_queries: int = 8_192
    """Maximum number of queries in one request."""
    max_query_characters: int = 16_384
    """Maximum number of characters in one query."""
    max_body_bytes: int = 16 << 20
    """Maximum number of bytes in the body of one request."""
    max_passages: int = 131_072
    """Maximum number of passages in one response: queries times documents per query."""
    allow_host: tuple[str, ...] = ()
    """Additional host names to accept. A server on a loopback address accepts only loopback names, to prevent DNS rebinding."""
    connections: int = 1_000
    """Maximum number of open connections. A further one replaces the longest idle one, or is refused if none is idle."""
    head_timeout: float = 30.0
    """Timeout in seconds for the headers of a request."""
    body_timeout: float = 30.0
    """Timeout in seconds for the body of a request, and for a client that stops reading its response."""
    shutdown_timeout: int = 5
    """Seconds for running requests to finish after a stop signal."""
    # The port opens before the index loads, so a client can poll /ready.
    verify: Literal["before", "behind", "never"] = "before"
    """When to verify the checksums of the index files. before: before the first response; behind: in the background; never."""


def serve(command: Serve, console: Console) -> None:
    """Run ``serve`` until a stop signal.

    Raises:
        RetrieverError, OSError: The index failed to load, or a setting is wrong. The message is for the user.
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
    check_range("rerank-candidates", command.rerank_candidates, 1, MAX_TOPK)
    check_range("rerank-max-tokens", command.rerank_max_tokens, 8, 1 << 20)
    _check_backend(command)
    import_optional("fastapi")
    uvicorn = import_optional("uvicorn")
    # Imported here so that `build` works if only the search libraries are installed.
    from retriever.app import Limits, create_app
    from retriever.http_limits import HostNames, limited_protocol, log_sparingly, room_for, run_until_stopped
    from retriever.service import SearchService

    lexical = _lexical(command)
    failures: list[Exception] = []

    def on_loaded(searcher: Searcher) -> None:
        documents = (
            f"asks {command.http.url}" if command.backend == "http" else f"{searcher.ntotal} documents"
        )
        say(console, f"ready: {documents}")

    def on_failed(error: Exception) -> None:
        failures.append(error)
        server.should_exit = True

    service = SearchService(
        loader(command, lambda error: service.fail(error)),
        capacity=command.queue,
        on_loaded=on_loaded,
        on_failed=on_failed,
        cache_key=normalise if lexical else str,
        batch=command.batch,
        gather_seconds=((0 if lexical else 2) if command.gather_ms is None else command.gather_ms) / 1000,
        deadline_seconds=command.deadline,
    )
    # A trainer pauses for minutes between searches; its connection stays open.
    limits = Limits(
        command.max_queries, command.max_query_characters, command.max_body_bytes, command.max_passages
    )
    app = create_app(
        service, command.topk, limits, command.body_timeout, HostNames(command.host, command.allow_host)
    )
    connections = room_for(command.connections, _BACKLOG)
    config = uvicorn.Config(
        app,
        http=limited_protocol(connections, command.head_timeout, command.body_timeout),
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


def _check_backend(command: Serve) -> None:
    """Check that the options fit the backend.

    Raises:
        BadSetting: They do not; the message names them.
    """
    if command.backend == "http":
        if command.index or command.effort is not None or command.rescored is not None:
            raise BadSetting("--index, --effort and --rescored are for --backend index, not for http.")
        command.http.check()
        command.http.key()
    elif command.http != HttpSource():
        raise BadSetting("--http options are for --backend http: give that too.")


def _lexical(command: Serve) -> bool:
    """Check all index paths and return True if every encoder ignores case and punctuation."""
    if command.backend == "http":
        return False
    kinds = [None if _is_address(part) else read_manifest(Path(part))["kind"] for part in command.index]
    if not command.index:
        mini_corpus()
    lexical = all(kind is not None and (kind == "bm25" or encoder_class(kind).lexical) for kind in kinds)
    return lexical and command.rerank is None


def loader(command: Serve, on_damage: Callable[[BadIndex], None]) -> Callable[[], Searcher]:
    """Make the function that loads the searcher of ``serve``.

    Args:
        command: Options of ``serve``.
        on_damage: Called from a thread if a file of an index turns out to be damaged.
    """
    first = _first_stage(command, on_damage)
    model = command.rerank
    if model is None:
        return first

    def load() -> Searcher:
        # Before the index, which takes longer: a wrong name is told at once.
        encoder = CrossEncoder(model, command.threads, command.rerank_max_tokens)
        return RerankedSearcher(first(), encoder, command.rerank_candidates)

    return load


def _first_stage(command: Serve, on_damage: Callable[[BadIndex], None]) -> Callable[[], Searcher]:
    if command.backend == "http":
        return lambda: WebSearcher(command.http)
    if not command.index:
        corpus = mini_corpus()
        return lambda: HashedIndex.build(read_corpus(corpus), threads=command.threads)

    def load_part(part: str) -> Searcher:
        if _is_address(part):
            return RemoteShard(part)
        index = load_index(part, command.threads, command.verify, on_damage)
        if command.effort is not None or command.rescored is not None:
            if not isinstance(index, DenseIndex):
                raise BadSetting("--effort and --rescored are for approximate indexes, not for BM25.")
            index.look_further(command.effort, command.rescored)
        return index

    def load() -> Searcher:
        parts = [load_part(part) for part in command.index]
        return parts[0] if len(parts) == 1 else ShardedSearcher(parts)

    return load


def mini_corpus() -> Path:
    """Find the mini corpus by path, without importing `tstar_envs`."""
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
            # Reuse a port that is in TIME_WAIT after a restart.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            # Listen at once: until then a second socket may bind the same port.
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


_INTERRUPTED = 130  # exit status of a program ended by Ctrl-C


@dataclass(frozen=True, kw_only=True)
class Build:
    """Build an index folder from a corpus file.

    Run the same command again to resume an interrupted build.
    """

    corpus: Path
    """Corpus, plain or .gz: JSON Lines with "id" and "contents" (Search-R1's format) or "title" and "text", a JSON list, or DPR's .tsv."""
    out: Path
    """Folder to write the index to; it must be new or empty."""
    encoder: Annotated[str, tyro.conf.arg(aliases=["--kind"])] = "hashed"
    """hashed: TF-IDF vectors, no model needed; bm25: lexical search; the name or folder of a transformer, for example
    intfloat/e5-base-v2; or one of your own as module:Class (docs/adding_an_encoder.md)."""
    type: Kind = "flat"
    """Type of the vector index. Exhaustive search: flat (float32), fp16, sq8 (8 bits). Approximate search: ivf_sq8 (inverted lists),
    ivf_pq (inverted lists of 64-byte codes in memory, exact scores from 8-bit rows on disk), hnsw (graph)."""
    dim: int = 512
    """Vector length of the hashed encoder, a multiple of 8."""
    pooling: Pooling | None = None
    """Pooling of a transformer: mean or cls; default: from its configuration, else mean."""
    query_prefix: str | None = None
    """Prefix of each query for a transformer; default: "query: " for E5, else none."""
    passage_prefix: str | None = None
    """Prefix of each passage for a transformer; default: "passage: " for E5, else none."""
    max_tokens: int | None = None
    """Maximum input length of a transformer in tokens; default: from its configuration, else 512."""
    shard: str = "0/1"
    """I/N: index only the I-th of N equal parts of the corpus, I from 0 to N-1."""
    chunk: int = 4096
    """Passages per chunk; a build that is killed loses at most one chunk of work."""
    threads: int = 1
    """CPU threads of the encoder and of FAISS."""
    recall: float | None = None
    """Recall@10 of an approximate index, such as 0.95: the build measures it against exact search, chooses the smallest search effort that
    reaches it, and stores that effort for `serve`; default: a fixed effort."""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Measure speed on this machine: service under load, large requests, search in batches, opening, all index types by size."""

    what: tuple[Literal["service", "large", "flat", "open", "scale"], ...] = (
        "service",
        "large",
        "flat",
        "open",
    )
    """Measurements to make. service: the server under load, compared with one that searches once per request; large: requests of
    thousands of queries over the mini corpus; flat: exhaustive search in batches (flat, fp16, sq8), compared with FAISS; open: opening an
    index of 1M vectors of length 384; scale: every --types built, opened and searched at every --sizes, and extrapolated to 21M."""
    encoder: str | None = None
    """Encoder for `service`: a transformer's name or folder, hashed, or module:Class; default: random weights in
    the shape of all-MiniLM-L6-v2."""
    passages: int = 20_000
    """Number of passages for `service`."""
    clients: tuple[int, ...] = (1, 32)
    """Numbers of concurrent clients for `service`."""
    seconds: float = 5.0
    """Seconds per measurement of `service`."""
    rounds: int = 3
    """Measurements per server and number of clients for `service`; requests for `large`."""
    threads: int = 1
    """CPU threads of a search."""
    queries: int = 2_560
    """Queries per request for `large`; Search-R1's training script sends 512 questions x 5 samples."""
    vectors: int = 100_000
    """Number of vectors for `flat`."""
    dim: int = 768
    """Vector length for `flat`, a multiple of 8."""
    sizes: tuple[int, ...] = (100_000, 1_000_000)
    """Numbers of vectors for `scale`, ascending; 6 GB of temporary files for 1M."""
    types: tuple[Kind, ...] = ("flat", "sq8", "ivf_sq8", "ivf_pq")
    """Index types for `scale`, flat first: it gives the exact answers."""
    recall: float = 0.95
    """Recall@10 for which the approximate indexes of `scale` choose their effort."""
    folder: Path | None = None
    """Folder for temporary files (2 GB for `open`); default: the system's."""


def bench(command: Bench, console: Console) -> None:
    """Run the benchmarks.

    Raises:
        RetrieverError, OSError: The message is for the user.
    """
    from retriever.bench import flat, large, opening, scale, service

    def report(line: str) -> None:
        say(console, line)

    check_range("threads", command.threads, 1, 1024)
    check_range("rounds", command.rounds, 1, 1_000_000)
    check_range("passages", command.passages, 1, 100_000_000)
    check_range("queries", command.queries, 1, 8_192)
    check_range("vectors", command.vectors, 64, 100_000_000)
    check_range("seconds", command.seconds, 0.1, 86_400)
    check_range("clients", min(command.clients, default=0), 1, 10_000)
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
                    report,
                )
            elif what == "large":
                large(folder, mini_corpus(), command.queries, command.rounds, command.threads, report)
            elif what == "scale":
                if not command.sizes or min(command.sizes) < 1000 or command.types[:1] != ("flat",):
                    raise BadSetting("--sizes must be 1000 or more, and --types must begin with flat.")
                scale(folder, sorted(command.sizes), command.types, command.recall, command.threads, report)
            elif what == "flat":
                flat(command.vectors, command.dim, 10 * command.rounds, command.threads, report)
            else:
                opening(folder, 1_000_000, 384, report)


def build(command: Build, console: Console) -> None:
    """Build an index folder and print its size and recall.

    Raises:
        RetrieverError, OSError: The message is for the user.
    """
    check_range("threads", command.threads, 1, 1024)
    plan = Plan(
        corpus=command.corpus,
        out=command.out,
        encoder=_encoder(command),
        kind=command.type,
        dim=command.dim,
        shard=_shard(command.shard),
        chunk=command.chunk,
        threads=command.threads,
        recall=command.recall,
    )
    with progress(Console(stderr=True)) as report:
        recall = build_index(plan, report, lambda line: say(console, line))
    manifest = read_manifest(command.out)
    name = manifest["settings"]["index"]
    say(
        console,
        f"wrote {command.out}: {name} index of {manifest['ntotal']} documents, {_size(manifest)} on disk",
    )
    if recall:
        shares = ", ".join(f"recall{depth} {share:.4f}" for depth, share in recall.items())
        say(console, f"against flat float32 search, on word sequences cut from the passages: {shares}")


def _encoder(command: Build) -> str | TransformerSettings:
    said = (command.pooling, command.query_prefix, command.passage_prefix, command.max_tokens)
    name = command.encoder
    if name not in ("hashed", "bm25") and not is_named(name):
        return settings_for(name, *said)
    if any(value is not None for value in said):
        raise BadSetting(
            f"--pooling, --query-prefix, --passage-prefix and --max-tokens are for transformers, not for {name}."
        )
    return name


def _shard(text: str) -> tuple[int, int]:
    part, slash, parts = text.partition("/")
    if not (slash and part.isdecimal() and parts.isdecimal()):
        raise BadSetting(f"--shard {text} is not of the form I/N, for example 0/4.")
    return int(part), int(parts)


def _size(manifest: Manifest) -> str:
    return f"{sum(manifest['bytes'].values()) / 1e6:,.1f} MB"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: Arguments without the program name; default: those of the process.

    Returns:
        Exit status: 0; 2 for an error that the user can correct (the message says how); 130 after Ctrl-C.
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
        say(Console(stderr=True), f"error: {error}")
        return 2
    except KeyboardInterrupt:
        again = (
            " Finished work is kept: run the same command again to resume."
            if isinstance(command, Build)
            else ""
        )
        say(Console(stderr=True), f"stopped.{again}")
        return _INTERRUPTED
    return 0
