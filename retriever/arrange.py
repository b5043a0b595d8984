"""The lists and the graph of an approximate index, filled chunk by chunk so that a killed build goes on at the last chunk.

FAISS writes such an index whole and only from memory. Here the lists of ``ivf_sq8`` are counted first, so that every
code has its place in the file before it is known, and of the graph of ``hnsw`` each chunk writes down which links it
has changed.
"""

import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retriever.errors import BadSetting, import_optional
from retriever.resume import Marks, Report, reserve, to_disk, turns
from retriever.vectors import NTOTAL, ROUNDS, improved_centres, lists_for, trained, training_size

_CHANGE = np.dtype([("place", "<u8"), ("link", "<i4")])
# How an IVF index without vectors ends: "ilar", the number of lists and the bytes of a code (8 each), "sprs", no sizes (8).
_EMPTY_LISTS = 32


def fill_lists(staged: Any, out: Path, chunk: int, marks: Marks, report: Report) -> None:
    """Write an ``ivf_sq8`` index; in memory are its centres, and 4 bytes a vector.

    The bytes are those that FAISS would write.

    Args:
        staged: FAISS index of the vectors, in the order of the documents.
        out: The file.
        chunk: Vectors between two marks.
        marks: ``trained`` (rounds of k-means), ``listed`` (vectors whose list is known), ``lists_placed``.
        report: Called after every chunk.
    """
    faiss = import_optional("faiss")
    count = staged.ntotal
    index = _trained_lists(staged, marks, report)
    with marks.growing("lists", 4 * marks["listed"]) as stream:
        while (start := marks["listed"]) < count:
            vectors = staged.reconstruct_n(start, min(chunk, count - start))
            stream.write(index.quantizer.assign(vectors, 1).astype("<i4").tobytes())
            to_disk(stream)
            marks.set(listed=start + len(vectors))
            report("assigning", marks["listed"], count)
    lists = np.fromfile(marks.work / "lists", "<i4")
    place, header, size = _places(index, np.bincount(lists, minlength=index.nlist))
    done = marks.placed("lists_placed")
    taken = np.bincount(lists[:done], minlength=index.nlist)
    if not done:
        out.write_bytes(header)
        reserve(out, size)
    with out.open("r+b") as stream:
        with mmap.mmap(stream.fileno(), size) as file:
            while done < count:
                mine = lists[done : done + chunk].astype(np.int64)
                codes = np.empty((len(mine), index.code_size), np.uint8)
                vectors = staged.reconstruct_n(done, len(mine))
                index.encode_vectors(
                    len(mine), faiss.swig_ptr(vectors), faiss.swig_ptr(mine), faiss.swig_ptr(codes), False
                )
                for number, (at, named) in enumerate(place(mine, taken[mine] + turns(mine))):
                    file[at : at + index.code_size] = codes[number].tobytes()
                    file[named : named + 8] = (done + number).to_bytes(8, "little")
                np.add.at(taken, mine, 1)
                done += len(mine)
                marks.place("lists_placed", done)
                report("placing", done, count)
            file.flush()
        os.fsync(stream.fileno())


