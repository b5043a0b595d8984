"""Product quantisation: rotation and training of the codes, and exact rows that stay on disk."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retriever.errors import import_optional

# Bytes per vector in memory: one byte for each part of a vector. 64 bytes and an 8-byte id are 1.5 GB at 21 million.
CODE_BYTES = 64
_BITS = 8
CODE_TRAINING = 256 << _BITS  # FAISS trains the codes of a part on at most 256 vectors per centre
_ROUNDS = 10
# Variances below this share of the largest count as equal, so that noise does not decide which part gets which direction.
_LEAST_VARIANCE = 1e-6


def rotation(sample: NDArray[np.float32]) -> NDArray[np.float32]:
    """Compute an isometry after which equal parts of a vector carry equal information.

    Parametric optimised product quantisation (Ge et al., CVPR 2013, section 4): principal directions, each given to the part whose
    product of variances is smallest.

    Args:
        sample: Training vectors, shape (n, dim).

    Returns:
        Shape (width, dim) with orthonormal columns; width is dim rounded up to a multiple of `CODE_BYTES`, and inner products stay.
    """
    dim = sample.shape[1]
    per_part = -(-dim // CODE_BYTES)
    wide = sample.astype(np.float64)
    variance, directions = np.linalg.eigh(wide.T @ wide / len(wide))
    size = np.log(np.maximum(variance, variance[-1] * _LEAST_VARIANCE) / variance[-1] / _LEAST_VARIANCE)
    parts: list[list[int]] = [[] for _ in range(CODE_BYTES)]
    total = np.zeros(CODE_BYTES)
    for direction in range(dim - 1, -1, -1):
        part = min((n for n in range(CODE_BYTES) if len(parts[n]) < per_part), key=lambda n: (total[n], n))
        parts[part].append(direction)
        total[part] += size[direction]
    turned = np.zeros((CODE_BYTES * per_part, dim), np.float32)
    for part, members in enumerate(parts):
        turned[part * per_part : part * per_part + len(members)] = directions[:, members].T
    return turned


def trained_product(
    dim: int, lists: int, sample: NDArray[np.float32], centres: NDArray[np.float32], probes: int
) -> Any:
    """Create an empty, trained ``ivf_pq`` index: a rotation, then inverted lists of product-quantised residuals.

    Args:
        dim: Vector length.
        lists: Number of inverted lists.
        sample: Training vectors, shape (n, dim).
        centres: Centres of the lists, shape (lists, dim).
        probes: Lists visited per search.
    """
    faiss = import_optional("faiss")
    some = sample[:: -(-len(sample) // CODE_TRAINING)]
    # Every part needs as many vectors as it has centres; those of a small corpus are repeated.
    some = np.resize(some, (max(len(some), 1 << _BITS), dim))
    turned = rotation(some)
    width = len(turned)
    quantizer = faiss.IndexFlatIP(width)
    quantizer.add(np.ascontiguousarray(centres @ turned.T))
    lists_of = faiss.IndexIVFPQ(quantizer, width, lists, CODE_BYTES, _BITS, faiss.METRIC_INNER_PRODUCT)
    lists_of.pq.cp.niter, lists_of.pq.cp.min_points_per_centroid = _ROUNDS, 1
    # A search changes this setting of the process, by which FAISS picks its arithmetic; the codes must not depend on it.
    before = faiss.cvar.distance_compute_blas_threshold
    faiss.cvar.distance_compute_blas_threshold = 1
    try:
        # With its centres the quantizer counts as trained; only the codes are left to train.
        lists_of.train(np.ascontiguousarray(some @ turned.T))
    finally:
        faiss.cvar.distance_compute_blas_threshold = before
    lists_of.nprobe = probes
    rotate = faiss.LinearTransform(dim, width, False)
    faiss.copy_array_to_vector(turned.ravel(), rotate.A)
    rotate.is_trained = True
    index = faiss.IndexPreTransform(lists_of)
    index.prepend_transform(rotate)
    # Python would free these at return, but the index still needs them.
    lists_of.own_fields = index.own_fields = True
    for part in (quantizer, lists_of, rotate):
        part.this.disown()
    return index


class RowFile:
    """Exact rows of an ``ivf_pq`` index, 8 bits per number, read from disk where a search asks for them.

    Only the pages of the rows that are read take memory, and the kernel may drop them again.

    Args:
        path: Index file of type ``sq8`` (`retriever.vectors.VectorFile`).
        codec: The same file, opened by `retriever.vectors.open_vectors`.

    Attributes:
        codec: The FAISS index that decodes the rows.
    """

    def __init__(self, path: Path, codec: Any) -> None:
        self.codec = codec
        # Not FAISS's own map: the kernel would read 128 kB around every row.
        with path.open("rb") as stream:
            self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        if hasattr(mmap, "MADV_RANDOM"):
            self._map.madvise(mmap.MADV_RANDOM)
        self._size = codec.code_size
        self._start = len(self._map) - codec.ntotal * self._size
        self._codes = np.frombuffer(self._map, np.uint8, offset=self._start).reshape(-1, self._size)

    def expect(self, positions: NDArray[np.int64]) -> None:
        """Let the kernel read rows in the background, all at once, before `read` waits for each."""
        if not hasattr(mmap, "MADV_WILLNEED"):
            return
        first = self._start + np.unique(positions[positions >= 0]) * self._size
        pages = np.unique(np.concatenate([first, first + self._size - 1]) // mmap.PAGESIZE)
        for page in pages.tolist():
            self._map.madvise(mmap.MADV_WILLNEED, page * mmap.PAGESIZE, 1)

    def read(self, positions: NDArray[np.int64]) -> NDArray[np.float32]:
        """Read rows by position, shape (n, dim)."""
        rows: NDArray[np.float32] = self.codec.sa_decode(np.ascontiguousarray(self._codes[positions]))
        return rows
