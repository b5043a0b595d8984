"""Byte strings by number and numbers by byte string, in memory or in files that are mapped and shared by all processes."""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tstar_envs.envs.webshop.catalogue.postings import Array

MAPPED_BYTES = 128_000_000  # of files that a process keeps mapped in at most, roughly


class MappedFiles:
    """Files of a folder, mapped for reading.

    What was read stays mapped into the process, and its share of the memory grows towards the size of the files, although the
    system could take it back at any time. ``note`` gives it back now and then.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._maps: list[mmap.mmap] = []
        self._read = 0

    def bytes(self, name: str) -> bytes | mmap.mmap:
        """Map a file as it is."""
        with open(self._folder / name, "rb") as handle:
            if not os.fstat(handle.fileno()).st_size:  # cannot be mapped
                return b""
            self._maps.append(mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ))
        return self._maps[-1]

    def array(self, name: str) -> Array:
        """Map an array; it is a plain one, whose parts are taken faster than numpy's mapped kind."""
        mapped = np.load(self._folder / f"{name}.npy", mmap_mode="r")
        if isinstance(mapped.base, mmap.mmap):
            self._maps.append(mapped.base)
        plain: Array = mapped.view(np.ndarray)
        return plain

    def note(self, size: int) -> None:
        """Note that about so many bytes were read; after many, nothing stays mapped in. Reading it again costs little."""
        self._read += size
        if self._read > MAPPED_BYTES and sys.platform == "linux" and sum(map(len, self._maps)) > MAPPED_BYTES:
            self._read = 0
            for mapped in self._maps:
                mapped.madvise(mmap.MADV_DONTNEED)


@dataclass(frozen=True)
class Blobs:
    """Byte strings end to end; ``starts[i]:starts[i + 1]`` is where number i is."""

    data: bytes | mmap.mmap
    starts: Array

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, number: int) -> bytes:
        return self.data[int(self.starts[number]) : int(self.starts[number + 1])]

    @staticmethod
    def collect(items: Iterable[bytes]) -> Blobs:
        """Keep the items in memory."""
        kept = list(items)
        return Blobs(
            b"".join(kept), np.concatenate([[0], np.cumsum([len(item) for item in kept])]).astype(np.int64)
        )

    def save(self, folder: Path, name: str) -> None:
        """Write both parts."""
        (folder / f"{name}.bin").write_bytes(self.data)
        np.save(folder / f"{name}.starts.npy", self.starts)

    @staticmethod
    def open(files: MappedFiles, name: str) -> Blobs:
        """Map both parts."""
        return Blobs(files.bytes(f"{name}.bin"), files.array(f"{name}.starts"))


@dataclass(frozen=True)
class SortedKeys:
    """A dictionary from byte strings to numbers that needs no memory of its own: sorted keys, looked up by halving."""

    keys: Blobs
    values: Array

    def find(self, key: bytes) -> int | None:
        """The number of a key, None if it is not there."""
        low, high = 0, len(self.keys)
        while low < high:
            middle = (low + high) // 2
            if self.keys[middle] < key:
                low = middle + 1
            else:
                high = middle
        return int(self.values[low]) if low < len(self.keys) and self.keys[low] == key else None

    def places(self) -> Array:
        """The place of each number's key in the order of the keys; the numbers must be 0, 1, 2, ... in any order."""
        places = np.empty(len(self.values), np.uint32)
        places[self.values] = np.arange(len(self.values), dtype=np.uint32)
        return places

    @staticmethod
    def collect(numbers: Mapping[bytes, int]) -> SortedKeys:
        """Keep a dictionary in memory."""
        keys = sorted(numbers)
        return SortedKeys(Blobs.collect(keys), np.array([numbers[key] for key in keys], np.int64))

    def save(self, folder: Path, name: str) -> None:
        """Write keys and numbers."""
        self.keys.save(folder, name)
        np.save(folder / f"{name}.values.npy", self.values)

    @staticmethod
    def open(files: MappedFiles, name: str) -> SortedKeys:
        """Map keys and numbers."""
        return SortedKeys(Blobs.open(files, name), files.array(f"{name}.values"))
