"""Communicators: one process, or a process group of our own or of ``torchrun``."""

from __future__ import annotations

import atexit
import fcntl
import os
import pickle
import shutil
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import Tensor

from tstar_envs import TStarError
from tstar_envs.redaction import keep_environment_secrets, redacted
from tstar_train.stopping import unheard_by_children
from tstar_train.watchdog import Watchdog

T = TypeVar("T")

# The watchdog ends waits, not gloo: it knows whether another rank makes progress.
_NO_END = timedelta(days=365)
_END_SECONDS = 5.0  # for connections to close after a rank was lost
# Number of entries of large tensors that the ranks exchange at a time: 256 MiB in float32.
BUCKET = 1 << 26
# First and longest pause between two looks at a call that other ranks have not joined yet.
_POLL_SECONDS = (5e-5, 5e-3)


class RankFailed(TStarError, RuntimeError):
    """Another process of the run died, hangs, or raised (the message then holds its traceback)."""


class Communicator(Protocol):
    """Communicator between ranks. All ranks must make the same calls in the same order."""

    rank: int
    size: int

    def all_reduce(self, values: Tensor) -> Tensor:
        """Add up a tensor over the ranks, in place; every rank gets the same bits."""

    def sum_of_shards(self, values: Tensor) -> Tensor:
        """Add up a tensor over the ranks and return this rank's row of the sum.

        Args:
            values: one row per rank, shape (ranks, n).
        """

    def gather(self, value: T) -> list[T]:
        """Gather every rank's value on the first rank, in order of rank; an empty list on the others."""

    def broadcast(self, value: T) -> T:
        """Broadcast the first rank's value to every rank."""

    def exchange(self, parts: Sequence[T]) -> list[T]:
        """Send every rank its part, and receive this rank's part of each, in order of rank.

        Args:
            parts: one for each rank; this rank's own is handed back as it is.
        """

    def hand_out(self, count: int, fixed: bool = False) -> Generator[int, None, None]:
        """Hand the numbers below ``count`` out, each to one rank, as ranks get free.

        All ranks call it, and none waits for another. A rank begins with its own number. Closing the generator early, as an error does,
        leaves nothing for the others to take.

        Args:
            count: how many there are.
            fixed: True for the same numbers on the same rank every time, with a stride of ``size``.

        Raises:
            RankFailed: the store that counts cannot be reached.
        """

    def external_collectives(self, what: str) -> AbstractContextManager[None]:
        """Let other code make collective calls within a ``with`` block; after a failure no further call can be made.

        Args:
            what: description of the other code, for messages.

        Raises:
            RankFailed: a call failed (instead of a ``RuntimeError``).
        """

    def second(self) -> Communicator:
        """Make another communicator between the same ranks, for a thread of its own; all ranks call it."""

    def set_timeout(self, minutes: float) -> None:
        """Wait at most this many minutes for other ranks that make no progress from now on."""

    def set_failure_message(self, folder: Path, message: Callable[[], str]) -> None:
        """Set what this rank prints if it must end the run: the folder, what is saved, how to resume."""

    def failure_message(self) -> tuple[Path, str] | None:
        """Return the folder and current text of ``set_failure_message``; None before it was called."""

    def close(self) -> None:
        """Leave the group."""


class SingleProcess:
    """A run of one process."""

    rank, size = 0, 1

    def all_reduce(self, values: Tensor) -> Tensor:
        """See ``Communicator``."""
        return values

    def sum_of_shards(self, values: Tensor) -> Tensor:
        """See ``Communicator``."""
        return values[0].clone()

    def gather(self, value: T) -> list[T]:
        """See ``Communicator``."""
        return [value]

    def broadcast(self, value: T) -> T:
        """See ``Communicator``."""
        return value

    def exchange(self, parts: Sequence[T]) -> list[T]:
        """See ``Communicator``."""
        return list(parts)

    def hand_out(self, count: int, fixed: bool = False) -> Generator[int, None, None]:
        """See ``Communicator``."""
        yield from range(count)

    def external_collectives(self, what: str) -> AbstractContextManager[None]:
        """See ``Communicator``."""
        return nullcontext()

    def second(self) -> Communicator:
        """See ``Communicator``."""
        return self

    def set_timeout(self, minutes: float) -> None:
        """See ``Communicator``."""

    def set_failure_message(self, folder: Path, message: Callable[[], str]) -> None:
        """See ``Communicator``."""

    def failure_message(self) -> None:
        """See ``Communicator``."""

    def close(self) -> None:
        """See ``Communicator``."""


