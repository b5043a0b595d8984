"""Watchdog of a rank: heartbeats, progress, and stack dumps of all ranks on a timeout."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from tstar_train.heartbeat import Heartbeat
from tstar_train.progress import progress


def stack_dump(without: Collection[int] = ()) -> str:
    """Dump the stacks of all threads, the main thread's first.

    Args:
        without: identifiers of threads to leave out.
    """
    main = threading.main_thread().ident
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sorted(sys._current_frames().items(), key=lambda item: item[0] != main)
    return "".join(
        f"  thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in frames
        if ident not in without
    )


def position() -> str:
    """Return the innermost line of the main thread, as ``module:line, function``."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return (
        "nowhere"
        if frame is None
        else f"{frame.f_globals.get('__name__')}:{frame.f_lineno}, {frame.f_code.co_name}"
    )


_POLL_SECONDS = 0.25
_COUNT_SECONDS = 10.0  # between two looks at the ranks' work: a store in a file keeps each
_ANSWER_SECONDS = 3.0  # for the others to say where they are
_DEAD_SECONDS = 2.5  # so much less where one of them is known to be dead
_UNWIND_SECONDS = 10.0  # for the main thread to end by itself
LATER_SECONDS = 15.0  # a rank that is stopped ends so long after the time that is waited: the others have said by then what happened


