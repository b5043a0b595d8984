"""The command line: build an index folder, serve one (or the mini corpus), measure."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal

import tyro
from rich.console import Console

from retriever.build import Plan, build_index
from retriever.command_line import check_range, say
from retriever.encoders import Pooling, TransformerSettings, settings_for
from retriever.errors import BadSetting, RetrieverError
from retriever.resume import progress
from retriever.serving import Serve, mini_corpus, serve
from retriever.storage import Manifest, read_manifest
from retriever.vectors import Kind

_INTERRUPTED = 130  # what a shell reports for a program ended by Ctrl-C


@dataclass(frozen=True, kw_only=True)
class Build:
    """Build an index folder from a corpus file; the same command resumes a build that was interrupted."""

    corpus: Path
    """Corpus, plain or .gz: JSON Lines with "id" and "contents" (Search-R1's format) or "title" and "text", a JSON list, or DPR's .tsv."""
    out: Path
    """Folder to write the index to; it must be new or empty."""
    encoder: Annotated[str, tyro.conf.arg(aliases=["--kind"])] = "hashed"
    """hashed: TF-IDF vectors, without a model; bm25: lexical search; else the name or folder of a transformer, for example
    intfloat/e5-base-v2."""
    type: Kind = "flat"
    """Type of the vector index. Exhaustive search: flat (float32), fp16, sq8 (8 bits). Approximate search: ivf_sq8 (inverted lists), hnsw
    (graph)."""
    dim: int = 512
    """Vector length of the hashed encoder, a multiple of 8."""
    pooling: Pooling | None = None
    """Pooling of a transformer: mean or cls; default: as its configuration says, else mean."""
    query_prefix: str | None = None
    """Text that a transformer reads before each query; default: "query: " for E5, else nothing."""
    passage_prefix: str | None = None
    """Text that a transformer reads before each passage; default: "passage: " for E5, else nothing."""
    max_tokens: int | None = None
    """Maximum input length of a transformer in tokens; default: as its configuration says, else 512."""
    shard: str = "0/1"
    """I/N: index only the I-th of N equal parts of the corpus, I from 0 to N-1."""
    chunk: int = 4096
    """Passages per chunk; a build that is killed loses at most one chunk of work."""
    threads: int = 1
    """CPU threads of the encoder and of FAISS."""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Measure speed on this machine: the service under load, large requests, flat search in batches, and opening a large index."""

    what: tuple[Literal["service", "large", "flat", "open"], ...] = ("service", "large", "flat", "open")
    """Measurements to make. service: the server under load, compared with one that searches once per request; large: requests of
    thousands of queries over the mini corpus; flat: batched flat search, compared with FAISS's defaults; open: opening an index of
    1M vectors of length 384."""
    encoder: str | None = None
    """Encoder for `service`: a transformer's name or folder, or hashed; default: random weights in the shape of all-MiniLM-L6-v2."""
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
    folder: Path | None = None
    """Folder for temporary files (2 GB for `open`); default: the system's."""


def bench(command: Bench, console: Console) -> None:
    """Run ``bench``.

    Raises:
        RetrieverError, OSError: With a message for the user.
    """
    from retriever.bench import flat, large, opening, service

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
            elif what == "flat":
                flat(command.vectors, command.dim, 10 * command.rounds, command.threads, report)
            else:
                opening(folder, 1_000_000, 384, report)


def build(command: Build, console: Console) -> None:
    """Run ``build``: read, encode, index, write.

    Raises:
        RetrieverError, OSError: With a message for the user.
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
    )
    with progress(console) as report:
        recall = build_index(plan, report)
    manifest = read_manifest(command.out)
    name = manifest["settings"]["index"]
    say(
        console,
        f"wrote {command.out}: {name} index of {manifest['ntotal']} documents, {_size(manifest)} on disk",
    )
    if recall:
        shares = ", ".join(f"recall{depth} {share:.4f}" for depth, share in recall.items())
        say(console, f"against flat float32 search, on word sequences cut from the passages: {shares}")


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and run it.

    Args:
        arguments: Without the program's name; None takes them from the process.

    Returns:
        Exit code: 0; 2 for anything the user can correct, with one message that says how; 130 after Ctrl-C.
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
            " What is finished is kept: run the same command again to go on."
            if isinstance(command, Build)
            else ""
        )
        say(Console(stderr=True), f"stopped.{again}")
        return _INTERRUPTED
    return 0