class ProcessGroup:
    """Ranks that talk through torch.distributed.

    Attributes:
        watch: watchdog; ends the run if a rank waits too long.
        called: True once the ranks have made a collective call.

    Args:
        rank: of this process, from 0.
        size: how many there are.
        store: key-value store for the rendezvous.
        minutes: timeout of a wait for other ranks that make no progress.
        complaint: describes a dead rank when one does not answer; None if all seem alive.
        backend: of torch.distributed; gloo is required for CPU tensors.
        end: called when this process must exit at once, to end what it started.

    Raises:
        RankFailed: the ranks cannot reach one another.
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
        self._nccl = "nccl" in backend
        self._group: dist.ProcessGroup | None = None  # None: that of all ranks
        self._counters: dist.Store = dist.PrefixStore("handed out", store)
        self._handings = 0
        self.watch = Watchdog(rank, size, dist.PrefixStore("watch", store), 60 * minutes, complaint, end)
        card = os.environ.get("GLOO_SOCKET_IFNAME", "not set")
        try:
            with self.watch.waiting(f"connecting to one another (GLOO_SOCKET_IFNAME is {card})"):
                dist.init_process_group(
                    backend, store=store, rank=rank, world_size=size, timeout=_of_group(minutes)
                )
            dist.distributed_c10d._set_pg_timeout(_NO_END)
        except RuntimeError as error:
            message = self.watch.verdict(
                f"rank {rank} of {size} could not connect to the others. Each process listens on a port of its own: the hosts must let "
                f"one another through, by the network card that GLOO_SOCKET_IFNAME names ({card} here). gloo says: {_first_line(error)}"
            )
            self.watch.close()
            raise RankFailed(message) from error

    def second(self) -> Communicator:
        """See ``Communicator``."""
        return _SecondGroup(self)

    def second_counters(self) -> dist.Store:
        """Make the counters of the second communicator."""
        return dist.PrefixStore("second", self._counters.clone())  # type: ignore[attr-defined]

    def set_timeout(self, minutes: float) -> None:
        """See ``Communicator``."""
        self.watch.set_timeout(60 * minutes)

    def all_reduce(self, values: Tensor) -> Tensor:
        """See ``Communicator``."""
        self._wait("a sum", lambda: dist.all_reduce(values, group=self._group, async_op=True))
        return values

    def sum_of_shards(self, values: Tensor) -> Tensor:
        """See ``Communicator``."""
        mine = torch.empty_like(values[0])
        for at in range(0, values.shape[1], BUCKET):
            for rank in range(self.size):  # gloo's own scattered sum cannot be interrupted
                part = values[rank, at : at + BUCKET].clone()
                if values.is_cuda and not self._nccl:  # gloo sums a GPU's tensors only for all ranks
                    self.all_reduce(part)
                else:
                    self._wait("a sum", partial(self._reduce, part, rank))
                if rank == self.rank:
                    mine[at : at + BUCKET] = part
        return mine

    def _reduce(self, part: Tensor, rank: int) -> Any:
        return dist.reduce(part, dst=rank, group=self._group, async_op=True)

    def gather(self, value: T) -> list[T]:
        """See ``Communicator``."""
        nothing = torch.empty(0, dtype=torch.uint8)
        parts = [_packed(value) if self.rank and not rank else nothing for rank in range(self.size)]
        found = self._sent(parts, "gathering what each has")
        return [] if self.rank else [_unpacked(part) if rank else value for rank, part in enumerate(found)]

    def exchange(self, parts: Sequence[T]) -> list[T]:
        """See ``Communicator``."""
        nothing = torch.empty(0, dtype=torch.uint8)
        packed = [nothing if rank == self.rank else _packed(part) for rank, part in enumerate(parts)]
        found = self._sent(packed, "sending one another what moves")
        return [parts[rank] if rank == self.rank else _unpacked(part) for rank, part in enumerate(found)]

    def hand_out(self, count: int, fixed: bool = False) -> Generator[int, None, None]:
        """See ``Communicator``."""
        # Ranks begin equally often, so the same handing out has the same key everywhere.
        self._handings += 1
        return self._handed(count, f"{self._handings}", fixed)

    def _handed(self, count: int, key: str, fixed: bool) -> Generator[int, None, None]:
        if fixed:
            yield from range(self.rank, count, self.size)
            return
        try:
            number = self.rank
            while number < count:
                yield number
                number = self.size + self._counted(key, 1) - 1
        except GeneratorExit:
            self._counted(key, count)
            raise

    def _counted(self, key: str, more: int) -> int:
        try:
            # The host of the store may have gone, and the call would wait for it without end.
            with self._watched("the handing out of tasks", together=False):
                return int(self._counters.add(key, more))
        except RuntimeError as error:
            raise self._failed(
                f"rank {self.rank} could not reach the store that hands tasks out ({_first_line(error)})"
            ) from error

    def _sent(self, parts: Sequence[Tensor], what: str) -> list[Tensor]:
        """Send bytes to every rank; return those of each rank for this one."""
        sizes = torch.zeros(self.size, self.size, dtype=torch.int64)
        sizes[self.rank] = torch.tensor([len(part) for part in parts])
        self.all_reduce(sizes)
        given, due = sizes[self.rank].tolist(), sizes[:, self.rank].tolist()
        content, found = torch.cat(list(parts)), torch.empty(sum(due), dtype=torch.uint8)
        self._wait(
            what,
            lambda: dist.all_to_all_single(found, content, due, given, group=self._group, async_op=True),
        )
        return list(found.split(due))

    def broadcast(self, value: T) -> T:
        """See ``Communicator``."""
        mine = _packed(value if self.rank == 0 else None)
        size = torch.tensor([len(mine)])
        self._wait(
            "hearing of the first rank what comes next",
            lambda: dist.broadcast(size, src=0, group=self._group, async_op=True),
        )
        content = mine if self.rank == 0 else torch.empty(int(size), dtype=torch.uint8)
        self._wait(
            "hearing of the first rank what comes next",
            lambda: dist.broadcast(content, src=0, group=self._group, async_op=True),
        )
        return value if self.rank == 0 else _unpacked(content)

    def set_failure_message(self, folder: Path, message: Callable[[], str]) -> None:
        """See ``Communicator``."""
        self.watch.folder, self.watch.last_words = folder, message

    def failure_message(self) -> tuple[Path, str] | None:
        """See ``Communicator``."""
        return None if self.watch.folder is None else (self.watch.folder, self.watch.last_words())

    @contextmanager
    def external_collectives(self, what: str) -> Iterator[None]:
        """See ``Communicator``."""
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
        """See ``Communicator``."""
        if dist.is_initialized():
            # It waits for a call that a lost rank never answers; then the thread is left to the end of the process.
            ending = threading.Thread(target=dist.destroy_process_group, daemon=True, name="tstar group ends")
            ending.start()
            ending.join(None if self._failure is None else _END_SECONDS)
        self.watch.close()

    def _wait(self, what: str, begin: Callable[[], Any]) -> None:
        """Join a collective call and wait for the others; interruptible, and ends when the watchdog gives up.

        Raises:
            RankFailed: a rank died, or the timeout is over.
        """
        if self._failure is not None:
            raise self._failure
        self.called = True
        pause, longest = _POLL_SECONDS
        try:
            with self._watched(what):
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

    def _watched(self, what: str, together: bool = True) -> AbstractContextManager[None]:
        return self.watch.waiting(what, together)

    def _failed(self, reason: str | None) -> RankFailed:
        self._failure = RankFailed(self.watch.verdict(reason))
        return self._failure


class _SecondGroup(ProcessGroup):
    """The same ranks, for a thread beside the main one.

    The watchdog watches the main thread, which comes to wait for this one.
    """

    def __init__(self, first: ProcessGroup) -> None:
        self.rank, self.size, self.called = first.rank, first.size, False
        self.watch = first.watch
        self._failure = None
        self._nccl = False
        # A connection of its own: another thread would wait while this one asks.
        self._counters, self._handings = first.second_counters(), 0
        self._group = dist.new_group(backend="gloo", timeout=_NO_END)

    def _watched(self, what: str, together: bool = True) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None:
        """See ``Communicator``: it ends with the first."""


def _of_group(minutes: float) -> timedelta:
    """Compute gloo's timeout for connecting: a little above the watchdog's, so that the watchdog reports first."""
    return timedelta(seconds=60 * minutes + 2)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _packed(value: object) -> Tensor:
    return torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)


def _unpacked(content: Tensor) -> Any:
    return pickle.loads(content.numpy().tobytes())


_ON_ALL_RANKS = "_on_all_ranks"  # attribute of an error that every rank raises


@contextmanager
def raise_on_any_rank(world: Communicator) -> Iterator[None]:
    """Raise an error of one rank's block on all ranks, so that none waits in vain.

    Blocks may be nested: what an inner one has raised on all ranks passes the outer one.

    Raises:
        TStarError: error of the lowest failing rank, unchanged. Rank 0's own error of any type takes precedence.
        RankFailed: another rank raised a foreign error; the message holds its traceback.
    """
    failure: Exception | None = None
    try:
        yield
    except Exception as error:  # handed over whole: all ranks raise it
        if getattr(error, _ON_ALL_RANKS, False):
            raise
        failure = error
    if agreed(world, failure is not None):
        message = world.gather(portable(failure))
        shared = world.broadcast(next((error for error in message if error is not None), None))
        raised = failure if failure is not None and world.rank == 0 else shared
        raised = raised or RankFailed("another process of this run failed")
        setattr(raised, _ON_ALL_RANKS, True)
        raise raised


def agreed(world: Communicator, flag: bool) -> bool:
    """Check whether the flag is true on any rank."""
    return bool(world.all_reduce(torch.tensor([int(flag)])).item())


def dealt(items: Sequence[T], world: Communicator) -> list[T]:
    """Return this rank's contiguous share of the items; shares have nearly equal sizes."""
    bounds = [len(items) * i // world.size for i in range(world.size + 1)]
    first, last = list(pairwise(bounds))[world.rank]
    return list(items[first:last])


def portable(error: Exception | None) -> Exception | None:
    """Make an error picklable; the suite's own errors stay as they are, so that users see their message."""
    if error is None or isinstance(error, TStarError):
        return error
    return RankFailed(f"a process of this run failed:\n{''.join(traceback.format_exception(error))}")


_END_SECONDS = 10.0  # for a process to end by itself, its work done
_FAILED_SECONDS = 1.0  # the same where the run has failed, so that it may wait for what never comes
_START_POLL_SECONDS = 0.05
_SIOCGIFADDR = 0x8915  # Linux

# What a rank other than the first does, given its world; it must be importable by name, since the processes are spawned.
Work = Callable[[Communicator], None]


class Helpers:
    """Worker processes of ranks 1 and up on this machine."""

    def __init__(self) -> None:
        self.processes: list[Any] = []

    def complaint(self) -> str | None:
        """Describe the worker that died early; None if all run."""
        ended = [p for p in self.processes if p.exitcode is not None]
        # One that was killed comes first: the others may have ended because of it.
        return _death(min(ended, key=lambda p: p.exitcode)) if ended else None

    def dump(self, ranks: Iterable[int]) -> None:
        """Make workers whose watchdog did not answer dump their stacks to stderr and exit."""
        for rank in ranks:
            if (process := self.processes[rank - 1]).is_alive():
                os.kill(process.pid, signal.SIGABRT)  # faulthandler writes them (``Heartbeat``)

    def kill(self) -> None:
        """End them at once."""
        for process in self.processes:
            process.kill()

    def close(self, seconds: float = _END_SECONDS) -> None:
        """Wait for the workers to end, and kill those that take longer than ``seconds`` each."""
        for process in self.processes:
            process.join(timeout=seconds)
            if process.is_alive():  # stopped, or within a long call
                process.kill()
                process.join()
        self.processes = []


@contextmanager
def launched(size: int, work: Work, minutes: float) -> Iterator[Communicator]:
    """Start worker processes as the other ranks for a ``with`` block; yield the first rank's communicator.

    They end with the block: by themselves once ``work`` has returned, else because the group is gone.

    Args:
        size: ranks, this process included; 1 starts nothing.
        work: main function of the other ranks.
        minutes: timeout of a wait for other ranks that make no progress.

    Raises:
        RankFailed: one died before it was ready.
    """
    if size == 1:
        yield SingleProcess()
        return
    helpers = Helpers()
    # A folder that only this user can open, where a port could be reached by everybody.
    meeting = Path(tempfile.mkdtemp(prefix="tstar-"))
    atexit.register(helpers.close)  # before multiprocessing waits for its children, who ignore its SIGTERM
    world: ProcessGroup | None = None
    try:
        # spawn: a forked child would inherit torch's and faiss's thread pools in an unknown state.
        context = multiprocessing.get_context("spawn")
        with unheard_by_children():
            for rank in range(1, size):
                process = context.Process(
                    target=_helper, args=(work, rank, size, str(meeting / "store"), minutes), daemon=True
                )
                process.start()
                helpers.processes.append(process)
        store = dist.FileStore(str(meeting / "store"), size)
        deadline = time.monotonic() + 60 * minutes
        while not all(store.check([f"ready {rank}"]) for rank in range(1, size)):
            if (complaint := helpers.complaint()) is not None:
                raise RankFailed(complaint)
            if time.monotonic() > deadline:
                late = [
                    f"rank {n} (process {p.pid})"
                    for n, p in enumerate(helpers.processes, 1)
                    if not store.check([f"ready {n}"])
                ]
                raise RankFailed(
                    f"{', '.join(late)}: not ready within {minutes:g} minutes (--timeout-minutes), so it hangs or was stopped"
                )
            time.sleep(_START_POLL_SECONDS)
        _stay_on_this_machine()
        world = ProcessGroup(0, size, store, minutes, helpers.complaint, end=helpers.kill)
        yield world
    except BaseException as error:
        if isinstance(error, RankFailed) and world is not None:
            helpers.dump(world.watch.silent)
        helpers.close(_FAILED_SECONDS)
        raise
    finally:
        # First the others: a group is left only when nothing is under way in it, and one that is stopped keeps it under way.
        helpers.close()
        if world is not None:
            world.close()
        atexit.unregister(helpers.close)
        shutil.rmtree(meeting, ignore_errors=True)


def from_torchrun(minutes: float) -> Communicator | None:
    """Join the process group that ``torchrun`` or the deepspeed launcher started; None if neither did.

    Args:
        minutes: timeout of a wait for other ranks that make no progress.

    Raises:
        RankFailed: the ranks do not meet in time.
    """
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ or "MASTER_ADDR" not in os.environ:
        return None
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if size == 1:
        return SingleProcess()
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    here = int(os.environ.get("LOCAL_WORLD_SIZE", 0))
    if here == size:
        _stay_on_this_machine()
    elif (card := card_towards(host, port)) is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", card)
    # torchrun's agent holds the port already; without one the first rank does.
    held = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    try:
        store = dist.TCPStore(
            host, port, size, is_master=rank == 0 and not held, timeout=timedelta(minutes=minutes)
        )
    except RuntimeError as error:
        raise RankFailed(
            f"rank {rank} of {size} did not meet the others at {host}:{port} within {minutes:g} minutes (--timeout-minutes): "
            f"{str(error).partition(chr(10))[0]} Was the run started on every host, with the same --master-addr and --master-port, "
            f"and can each host reach that port?"
        ) from error
    # NCCL wants a card for each rank; what is on the CPU goes by gloo in any case.
    cards = torch.cuda.is_available() and torch.cuda.device_count() >= (here or size)
    backend = "cpu:gloo,cuda:nccl" if cards else "gloo"
    return ProcessGroup(rank, size, dist.PrefixStore("tstar", store), minutes, backend=backend)


def card_towards(host: str, port: int) -> str | None:
    """Find the network interface that reaches a host; None for the loopback or if unknown.

    By default gloo takes the interface of this machine's host name, often the loopback, which no other host reaches.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))  # sends nothing
            own = probe.getsockname()[0]
            if own.startswith("127."):
                return None
            for _, name in socket.if_nameindex():
                request = struct.pack("256s", name.encode()[:15])
                with suppress(OSError):  # a card without an address
                    if socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24]) == own:
                        return name
    except OSError:
        pass
    return None


def _helper(work: Work, rank: int, size: int, store_path: str, minutes: float) -> None:
    """Run a worker process (its main function).

    The main process handles signals (``unheard_by_children``); if it ends, so does the group.
    """
    torch.set_num_threads(1)
    _stay_on_this_machine()
    store = dist.FileStore(store_path, size)
    store.set(f"ready {rank}", "")
    parent = os.getppid()
    world = ProcessGroup(
        rank,
        size,
        store,
        minutes,
        lambda: None if os.getppid() == parent else "the first process of this run died",
    )
    keep_environment_secrets()
    try:
        work(world)
    except TStarError as error:  # it was raised on all ranks, and the first one says so, if it can
        if isinstance(error, RankFailed) and world.watch.leads:
            print(f"tstar_train: {redacted(str(error))}", file=sys.stderr, flush=True)
        sys.exit(1)
    except Exception:  # noqa: BLE001 - multiprocessing would print it as it is
        sys.stderr.write(redacted(traceback.format_exc()))
        sys.exit(1)
    finally:
        world.close()


def _stay_on_this_machine() -> None:
    """Let gloo listen where only this machine reaches it."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")


def _death(process: Any) -> str:
    code = process.exitcode
    cause = (
        f"by signal {signal.Signals(-code).name}"
        if code is not None and code < 0
        else f"with exit code {code}"
    )
    return f"helper process {process.pid} died {cause}; is memory short? (--processes 1 needs no helpers)"
