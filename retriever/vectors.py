"""The kinds of FAISS index, and files of them that grow by appending and open without being read.

``flat`` keeps float32 vectors, ``fp16`` and ``sq8`` quantize each number to 16 or 8 bits; all three compare
a query with every vector. ``ivf_sq8`` looks into the lists nearest to the query only, ``hnsw`` walks a graph.
"""

import math
from pathlib import Path
from typing import Any, BinaryIO, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from retriever.errors import BadIndex, BadSetting, import_optional

Kind = Literal["flat", "fp16", "sq8", "ivf_sq8", "hnsw"]
KINDS: tuple[Kind, ...] = get_args(Kind)
# Kinds that compare a query with every vector; the others may miss some.
EXHAUSTIVE: frozenset[Kind] = frozenset(("flat", "fp16", "sq8"))
# What ``/info`` and manifests call them.
NAMES: dict[Kind, str] = {
    "flat": "flat_ip",
    "fp16": "flat_fp16",
    "sq8": "flat_sq8",
    "ivf_sq8": "ivf_sq8",
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
    """Return ``kind``.

    Raises:
        BadSetting: There is no such kind.
    """
    for known in KINDS:
        if kind == known:
            return known
    raise BadSetting(f"index kind must be one of {', '.join(KINDS)}, got {kind!r}.")


def lists_for(count: int) -> int:
    """Number of inverted lists for ``count`` vectors: 2 sqrt(count), as far as training vectors reach."""
    return max(1, min(2 * math.isqrt(count), count // _TRAINING_PER_LIST))


def training_size(kind: Kind, count: int) -> int:
    """How many of ``count`` vectors to train on; 0 if the kind needs no training."""
    if kind == "sq8":
        return min(count, _TRAINING_SQ8)
    return min(count, max(_TRAINING_SQ8, 64 * lists_for(count))) if kind == "ivf_sq8" else 0


def improved_centres(
    sample: NDArray[np.float32], lists: int, centres: NDArray[np.float32] | None
) -> NDArray[np.float32]:
    """One of the `ROUNDS` of k-means for the centres of inverted lists; one after the other they give what FAISS's own do.

    Args:
        sample: Shape (n, dim).
        lists: How many centres.
        centres: Of the round before, shape (lists, dim); None for the first.

    Raises:
        MissingDependency: faiss is not installed.
    """
    faiss = import_optional("faiss")
    settings = faiss.ClusteringParameters()
    # The vectors have unit length, so their centres should have it too.
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
    """Make an empty index that is ready for vectors.

    Args:
        kind: Which.
        dim: Length of the vectors.
        count: How many vectors it will hold.
        sample: `training_size` of them, shape (n, dim); ignored by kinds without training.
        centres: Of the lists of ``ivf_sq8``, where they are known.

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
    elif kind == "ivf_sq8":
        lists = lists_for(count)
        quantizer = faiss.IndexFlatIP(dim)
        index = faiss.IndexIVFScalarQuantizer(quantizer, dim, lists, faiss.ScalarQuantizer.QT_8bit, metric)
        if centres is None:
            for _ in range(ROUNDS):
                centres = improved_centres(sample, lists, centres)
        # With all its centres in place the quantizer counts as trained; what is left are the ranges of the 8-bit codes.
        quantizer.add(centres)
        index.nprobe = min(_MOST_PROBES, lists)
        # Python would free the quantizer with this function; the index outlives it.
        index.own_fields = True
        quantizer.this.disown()
    else:
        index = faiss.IndexHNSWFlat(dim, _HNSW_LINKS, metric)
        index.hnsw.efConstruction, index.hnsw.efSearch = _HNSW_BUILD, _HNSW_SEARCH
        return index
    index.train(sample)
    return index


def kind_of(index: Any) -> Kind:
    """Which kind a FAISS index is of.

    Raises:
        BadIndex: None of them.
    """
    faiss = import_optional("faiss")
    if isinstance(index, faiss.IndexFlatIP):
        return "flat"
    if isinstance(index, faiss.IndexIVFScalarQuantizer):
        return "ivf_sq8"
    if isinstance(index, faiss.IndexHNSWFlat):
        return "hnsw"
    if isinstance(index, faiss.IndexScalarQuantizer):
        return "fp16" if index.sq.qtype == faiss.ScalarQuantizer.QT_fp16 else "sq8"
    raise BadIndex(f"a FAISS index of type {type(index).__name__} is not known here; build the index again.")


def settings_of(index: Any) -> dict[str, int]:
    """What decides how far an approximate index looks; {} for an exhaustive one."""
    kind = kind_of(index)
    if kind == "ivf_sq8":
        return {"lists": index.nlist, "probes": index.nprobe}
    if kind == "hnsw":
        return {"links": _HNSW_LINKS, "breadth": index.hnsw.efSearch}
    return {}


def look_further(index: Any, effort: int) -> None:
    """Set how many lists (``ivf_sq8``) or graph nodes (``hnsw``) a search visits: slower and more exact.

    Raises:
        BadSetting: The index is exhaustive, or ``effort`` is out of range.
    """
    kind = kind_of(index)
    most = index.nlist if kind == "ivf_sq8" else 10_000
    if kind in EXHAUSTIVE:
        raise BadSetting(f"effort {effort} was given, but a {NAMES[kind]} index is exhaustive already.")
    if not 1 <= effort <= most:
        raise BadSetting(f"effort {effort} is out of range; choose from 1 to {most}.")
    if kind == "ivf_sq8":
        index.nprobe = effort
    else:
        index.hnsw.efSearch = effort


def open_vectors(path: Path) -> Any:
    """Open an index file by mapping it: nothing is read before it is searched, and processes share the pages.

    Raises:
        RuntimeError: FAISS cannot read it.
        MissingDependency: faiss is not installed, or older than 1.11.
    """
    faiss = import_optional("faiss")
    return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)


def check_rows(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the vectors as FAISS takes them: float32, rows one after the other in memory."""
    return np.ascontiguousarray(vectors, np.float32)


class VectorFile:
    """An exhaustive index on disk to which codes are appended, so that its size is not bounded by memory.

    FAISS can only write an index that it holds in memory. Its file is a header (which says twice how many
    vectors follow) and the codes; the header is patched at the end.

    Args:
        index: Empty and trained, of an exhaustive kind.
    """

    def __init__(self, index: Any) -> None:
        faiss = import_optional("faiss")
        self._index = index
        self._header = bytearray(faiss.serialize_index(index).tobytes())
        one = faiss.clone_index(index)
        one.add(np.zeros((1, index.d), np.float32))
        with_one = faiss.serialize_index(one).tobytes()
        # Codes are counted in bytes or in numbers, depending on the kind; adding one vector shows which.
        self._per_vector = int.from_bytes(with_one[len(self._header) - 8 : len(self._header)], "little")
        self.code_size = len(with_one) - len(self._header)

    @property
    def header_size(self) -> int:
        """Bytes before the first code."""
        return len(self._header)

    def size(self, count: int) -> int:
        """Bytes of the file with ``count`` vectors."""
        return self.header_size + count * self.code_size

    def begin(self, stream: BinaryIO) -> None:
        """Write a header that says: no vectors."""
        stream.write(self._header)

    def append(self, stream: BinaryIO, vectors: NDArray[np.float32]) -> None:
        """Write the codes of vectors, shape (n, dim)."""
        stream.write(self._index.sa_encode(check_rows(vectors)).tobytes())

    def finish(self, stream: BinaryIO, count: int) -> None:
        """Patch the header: ``count`` vectors were appended. ``stream`` must be seekable."""
        header = bytearray(self._header)
        header[NTOTAL] = count.to_bytes(8, "little")
        header[-8:] = (count * self._per_vector).to_bytes(8, "little")
        stream.seek(0)
        stream.write(header)
