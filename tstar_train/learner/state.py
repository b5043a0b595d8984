"""A learner's state on its way to a checkpoint: copied to main memory, and hashed while it is written."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tstar_train.progress import progress

# Names of safetensors' format (https://huggingface.co/docs/safetensors).
_DTYPES = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float64: "F64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
}
_BLOCK = 1 << 20  # bytes that are hashed and written at a time


class HashedFile(io.FileIO):
    """Binary file that is hashed as it is written, so that nothing is read back.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "wb")
        self._digest = hashlib.sha256()

    def write(self, data: Any) -> int:
        """Append bytes, all of them; ``torch.save`` writes through this too."""
        view = memoryview(data).cast("B")
        at = 0
        while at < len(view):
            done = super().write(view[at : at + _BLOCK])
            self._digest.update(view[at : at + done])
            at += done
            progress.advance()
        return len(view)

    @property
    def sha256(self) -> str:
        """SHA-256 of all bytes so far, in hexadecimal digits."""
        return self._digest.hexdigest()


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write a safetensors file and return its SHA-256.

    Args:
        path: of the file.
        tensors: contiguous tensors on the CPU, by name.
    """
    # The library's own order, which aligns all values: by size of an element, then by name.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name in names:
        tensor = tensors[name]
        size = tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [at, at + size],
        }
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with HashedFile(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            file.write(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
        return file.sha256


def in_main_memory(value: Any, copy: bool) -> Any:
    """Move all tensors within dictionaries and lists to main memory, or copy those too that are there."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=copy).contiguous()
    if isinstance(value, dict):
        return {name: in_main_memory(inner, copy) for name, inner in value.items()}
    return [in_main_memory(inner, copy) for inner in value] if isinstance(value, list) else value


@dataclass
class LearnerState:
    """State of a learner at the end of an iteration.

    Attributes:
        parts: (file name without ending, tensors of the model) of each safetensors file; may be read once.
        optimizer: state of the optimizer.
        gathered: file names without ending whose tensors the ranks sent for this state: nothing changes them, so they are not copied.
    """

    parts: Iterable[tuple[str, dict[str, Tensor]]]
    optimizer: dict[str, Any]
    gathered: Collection[str] = ()

    def in_memory(self) -> LearnerState:
        """Copy everything to main memory, so that training may go on."""
        return LearnerState(
            [(name, in_main_memory(part, name not in self.gathered)) for name, part in self.parts],
            in_main_memory(self.optimizer, "optimizer" not in self.gathered),
            self.gathered,
        )

    def write(self, folder: Path) -> dict[str, str]:
        """Write all files; return the SHA-256 of each by its name.

        Raises:
            OSError, RuntimeError: a file could not be written, for example since the disk is full.
        """
        sums: dict[str, str] = {}
        for name, part in self.parts:
            sums[f"{name}.safetensors"] = write_tensors(
                folder / f"{name}.safetensors", in_main_memory(part, False)
            )
        with HashedFile(folder / "optimizer.pt") as file:
            torch.save(in_main_memory(self.optimizer, False), file)
            sums["optimizer.pt"] = file.sha256
        return sums
