"""The order in which training tasks are played: a stream that a cursor walks, so that resuming and playing further tasks are one thing."""

from __future__ import annotations

from collections.abc import Sequence

from tstar_envs import StableRandom


class TaskStream:
    """Passes over the tasks, each a shuffle of its own; of a pass only whole iterations are used.

    Args:
        tasks: ids.
        size: tasks of an iteration.
        seed: of the shuffles.
    """

    def __init__(self, tasks: Sequence[str], size: int, seed: int) -> None:
        self._tasks = list(tasks)
        self._usable = len(tasks) // size * size
        self._seed = seed

    def take(self, cursor: int, count: int) -> list[str]:
        """The ``count`` tasks from place ``cursor`` on."""
        taken: list[str] = []
        while len(taken) < count:
            turn, position = divmod(cursor + len(taken), self._usable)
            order = StableRandom(f"{self._seed}/tasks/{turn}").shuffled(self._tasks)
            taken += order[position : min(self._usable, position + count - len(taken))]
        return taken
