"""Vector indexes: training, resumable build, and search settings."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from retriever.errors import BadIndex, BadSetting, import_optional
from retriever.product import trained_product
from retriever.resume import Marks, Report, reserve, to_disk, turns

Kind = Literal["flat", "fp16", "sq8", "ivf_sq8", "ivf_pq", "hnsw"]
KINDS: tuple[Kind, ...] = get_args(Kind)
# Types that compare a query with every vector; the others may miss some.
EXHAUSTIVE_KINDS: tuple[Kind, ...] = ("flat", "fp16", "sq8")
EXHAUSTIVE: frozenset[Kind] = frozenset(EXHAUSTIVE_KINDS)
# Types with inverted lists.
LISTED: frozenset[Kind] = frozenset(("ivf_sq8", "ivf_pq"))
# Names in ``/info`` and manifests.
NAMES: dict[Kind, str] = {
    "flat": "flat_ip",
    "fp16": "flat_fp16",
    "sq8": "flat_sq8",
    "ivf_sq8": "ivf_sq8",
    "ivf_pq": "ivf_pq",
    "hnsw": "hnsw",
}

_HNSW_LINKS = 32
_HNSW_BUILD, _HNSW_SEARCH = 80, 128
_MOST_PROBES = 64
# Rounds of k-means, FAISS's default.
ROUNDS = 10
# FAISS warns below this many training vectors a list.
_TRAINING_PER_LIST = 39
_TRAINING_SQ8 = 16_384
NTOTAL = slice(8, 16)  # in the header of every index: four letters, the dimension (4 bytes), then ntotal


def check_kind(kind: str) -> Kind:
    """Validate an index type and return it.

    Raises:
        BadSetting: Unknown type.
    """
    for known in KINDS:
        if kind == known:
            return known
    raise BadSetting(f"index kind must be one of {', '.join(KINDS)}, got {kind!r}.")


def lists_for(count: int) -> int:
    """Choose the number of inverted lists for ``count`` vectors: 2 sqrt(count), limited by the training vectors."""
    return max(1, min(2 * math.isqrt(count), count // _TRAINING_PER_LIST))


def training_size(kind: Kind, count: int) -> int:
    """Choose the number of training vectors out of ``count``.

    0 if the type needs no training.
    """
    if kind == "sq8":
        return min(count, _TRAINING_SQ8)
    return min(count, max(_TRAINING_SQ8, 64 * lists_for(count))) if kind in LISTED else 0


def improved_centres(
    sample: NDArray[np.float32], lists: int, centres: NDArray[np.float32] | None
) -> NDArray[np.float32]:
    """Do one of the `ROUNDS` of k-means for the centres of inverted lists.

    The result equals FAISS's own.

    Args:
        sample: Shape (n, dim).
        lists: Number of centres.
        centres: Centres of the previous round, shape (lists, dim); None in the first.

    Raises:
        MissingDependency: faiss is not installed.
    """
    faiss = import_optional("faiss")
    settings = faiss.ClusteringParameters()
    # The vectors have unit length, so the centres should too.
    settings.niter, settings.spherical = 1, True
    settings.max_points_per_centroid, settings.min_points_per_centroid = 64, 1
    clustering = faiss.Clustering(sample.shape[1], lists, settings)
    if centres is not None:
        faiss.copy_array_to_vector(centres.ravel(), clustering.centroids)
    clustering.train(check_rows(sample), faiss.IndexFlatIP(sample.shape[1]))
    found: NDArray[np.float32] = faiss.vector_to_array(clustering.centroids).reshape(lists, -1)
    return found


def trained(
    kind: Kind, dim: int, count: int, sample: NDArray[np.float32], centres: NDArray[np.float32] | None = None
) -> Any:
    """Create an empty, trained index.

    Args:
        kind: Index type.
        dim: Vector length.
        count: Number of vectors it will hold.
        sample: `training_size` training vectors, shape (n, dim); ignored by types without training.
        centres: Centres of the inverted lists, if known.

    Raises:
        MissingDependency: faiss is not installed.
    """
    faiss = import_optional("faiss")
    metric = faiss.METRIC_INNER_PRODUCT
    if kind == "flat":
        return faiss.IndexFlatIP(dim)
    if kind == "fp16":
        index = faiss.IndexScalarQuantizer(dim, faiss.ScalarQuantizer.QT_fp16, metric)
    elif kind == "sq8":
        index = faiss.IndexScalarQuantizer(dim, faiss.ScalarQuantizer.QT_8bit, metric)
    elif kind in LISTED:
        lists = lists_for(count)
        if centres is None:
            centres = improved_centres(sample, lists, None)
            for _ in range(ROUNDS - 1):
                centres = improved_centres(sample, lists, centres)
        if kind == "ivf_pq":
            return trained_product(dim, lists, sample, centres, min(_MOST_PROBES, lists))
        quantizer = faiss.IndexFlatIP(dim)
        index = faiss.IndexIVFScalarQuantizer(quantizer, dim, lists, faiss.ScalarQuantizer.QT_8bit, metric)
        # With its centres the quantizer counts as trained; only the ranges of the 8-bit codes are left to train.
        quantizer.add(centres)
        index.nprobe = min(_MOST_PROBES, lists)
        # Python would free the quantizer at return, but the index still needs it.
        index.own_fields = True
        quantizer.this.disown()
    else:
        index = faiss.IndexHNSWFlat(dim, _HNSW_LINKS, metric)
        index.hnsw.efConstruction, index.hnsw.efSearch = _HNSW_BUILD, _HNSW_SEARCH
        return index
    index.train(sample)
    return index


def kind_of(index: Any) -> Kind:
    """Detect the type of a FAISS index.

    Raises:
        BadIndex: Unknown type.
    """
    faiss = import_optional("faiss")
    if isinstance(index, faiss.IndexFlatIP):
        return "flat"
    if isinstance(index, faiss.IndexIVFScalarQuantizer):
        return "ivf_sq8"
    if isinstance(index, faiss.IndexPreTransform) and isinstance(lists_of(index), faiss.IndexIVFPQ):
        return "ivf_pq"
    if isinstance(index, faiss.IndexHNSWFlat):
        return "hnsw"
    if isinstance(index, faiss.IndexScalarQuantizer):
        return "fp16" if index.sq.qtype == faiss.ScalarQuantizer.QT_fp16 else "sq8"
    raise BadIndex(f"a FAISS index of type {type(index).__name__} is not supported; build the index again.")


def lists_of(index: Any) -> Any:
    """Find the inverted lists of a FAISS index, behind its rotation if it has one; None if it has none."""
    faiss = import_optional("faiss")
    found = faiss.try_extract_index_ivf(index)
    return None if found is None else faiss.downcast_index(found)


def settings_of(index: Any) -> dict[str, int]:
    """Read the search settings of an approximate index; {} for an exhaustive one."""
    kind = kind_of(index)
    if kind in LISTED:
        lists = lists_of(index)
        return {"lists": lists.nlist, "probes": lists.nprobe}
    if kind == "hnsw":
        return {"links": _HNSW_LINKS, "breadth": index.hnsw.efSearch}
    return {}


def most_effort(index: Any) -> int:
    """Compute the largest search effort: all lists, or 10,000 graph nodes; 0 for an exhaustive index."""
    kind = kind_of(index)
    if kind in LISTED:
        return int(lists_of(index).nlist)
    return 0 if kind in EXHAUSTIVE else 10_000


def look_further(index: Any, effort: int) -> None:
    """Set the lists (``ivf_sq8``, ``ivf_pq``) or graph nodes (``hnsw``) visited per search.

    More is slower and more exact.

    Raises:
        BadSetting: The index is exhaustive, or ``effort`` is out of range.
    """
    kind = kind_of(index)
    most = most_effort(index)
    if kind in EXHAUSTIVE:
        raise BadSetting(f"effort {effort} was given, but a {NAMES[kind]} index is exhaustive already.")
    if not 1 <= effort <= most:
        raise BadSetting(f"effort {effort} is out of range; choose from 1 to {most}.")
    if kind in LISTED:
        lists_of(index).nprobe = effort
    else:
        index.hnsw.efSearch = effort


def open_vectors(path: Path) -> Any:
    """Memory-map an index file. It is read when searched, and processes share the pages.

    Raises:
        RuntimeError: FAISS cannot read the file.
        MissingDependency: faiss is not installed, or older than 1.11.
    """
    faiss = import_optional("faiss")
    return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)


# Vectors decoded at a time by ``BlockScan``: a block and its scores stay in the processor's cache.
_BLOCK = 512
# Candidates per query that ``BlockScan`` collects before it sorts them, in numbers of wanted ones.
_COLLECTED = 4


class BlockScan:
    """Exhaustive search of many queries: blocks of decoded vectors, one matrix product each.

    FAISS decodes the codes of ``fp16`` and ``sq8`` for every query anew. Here a block is decoded once for all of them. An sq8 code c
    stands for low + (c + 1/2) * width / 255 in each dimension, so queries are scaled instead of codes.

    Args:
        index: Exhaustive FAISS index with inner products; its memory or mapped file is read in place.

    Attributes:
        codes: One row per vector: the vectors themselves (``flat``), or bytes.
    """

    codes: NDArray[Any]

    def __init__(self, index: Any) -> None:
        faiss = import_optional("faiss")
        self._index, self._kind = index, kind_of(index)
        self._scale = np.ones(index.d, np.float32)
        if self._kind == "flat":
            self.codes = faiss.rev_swig_ptr(index.get_xb(), index.ntotal * index.d).reshape(-1, index.d)
            return
        size = index.code_size
        self.codes = faiss.rev_swig_ptr(index.codes.data(), index.ntotal * size).reshape(-1, size)
        if self._kind == "sq8":
            _, width = faiss.vector_to_array(index.sq.trained).reshape(2, -1)
            self._scale = width / 255

    def search(self, queries: NDArray[np.float32], count: int) -> NDArray[np.int64]:
        """Find the ``count`` nearest vectors of each query.

        Args:
            queries: Shape (q, dim).
            count: At most the number of vectors.

        Returns:
            Positions of shape (q, count), the nearest first. Scores are float32, so near ties may come in either order.
        """
        wanted = np.ascontiguousarray((queries * self._scale).T, np.float32)
        least = np.full(len(queries), -np.inf, np.float32)
        found = _Nearest.none()
        decoded = np.empty((_BLOCK, self._index.d), np.float32)
        for first in range(0, len(self.codes), _BLOCK):
            codes = self.codes[first : first + _BLOCK]
            rows = decoded[: len(codes)]
            if self._kind == "fp16":
                rows = self._index.sa_decode(codes)
            else:
                np.copyto(rows, codes)
            scores = rows @ wanted
            place, query = np.nonzero(scores >= least)
            found.add(query, place + first, scores[place, query])
            if len(found) > max(_COLLECTED * count, _BLOCK) * len(queries):
                least = found.keep(len(queries), count)
        found.keep(len(queries), count)
        return found.place.reshape(len(queries), count)


class _Nearest:
    """Candidates of all queries: query, place and score of each."""

    def __init__(
        self, query: NDArray[np.int64], place: NDArray[np.int64], score: NDArray[np.float32]
    ) -> None:
        self.query, self.place, self.score = query, place, score

    @classmethod
    def none(cls) -> _Nearest:
        return cls(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32))

    def __len__(self) -> int:
        return len(self.query)

    def add(self, query: NDArray[np.int64], place: NDArray[np.int64], score: NDArray[np.float32]) -> None:
        """Append candidates."""
        self.query = np.concatenate([self.query, query])
        self.place = np.concatenate([self.place, place])
        self.score = np.concatenate([self.score, score])

    def keep(self, queries: int, count: int) -> NDArray[np.float32]:
        """Keep the best ``count`` of each query, in order; return the lowest kept score of each, or -inf where there are fewer."""
        order = np.lexsort((self.place, -self.score, self.query))
        query = self.query[order]
        starts = np.searchsorted(query, np.arange(queries))
        order = order[np.arange(len(query)) - starts[query] < count]
        self.query, self.place, self.score = self.query[order], self.place[order], self.score[order]
        bounds = np.searchsorted(self.query, np.arange(queries + 1))
        full = np.diff(bounds) == count
        return np.where(full, self.score[np.maximum(bounds[1:] - 1, 0)], -np.inf).astype(np.float32)


def check_rows(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Convert vectors to FAISS's format: float32, C-contiguous."""
    return np.ascontiguousarray(vectors, np.float32)


