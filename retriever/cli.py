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
from retriever.errors import BadSetting, RetrieverError
from retriever.progress import progress
from retriever.serving import Serve, mini_corpus, serve
from retriever.storage import Manifest, read_manifest
from retriever.transformer import Pooling, TransformerSettings, settings_for
from retriever.vectors import Kind

_INTERRUPTED = 130  # what a shell reports for a program ended by Ctrl-C


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
