"""A helper's work in a module of its own: what is imported beside it in a test's module takes seconds in each process."""

from __future__ import annotations

import time

from tstar_train.distributed import Communicator
from tstar_train.progress import progress


def patient(world: Communicator) -> None:
    """Wait for the first rank."""
    world.broadcast(None)


SLOW_SECONDS = 5.0


def slow(world: Communicator) -> None:
    """Work slowly, then answer the first rank."""
    world.set_timeout(SLOW_SECONDS / 4 / 60)
    end = time.monotonic() + SLOW_SECONDS
    while time.monotonic() < end:
        time.sleep(0.1)
        progress.advance()
    world.gather("late")
    world.broadcast(None)


def hanging(world: Communicator) -> None:
    """Work without progress for far longer than anybody waits."""
    time.sleep(600)
    world.gather("never")