class VectorFile:
    """Exhaustive index file that is written by appending, so its size is not limited by memory.

    FAISS can only write an index that is in memory. Its file format is a header, with the number of vectors in
    two places, and the codes. The header is patched at the end.

    Args:
        index: Empty and trained index of an exhaustive type.
    """

    def __init__(self, index: Any) -> None:
        faiss = import_optional("faiss")
        self._index = index
        self._header = bytearray(faiss.serialize_index(index).tobytes())
        one = faiss.clone_index(index)
        one.add(np.zeros((1, index.d), np.float32))
        with_one = faiss.serialize_index(one).tobytes()
        # Codes are counted in bytes or in numbers, depending on the type; adding one vector tells which.
        self._per_vector = int.from_bytes(with_one[len(self._header) - 8 : len(self._header)], "little")
        self.code_size = len(with_one) - len(self._header)

    @property
    def header_size(self) -> int:
        """Size of the header in bytes."""
        return len(self._header)

    def size(self, count: int) -> int:
        """Compute the file size with ``count`` vectors, in bytes."""
        return self.header_size + count * self.code_size

    def begin(self, stream: BinaryIO) -> None:
        """Write the header of an empty file."""
        stream.write(self._header)

    def append(self, stream: BinaryIO, vectors: NDArray[np.float32]) -> None:
        """Append the codes of vectors, shape (n, dim)."""
        stream.write(self._index.sa_encode(check_rows(vectors)).tobytes())

    def finish(self, stream: BinaryIO, count: int) -> None:
        """Patch the header to ``count`` vectors. ``stream`` must be seekable."""
        header = bytearray(self._header)
        header[NTOTAL] = count.to_bytes(8, "little")
        header[-8:] = (count * self._per_vector).to_bytes(8, "little")
        stream.seek(0)
        stream.write(header)


