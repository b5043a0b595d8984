"""A team of processes that share one set of weights in memory, each with a share of every iteration's tasks.

The first share works in this process, the others in processes of their own; weights are shared memory, so an optimizer
step here is seen everywhere and nothing is copied. Which task goes to which share depends on their number alone, so a run
repeats bit for bit with the same number of processes.
"""

from __future__ import annotations

import atexit
import signal
import traceback
from collections.abc import Sequence
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.multiprocessing as multiprocessing
from transformers import PreTrainedModel

from tstar_envs import Episode, TStarError
from tstar_train.config import Config
from tstar_train.optim.update import UpdateStats
from tstar_train.policy.model import Policy
from tstar_train.rollout.collect import EnvSpec
from tstar_train.rollout.share import Played, Share
from tstar_train.stopping import unheard_by_children

_END_SECONDS = 10.0  # for a helper to end by itself


class HelperFailed(TStarError, RuntimeError):
    """A helper process died, hangs, or raised (the message then holds its traceback)."""


class Team:
    """See the module.

    Args:
        policy: its weights are moved to shared memory if there is more than one process.
        reference: likewise.
        config: the run.
        spec: the environment.
        processes: how many, this one included.
    """

    def __init__(self, policy: Policy, reference: PreTrainedModel | None, config: Config, spec: EnvSpec, processes: int) -> None:
        self._own = Share(policy, reference, config, spec)
        self._helpers: list[tuple[Any, Connection]] = []
        self._patience_seconds = 60 * config.helper_minutes
        if processes > 1:
            policy.model.share_memory()
            if reference is not None:
                reference.share_memory()
        # spawn: a forked child would inherit torch's and faiss's thread pools in an unknown state.
        context = multiprocessing.get_context("spawn")
        atexit.register(self.close)  # before multiprocessing waits for its children, who ignore its SIGTERM
        try:
            with unheard_by_children():
                for _ in range(processes - 1):
                    ours, theirs = context.Pipe()
                    process = context.Process(target=_serve, args=(theirs, policy, reference, config, spec), daemon=True)
                    process.start()
                    theirs.close()
                    self._helpers.append((process, ours))
        except BaseException:
            self.close()
            raise

    @property
    def size(self) -> int:
        """Number of processes."""
        return 1 + len(self._helpers)

    def play(self, tasks: Sequence[str], number: int) -> Played:
        """All shares play; results in order of task, seconds of the slowest share."""
        parts = _deal(tasks, self.size)
        starts = [sum(len(p) for p in parts[:i]) for i in range(len(parts))]
        whole = Played()
        for played in self._all("play", [(part, number, start) for part, start in zip(parts, starts, strict=True)]):
            whole.groups += played.groups
            whole.failed += played.failed
            whole.overlong += played.overlong
            whole.grafts.kept += played.grafts.kept
            whole.grafts.dropped += played.grafts.dropped
            whole.grafts.played_on += played.grafts.played_on
            for name, value in vars(played.work).items():
                setattr(whole.work, name, getattr(whole.work, name) + value)
            for phase, seconds in played.seconds.items():
                whole.seconds[phase] = max(whole.seconds.get(phase, 0.0), seconds)
        return whole

    def sizes(self) -> list[tuple[float, int]]:
        """For each optimizer step: summed weights of own tokens, and grafts, of all shares together."""
        each = self._all("sizes", [()] * self.size)
        return [(sum(s[k][0] for s in each), sum(s[k][1] for s in each)) for k in range(len(each[0]))]

    def gradient(self, loss: str, step: int, denominator: float) -> tuple[torch.Tensor, UpdateStats]:
        """Sum of the shares' gradients of ``base`` or ``surgical`` loss, added up in a fixed order, and their figures."""
        parts = self._all(f"{loss}_gradient", [(step, denominator)] * self.size)
        total = parts[0][0]
        for vector, _ in parts[1:]:
            total = total + vector
        return total, UpdateStats.combined([stats for _, stats in parts])

    def evaluate(self, tasks: Sequence[str], split: str, samples: int, temperature: float, seed: str) -> list[Episode]:
        """Episodes in order of task, then sample."""
        arguments = [(part, split, samples, temperature, seed) for part in _deal(tasks, self.size)]
        return [episode for part in self._all("evaluate", arguments) for episode in part]

    def close(self) -> None:
        """End the helpers."""
        for _, connection in self._helpers:
            connection.close()  # a helper ends when its pipe does
        for process, _ in self._helpers:
            process.join(timeout=_END_SECONDS)
            if process.is_alive():  # stopped, or within a long call
                process.kill()
                process.join()
        self._helpers = []
        atexit.unregister(self.close)

    def _all(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        for (process, connection), chosen in zip(self._helpers, arguments[1:], strict=True):
            try:
                connection.send((method, chosen))
            except (BrokenPipeError, ConnectionResetError):
                raise HelperFailed(_death(process)) from None
        results = [getattr(self._own, method)(*arguments[0])]
        for process, connection in self._helpers:
            if not connection.poll(self._patience_seconds):
                raise HelperFailed(
                    f"helper process {process.pid} has not answered for {self._patience_seconds / 60:g} minutes: it hangs, or was stopped; "
                    f"--helper-minutes sets how long a run waits"
                )
            try:
                failure, result = connection.recv()
            except (EOFError, ConnectionResetError):
                raise HelperFailed(_death(process)) from None
            if failure is not None:
                raise failure
            results.append(result)
        return results


def _death(process: Any) -> str:
    process.join(timeout=_END_SECONDS)  # the pipe ends a moment before the process
    code = process.exitcode
    cause = f"by signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"with exit code {code}"
    return f"helper process {process.pid} died {cause}; is memory short? (--processes 1 needs no helpers)"


def _deal(tasks: Sequence[str], shares: int) -> list[list[str]]:
    """Contiguous parts of nearly equal size."""
    bounds = [len(tasks) * i // shares for i in range(shares + 1)]
    return [list(tasks[a:b]) for a, b in pairwise(bounds)]


def _serve(connection: Connection, policy: Policy, reference: PreTrainedModel | None, config: Config, spec: EnvSpec) -> None:
    """Main function of a helper: answer calls until the pipe closes.

    Signals are the main process's to handle (``unheard_by_children``); it closes the pipe.
    """
    torch.set_num_threads(1)
    share = Share(policy, reference, config, spec)
    while True:
        try:
            method, arguments = connection.recv()
        except (EOFError, ConnectionResetError):
            return
        failure: Exception | None = None
        result: Any = None
        try:
            result = getattr(share, method)(*arguments)
        except Exception as error:  # noqa: BLE001  # handed over whole: the main process raises it
            failure = HelperFailed(f"a helper process failed:\n{traceback.format_exc()}") if not _portable(error) else error
        try:
            connection.send((failure, result))
        except (BrokenPipeError, ConnectionResetError):  # the main process has failed meanwhile and said why
            return


def _portable(error: Exception) -> bool:
    """The suite's own errors travel as they are, so that their message reaches the user."""
    return isinstance(error, TStarError)