class Watchdog:
    """Watchdog of one rank. On timeout it collects the stack traces of all ranks, reports them and exits.

    A wait for the others goes on as long as any rank makes progress (``progress``), however slow it is.

    Attributes:
        seconds: timeout of a wait for other ranks that make no progress.
        folder: of the run, for ``stacks-RANK.txt`` of the reporting rank; None before it is known.
        silent: ranks that did not answer after a timeout.
        last_words: returns what is saved and how to resume, for the final message.

    Args:
        rank: of this process.
        size: how many there are.
        store: shared key-value store, used by the watchdogs alone.
        seconds: see the attribute.
        complaint: describes a dead rank; None if all seem alive.
        end: called before this process exits.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        store: dist.Store,
        seconds: float,
        complaint: Callable[[], str | None],
        end: Callable[[], None],
    ) -> None:
        self.seconds = seconds
        self.folder: Path | None = None
        self.silent: list[int] = []
        self.last_words: Callable[[], str] = str
        self._rank, self._size = rank, size
        self._listening, self._asking, self._counting = (store.clone() for _ in range(3))  # type: ignore[attr-defined]
        self._complaint, self._end_others = complaint, end
        self._waiting: tuple[str, float] | None = None
        self._moved = time.monotonic()  # when the ranks' work was last seen to grow
        self._calls = 0
        self._reason: str | None = None  # why this rank gives up
        self._accused = False  # whether another one has given up
        self._verdict = ""
        self._known, self._heard, self._closed = threading.Event(), threading.Event(), threading.Event()
        self._changed = threading.Event()  # the timeout was, or this is closed
        self._leads = False
        self._heartbeat = Heartbeat(rank, seconds + LATER_SECONDS)
        self._who: dict[int, str] = {}
        self._asking.set(f"who {rank}", f"process {os.getpid()} on {socket.gethostname()}")
        self._threads = [
            threading.Thread(target=work, daemon=True, name="tstar watch")
            for work in (self._watch, self._listen, self._count)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def leads(self) -> bool:
        """True if this rank reports the failure: no lower rank answered."""
        return self._leads

    @property
    def ended(self) -> bool:
        """True if some rank has given up."""
        return self._known.is_set()

    def set_timeout(self, seconds: float) -> None:
        """Wait so long for the others from now on."""
        self.seconds = seconds
        self._changed.set()
        self._heartbeat.set_timeout(seconds + LATER_SECONDS)

    @contextmanager
    def waiting(self, what: str, together: bool = True) -> Iterator[None]:
        """Mark a ``with`` block as waiting for other ranks.

        Args:
            what: description of the call, for reports.
            together: False for a call that ranks make each by itself, which says nothing about who lags behind.
        """
        self._calls += together
        self._waiting = what, time.monotonic()
        try:
            yield
        except RuntimeError:  # it failed: this rank is there, and the others may not be
            raise
        except BaseException:
            self._waiting = None
            raise
        self._waiting = None

    def verdict(self, reason: str | None = None) -> str:
        """Explain what happened, for the error that the main thread raises.

        Args:
            reason: why this rank gives up; None if another one did.
        """
        if reason is not None and self._reason is None:
            self._reason = reason
        self._known.wait(4 * _ANSWER_SECONDS)
        self._heard.set()
        return self._verdict or reason or "another process of this run has given up"

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()
        self._changed.set()
        self._threads[0].join(timeout=2 * _POLL_SECONDS)
        self._heartbeat.close()

    def _watch(self) -> None:
        beaten = 0.0
        while not self._closed.wait(_POLL_SECONDS):
            now = time.monotonic()
            if now - beaten > 1.0:
                self._heartbeat.send()
                beaten = now
            waiting = self._waiting
            if waiting is not None and now - max(waiting[1], self._moved) > self.seconds:
                self._reason = self._reason or (
                    f"rank {self._rank} waited {self.seconds / 60:g} minutes (--timeout-minutes) for the others in {waiting[0]}, and none "
                    f"of them made progress"
                )
            # The first rank has the files: it hears of a death where it would wait, and saves what it has.
            if self._reason is None and (self._rank or self._waiting is not None):
                self._reason = self._complaint()
            if self._reason is not None or self._accused:
                self._give_up()
                return

    def _count(self) -> None:
        """Add this rank's progress to the ranks' sum, and note when that grows; in a thread of its own, as ``_listen``."""
        said, total = progress.count, -1
        while not self._known.is_set():
            self._changed.wait(min(_COUNT_SECONDS, self.seconds / 8))
            self._changed.clear()
            if self._closed.is_set():  # the store may be gone, of which torch would tell the user
                return
            with suppress(RuntimeError):
                self._counting.set_timeout(timedelta(seconds=_ANSWER_SECONDS))
                self._meet(self._counting)
                count = progress.count
                whole = self._counting.add("progress", count - said)
                said = count
                if whole != total:
                    total, self._moved = whole, time.monotonic()

    def _meet(self, store: dist.Store) -> None:
        """Note the process and host of each rank, before the host of the store may be gone."""
        for rank in range(self._size):
            if rank not in self._who and store.check([f"who {rank}"]):
                self._who[rank] = store.get(f"who {rank}").decode()

    def _listen(self) -> None:
        """Wait in a separate thread until another rank gives up, because the store may be unreachable."""
        self._listening.set_timeout(timedelta(seconds=_ANSWER_SECONDS))
        while not self._closed.wait(_POLL_SECONDS) and not self._known.is_set():
            with suppress(RuntimeError):
                self._accused = self._accused or self._listening.check(["given up"])

    def _give_up(self) -> None:
        mine = self._state()
        answers: dict[int, dict[str, Any]] = {self._rank: mine}
        message: dict[str, Any] = {"reason": self._reason}
        asking = threading.Thread(
            target=self._ask, args=(mine, answers, message), daemon=True, name="tstar watch asks"
        )
        asking.start()
        asking.join(2 * _ANSWER_SECONDS)
        answers, who = dict(answers), dict(self._who)
        self.silent = [rank for rank in range(self._size) if rank not in answers]
        self._leads = min(answers) == self._rank
        if self._rank == 0 or self._leads:
            message["reason"] = self._complaint() or message["reason"]
        self._verdict = ". ".join(
            [message["reason"] or "another rank has given up", *self._about(answers, who)]
        )
        if self._leads:
            self._verdict += f". {self._dump(answers)}"
        self._known.set()
        if self._heard.wait(_UNWIND_SECONDS) or self._closed.is_set():
            while self._rank == 0 and not self._closed.wait(1.0):  # it may have much to save
                self._heartbeat.send()
            return
        with suppress(OSError, ValueError):  # whatever else fails now, the process ends
            self._say(". ".join(filter(None, [self._verdict, self.last_words()])))
        self._end_others()
        os._exit(2)

    def _ask(self, mine: dict[str, Any], answers: dict[int, dict[str, Any]], message: dict[str, Any]) -> None:
        """Say where this rank is, and ask all others."""
        deadline = time.monotonic() + _ANSWER_SECONDS
        with suppress(RuntimeError):
            self._asking.set_timeout(timedelta(seconds=_ANSWER_SECONDS))
            if message["reason"] is not None:
                self._asking.set("reason", message["reason"])
                self._asking.set("given up", "")
            self._asking.set(f"state {self._rank}", json.dumps(mine))
            if message["reason"] is None:
                message["reason"] = self._asking.get("reason").decode()
            self._meet(self._asking)
            while len(answers) < self._size and time.monotonic() < deadline - (
                _DEAD_SECONDS if self._complaint() else 0
            ):
                for rank in range(self._size):
                    if rank not in answers and self._asking.check([f"state {rank}"]):
                        answers[rank] = json.loads(self._asking.get(f"state {rank}"))
                time.sleep(_POLL_SECONDS / 5)

    def _state(self) -> dict[str, Any]:
        mine = {thread.ident or 0 for thread in self._threads}
        return {
            "calls": self._calls,
            "waiting": None if self._waiting is None else self._waiting[0],
            "position": position(),
            "stacks": stack_dump(mine | {threading.get_ident()}),
        }

    def _about(self, answers: dict[int, dict[str, Any]], who: dict[int, str]) -> Iterator[str]:
        """Describe each rank that lags behind the others, or all ranks if none does."""
        most = max(answer["calls"] for answer in answers.values())
        names = [f"rank {rank}" + (f" ({who[rank]})" if rank in who else "") for rank in range(self._size)]
        behind = [
            r for r, answer in sorted(answers.items()) if answer["calls"] < most or answer["waiting"] is None
        ]
        for rank in self.silent:
            yield f"{names[rank]} gives no sign of life: it died, was stopped, or cannot be reached"
        for rank in behind:
            yield f"{names[rank]} has not come there: it is at {answers[rank]['position']}"
        if not self.silent and not behind:  # within a call of DeepSpeed's, which is many
            yield "All have come there; " + ", ".join(
                f"{names[rank]} is at {answers[rank]['position']}" for rank in sorted(answers)
            )

    def _dump(self, answers: dict[int, dict[str, Any]]) -> str:
        """Write the stacks to stderr and the run's folder; return a sentence with their place."""
        parts = []
        for rank, answer in sorted(answers.items()):
            doing = f"waiting in {answer['waiting']}" if answer["waiting"] else "not waiting"
            parts.append(f"rank {rank}, {doing}:\n{answer['stacks']}")
        text = "\n".join(parts)
        where = "above"
        with suppress(OSError, ValueError):
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()
        if self.folder is not None and self.folder.is_dir():
            with suppress(OSError):
                path = self.folder / f"stacks-{self._rank}.txt"
                path.write_text(
                    f"{time.strftime('%Y-%m-%d %H:%M:%S')}: {self._verdict}\n\n{text}", encoding="utf-8"
                )
                where = f"above and in {path}"
        return f"The stacks of {'rank' if len(answers) == 1 else 'ranks'} {', '.join(map(str, sorted(answers)))} are {where}"

    def _say(self, text: str) -> None:
        sys.stderr.write(f"tstar_train: {text}\n")
        sys.stderr.flush()