_CHANGE = np.dtype([("place", "<u8"), ("link", "<i4")])
# End of an IVF file without vectors: "ilar", number of lists and bytes per code (8 bytes each), "sprs", no sizes (8 bytes).
_EMPTY_LISTS = 32


def fill_lists(kind: Kind, staged: Any, out: Path, chunk: int, marks: Marks, report: Report) -> None:
    """Write an index with inverted lists; memory: the centres, and 4 bytes per vector.

    The file is identical to FAISS's own.

    Args:
        kind: ``ivf_sq8`` or ``ivf_pq``.
        staged: FAISS index of the vectors, in document order.
        out: File to write.
        chunk: Vectors between two marks.
        marks: Uses ``trained`` (rounds of k-means), ``listed`` (vectors whose list is known), ``lists_placed``.
        report: Called after every chunk.
    """
    faiss = import_optional("faiss")
    count = staged.ntotal
    index = _trained_lists(kind, staged, marks, report)
    inner = lists_of(index)
    with marks.growing("lists", 4 * marks["listed"]) as stream:
        while (start := marks["listed"]) < count:
            vectors = staged.reconstruct_n(start, min(chunk, count - start))
            stream.write(inner.quantizer.assign(_turned(index, vectors), 1).astype("<i4").tobytes())
            to_disk(stream)
            marks.set(listed=start + len(vectors))
            report("assigning", marks["listed"], count)
    lists = np.fromfile(marks.work / "lists", "<i4")
    place, header, size = _places(index, np.bincount(lists, minlength=inner.nlist))
    done = marks.placed("lists_placed")
    taken = np.bincount(lists[:done], minlength=inner.nlist)
    if not done:
        out.write_bytes(header)
        reserve(out, size)
    with out.open("r+b") as stream:
        with mmap.mmap(stream.fileno(), size) as file:
            while done < count:
                mine = lists[done : done + chunk].astype(np.int64)
                codes = np.empty((len(mine), inner.code_size), np.uint8)
                vectors = _turned(index, staged.reconstruct_n(done, len(mine)))
                inner.encode_vectors(
                    len(mine), faiss.swig_ptr(vectors), faiss.swig_ptr(mine), faiss.swig_ptr(codes), False
                )
                for number, (at, named) in enumerate(place(mine, taken[mine] + turns(mine))):
                    file[at : at + inner.code_size] = codes[number].tobytes()
                    file[named : named + 8] = (done + number).to_bytes(8, "little")
                np.add.at(taken, mine, 1)
                done += len(mine)
                marks.place("lists_placed", done)
                report("placing", done, count)
            file.flush()
        os.fsync(stream.fileno())


