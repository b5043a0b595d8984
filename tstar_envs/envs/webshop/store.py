"""Byte strings by number and numbers by byte string, in memory or in files that are mapped and shared by all processes."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tstar_envs.envs.webshop.postings import Array


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
        return Blobs(b"".join(kept), np.concatenate([[0], np.cumsum([len(item) for item in kept])]).astype(np.int64))

    def save(self, folder: Path, name: str) -> None:
        """Write both parts."""
        (folder / f"{name}.bin").write_bytes(self.data)
        np.save(folder / f"{name}.starts.npy", self.starts)

    @staticmethod
    def open(folder: Path, name: str) -> Blobs:
        """Map both parts."""
        starts = np.load(folder / f"{name}.starts.npy", mmap_mode="r")
        with open(folder / f"{name}.bin", "rb") as handle:
            data = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) if int(starts[-1]) else b""
        return Blobs(data, starts)


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
    def open(folder: Path, name: str) -> SortedKeys:
        """Map keys and numbers."""
        return SortedKeys(Blobs.open(folder, name), np.load(folder / f"{name}.values.npy", mmap_mode="r"))
