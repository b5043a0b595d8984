"""The processes of a run as ranks of one data-parallel group: every rank does the same on its own part.

``Alone`` is a run of one process. ``Distributed`` ranks talk through torch.distributed (gloo): processes that a run starts itself
(``launch``) and those of ``torchrun`` alike. Gradients are summed where they are; what else travels is what one rank has to write down.
"""

from __future__ import annotations

import pickle
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from tstar_envs import TStarError

T = TypeVar("T")

_POLL_SECONDS = (5e-5, 5e-3)  # first and longest pause between two looks at a call that other ranks have not joined yet
_ALIVE_SECONDS = 0.5  # between two looks at whether they are alive
_DEATH_SECONDS = 2.0  # a connection breaks a moment before its process is known to have ended


class RankFailed(TStarError, RuntimeError):
    """Another process of the run died, hangs, or raised (the message then holds its traceback)."""


class World(Protocol):
    """What ranks do together. All ranks must make the same calls in the same order."""

    rank: int
    size: int

    def sum(self, values: Tensor) -> Tensor:
        """Add up a tensor over the ranks, in place; every rank gets the same bits."""

    def gather(self, value: T) -> list[T]:
        """What every rank gives, in order of rank, on the first rank; an empty list on the others."""

    def first(self, value: T) -> T:
        """What the first rank gives, on every rank."""

    def broken(self, error: Exception) -> Exception:
        """What to raise where a call that other code makes over the group failed; no call can be made after it."""

    def close(self) -> None:
        """Leave the group."""


class Alone:
    """A run of one process."""

    rank, size = 0, 1

    def sum(self, values: Tensor) -> Tensor:
        """See ``World``."""
        return values

    def gather(self, value: T) -> list[T]:
        """See ``World``."""
        return [value]

    def first(self, value: T) -> T:
        """See ``World``."""
        return value

    def broken(self, error: Exception) -> Exception:
        """See ``World``."""
        return error

    def close(self) -> None:
        """See ``World``."""


class Distributed:
    """Ranks that talk through torch.distributed.

    Args:
        rank: of this process, from 0.
        size: how many there are.
        store: where they find one another.
        minutes: how long one waits for another before the run is given up.
        complaint: what is known of the others when one does not answer (for example that it died), None if they seem alive.
        backend: of torch.distributed; gloo has to serve tensors on the CPU.
    """

    def __init__(
        self, rank: int, size: int, store: dist.Store, minutes: float, complaint: Callable[[], str | None] = lambda: None,
        backend: str = "gloo",
    ) -> None:  # fmt: skip
        self.rank = rank
        self.size = size
        self._complaint = complaint
        self._patience_seconds = 60 * minutes
        self._failure: RankFailed | None = None
        # Twice the patience: who is tired of waiting says so in our words before gloo does in its own.
        patience = timedelta(seconds=2 * self._patience_seconds + 60)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=patience)

    def sum(self, values: Tensor) -> Tensor:
        """See ``World``."""
        self._wait(lambda: dist.all_reduce(values, async_op=True))
        return values

    def gather(self, value: T) -> list[T]:
        """See ``World``."""
        mine = _packed(value)
        sizes = torch.zeros(self.size, dtype=torch.int64)
        sizes[self.rank] = len(mine)
        lengths = [int(n) for n in self.sum(sizes)]
        padded = torch.zeros(max(lengths), dtype=torch.uint8)
        padded[: len(mine)] = mine
        parts = [torch.empty_like(padded) for _ in lengths] if self.rank == 0 else None
        self._wait(lambda: dist.gather(padded, parts, dst=0, async_op=True))
        return [] if parts is None else [_unpacked(part[:n]) for part, n in zip(parts, lengths, strict=True)]

    def first(self, value: T) -> T:
        """See ``World``."""
        mine = _packed(value if self.rank == 0 else None)
        size = torch.tensor([len(mine)])
        self._wait(lambda: dist.broadcast(size, src=0, async_op=True))
        content = mine if self.rank == 0 else torch.empty(int(size), dtype=torch.uint8)
        self._wait(lambda: dist.broadcast(content, src=0, async_op=True))
        return value if self.rank == 0 else _unpacked(content)

    def broken(self, error: Exception) -> Exception:
        """See ``World``."""
        self._failure = RankFailed(self._why() or f"a step that all processes of this run take together failed ({error})")
        return self._failure

    def close(self) -> None:
        """See ``World``."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def _wait(self, begin: Callable[[], Any]) -> None:
        """Join a call and wait for the others; the wait can be interrupted, and ends when one of them is known to be dead.

        Raises:
            RankFailed: one died, or none of them went on for the time that is waited.
        """
        if self._failure is not None:
            raise self._failure
        begun = looked = time.monotonic()
        pause, longest = _POLL_SECONDS
        try:
            work = begin()
            while not work.is_completed():
                time.sleep(pause)
                pause, now = min(2 * pause, longest), time.monotonic()
                if now - looked > _ALIVE_SECONDS:
                    looked = now
                    if (complaint := self._complaint()) is not None:
                        raise RankFailed(complaint)
                if now - begun > self._patience_seconds:
                    raise RankFailed(
                        f"another process of this run has not answered for {self._patience_seconds / 60:g} minutes: it hangs, or was "
                        f"stopped; --helper-minutes sets how long a run waits"
                    )
            work.wait()
        except RuntimeError as error:
            if isinstance(error, TStarError):
                raise
            raise RankFailed(self._why() or f"the connection to another process of this run broke ({error})") from error

    def _why(self) -> str | None:
        """Why a connection broke, which gloo does not know; None if nobody is known to have died."""
        deadline = time.monotonic() + _DEATH_SECONDS
        while (complaint := self._complaint()) is None and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS[1])
        return complaint


def _packed(value: object) -> Tensor:
    return torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)


def _unpacked(content: Tensor) -> Any:
    return pickle.loads(content.numpy().tobytes())


@contextmanager
def together(world: World) -> Iterator[None]:
    """What fails on one rank within the block fails on all, so that none waits for the others in vain.

    Raises:
        TStarError: of the first rank that failed, as it is. The first rank's own error comes first, of whatever kind it is.
        RankFailed: another rank failed by an error that is not the suite's own; the message holds its traceback.
    """
    failure: Exception | None = None
    try:
        yield
    except Exception as error:  # noqa: BLE001  # handed over whole: all ranks raise it
        failure = error
    if agreed(world, failure is not None):
        told = world.gather(_portable(failure))
        shared = world.first(next((error for error in told if error is not None), None))
        raise failure if failure is not None and world.rank == 0 else shared or RankFailed("another process of this run failed")


def agreed(world: World, flag: bool) -> bool:
    """Whether any rank says so."""
    return bool(world.sum(torch.tensor([int(flag)])).item())


def dealt(items: Sequence[T], world: World) -> list[T]:
    """The part of this rank: contiguous, and of nearly equal size on all ranks."""
    bounds = [len(items) * i // world.size for i in range(world.size + 1)]
    first, last = list(pairwise(bounds))[world.rank]
    return list(items[first:last])


def _portable(error: Exception | None) -> Exception | None:
    """The suite's own errors travel as they are, so that their message reaches the user."""
    if error is None or isinstance(error, TStarError):
        return error
    return RankFailed(f"a process of this run failed:\n{''.join(traceback.format_exception(error))}")
