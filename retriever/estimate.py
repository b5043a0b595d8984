"""Cost of an index, estimated before it is built."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from retriever.errors import import_optional
from retriever.product import CODE_BYTES, CODE_TRAINING
from retriever.vectors import EXHAUSTIVE, LISTED, ROUNDS, Kind, lists_for, training_size

# Measured for 10,000 to 200,000 vectors of length 768: .2 to .4 ms a vector at 10,000, .3 to .75 at 30,000, .6 at 200,000. The first
# of these rules is within a factor of two of all of them.
_GRAPH_SECONDS, _GRAPH_GROWTH = 0.3e-3, 0.4
_GRAPH_COUNT, _GRAPH_DIM = 10_000, 768
# Seconds per vector to write a code to its place, and per number to find its product code or to train on it.
_PLACING, _CODING, _CODE_TRAINING = 5e-6, 155e-9, 200e-9
_ID, _LINKS = 8, 272  # bytes per vector: the position in its list; 64 links and more in the upper layers


@dataclass(frozen=True)
class Cost:
    """Estimated cost of an index, without the passages' texts.

    Attributes:
        disk: Bytes on disk.
        memory: Bytes in memory for full speed.
        build_memory: Bytes in memory while it is built.
        seconds: CPU seconds of the build after the passages are encoded; ``hnsw``: within a factor of two.
    """

    disk: float
    memory: float
    build_memory: float
    seconds: float


def bytes_per_vector(kind: Kind, dim: int) -> tuple[int, int]:
    """Compute the bytes per vector in memory and on disk."""
    memory = {
        "flat": 4 * dim,
        "fp16": 2 * dim,
        "sq8": dim,
        "ivf_sq8": dim + _ID,
        "ivf_pq": CODE_BYTES + _ID,
        "hnsw": 4 * dim + _LINKS,
    }[kind]
    return memory, memory + (dim if kind == "ivf_pq" else 0)


def graph_seconds(count: int, dim: int) -> float:
    """Compute the CPU seconds that linking ``count`` vectors takes, within a factor of two."""
    growth: float = (count / _GRAPH_COUNT) ** _GRAPH_GROWTH
    return _GRAPH_SECONDS * count * growth * dim / _GRAPH_DIM


def estimated(kind: Kind, count: int, dim: int) -> Cost:
    """Estimate the cost of an index; how fast this machine compares vectors is measured, for some 30 ms.

    Args:
        kind: Index type.
        count: Number of vectors.
        dim: Vector length.
    """
    memory, disk = (count * size for size in bytes_per_vector(kind, dim))
    if kind in EXHAUSTIVE:
        return Cost(disk, memory, 4 * dim * training_size(kind, count), 0)
    if kind not in LISTED:
        # The graph is rewritten from its links, so these are in memory twice.
        return Cost(disk, memory, memory + count * _LINKS, graph_seconds(count, dim))
    lists, sample = lists_for(count), training_size(kind, count)
    products = 2 * lists * dim * (ROUNDS * sample + count) / _products_per_second(dim)
    coding = dim * (count * _CODING + min(sample, CODE_TRAINING) * _CODE_TRAINING) if kind == "ivf_pq" else 0
    return Cost(disk, memory, 2 * 4 * dim * sample + 4 * count, products + count * _PLACING + coding)


def _products_per_second(dim: int) -> float:
    """Measure how fast FAISS compares vectors with centres, in floating-point operations per second."""
    faiss = import_optional("faiss")
    centres, vectors = np.ones((512, dim), np.float32), np.ones((512, dim), np.float32)
    index = faiss.IndexFlatIP(dim)
    index.add(centres)
    before, done = faiss.omp_get_max_threads(), 0
    faiss.omp_set_num_threads(1)
    try:
        index.search(vectors, 1)  # the first call starts the library
        start = time.process_time()
        while (taken := time.process_time() - start) < _CALIBRATION:
            index.search(vectors, 1)
            done += 2 * vectors.size * len(centres)
    finally:
        faiss.omp_set_num_threads(before)
    return done / taken


_CALIBRATION = 0.02


def plan_line(kind: Kind, count: int, dim: int) -> str:
    """Describe the cost of an index in a sentence."""
    cost = estimated(kind, count, dim)
    said = (
        f"plan: {kind} over {count:,} passages of {dim} numbers: {_size(cost.disk)} on disk without the texts, {_size(cost.memory)} in "
        f"memory to serve, {_size(cost.build_memory)} to build"
    )
    if kind in EXHAUSTIVE:
        return said
    said += f", about {_time(cost.seconds)} of CPU after encoding"
    if kind == "hnsw":
        said += f" (half to twice that; twice the passages take {2 ** (1 + _GRAPH_GROWTH):.1f} times as long)"
    return said


def _size(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
