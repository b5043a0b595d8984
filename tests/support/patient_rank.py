"""A helper's work in a module of its own: what is imported beside it in a test's module takes seconds in each process."""

from __future__ import annotations

from tstar_train.distributed import Communicator


def patient(world: Communicator) -> None:
    """Wait for the first rank."""
    world.broadcast(None)
