"""The processes of a run as ranks of one data-parallel group: every rank does the same on its own part.

``Alone`` is a run of one process. ``Distributed`` ranks talk through torch.distributed (gloo): processes that a run starts itself
(``launch``) and those of ``torchrun`` alike. Gradients are summed where they are; what else travels is what one rank has to write down.
"""

from __future__ import annotations

import os
import pickle
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from tstar_envs import TStarError
from tstar_train.watch import Watch

T = TypeVar("T")

# First and longest pause between two looks at a call that other ranks have not joined yet.
_POLL_SECONDS = (5e-5, 5e-3)


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

    def elsewhere(self, what: str) -> AbstractContextManager[None]:
        """Let other code make calls over the group within a ``with`` block; where one fails no further call can be made.

        Args:
            what: what the other code does, in words.

        Raises:
            RankFailed: one failed, in the place of a ``RuntimeError``.
        """

    def patience(self, minutes: float) -> None:
        """Wait at most this many minutes for the other ranks from now on."""

    def in_case(self, folder: Path, words: Callable[[], str]) -> None:
        """What this rank is to say if it has to end the run: where the run's files are, what is saved, how to go on."""

    def words(self) -> tuple[Path, str] | None:
        """The folder and the current words that ``in_case`` was given; None before it was called."""

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

    def elsewhere(self, what: str) -> AbstractContextManager[None]:
        """See ``World``."""
        return nullcontext()

    def patience(self, minutes: float) -> None:
        """See ``World``."""

    def in_case(self, folder: Path, words: Callable[[], str]) -> None:
        """See ``World``."""

    def words(self) -> None:
        """See ``World``."""

    def close(self) -> None:
        """See ``World``."""


class Distributed:
    """Ranks that talk through torch.distributed.

    Attributes:
        watch: ends the run where a rank waits too long.
        called: whether the ranks have done anything together yet.

    Args:
        rank: of this process, from 0.
        size: how many there are.
        store: where they find one another.
        minutes: how long one waits for another before the run is given up.
        complaint: what is known of the others when one does not answer (for example that it died), None if they seem alive.
        backend: of torch.distributed; gloo has to serve tensors on the CPU.
        end: what else is to be ended where this process has to end at once.

    Raises:
        RankFailed: they cannot reach one another.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        store: dist.Store,
        minutes: float,
        complaint: Callable[[], str | None] = lambda: None,
        backend: str = "gloo",
        end: Callable[[], None] = lambda: None,
    ) -> None:
        self.rank = rank
        self.size = size
        self.called = False
        self._failure: RankFailed | None = None
        self.watch = Watch(rank, size, dist.PrefixStore("watch", store), 60 * minutes, complaint, end)
        card = os.environ.get("GLOO_SOCKET_IFNAME", "not set")
        try:
            with self.watch.waiting(f"connecting to one another (GLOO_SOCKET_IFNAME is {card})"):
                dist.init_process_group(
                    backend, store=store, rank=rank, world_size=size, timeout=_of_group(minutes)
                )
        except RuntimeError as error:
            message = self.watch.verdict(
                f"rank {rank} of {size} could not connect to the others. Each process listens on a port of its own: the hosts must let "
                f"one another through, by the network card that GLOO_SOCKET_IFNAME names ({card} here). gloo says: {_first_line(error)}"
            )
            self.watch.close()
            raise RankFailed(message) from error

    def patience(self, minutes: float) -> None:
        """See ``World``."""
        dist.distributed_c10d._set_pg_timeout(_of_group(minutes))
        self.watch.patience(60 * minutes)

    def sum(self, values: Tensor) -> Tensor:
        """See ``World``."""
        self._wait("a sum", lambda: dist.all_reduce(values, async_op=True))
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
        self._wait("gathering what each has", lambda: dist.gather(padded, parts, dst=0, async_op=True))
        return [] if parts is None else [_unpacked(part[:n]) for part, n in zip(parts, lengths, strict=True)]

    def first(self, value: T) -> T:
        """See ``World``."""
        mine = _packed(value if self.rank == 0 else None)
        size = torch.tensor([len(mine)])
        self._wait(
            "hearing of the first rank what comes next", lambda: dist.broadcast(size, src=0, async_op=True)
        )
        content = mine if self.rank == 0 else torch.empty(int(size), dtype=torch.uint8)
        self._wait(
            "hearing of the first rank what comes next", lambda: dist.broadcast(content, src=0, async_op=True)
        )
        return value if self.rank == 0 else _unpacked(content)

    def in_case(self, folder: Path, words: Callable[[], str]) -> None:
        """See ``World``."""
        self.watch.folder, self.watch.last_words = folder, words

    def words(self) -> tuple[Path, str] | None:
        """See ``World``."""
        return None if self.watch.folder is None else (self.watch.folder, self.watch.last_words())

    @contextmanager
    def elsewhere(self, what: str) -> Iterator[None]:
        """See ``World``."""
        if self._failure is not None:
            raise self._failure
        try:
            with self.watch.waiting(what):
                yield
        except RuntimeError as error:
            if isinstance(error, TStarError):
                raise
            raise self._failed(
                f"{what}, which all ranks do together, failed: {_first_line(error)}"
            ) from error

    def close(self) -> None:
        """See ``World``."""
        if dist.is_initialized():
            dist.destroy_process_group()
        self.watch.close()

    def _wait(self, what: str, begin: Callable[[], Any]) -> None:
        """Join a call and wait for the others; the wait can be interrupted, and ends where the watch gives up.

        Raises:
            RankFailed: one died, or none of them went on for the time that is waited.
        """
        if self._failure is not None:
            raise self._failure
        self.called = True
        pause, longest = _POLL_SECONDS
        try:
            with self.watch.waiting(what):
                work = begin()
                while not work.is_completed():
                    time.sleep(pause)
                    pause = min(2 * pause, longest)
                    if self.watch.ended:
                        raise self._failed(None)
                work.wait()
        except RuntimeError as error:
            if isinstance(error, TStarError):
                raise
            raise self._failed(
                f"the connection of rank {self.rank} to another one broke in {what}"
            ) from error

    def _failed(self, reason: str | None) -> RankFailed:
        self._failure = RankFailed(self.watch.verdict(reason))
        return self._failure


def _of_group(minutes: float) -> timedelta:
    """A little longer than the watch waits, so that it says in our words what gloo would say in its own."""
    return timedelta(seconds=60 * minutes + 2)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


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
        message = world.gather(_portable(failure))
        shared = world.first(next((error for error in message if error is not None), None))
        raise (
            failure
            if failure is not None and world.rank == 0
            else shared or RankFailed("another process of this run failed")
        )


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
