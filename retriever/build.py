"""Resumable build of an index folder from a corpus of any size.

The corpus is streamed in chunks. Files go to a hidden folder beside the result, together with marks of the progress
(`retriever.resume`). A second run of the same command continues from the last mark, so a killed build loses at most one chunk.
This holds in every phase: reading, encoding, filling lists or a graph (`retriever.vectors`), scoring words (`retriever.bm25`).
"""

import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retriever.bm25 import Bm25Index, WordCounts, import_bm25s, place_scores
from retriever.corpus import (
    LINES,
    OFFSETS,
    Document,
    StoredDocuments,
    document_line,
    repeated_id,
    stream_corpus,
    tokenise,
)
from retriever.encoders import Encoder, TransformerSettings, encoded, make_encoder
from retriever.errors import BadCorpus, BadSetting, RetrieverError, import_optional
from retriever.estimate import plan_line
from retriever.index import ROWS, VECTORS, index_class
from retriever.recall import RecallProbe
from retriever.resume import Marks, Report, grown, locked, to_disk
from retriever.storage import Index, check_vacant, sha256_file, write_failed, write_manifest
from retriever.vectors import (
    EXHAUSTIVE,
    LISTED,
    Kind,
    VectorFile,
    check_kind,
    fill_graph,
    fill_lists,
    open_vectors,
    trained,
    training_size,
    write_index,
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Settings of an index build.

    Attributes:
        corpus: Corpus file, plain or ``.gz``; see `retriever.stream_corpus` for the formats.
        out: Folder to write; it must be new or empty.
        encoder: ``hashed``, ``bm25``, the settings of a transformer, or ``module:Class`` of the user (docs/adding_an_encoder.md).
        kind: Type of the FAISS index; not used by bm25.
        dim: Vector length of the hashed encoder, a multiple of 8.
        shard: (i, n): index only the i-th of n equal parts of the corpus, i from 0. Hashed vectors use the document
            frequencies of the whole corpus, so the scores of all shards are comparable.
        chunk: Passages between two marks.
        threads: CPU threads of the encoder and of FAISS.
        recall: Recall@10 that an approximate index must reach: the build chooses the smallest search effort. None: a fixed effort.
    """

    corpus: Path
    out: Path
    encoder: str | TransformerSettings = "hashed"
    kind: Kind = "flat"
    dim: int = 512
    shard: tuple[int, int] = (0, 1)
    chunk: int = 4096
    threads: int = 1
    recall: float | None = None

    def check(self) -> None:
        """Validate the settings.

        Raises:
            BadSetting: A value is out of range; the message names it.
            FileExistsError: ``out`` is not empty.
            FileNotFoundError: The corpus file is missing.
        """
        check_kind(self.kind)
        part, parts = self.shard
        if not 0 <= part < parts:
            raise BadSetting(
                f"shard {part}/{parts} is out of range; the first of two is 0/2, the second 1/2."
            )
        if self.encoder == "bm25" and (parts > 1 or self.kind != "flat"):
            raise BadSetting(
                "a BM25 index has no shards and no vector type: its scores come from words counted over all passages."
            )
        if self.recall is not None and (self.kind in EXHAUSTIVE or self.encoder == "bm25"):
            raise BadSetting(
                f"recall {self.recall:g} was given, but only approximate types have a search effort to choose: ivf_sq8, ivf_pq, hnsw."
            )
        if self.recall is not None and not 0 < self.recall <= 1:
            raise BadSetting(
                f"recall must be above 0 and at most 1, got {self.recall:g}; .95 means 95 of 100 found."
            )
        if self.chunk < 1:
            raise BadSetting(f"chunk must be positive, got {self.chunk}.")
        check_vacant(self.out)
        if not self.corpus.is_file():
            raise FileNotFoundError(f"{self.corpus}: no such corpus file.")


def build_index(
    plan: Plan, report: Report = lambda *_: None, say: Callable[[str], None] = lambda _: None
) -> dict[str, float]:
    """Build an index folder, or resume an interrupted build.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from retriever.build import Plan, build_index
    >>> from retriever.cli import mini_corpus
    >>> with TemporaryDirectory() as folder:
    ...     build_index(Plan(corpus=mini_corpus(), out=Path(folder) / "index"))
    {}

    Args:
        plan: Settings of the build.
        report: Called after every chunk with phase, done and total.
        say: Called with a sentence about the cost before the passages are encoded, and with one about the effort that
            ``plan.recall`` chose.

    Returns:
        Recall against exact search over the same vectors, by "@k"; {} for an exact index.

    Raises:
        BadCorpus: A line is malformed, an id occurs twice, or there is no document.
        BadSetting: A setting is out of range, or the interrupted build has other settings.
        WriteFailed: Writing failed; the message says what is kept.
        MissingDependency, MissingModel: A library or the transformer is missing.
    """
    plan.check()
    work = plan.out.parent / f".{plan.out.name}.partial"
    plan.out.parent.mkdir(parents=True, exist_ok=True)
    encoder: Encoder | None = None
    if plan.encoder != "bm25":
        encoder = make_encoder(plan.encoder, plan.dim, plan.threads)
        import_optional("faiss")
    else:
        import_bm25s()
    with locked(work):
        builder = _Builder(plan, work, encoder, report, say)
        try:
            recall = builder.run()
        except OSError as error:
            if isinstance(error, RetrieverError | FileNotFoundError):
                raise
            if builder.marks["documents"] >= plan.chunk:
                remedy = f"Finished work is kept in {work}; free disk space and run the same command again."
            else:
                shutil.rmtree(work, ignore_errors=True)
                remedy = "Nothing was kept; free disk space or choose another folder."
            raise write_failed(plan.out, error, remedy) from error
        except BadCorpus:
            shutil.rmtree(work, ignore_errors=True)
            raise
        shutil.rmtree(work, ignore_errors=True)
    return recall


class _Builder:
    """State of one build; ``marks`` tells what is safely on disk."""

    def __init__(
        self, plan: Plan, work: Path, encoder: Encoder | None, report: Report, say: Callable[[str], None]
    ) -> None:
        self.plan, self.work, self.encoder, self.report, self.say = plan, work, encoder, report, say
        self.folder = work / "index"
        self.folder.mkdir(exist_ok=True)
        stat = plan.corpus.stat()
        about = encoder.info() if encoder is not None else {"encoder": "bm25"}
        identity = {
            "corpus": [str(plan.corpus.resolve()), stat.st_size, stat.st_mtime_ns],
            "encoder": about,
            "kind": plan.kind,
            "shard": list(plan.shard),
            "chunk": plan.chunk,
            **({} if plan.recall is None else {"recall": plan.recall}),
        }
        self.marks = Marks(work, identity)

    def run(self) -> dict[str, float]:
        """Do the remaining phases and move the folder to its target."""
        if not self.marks["read"]:
            self._read_documents()
        documents = self._stored_documents()
        digest = sha256_file(self.folder / LINES)
        index: Index
        recall: dict[str, float] = {}
        if self.encoder is None:
            place_scores(self.folder, self.plan.chunk, self.marks, self.report)
            index = Bm25Index.load(self.folder, documents, digest)
        else:
            if self.encoder.counted:
                counts = np.fromfile(self.work / "pairs", np.uint32).reshape(-1, 2)
                self.encoder.set_counts(self.marks["seen"], counts)
            self.say(plan_line(self.plan.kind, len(documents), self.encoder.dim))
            probe = None
            if self.plan.kind != "flat":
                probe = RecallProbe.cut_from(documents, self.encoder, self.plan.recall is not None)
            self._encode(documents, self.encoder, probe)
            if self.plan.kind not in EXHAUSTIVE:
                self._build_ann()
            self.encoder.save(self.folder)
            dense = index_class(self.encoder).open(
                self.folder, documents, self.encoder, self.plan.threads, digest
            )
            if probe is not None:
                if self.plan.recall is not None:
                    self.report("choosing", 0, 1)
                    self.say(probe.choose_effort(dense, self.plan.recall))
                    self.report("choosing", 1, 1)
                recall = probe.recall(dense)
            index = dense
        self.report("writing", 0, 1)
        write_manifest(self.folder, index, recall, self.plan.recall)
        self.folder.replace(self.plan.out)
        self.report("writing", 1, 1)
        return recall

    def _read_documents(self) -> None:
        """Write the canonical corpus, its offsets, hashes of the ids, and the counts for the encoder."""
        plan, marks = self.plan, self.marks
        part, parts = plan.shard
        if parts > 1 and not marks["whole"]:
            marks.set(whole=sum(1 for _ in stream_corpus(plan.corpus)))
        low, high = (
            (part * marks["whole"] // parts, (part + 1) * marks["whole"] // parts)
            if parts > 1
            else (0, 1 << 62)
        )
        counted = self.encoder if self.encoder is not None and self.encoder.counted else None
        size = plan.corpus.stat().st_size
        lines = stream_corpus(plan.corpus, marks["offset"], marks["line"])
        with ExitStack() as files:
            texts = files.enter_context(grown(self.folder / LINES, marks["bytes"]))
            offsets = files.enter_context(marks.growing("offsets", 8 * marks["documents"]))
            ids = files.enter_context(marks.growing("ids", 8 * marks["documents"]))
            pairs = files.enter_context(marks.growing("pairs", marks["pairs"]))
            counts = WordCounts(marks) if self.encoder is None else None
            if counts is not None:
                files.callback(counts.close)
            while chunk := list(islice(lines, plan.chunk)):
                mine = [
                    line.document for number, line in enumerate(chunk, marks["seen"]) if low <= number < high
                ]
                written = [document_line(document) for document in mine]
                ends = marks["bytes"] + np.cumsum([len(line) for line in written], dtype=np.int64)
                texts.write(b"".join(written))
                offsets.write(ends.tobytes())
                ids.write(b"".join(_id_hash(document.id) for document in mine))
                if counted is not None:
                    pairs.write(counted.count([line.document.contents for line in chunk]).tobytes())
                to_disk(texts, offsets, ids, pairs)
                words = counts.add(mine) if counts is not None else {}
                marks.set(
                    seen=marks["seen"] + len(chunk),
                    documents=marks["documents"] + len(mine),
                    bytes=texts.tell(),
                    pairs=pairs.tell(),
                    offset=chunk[-1].end,
                    line=chunk[-1].number,
                    **words,
                )
                self.report("reading", min(chunk[-1].end, size), size)
                if counted is None and marks["seen"] >= high:
                    break
        if not marks["documents"]:
            raise BadCorpus(
                f"{plan.corpus}: no documents in this {'file' if parts == 1 else 'part of the file'}."
            )
        self._check_ids()
        np.save(self.folder / OFFSETS, np.concatenate([[0], np.fromfile(self.work / "offsets", np.int64)]))
        marks.set(read=1)

    def _check_ids(self) -> None:
        hashes = np.sort(np.fromfile(self.work / "ids", np.uint64))
        twice = set(hashes[1:][hashes[1:] == hashes[:-1]].tolist())
        if not twice:
            return
        first_line: dict[str, int] = {}
        for document, number, _ in stream_corpus(self.plan.corpus):
            if int.from_bytes(_id_hash(document.id), "little") in twice:
                if document.id in first_line:
                    raise BadCorpus(
                        repeated_id(self.plan.corpus, number, document.id, first_line[document.id])
                    )
                first_line[document.id] = number

    def _stored_documents(self) -> StoredDocuments:
        documents = StoredDocuments(self.folder)
        lexical = self.encoder is None or self.encoder.lexical
        if lexical and not any(tokenise(document.contents) for document in documents):
            raise BadCorpus(f'none of the {len(documents)} documents has a word in the field "contents".')
        return documents

    def _encode(self, documents: StoredDocuments, encoder: Encoder, probe: RecallProbe | None) -> None:
        """Encode chunk by chunk into a vector file.

        The file is the index itself, or the input of an approximate one.
        """
        marks, count = self.marks, len(documents)
        empty = self._codec(documents, encoder)
        file = VectorFile(empty)
        path = self._vectors
        if marks["encoded"] and probe is not None:
            probe.load(self.work / "probe.npz", marks["encoded"])
        with grown(path, file.size(marks["encoded"]) if marks["encoded"] else 0) as stream:
            if not marks["encoded"]:
                file.begin(stream)
            while (start := marks["encoded"]) < count:
                vectors = self._encoded(documents[start : start + self.plan.chunk], encoder)
                file.append(stream, vectors)
                to_disk(stream)
                if probe is not None:
                    probe.see(vectors, start)
                    probe.save(self.work / "probe.npz")
                marks.set(encoded=start + len(vectors))
                self.report("encoding", marks["encoded"], count)
        with path.open("r+b") as whole:
            file.finish(whole, count)
            to_disk(whole)

    @staticmethod
    def _encoded(documents: Sequence[Document], encoder: Encoder) -> NDArray[np.float32]:
        return encoded(encoder, [document.contents for document in documents])

    @property
    def _vectors(self) -> Path:
        if self.plan.kind == "ivf_pq":  # they stay, for exact scores of the candidates
            return self.folder / ROWS
        return (self.folder if self.plan.kind in EXHAUSTIVE else self.work) / VECTORS

    def _codec(self, documents: StoredDocuments, encoder: Encoder) -> Any:
        """Load or train the empty index that encodes vectors on disk.

        Trained once: a second training might differ.
        """
        faiss = import_optional("faiss")
        # Half precision is enough for 8-bit codes and halves the disk space.
        kinds: dict[Kind, Kind] = {"ivf_sq8": "fp16", "ivf_pq": "sq8", "hnsw": "flat"}
        kind: Kind = kinds.get(self.plan.kind, self.plan.kind)
        path = self.work / "codec"
        if not path.is_file():
            wanted = training_size(kind, len(documents))
            places = [number * len(documents) // wanted for number in range(wanted)]
            with self.marks.growing("sample", 4 * encoder.dim * self.marks["sampled"]) as stream:
                while (start := self.marks["sampled"]) < wanted:
                    self.report("training", start, wanted)
                    vectors = self._encoded(
                        [documents[place] for place in places[start : start + self.plan.chunk]], encoder
                    )
                    stream.write(vectors.astype("<f4").tobytes())
                    to_disk(stream)
                    self.marks.set(sampled=start + len(vectors))
            sample = np.fromfile(self.work / "sample", "<f4").reshape(-1, encoder.dim)
            write_index(trained(kind, encoder.dim, len(documents), sample), path)
        return faiss.read_index(str(path))

    def _build_ann(self) -> None:
        """Build the approximate index (lists or graph) from the encoded vectors."""
        faiss = import_optional("faiss")
        kind, out = self.plan.kind, self.folder / VECTORS
        before = faiss.omp_get_max_threads()
        faiss.omp_set_num_threads(self.plan.threads)
        try:
            staged = open_vectors(self._vectors)
            if kind in LISTED:
                fill_lists(kind, staged, out, self.plan.chunk, self.marks, self.report)
            else:
                fill_graph(staged, out, self.plan.chunk, self.marks, self.report)
        finally:
            faiss.omp_set_num_threads(before)


def _id_hash(identifier: str) -> bytes:
    return blake2b(identifier.encode("utf-8", "surrogatepass"), digest_size=8).digest()