def _turned(index: Any, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rotate vectors as the index does."""
    faiss = import_optional("faiss")
    if not isinstance(index, faiss.IndexPreTransform):
        return vectors
    turned: NDArray[np.float32] = faiss.downcast_VectorTransform(index.chain.at(0)).apply(vectors)
    return turned


def _trained_lists(kind: Kind, staged: Any, marks: Marks, report: Report) -> Any:
    """Train the centres of the lists, with a mark after every round of k-means."""
    faiss = import_optional("faiss")
    path, count = marks.work / "lists.trained", staged.ntotal
    if path.is_file():
        return faiss.read_index(str(path))
    wanted = training_size(kind, count)
    sample = staged.reconstruct_batch(np.arange(wanted) * count // wanted)
    report("training", marks["trained"], ROUNDS)
    while (done := marks["trained"]) < ROUNDS:
        centres = np.load(marks.work / f"centres{done}.npy") if done else None
        with (marks.work / f"centres{done + 1}.npy").open("wb") as stream:
            np.save(stream, improved_centres(sample, lists_for(count), centres))
            to_disk(stream)
        marks.set(trained=done + 1)
        report("training", done + 1, ROUNDS)
    index = trained(kind, staged.d, count, sample, np.load(marks.work / f"centres{ROUNDS}.npy"))
    write_index(index, path)
    return index


Places = Callable[[NDArray[np.int64], NDArray[np.int64]], list[list[int]]]


def _places(index: Any, sizes: NDArray[np.int64]) -> tuple[Places, bytes, int]:
    """Plan the layout of the file.

    Returns a function from lists and ranks to byte offsets of code and id, the bytes before the lists, and the file size.
    """
    faiss = import_optional("faiss")
    inner = lists_of(index)
    nlist, code_size = inner.nlist, inner.code_size
    empty = bytearray(faiss.serialize_index(index).tobytes())
    before, lists = empty[:-_EMPTY_LISTS], empty[-_EMPTY_LISTS:]
    expected = b"ilar" + nlist.to_bytes(8, "little") + code_size.to_bytes(8, "little") + b"sprs" + bytes(8)
    if lists != expected:
        raise BadSetting(
            f"faiss {faiss.__version__} writes inverted lists in an unknown format; pip install faiss-cpu==1.15.1"
        )
    # A rotation has a header of its own, before that of the lists.
    for header_at in {0, len(empty) - len(faiss.serialize_index(inner))}:
        before[header_at + NTOTAL.start : header_at + NTOTAL.stop] = int(sizes.sum()).to_bytes(8, "little")
    if np.count_nonzero(sizes) > nlist // 2:
        table = b"full" + nlist.to_bytes(8, "little") + sizes.astype("<u8").tobytes()
    else:
        some = np.flatnonzero(sizes)
        table = (
            b"sprs"
            + (2 * len(some)).to_bytes(8, "little")
            + np.stack([some, sizes[some]], axis=1).astype("<u8").tobytes()
        )
    header = bytes(before) + expected[:-12] + table
    # Layout: list by list, first its codes, then its ids.
    ends = len(header) + np.cumsum(sizes * (code_size + 8))
    starts = ends - sizes * (code_size + 8)

    def place(mine: NDArray[np.int64], ranks: NDArray[np.int64]) -> list[list[int]]:
        code = starts[mine] + ranks * code_size
        named = starts[mine] + sizes[mine] * code_size + 8 * ranks
        found: list[list[int]] = np.stack([code, named], axis=1).tolist()
        return found

    return place, header, int(ends[-1])


def fill_graph(staged: Any, out: Path, chunk: int, marks: Marks, report: Report) -> None:
    """Write an ``hnsw`` index; memory: the whole index, and its links a second time.

    Args:
        staged: Flat FAISS index of the vectors, in document order.
        out: File to write.
        chunk: Vectors between two marks.
        marks: Uses ``linked`` (vectors), ``links`` (numbers in their rows), ``changes`` (to earlier rows), ``entry``, ``top``.
        report: Called after every chunk.
    """
    count = staged.ntotal
    index = trained("hnsw", staged.d, count, np.empty((0, staged.d), np.float32))
    before = _restore(index, staged, chunk, marks)
    with (
        marks.growing("levels", 4 * marks["linked"]) as levels,
        marks.growing("links", 4 * marks["links"]) as links,
        marks.growing("changes", _CHANGE.itemsize * marks["changes"]) as changes,
    ):
        while (start := index.ntotal) < count:
            index.add(staged.reconstruct_n(start, min(chunk, count - start)))
            now = _links(index)
            places = np.flatnonzero(now[: len(before)] != before)
            changed = np.empty(len(places), _CHANGE)
            changed["place"], changed["link"] = places, now[places]
            levels.write(_levels(index)[start:].astype("<i4").tobytes())
            links.write(now[len(before) :].astype("<i4").tobytes())
            changes.write(changed.tobytes())
            to_disk(levels, links, changes)
            before = now.copy()
            marks.set(
                linked=index.ntotal,
                links=len(now),
                changes=marks["changes"] + len(changed),
                entry=index.hnsw.entry_point,
                top=index.hnsw.max_level,
            )
            report("linking", index.ntotal, count)
    write_index(index, out)


def _restore(index: Any, staged: Any, chunk: int, marks: Marks) -> NDArray[np.int32]:
    """Restore an empty graph to the state of the marks, and return its links."""
    faiss = import_optional("faiss")
    done = marks["linked"]
    if not done:
        return np.empty(0, np.int32)
    for start in range(0, done, chunk):
        index.storage.add(staged.reconstruct_n(start, min(chunk, done - start)))
    levels = np.fromfile(marks.work / "levels", "<i4", done)
    links = np.fromfile(marks.work / "links", "<i4", marks["links"])
    changes = np.fromfile(marks.work / "changes", _CHANGE, marks["changes"])
    # If an entry changed several times the last change counts, as in NumPy's assignment.
    links[changes["place"]] = changes["link"]
    graph = index.hnsw
    # Number of link slots per row, for all levels of its vector.
    widths = np.array([graph.cum_nb_neighbors(level) for level in range(int(levels.max()) + 1)])
    faiss.copy_array_to_vector(levels, graph.levels)
    faiss.copy_array_to_vector(
        np.concatenate([[0], np.cumsum(widths[levels])]).astype(np.uint64), graph.offsets
    )
    graph.neighbors.resize(len(links))
    _links(index)[:] = links
    graph.entry_point, graph.max_level = marks["entry"], marks["top"]
    index.ntotal = done
    # Later levels are drawn as in an uninterrupted build.
    for _ in range(done):
        graph.random_level()
    return links


def _links(index: Any) -> NDArray[np.int32]:
    """View the graph's links, row after row. Adding a vector invalidates the view."""
    faiss = import_optional("faiss")
    links: NDArray[np.int32] = faiss.rev_swig_ptr(index.hnsw.neighbors.data(), index.hnsw.neighbors.size())
    return links


def _levels(index: Any) -> NDArray[np.int32]:
    levels: NDArray[np.int32] = import_optional("faiss").vector_to_array(index.hnsw.levels)
    return levels


def write_index(index: Any, path: Path) -> None:
    """Write a FAISS index atomically.

    Raises:
        OSError: Writing failed.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        import_optional("faiss").write_index(index, str(temporary))
    # FAISS raises RuntimeError only for a failed write.
    except RuntimeError as error:
        raise OSError(str(error).strip()) from error
    with temporary.open("r+b") as stream:
        os.fsync(stream.fileno())
    temporary.replace(path)
