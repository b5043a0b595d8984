"""The episode that is played, its snapshots, what makes one fit an environment, and digests of what tasks hold."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from tstar_envs.errors import UnknownOption
from tstar_envs.snapshot import Origin, Snapshot, digest, options_of_state

Task = TypeVar("Task")
State = TypeVar("State")


class Restorable(Generic[Task, State]):
    """The part of ``TextEnv`` that shows the episode that is played, keeps it for later, and says what its task holds.

    A family may write ``_task_content`` where more decides a task than its instruction, first observation and first state say, and
    ``world_digest`` where its tasks are played in something they share.
    """

    _made_with: Mapping[str, Any]
    _origin: tuple[str, Origin] | None
    _task_id: str
    _task_split: str
    _state: State | None
    _step_count: int
    _observation: str
    _over: bool
    _success: bool
    _score: float

    @abstractmethod
    def _load_task(self, task_id: str) -> tuple[Task, str]:
        """See ``TextEnv``, as the others up to ``_first_info``."""

    @abstractmethod
    def _start(self, task: Task) -> tuple[State, str]: ...

    @abstractmethod
    def _instruction(self, task: Task) -> str: ...

    @abstractmethod
    def _state_fingerprint(self, task: Task, state: State) -> str: ...

    @abstractmethod
    def _state_key(self, task: Task, state: State) -> str: ...

    @abstractmethod
    def _admissible(self, task: Task, state: State) -> Sequence[str] | None: ...

    @abstractmethod
    def _running(self) -> tuple[Task, State]: ...

    @abstractmethod
    def _take_up(self, task_id: str, task: Task, split: str) -> Task: ...

    @abstractmethod
    def _first_info(self) -> dict[str, Any]: ...

    @property
    def task(self) -> Task:
        """The task that is played, as the family keeps it; it is never changed. ResetNeeded before the first ``reset``."""
        return self._running()[0]

    @property
    def state(self) -> State:
        """The state of the episode as the family's rules take it, never changed in place. ResetNeeded before the first ``reset``."""
        return self._running()[1]

    @property
    def over(self) -> bool:
        """Whether only ``reset`` may come next: no episode has begun, or it was terminated or truncated."""
        return self._over

    def state_key(self) -> str:
        """blake2b of the current state: equal exactly for equal states of one task."""
        return self._state_key(*self._running())

    def snapshot(self) -> Snapshot[State]:
        """The episode so far, to continue from later with ``restore``."""
        task, state = self._running()
        return Snapshot(
            self._task_id,
            self._task_split,
            state,
            self._step_count,
            self._observation,
            self._over,
            self._success,
            self._score,
            self._origin_of(self._task_id, task),
        )

    def _origin_of(self, task_id: str, task: Task) -> Origin:
        """Where a snapshot of a task is taken; the data of an environment do not change while it lives."""
        if self._origin is None or self._origin[0] != task_id:
            options = options_of_state(type(self), self._made_with)
            self._origin = task_id, Origin(type(self).__name__, options, digest(self._snapshot_content(task)))
        return self._origin[1]

    def _snapshot_content(self, task: Task) -> str:
        """What must be equal for a snapshot of a task to be one of this task."""
        return self._task_content(task)

    def _task_content(self, task: Task) -> str:
        """Text that differs where tasks of one id have different data (another folder, a changed file), in what an agent is shown of
        them or in what decides success and score. The same on every machine and, in every family, with all options.
        """
        state, observation = self._start(task)
        return f"{self._instruction(task)}\0{observation}\0{self._state_fingerprint(task, state)}"

    def task_digest(self, task_id: str) -> str:
        """A digest of what a task holds (``_task_content``), whatever the options: the same wherever the same task is played.

        Raises:
            UnknownTask: there is none of that id.
        """
        return digest(self._task_content(self._load_task(task_id)[0]))

    def world_digest(self) -> str:
        """A digest of what all tasks are played in (a corpus, the products of a shop), "" where each task has its own world."""
        return ""

    def restore(self, snapshot: Snapshot[State]) -> tuple[str, dict[str, Any]]:
        """Continue exactly from a snapshot (also one taken from another instance of the same id and options).

        Raises:
            UnknownOption: it is no snapshot, one that was taken with other options or of other data, or a damaged one; the episode
                that is running goes on as it was.
            UnknownTask: it is of a task that this environment does not have; likewise.
        """
        if not isinstance(snapshot, Snapshot):
            raise UnknownOption(f"restore takes what snapshot() gave, got {snapshot!r:.80}")
        if not isinstance(snapshot.task_id, str):
            raise UnknownOption(f"this snapshot is damaged: its task id is {snapshot.task_id!r:.80}")
        task, split = self._load_task(snapshot.task_id)
        snapshot.check(self._origin_of(snapshot.task_id, task))
        try:
            self._state_key(task, snapshot.state)
            self._admissible(task, snapshot.state)
        except Exception as error:  # whatever a state of another form leads to in the rules of a family
            raise UnknownOption(
                f"this snapshot is damaged: {snapshot.state!r:.80} is no state of task {snapshot.task_id!r}"
            ) from error
        self._take_up(snapshot.task_id, task, split)
        self._state = snapshot.state
        self._step_count = snapshot.step
        self._observation = snapshot.observation
        self._over = snapshot.over
        self._success, self._score = snapshot.success, snapshot.score
        return self._observation, self._first_info()
