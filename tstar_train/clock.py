"""What the phases of an iteration took: seconds, and on a GPU the most memory that tensors had."""

from __future__ import annotations

from collections.abc import Callable

import torch

_GIB = 1 << 30


class Clock:
    """Measures one phase after another, from its making on.

    A GPU computes behind the program's back, so a phase ends when the device is done, too.

    Args:
        now: what seconds are read from.
        device: where the model is.

    Attributes:
        seconds: by phase.
        memory: on a GPU, by phase, the most GiB that PyTorch's tensors took at once (``torch.cuda.max_memory_allocated``); what the
            allocator keeps in reserve and CUDA's own part (about .5 GiB) come on top. Empty on other devices.
    """

    def __init__(self, now: Callable[[], float], device: torch.device) -> None:
        self.seconds: dict[str, float] = {}
        self.memory: dict[str, float] = {}
        self._now = now
        self._device = device if device.type == "cuda" else None
        if self._device is not None:
            torch.cuda.reset_peak_memory_stats(self._device)
        self._last = now()

    def phase(self, name: str) -> None:
        """What was done since the last call was this phase."""
        if self._device is not None:
            torch.cuda.synchronize(self._device)
            self.memory[name] = torch.cuda.max_memory_allocated(self._device) / _GIB
            torch.cuda.reset_peak_memory_stats(self._device)
        now = self._now()
        self.seconds[name] = now - self._last
        self._last = now
