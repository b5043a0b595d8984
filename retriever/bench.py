"""Benchmarks of the search service and the indexes."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryFile
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from retriever.build import Plan, build_index
from retriever.corpus import Document, StoredDocuments, read_corpus, write_documents
from retriever.encoders import Encoder, HashedTfidfEncoder, encoded, is_named, make_encoder, settings_for
from retriever.errors import RetrieverError, import_optional
from retriever.estimate import bytes_per_vector, estimated
from retriever.index import VECTORS, DenseIndex, index_class
from retriever.storage import load_index, write_manifest
from retriever.vectors import EXHAUSTIVE, EXHAUSTIVE_KINDS, Kind, VectorFile, trained

_BLOCK = 1 << 14
_WORDS = [
    first + second
    for first in "ba be bi bo bu da de di do du".split()
    for second in "ka ke ki ko ku la le li lo lu".split()
]


def unit_vectors(count: int, dim: int, seed: int = 0) -> Iterator[NDArray[np.float32]]:
    """Generate blocks of random unit vectors, shape (up to 16384, dim)."""
    for start in range(0, count, _BLOCK):
        generator = np.random.default_rng((seed, start))
        block = generator.standard_normal((min(_BLOCK, count - start), dim), np.float32)
        yield block / np.linalg.norm(block, axis=1, keepdims=True)


def queries(count: int, seed: int = 0, words: int = 10) -> list[str]:
    """Generate distinct random queries of ``words`` words."""
    generator = np.random.default_rng((seed, count))
    return [
        " ".join(_WORDS[place] for place in row)
        for row in generator.integers(len(_WORDS), size=(count, words))
    ]


def write_index_folder(folder: Path, count: int, encoder: Encoder) -> None:
    """Write a flat index of random vectors; ``encoder`` encodes the queries."""
    folder.mkdir(parents=True)
    write_documents(
        (Document(str(n), f'"Passage {n}"\nThe text of passage {n}.') for n in range(count)), folder
    )
    file = VectorFile(trained("flat", encoder.dim, count, np.empty((0, encoder.dim), np.float32)))
    with (folder / VECTORS).open("wb") as stream:
        file.begin(stream)
        for block in unit_vectors(count, encoder.dim):
            file.append(stream, block)
        file.finish(stream, count)
    encoder.save(folder)
    write_manifest(folder, index_class(encoder).open(folder, StoredDocuments(folder), encoder, 1, ""), {})


def write_minilm(folder: Path) -> Path:
    """Write a randomly initialised BERT in the shape of all-MiniLM-L6-v2 (22 M parameters, 384 dimensions)."""
    torch, transformers = import_optional("torch"), import_optional("transformers")
    tokenizers = import_optional("tokenizers")
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {word: number for number, word in enumerate([*special, *_WORDS])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    torch.manual_seed(0)
    shape = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    transformers.BertModel(transformers.BertConfig(vocab_size=30522, **shape)).save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(folder)
    return folder


Say = Callable[[str], None]
_START_SECONDS = 300.0
_TICK = 1 / os.sysconf("SC_CLK_TCK")


class BenchFailed(RetrieverError, RuntimeError):
    """A benchmarked server did not start or answered with an error."""


def spread(values: Sequence[float], digits: int) -> str:
    """Format the median and the range of some values: ``2.41 (2.35 to 2.52)``."""
    return f"{median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


@dataclass
class Load:
    """Measurements of one server under one number of clients.

    Attributes:
        rates: queries per second of each round.
        cpu: CPU milliseconds per query of each round.
        latencies: seconds of each request.
    """

    rates: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)

    def add(self, latencies: Sequence[float], seconds: float, cpu_seconds: float) -> None:
        """Add the measurements of one round."""
        self.rates.append(len(latencies) / seconds)
        self.cpu.append(1000 * cpu_seconds / len(latencies))
        self.latencies += latencies

    def row(self, name: str, clients: int) -> str:
        """Format as a row of the table."""
        p50, p99 = (1000 * float(np.percentile(self.latencies, percent)) for percent in (50, 99))
        return f"| {name} | {clients} | {spread(self.rates, 1)} | {p50:.0f} | {p99:.0f} | {spread(self.cpu, 1)} |"


def service(
    folder: Path,
    passages: int,
    model: str | None,
    clients: Sequence[int],
    seconds: float,
    rounds: int,
    threads: int,
    say: Say,
) -> None:
    """Compare ``serve`` with a plain server under load.

    Args:
        folder: Folder for the index and, without ``model``, the encoder; the caller removes it.
        passages: Number of passages in the index.
        model: Name or folder of the encoder, or ``hashed`` or ``module:Class``; None: random weights in MiniLM's shape.
        clients: Numbers of concurrent clients; each sends one query per request over a persistent connection.
        seconds: Duration of a round.
        rounds: Rounds per server and number of clients; the table shows median and range.
        threads: Search threads of either server.
        say: Called with each line of the result.
    """
    encoder: Encoder
    if model == "hashed":
        encoder = HashedTfidfEncoder().fit(queries(1000))
    else:
        name = model or str(write_minilm(folder / "encoder"))
        encoder = make_encoder(name if is_named(name) else settings_for(name), threads=threads)
    write_index_folder(folder / "index", passages, encoder)
    names = ("one search per request", "retriever serve")
    with ExitStack() as stack:
        servers = [
            stack.enter_context(_server(command, threads))
            for command in (_plain(folder, threads), _ours(folder, threads))
        ]
        loads = {(server, count): Load() for count in clients for server in range(2)}
        fresh = itertools.count()
        for turn in range(rounds):
            for count in clients:
                # The first server alternates, so that a machine that heats up favours neither.
                for server in (0, 1) if turn % 2 == 0 else (1, 0):
                    pid, port = servers[server]
                    _ask(port, count, min(1.0, seconds), fresh)
                    before = _cpu_seconds(pid)
                    start = time.perf_counter()
                    latencies = _ask(port, count, seconds, fresh)
                    taken = time.perf_counter() - start
                    # The clock ticks every 10 ms; less than a tick counts as one.
                    loads[server, count].add(latencies, taken, max(_TICK, _cpu_seconds(pid) - before))
    say("| server | clients | queries/s | p50 ms | p99 ms | CPU ms/query |")
    say("|---|---|---|---|---|---|")
    for count in clients:
        for server in range(2):
            say(loads[server, count].row(names[server], count))
    for count in clients:
        plain, ours = (loads[server, count] for server in range(2))
        faster, cheaper = (
            [a / b for a, b in zip(one, other, strict=True)]
            for one, other in ((ours.rates, plain.rates), (ours.cpu, plain.cpu))
        )
        say(
            f"{count} clients: {spread(faster, 2)} times the queries/s at {spread(cheaper, 2)} times the CPU per query"
        )


def _plain(folder: Path, threads: int) -> Callable[[int], list[str]]:
    return lambda port: [
        sys.executable,
        "-m",
        "retriever.plain_server",
        str(folder / "index"),
        str(port),
        str(threads),
    ]


def _ours(folder: Path, threads: int) -> Callable[[int], list[str]]:
    index = str(folder / "index")
    return lambda port: [
        sys.executable,
        "-m",
        "retriever",
        "serve",
        "--index",
        index,
        "--port",
        str(port),
        "--threads",
        str(threads),
    ]


@contextmanager
def _server(command: Callable[[int], list[str]], threads: int) -> Iterator[tuple[int, int]]:
    """Start a server and yield its process id and port when it is ready."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(command(port), env=environment, stdout=subprocess.DEVNULL) as process:
        try:
            until = time.monotonic() + _START_SECONDS
            while not _ready(port):
                if process.poll() is not None or time.monotonic() > until:
                    raise BenchFailed(f"{' '.join(command(port))} did not start; run it by hand to see why.")
                time.sleep(0.2)
            yield process.pid, port
        finally:
            process.terminate()


