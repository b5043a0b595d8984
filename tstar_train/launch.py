"""Starting the ranks of a run: processes of our own, or those that torchrun started."""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from tstar_envs import TStarError
from tstar_envs.redaction import keep_environment_secrets, redacted
from tstar_train.stopping import unheard_by_children
from tstar_train.world import Alone, Distributed, RankFailed, World

_END_SECONDS = 10.0  # for a process to end by itself, its work done
_FAILED_SECONDS = 1.0  # the same where the run has failed, so that it may wait for what never comes
_POLL_SECONDS = 0.05
_SIOCGIFADDR = 0x8915  # Linux

# What a rank other than the first does, given its world; it must be importable by name, since the processes are spawned.
Work = Callable[[World], None]


class Helpers:
    """The processes of ranks 1 and up on this machine, and what is known of them."""

    def __init__(self) -> None:
        self.processes: list[Any] = []

    def complaint(self) -> str | None:
        """Which of them ended though its work is not done, in words; None if all run."""
        ended = [p for p in self.processes if p.exitcode is not None]
        # One that was killed comes first: the others may have ended because of it.
        return _death(min(ended, key=lambda p: p.exitcode)) if ended else None

    def dump(self, ranks: Iterable[int]) -> None:
        """Let those write their stacks to stderr and end, whose own watch could not answer; one that is stopped cannot."""
        for rank in ranks:
            if (process := self.processes[rank - 1]).is_alive():
                os.kill(process.pid, signal.SIGABRT)  # faulthandler writes them (``Lifeline``)

    def kill(self) -> None:
        """End them at once."""
        for process in self.processes:
            process.kill()

    def close(self, seconds: float = _END_SECONDS) -> None:
        """Wait for them to end, and end those that do not within so many seconds each."""
        for process in self.processes:
            process.join(timeout=seconds)
            if process.is_alive():  # stopped, or within a long call
                process.kill()
                process.join()
        self.processes = []


@contextmanager
def launched(size: int, work: Work, minutes: float) -> Iterator[World]:
    """The first rank of a group whose other ranks are processes of our own, for the time of a ``with`` block.

    They end when the block does: by themselves if ``work`` has returned, else because the group is gone.

    Args:
        size: ranks, this process included; 1 starts nothing.
        work: what the others do.
        minutes: how long one waits for another.

    Raises:
        RankFailed: one died before it was ready.
    """
    if size == 1:
        yield Alone()
        return
    helpers = Helpers()
    # A folder that only this user can open, where a port could be reached by everybody.
    meeting = Path(tempfile.mkdtemp(prefix="tstar-"))
    atexit.register(helpers.close)  # before multiprocessing waits for its children, who ignore its SIGTERM
    world: Distributed | None = None
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
                    f"{', '.join(late)}: not ready within {minutes:g} minutes (--helper-minutes), so it hangs or was stopped"
                )
            time.sleep(_POLL_SECONDS)
        _stay_on_this_machine()
        world = Distributed(0, size, store, minutes, helpers.complaint, end=helpers.kill)
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


def from_torchrun(minutes: float) -> World | None:
    """Our place in the group that ``torchrun`` (or the deepspeed launcher) started; None if none did.

    Args:
        minutes: how long one rank waits for another.

    Raises:
        RankFailed: they do not meet.
    """
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ or "MASTER_ADDR" not in os.environ:
        return None
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if size == 1:
        return Alone()
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
            f"rank {rank} of {size} did not meet the others at {host}:{port} within {minutes:g} minutes (--helper-minutes): "
            f"{str(error).partition(chr(10))[0]} Was the run started on every host, with the same --master-addr and --master-port, "
            f"and can each host reach that port?"
        ) from error
    # NCCL wants a card for each rank; what is on the CPU goes by gloo in any case.
    cards = torch.cuda.is_available() and torch.cuda.device_count() >= (here or size)
    backend = "cpu:gloo,cuda:nccl" if cards else "gloo"
    return Distributed(rank, size, dist.PrefixStore("tstar", store), minutes, backend=backend)


def card_towards(host: str, port: int) -> str | None:
    """Name of the network card by which a host is reached; None where that is this machine by its loopback, or is not known.

    gloo would take the card that this machine's own name belongs to, which is often the loopback: then no other host reaches it.
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
    """Main function of a helper.

    Signals are the main process's to handle (``unheard_by_children``); where that process ends, so does the group.
    """
    torch.set_num_threads(1)
    _stay_on_this_machine()
    store = dist.FileStore(store_path, size)
    store.set(f"ready {rank}", "")
    parent = os.getppid()
    world = Distributed(
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