def _trained_lists(staged: Any, marks: Marks, report: Report) -> Any:
    """The empty index with its lists' centres, found once: a mark after every round of k-means."""
    faiss = import_optional("faiss")
    path, count = marks.work / "lists.trained", staged.ntotal
    if path.is_file():
        return faiss.read_index(str(path))
    wanted = training_size("ivf_sq8", count)
    sample = staged.reconstruct_batch(np.arange(wanted) * count // wanted)
    report("training", marks["trained"], ROUNDS)
    while (done := marks["trained"]) < ROUNDS:
        centres = np.load(marks.work / f"centres{done}.npy") if done else None
        with (marks.work / f"centres{done + 1}.npy").open("wb") as stream:
            np.save(stream, improved_centres(sample, lists_for(count), centres))
            to_disk(stream)
        marks.set(trained=done + 1)
        report("training", done + 1, ROUNDS)
    index = trained("ivf_sq8", staged.d, count, sample, np.load(marks.work / f"centres{ROUNDS}.npy"))
    write_index(index, path)
    return index


Places = Callable[[NDArray[np.int64], NDArray[np.int64]], list[list[int]]]


def _places(index: Any, sizes: NDArray[np.int64]) -> tuple[Places, bytes, int]:
    """Where codes go: a function from lists and ranks in them to byte offsets of code and id, what stands before, the file's size."""
    faiss = import_optional("faiss")
    empty = bytearray(faiss.serialize_index(index).tobytes())
    before, lists = empty[:-_EMPTY_LISTS], empty[-_EMPTY_LISTS:]
    expected = (
        b"ilar"
        + index.nlist.to_bytes(8, "little")
        + index.code_size.to_bytes(8, "little")
        + b"sprs"
        + bytes(8)
    )
    if lists != expected:
        raise BadSetting(
            f"faiss {faiss.__version__} writes inverted lists in a form that is not known here; pip install faiss-cpu==1.15.1"
        )
    before[NTOTAL] = int(sizes.sum()).to_bytes(8, "little")
    if np.count_nonzero(sizes) > index.nlist // 2:
        table = b"full" + index.nlist.to_bytes(8, "little") + sizes.astype("<u8").tobytes()
    else:
        some = np.flatnonzero(sizes)
        table = (
            b"sprs"
            + (2 * len(some)).to_bytes(8, "little")
            + np.stack([some, sizes[some]], axis=1).astype("<u8").tobytes()
        )
    header = bytes(before) + expected[:-12] + table
    # List by list: the codes one after the other, then the ids.
    ends = len(header) + np.cumsum(sizes * (index.code_size + 8))
    starts = ends - sizes * (index.code_size + 8)

    def place(mine: NDArray[np.int64], ranks: NDArray[np.int64]) -> list[list[int]]:
        code = starts[mine] + ranks * index.code_size
        named = starts[mine] + sizes[mine] * index.code_size + 8 * ranks
        found: list[list[int]] = np.stack([code, named], axis=1).tolist()
        return found

    return place, header, int(ends[-1])


def fill_graph(staged: Any, out: Path, chunk: int, marks: Marks, report: Report) -> None:
    """Write an ``hnsw`` index; it is in memory meanwhile, its links twice.

    Args:
        staged: Flat FAISS index of the vectors, in the order of the documents.
        out: The file.
        chunk: Vectors between two marks.
        marks: ``linked`` (vectors), ``links`` (numbers in their rows), ``changes`` (to rows of earlier chunks), ``entry``, ``top``.
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
    """Bring an empty graph to where the marks are, and return its links."""
    faiss = import_optional("faiss")
    done = marks["linked"]
    if not done:
        return np.empty(0, np.int32)
    for start in range(0, done, chunk):
        index.storage.add(staged.reconstruct_n(start, min(chunk, done - start)))
    levels = np.fromfile(marks.work / "levels", "<i4", done)
    links = np.fromfile(marks.work / "links", "<i4", marks["links"])
    changes = np.fromfile(marks.work / "changes", _CHANGE, marks["changes"])
    # Of several changes to a place the last one counts, which is what NumPy's assignment does.
    links[changes["place"]] = changes["link"]
    graph = index.hnsw
    # A row has places for the links of all levels of its vector; this is how many those are.
    widths = np.array([graph.cum_nb_neighbors(level) for level in range(int(levels.max()) + 1)])
    faiss.copy_array_to_vector(levels, graph.levels)
    faiss.copy_array_to_vector(
        np.concatenate([[0], np.cumsum(widths[levels])]).astype(np.uint64), graph.offsets
    )
    graph.neighbors.resize(len(links))
    _links(index)[:] = links
    graph.entry_point, graph.max_level = marks["entry"], marks["top"]
    index.ntotal = done
    # The levels of what follows are drawn as if nothing had happened.
    for _ in range(done):
        graph.random_level()
    return links


def _links(index: Any) -> NDArray[np.int32]:
    """A view of the graph's links, rows one after the other; gone with the next vector that is added."""
    faiss = import_optional("faiss")
    links: NDArray[np.int32] = faiss.rev_swig_ptr(index.hnsw.neighbors.data(), index.hnsw.neighbors.size())
    return links


def _levels(index: Any) -> NDArray[np.int32]:
    levels: NDArray[np.int32] = import_optional("faiss").vector_to_array(index.hnsw.levels)
    return levels


def write_index(index: Any, path: Path) -> None:
    """Write a FAISS index, whole or not at all.

    Raises:
        OSError: The disk refused.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        import_optional("faiss").write_index(index, str(temporary))
    # FAISS raises a RuntimeError for a failed write, and for nothing else.
    except RuntimeError as error:
        raise OSError(str(error).strip()) from error
    with temporary.open("r+b") as stream:
        os.fsync(stream.fileno())
    temporary.replace(path)