def _ready(port: int) -> bool:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        try:
            connection.request("GET", "/ready")
            return connection.getresponse().status == 200
        except OSError:
            return False


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK


def _ask(port: int, clients: int, seconds: float, fresh: Iterator[int]) -> list[float]:
    """Send distinct queries from ``clients`` threads and return the seconds of each request."""
    until = time.perf_counter() + seconds
    latencies: list[float] = []
    failures: list[str] = []

    def client(number: int) -> None:
        asked = queries(4096, seed=number)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        for turn, query in enumerate(asked):
            start = time.perf_counter()
            # Every client sends at least one request, even if a busy machine starts it late.
            if failures or (turn and start >= until):
                break
            body = json.dumps({"queries": [query], "topk": 3, "return_scores": True})
            connection.request("POST", "/retrieve", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            content = response.read()
            if response.status != 200:
                failures.append(f"{response.status} {content[:200]!r}")
            latencies.append(time.perf_counter() - start)
        connection.close()

    threads = [threading.Thread(target=client, args=(next(fresh),)) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise BenchFailed(f"a server answered {failures[0]}")
    return latencies


def large(folder: Path, corpus: Path, count: int, rounds: int, threads: int, say: Say) -> None:
    """Measure requests of thousands of queries, as Search-R1 sends them, over a flat and a BM25 index.

    Args:
        folder: Folder for the indexes; the caller removes it.
        corpus: Corpus file; a query is eight consecutive words of a passage.
        count: Queries in one request; all are distinct.
        rounds: Requests to each server; the table shows median and range.
        threads: Threads of a search.
        say: Called with each line of the result.
    """
    texts = [document.text.split() for document in read_corpus(corpus)]
    asked = (
        " ".join(text[place : place + 8]) + f" {number}"
        for number, (text, place) in enumerate(_places(texts))
    )
    bodies = [
        json.dumps({"queries": list(itertools.islice(asked, count)), "topk": 3, "return_scores": True})
        for _ in range(rounds)
    ]
    say("| index | queries/request | p50 s | CPU s | CPU ms/query | answer MB |")
    say("|---|---|---|---|---|---|")
    encoders: tuple[Literal["hashed", "bm25"], ...] = ("hashed", "bm25")
    for encoder in encoders:
        build_index(Plan(corpus=corpus, out=folder / encoder / "index", encoder=encoder, threads=threads))
        with ExitStack() as stack:
            pid, port = stack.enter_context(_server(_ours(folder / encoder, threads), threads))
            link = stack.enter_context(closing(http.client.HTTPConnection("127.0.0.1", port)))
            walls: list[float] = []
            cpus: list[float] = []
            for body in bodies:
                before, start = _cpu_seconds(pid), time.perf_counter()
                link.request("POST", "/retrieve", body, {"Content-Type": "application/json"})
                response = link.getresponse()
                content = response.read()
                walls.append(time.perf_counter() - start)
                cpus.append(_cpu_seconds(pid) - before)
                if response.status != 200 or len(json.loads(content)["result"]) != count:
                    raise BenchFailed(f"a server answered {response.status} {content[:200]!r}")
        each = [1000 * cpu / count for cpu in cpus]
        megabytes = len(content) / 1e6
        say(
            f"| {encoder} | {count} | {spread(walls, 2)} | {spread(cpus, 2)} | {spread(each, 2)} | {megabytes:.1f} |"
        )


def _places(texts: Sequence[Sequence[str]]) -> Iterator[tuple[Sequence[str], int]]:
    """Cycle through the passages and word positions in them, endlessly."""
    for place in itertools.count():
        for text in texts:
            yield text, place % max(1, len(text) - 8)


def flat(count: int, dim: int, rounds: int, threads: int, say: Say) -> None:
    """Compare exhaustive search one by one and in batches of 64, by FAISS and by this package.

    Args:
        count: Number of vectors.
        dim: Vector length.
        rounds: Searches of each kind; the table shows median and range.
        threads: Threads of a search.
        say: Called with each line of the result.
    """
    faiss = import_optional("faiss")
    faiss.omp_set_num_threads(threads)
    own = faiss.cvar.distance_compute_blas_threshold
    asked = next(unit_vectors(64, dim, seed=1))
    say(f"exhaustive search of {count:,} x {dim}, CPU ms per query, median of {rounds} (least to most):")
    say(
        "| index | FAISS, batch 1 | FAISS, batch 64 | FAISS with its BLAS, batch 64 | here, batch 1 | here, batch 64 |"
    )
    say("|---|---|---|---|---|---|")
    here: dict[Kind, list[float]] = {}
    for kind in EXHAUSTIVE_KINDS:
        vectors = trained(kind, dim, count, next(unit_vectors(min(count, 16_384), dim)))
        for block in unit_vectors(count, dim):
            vectors.add(block)
        index = DenseIndex(range(count), HashedTfidfEncoder(dim), vectors, threads, "")  # type: ignore[arg-type]  # documents are not read

        def library(batch: int, threshold: int, vectors: Any = vectors) -> None:
            faiss.cvar.distance_compute_blas_threshold = threshold
            vectors.search(asked[:batch], 3)
            faiss.cvar.distance_compute_blas_threshold = own

        ways: list[tuple[int, Callable[[], object]]] = [
            (1, partial(library, 1, own)),
            (64, partial(library, 64, own)),
            (64, partial(library, 64, 3 * dim)),
            (1, partial(index.search_vectors, asked[:1], 3)),
            (64, partial(index.search_vectors, asked, 3)),
        ]
        times: list[list[float]] = [[] for _ in ways]
        for _ in range(rounds):
            for (batch, search), taken in zip(ways, times, strict=True):
                start = time.process_time()
                search()
                taken.append(1000 * (time.process_time() - start) / batch)
        say(f"| {kind} | {' | '.join(spread(taken, 2) for taken in times)} |")
        here[kind] = times[-1]
    for kind in EXHAUSTIVE_KINDS[1:]:
        ratios = [ours / flats for ours, flats in zip(here[kind], here["flat"], strict=True)]
        say(f"{kind} in batches of 64 takes {spread(ratios, 2)} times as long as flat")


def opening(folder: Path, count: int, dim: int, say: Say) -> None:
    """Measure how long a new process takes to open an index of random vectors.

    Args:
        folder: Folder for the index; the caller removes it.
        count: Number of vectors.
        dim: Vector length.
        say: Called with each line of the result.
    """
    write_index_folder(folder / "index", count, HashedTfidfEncoder(dim).fit(queries(1000)))
    command = [
        sys.executable,
        "-c",
        f"from retriever.bench import open_once; open_once({str(folder / 'index')!r})",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchFailed(done.stderr.strip())
    size = sum(path.stat().st_size for path in (folder / "index").iterdir())
    found = json.loads(done.stdout)
    say("| index | on disk | open | memory | first answer |")
    say("|---|---|---|---|---|")
    say(
        f"| {count:,} x {dim}, flat float32 | {size / 1e9:.2f} GB | {found['open']:.3f} s | {found['memory']:.0f} MB | "
        f"{found['answer']:.2f} s after |"
    )


def open_once(folder: str) -> None:
    """Open an index folder, search once, and print seconds and MB more of memory as JSON."""
    import_optional("faiss")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    index = load_index(folder)
    opened = time.perf_counter()
    # Measured before the verification thread has read much of the files.
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    index.search(queries(1), 3)
    searched = time.perf_counter()
    print(json.dumps({"open": opened - start, "memory": grown, "answer": searched - start}))


class Latent(Encoder):
    """Encoder of passage numbers as seeded vectors with a spectrum like that of text encoders.

    A vector is 128 latent numbers, whose standard deviations fall as 1 / sqrt(i), in 768 dimensions, plus isotropic noise of half its
    length. A query is a passage's vector plus noise of .6 of its length: cosine .86.
    """

    dim = 768
    _rank, _per_block = 128, 4096
    _noise, _query_noise = 0.5, 0.6

    def __init__(self) -> None:
        generator = np.random.default_rng(12_345)
        spread_out = np.arange(1, self._rank + 1, dtype=np.float32)[:, None] ** -0.5
        self._directions = spread_out * generator.standard_normal((self._rank, self.dim), np.float32)
        self._number, self._block = -1, np.empty((0, self.dim), np.float32)

    def _noisy(
        self, vectors: NDArray[np.float32], share: float, generator: np.random.Generator
    ) -> NDArray[np.float32]:
        vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors += np.float32(share / np.sqrt(self.dim)) * generator.standard_normal(
            vectors.shape, np.float32
        )
        unit: NDArray[np.float32] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return unit

    def encode_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """See `retriever.encoders.Encoder`; the last line of a text is its number."""
        numbers = np.array([int(text.rpartition("\n")[2]) for text in texts], np.int64)
        vectors = np.empty((len(texts), self.dim), np.float32)
        for block in np.unique(numbers // self._per_block).tolist():
            if block != self._number:
                generator = np.random.default_rng((1, block))
                latent = generator.standard_normal((self._per_block, self._rank), np.float32)
                self._block = self._noisy(latent @ self._directions, self._noise, generator)
                self._number = block
            mine = numbers // self._per_block == block
            vectors[mine] = self._block[numbers[mine] % self._per_block]
        return vectors

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """See `retriever.encoders.Encoder`."""
        vectors = self.encode_documents(texts)
        for row, text in enumerate(texts):
            generator = np.random.default_rng((2, int(text)))
            vectors[row] = self._noisy(vectors[row : row + 1], self._query_noise, generator)[0]
        return vectors


_ASKED, _ALONE = 256, 32  # queries for recall and batches, and for batches of one
_MANY = 21_000_000  # passages of English Wikipedia in Search-R1's and DPR's corpus


def scale(
    folder: Path, counts: Sequence[int], kinds: Sequence[Kind], recall: float, threads: int, say: Say
) -> None:
    """Build, open and search indexes of several sizes, and extrapolate to 21 million passages.

    Each build and each search is a process of its own, so that its CPU time and memory are known.

    Args:
        folder: Folder for one index at a time; the caller removes it.
        counts: Numbers of vectors, ascending.
        kinds: Index types, ``flat`` first: it gives the exact answers.
        recall: Recall@10 for which approximate indexes choose their effort.
        threads: CPU threads.
        say: Called with each line of the result.
    """
    say(
        f"{Latent.dim} numbers, {threads} thread(s), effort for recall@10 {recall:g}; CPU times; memory: MB resident in a process"
    )
    say(
        "| index | vectors | build CPU s | build MB | disk MB | open s | resident MB | effort (rescored) | recall@10 "
        "| ms, batch 1 | ms, batch 64 |"
    )
    say("|---|---|---|---|---|---|---|---|---|---|---|")
    rows: dict[Kind, list[tuple[int, dict[str, Any]]]] = {kind: [] for kind in kinds}
    for count in counts:
        corpus = folder / "corpus.jsonl"
        with corpus.open("w") as stream:
            for number in range(count):
                stream.write(Document(str(number), f'"Passage {number}"\n{number}').to_json() + "\n")
        for kind in kinds:
            out = folder / kind
            command = [sys.executable, "-m", "retriever", "build", "--corpus", str(corpus), "--out", str(out)]
            command += ["--encoder", "retriever.bench:Latent", "--type", kind, "--threads", str(threads)]
            if kind not in EXHAUSTIVE:
                command += ["--recall", str(recall)]
            built = _measured(command)
            found = _measured(
                [
                    sys.executable,
                    "-c",
                    f"from retriever.bench import search_once as s; s({str(out)!r}, {threads})",
                ]
            )
            row = {**json.loads(found["said"]), "build_s": built["cpu"], "build_mb": built["mb"]}
            rows[kind].append((count, row))
            say(
                f"| {kind} | {count:,} | {row['build_s']:.0f} | {row['build_mb']:,.0f} | {row['disk_mb']:,.0f} | {row['open_s']:.3f} | "
                f"{row['resident_mb']:,.0f} | {row['effort']} | {row['recall']:.3f} | {row['alone']:.2f} | {row['together']:.2f} |"
            )
            shutil.rmtree(out)
    for line in _extrapolated(rows):
        say(line)


def _measured(command: list[str]) -> dict[str, Any]:
    """Run a command; return its output, its CPU seconds and its largest resident memory in MB."""
    with (
        TemporaryFile("w+") as said,
        subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT) as process,
    ):
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        output = said.read()
    if process.returncode:
        raise BenchFailed(f"{' '.join(command)}: {output.strip()}")
    return {"said": output, "cpu": used.ru_utime + used.ru_stime, "mb": used.ru_maxrss / 1024}


def search_once(folder: str, threads: int) -> None:
    """Open an index of `Latent` vectors, search, and print times, memory and recall as JSON.

    A flat index writes its answers beside the folder, for the recall of the others.
    """
    import_optional("faiss")
    for path in Path(folder).iterdir():
        # Pages that are in the kernel's cache are mapped with their neighbours; memory should be what a search reads.
        with path.open("rb") as stream:
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    before, start = _resident(), time.perf_counter()
    index = load_index(folder, threads, verify="never")
    opened = time.perf_counter() - start
    if not isinstance(index, DenseIndex):
        raise BenchFailed(f"{folder} is no index of vectors.")
    places = (2 * np.arange(_ASKED) + 1) * index.ntotal // (2 * _ASKED)
    asked = encoded(index.encoder, [str(place) for place in places], queries=True)
    found = [
        [place for place, _ in row]
        for first in range(0, _ASKED, 64)
        for row in index.search_vectors(asked[first : first + 64], 10)
    ]
    resident = _resident() - before
    times: dict[int, float] = {}
    for batch, count in ((1, _ALONE), (64, _ASKED)):
        start = time.process_time()
        for first in range(0, count, batch):
            index.search_vectors(asked[first : first + batch], 10)
        times[batch] = 1000 * (time.process_time() - start) / count
    answers = Path(folder).with_name("exact.json")
    if index.kind == "flat":
        answers.write_text(json.dumps(found))
    exact = json.loads(answers.read_text())
    shares = [len(set(row) & set(best)) / len(best) for row, best in zip(found, exact, strict=True)]
    settings = index.info()
    effort = settings.get("probes", settings.get("breadth", ""))
    names = [path for path in Path(folder).iterdir() if path.suffix == ".faiss"]
    result = {
        "open_s": opened,
        "resident_mb": resident,
        "disk_mb": sum(path.stat().st_size for path in names) / 1e6,
        "effort": f"{effort} ({settings['rescored']})" if "rescored" in settings else effort,
        "recall": float(np.mean(shares)),
        "alone": times[1],
        "together": times[64],
    }
    print(json.dumps(result))


def _resident() -> float:
    """Read the resident memory of this process in MB, pages of mapped files included."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def _extrapolated(rows: dict[Kind, list[tuple[int, dict[str, Any]]]]) -> Iterator[str]:
    """Extrapolate the measurements of the largest size, line by line."""
    yield ""
    yield (
        f"| {_MANY:,}, extrapolated | memory GB | disk GB | build CPU h after encoding | ms, batch 1 | ms, batch 64 "
        "| rule for the times |"
    )
    yield "|---|---|---|---|---|---|---|"
    base = {count: row["build_s"] for count, row in rows.get("flat", [])}
    for kind, sizes in rows.items():
        (first, small), (last, large) = sizes[0], sizes[-1]
        factor = _MANY / last
        memory, disk = (_MANY * size / 1e9 for size in bytes_per_vector(kind, Latent.dim))
        grown = {
            name: 1.0
            if kind in EXHAUSTIVE or first == last
            else np.log(large[name] / small[name]) / np.log(last / first)
            for name in ("alone", "together")
        }
        times = [large[name] * factor**power for name, power in grown.items()]
        own = max(0.0, large["build_s"] - base.get(last, 0.0))
        if kind not in EXHAUSTIVE:
            factor = estimated(kind, _MANY, Latent.dim).seconds / estimated(kind, last, Latent.dim).seconds
        hours = own * factor / 3600
        yield (
            f"| {kind} | {memory:.1f} | {disk:.1f} | {hours:.1f} | {times[0]:,.1f} | {times[1]:,.1f} | "
            f"{' and '.join(f'n^{power:.2f}' for power in grown.values())} |"
        )
