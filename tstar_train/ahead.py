"""Sampling ahead: the next iteration's episodes are played beside the update, with the weights before it."""

from __future__ import annotations

import io
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tstar_envs import BadData
from tstar_train.distributed import Communicator, dealt, raise_on_any_rank
from tstar_train.types import IterationData

QUEUE = "ahead.pickle"  # sampled units of tasks in a checkpoint, in order, whoever played them

# Begins an iteration in the main thread: hands the weights over, and returns its empty data.
Begin = Callable[[], IterationData]
# Fills the data in a thread of its own.
Fill = Callable[[IterationData], None]


class Ahead:
    """Queue of at most one sampled iteration on one rank.

    Attributes:
        parts: sampled units of all ranks in order, gathered for a checkpoint; on the first rank.
    """

    def __init__(self) -> None:
        self.parts: list[IterationData] = []
        self._data: IterationData | None = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def waiting(self) -> bool:
        """True if data is there, or being sampled."""
        return self._data is not None

    def start(self, begin: Begin, fill: Fill, lag: int) -> None:
        """Begin to sample an iteration; returns at once.

        Args:
            begin: see ``Begin``.
            fill: see ``Fill``.
            lag: number of updates between these weights and those that train on the data.
        """
        data = begin()
        data.lag = lag

        def work() -> None:
            try:
                fill(data)
            except BaseException as error:  # noqa: BLE001  # raised by ``wait`` in the main thread
                self._error = error

        self._data = data
        self._thread = threading.Thread(target=work, daemon=True, name="tstar samples ahead")
        self._thread.start()

    def wait(self) -> None:
        """Wait until nothing is being sampled.

        Raises:
            Exception: any error of the sampling; its data is dropped.
        """
        if self._thread is not None:
            self._thread.join()
        self._thread = None
        if self._error is not None:
            error, self._error, self._data = self._error, None, None
            raise error

    def take(self) -> IterationData:
        """Take the sampled data out of the queue, once it is complete.

        Raises:
            Exception: see ``wait``.
            ValueError: nothing was begun.
        """
        self.wait()
        if self._data is None:
            raise ValueError("nothing was sampled ahead")
        data, self._data = self._data, None
        return data

    def gather(self, world: Communicator) -> None:
        """Fill ``parts`` for ``packed``; all ranks call it.

        Raises:
            Exception: see ``wait``.
        """
        with raise_on_any_rank(world):
            self.wait()
        parts = [] if self._data is None else world.gather(self._data.units)
        self.parts = sorted((unit for part in parts for unit in part), key=lambda unit: unit.first)

    def packed(self) -> bytes:
        """Take the gathered data as the content of a file; empty if there is none."""
        content = pickle.dumps(self.parts) if self.parts else b""
        self.parts = []
        return content

    def load(self, path: Path, world: Communicator) -> None:
        """Read this rank's share, if a checkpoint has any; it takes the place of what was sampled.

        Raises:
            BadData: it is damaged.
        """
        self.wait()
        self._data = None
        if not path.is_file():
            return
        parts = read_queue(path)
        units = dealt(parts, world)
        self._data = IterationData.merge([parts[0].begun_unit(0), *units])
        self._data.units = units


def read_queue(path: Path) -> list[IterationData]:
    """Read the sampled units of all ranks.

    Raises:
        BadData: the file is damaged, or holds something else.
    """
    try:
        parts = _Unpickler(io.BytesIO(path.read_bytes())).load()
    except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError, ValueError) as error:
        raise BadData(f"{path} cannot be read ({error})") from error
    if not isinstance(parts, list) or not parts or not all(isinstance(p, IterationData) for p in parts):
        raise BadData(f"{path} holds no sampled episodes")
    return parts


_PLAIN = {
    *(
        ("builtins", name)
        for name in ("set", "frozenset", "slice", "complex", "range", "bytearray", "object")
    ),
    *(("collections", name) for name in ("OrderedDict", "Counter", "defaultdict", "deque")),
    *(("numpy", name) for name in ("ndarray", "dtype")),
    *(("numpy._core.multiarray", name) for name in ("_reconstruct", "scalar")),
    ("numpy._core.numeric", "_frombuffer"),
}


# Modules of the records that an iteration's data consists of.
_RECORDS = ("tstar_envs.record", "tstar_train.types")
_TREES = "tstar_train.tree."


class _Unpickler(pickle.Unpickler):
    """Reads records of this project and plain data, and calls nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _PLAIN:
            return super().find_class(module, name)
        # A dotted name leads on to what a module imports; classes of other modules may do something when they are made.
        if "." not in name and (module in _RECORDS or module.startswith(_TREES)):
            found = super().find_class(module, name)
            if isinstance(found, type) and found.__module__ == module:
                return found
        raise pickle.UnpicklingError(f"it names {module}.{name}, which no checkpoint does")
