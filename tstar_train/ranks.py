"""Tasks that all ranks run together: the first rank broadcasts, the others follow."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch

from tstar_train.build import build, processes_of
from tstar_train.checkpoint import load_state
from tstar_train.config import Config
from tstar_train.distributed import Communicator, ProcessGroup, RankFailed, launched
from tstar_train.evaluate import measure
from tstar_train.loop import Trainer, iterate
from tstar_train.stopping import SIGNALS

# What all ranks do together, by name.
ORDERS: dict[str, Any] = {
    "load": load_state,
    "measure": measure,
    "iterate": iterate,
    "gather": lambda trainer: trainer.learner.gather(),
    "queue": lambda trainer: trainer.ahead.gather(trainer.world),
    "finds": lambda trainer, path: all(trainer.world.gather(path.exists())),
}


def run_on_all_ranks(trainer: Trainer, name: str, *arguments: Any) -> Any:
    """Run a named task on all ranks; called on the first rank, which takes part.

    Args:
        trainer: of this rank.
        name: ``load``, ``finds``, ``measure``, ``iterate``, ``gather`` or ``queue``.
        arguments: of the task, without the trainer.

    Returns:
        The first rank's result.
    """
    trainer.world.broadcast((name, arguments, trainer.world.failure_message()))
    return _run_task(trainer, name, arguments)


def _run_task(trainer: Trainer, name: str, arguments: tuple[Any, ...]) -> Any:
    # Sampling has keys of its own. Whatever else draws (layers of somebody's model) begins anew with every order, by what a checkpoint
    # holds, so that a resumed run draws as one that nothing interrupted.
    key = f"{trainer.config.seed}/{name}/{trainer.cursor}/{trainer.world.rank}"
    torch.manual_seed(int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little"))
    return ORDERS[name](trainer, *arguments)


def worker_loop(config: Config, world: Communicator) -> None:
    """Run the tasks that the first rank broadcasts until it has no more; called on all other ranks.

    Raises:
        RankFailed: another rank failed; the message says what is saved.
    """
    try:
        trainer = build(config, world)
        while (given := world.broadcast(None)) is not None:
            name, arguments, words = given
            if words is not None:
                world.set_failure_message(words[0], partial(str, words[1]))
            _run_task(trainer, name, arguments)
    except RankFailed as error:
        words = world.failure_message()
        raise error if words is None else RankFailed(f"{error}. {words[1]}") from error


@contextmanager
def all_ranks(config: Config, torchrun: Communicator | None = None) -> Iterator[Communicator]:
    """Keep the other ranks in their worker loop within a ``with`` block; called on the first rank.

    Args:
        config: the run's options, from which every rank builds its trainer.
        torchrun: process group of ``torchrun``; None to start worker processes.
    """
    if torchrun is None:
        with launched(processes_of(config), partial(worker_loop, config), config.timeout_minutes) as world:
            yield world
            world.broadcast(None)
        return
    torchrun.set_timeout(config.timeout_minutes)
    torchrun.broadcast(config)
    yield torchrun
    torchrun.broadcast(None)


@contextmanager
def leading_rank(torchrun: Communicator | None) -> Iterator[None]:
    """Release ``torchrun``'s other ranks quietly if no run begins within a ``with`` block.

    Without it they would report the first rank as dead, after it reported wrong options.
    """
    try:
        yield
    finally:
        if isinstance(torchrun, ProcessGroup) and not torchrun.called:
            with suppress(RankFailed):
                torchrun.broadcast(None)


def torchrun_worker_loop(world: Communicator) -> None:
    """Wait for the run's options, then enter the worker loop; called on ``torchrun``'s other ranks.

    The first rank handles signals: it finishes the iteration, saves and ends the group.
    """
    for signum in SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
    config = world.broadcast(None)
    if config is not None:  # None: the first rank could not begin, and says why
        world.set_timeout(config.timeout_minutes)
        worker_loop(config, world)
