"""JSON values by text, in files that are mapped and shared by all processes."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tstar_envs.envs.webshop.catalogue.mapped import Blobs, MappedFiles, SortedKeys


class Records(Mapping[str, Any]):
    """JSON values by text, mapped: a dictionary too large to be held in every process."""

    def __init__(self, places: SortedKeys, values: Blobs) -> None:
        self._places, self._values = places, values

    def __getitem__(self, key: str) -> Any:
        number = self._places.find(key.encode("utf-8", "surrogatepass"))
        if number is None:
            raise KeyError(key)
        return json.loads(self._values[number])

    def __len__(self) -> int:
        return len(self._places.keys)

    def __iter__(self) -> Iterator[str]:
        return (self._places.keys[number].decode("utf-8", "surrogatepass") for number in range(len(self)))

    @staticmethod
    def write(folder: Path, items: Iterable[tuple[str, Any]]) -> Records:
        """Write the items, of which only the keys are held meanwhile, and map them; of equal keys the last counts."""
        folder.mkdir(parents=True, exist_ok=True)
        numbers: dict[bytes, int] = {}
        starts = array("q", [0])
        with open(folder / "values.bin", "wb") as handle:
            for key, value in items:
                numbers[key.encode("utf-8", "surrogatepass")] = len(starts) - 1
                starts.append(starts[-1] + handle.write(json.dumps(value).encode()))
        np.save(folder / "values.starts.npy", np.array(starts))
        SortedKeys.collect(numbers).save(folder, "keys")
        files = MappedFiles(folder)
        return Records(SortedKeys.open(files, "keys"), Blobs.open(files, "values"))
