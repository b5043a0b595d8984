"""Rollouts: groups of episodes in lockstep, and their records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Protocol

import gymnasium as gym
import numpy as np

from tstar_envs.core import TextEnv
from tstar_envs.errors import EnvironmentFailed, InfrastructureError, ResetNeeded, UnknownOption
from tstar_envs.foreign import StepResult, called, check_attributes, prepared, reset_result, stepped
from tstar_envs.record import Episode
from tstar_envs.registry import EnvEntry, find_entry
from tstar_envs.snapshot import Snapshot
from tstar_envs.utils import counted, is_whole

Infos = list[dict[str, Any] | None]


class GroupEnv:
    """Group of environments that step together; row r plays task ``r // group_size``. Made by ``make_group``.

    Example:
        >>> from tstar_envs import make_group
        >>> group = make_group("sokoban-easy", tasks=[0, 1], group_size=2)
        >>> observations, infos = group.reset()
        >>> replies = [env.oracle() for env in group.envs]
        >>> observations, rewards, terminated, truncated, infos = group.step(replies)
        >>> group.running
        [True, True, True, True]

    Attributes:
        envs: environments, one per row.
        tasks: tasks, by id or index within the split.
        group_size: rows per task.
        errors: per row, why its episode failed; None if it did not (see ``step``).
        on_row: called after each environment's reset, step or restore, which may take long.
    """

    def __init__(
        self, envs: Sequence[TextEnv[Any, Any]], tasks: Sequence[str | int], group_size: int
    ) -> None:
        self.envs = list(envs)
        self.tasks = list(tasks)
        self.group_size = group_size
        self.errors: list[InfrastructureError | None] = [None] * len(self.envs)
        self.on_row: Callable[[], None] = lambda: None
        self._running = [False] * len(self.envs)

    def __len__(self) -> int:
        return len(self.envs)

    def reset(self, tasks: Sequence[str | int] | None = None) -> tuple[list[str], list[dict[str, Any]]]:
        """Reset every row; ``tasks`` (as many as before) replaces the tasks.

        Returns:
            Observations and infos, one per row.

        Raises:
            EnvironmentFailed: see ``step``.
        """
        if tasks is not None:
            if len(tasks) != len(self.tasks):
                raise UnknownOption(
                    f"reset needs {counted(len(self.tasks), 'task')}, as many as the group was made for, got {len(tasks)}"
                )
            self.tasks = list(tasks)
        results = []
        for row, env in enumerate(self.envs):
            results.append(reset_result(env, self.tasks[row // self.group_size]))
            self.on_row()
        self.errors = [None] * len(self.envs)
        self._running = [True] * len(self.envs)
        return [obs for obs, _ in results], [info for _, info in results]

    def replay(self, prefixes: Sequence[Sequence[str]], *, tolerant: bool = False) -> None:
        """Reset every row and replay a recorded prefix in each.

        Args:
            prefixes: per row, the replies to play; their numbers may differ.
            tolerant: see ``step``.

        Raises:
            InfrastructureError: see ``step``.
            ResetNeeded: a prefix continues after its episode is over.
        """
        if len(prefixes) != len(self.envs):
            raise UnknownOption(
                f"replay needs {len(self.envs)} prefixes, one for each row, got {len(prefixes)}"
            )
        self.reset()
        for turn in range(max(map(len, prefixes), default=0)):
            rows = [r for r, prefix in enumerate(prefixes) if turn < len(prefix) and self.errors[r] is None]
            self._play({row: prefixes[row][turn] for row in rows}, tolerant)

    def restore(self, snapshots: Sequence[Snapshot[Any]]) -> None:
        """Return the first rows to snapshots, one each; the other rows take no replies.

        Nothing is replayed, and no search service is asked.

        Args:
            snapshots: at most as many as there are rows; of any tasks and rows.

        Raises:
            UnknownOption: there are too many, or one does not fit (see ``TextEnv.restore``).
            EnvironmentFailed: an environment raised.
        """
        if len(snapshots) > len(self.envs):
            raise UnknownOption(
                f"restore takes at most {counted(len(self.envs), 'snapshot')}, one for each row, got {len(snapshots)}"
            )
        self.errors = [None] * len(self.envs)
        self._running = [False] * len(self.envs)
        for row, snapshot in enumerate(snapshots):
            called("the environment", EnvironmentFailed, self.envs[row].restore, snapshot)
            self._running[row] = not self.envs[row].over
            self.on_row()

    def step(
        self, replies: Sequence[str | None], *, tolerant: bool = False
    ) -> tuple[list[str | None], list[float | None], list[bool | None], list[bool | None], Infos]:
        """Step every running row with one reply.

        Args:
            replies: a string for each running row, None for each finished row.
            tolerant: if a row's infrastructure fails, drop the row and keep the error in ``errors`` instead of raising it.

        Returns:
            Observations, rewards, terminated, truncated and infos, one entry per row. None for rows that were finished before or
                failed now: a failed row has no reward, not a reward of 0.

        Raises:
            InfrastructureError: a search service failed. Nothing was played, and the same step may be retried.
            EnvironmentFailed: an environment (possibly custom code) raised or returned an invalid value.
            ResetNeeded: a reply for a finished row, or none for a running row.
        """
        if len(replies) != len(self.envs):
            raise UnknownOption(
                f"step needs {len(self.envs)} replies (None for finished rows), got {len(replies)}"
            )
        for row, (reply, running) in enumerate(zip(replies, self._running, strict=True)):
            if (reply is not None) != running:
                left = "has finished" if self.errors[row] is None else f"has failed ({self.errors[row]})"
                state = (
                    "is still running and needs a reply"
                    if running
                    else f"{left} and takes None; call reset() to start again"
                )
                raise ResetNeeded(f"row {row} {state}")
        results = self._play(
            {row: str(reply) for row, reply in enumerate(replies) if reply is not None}, tolerant
        )
        observations: list[str | None] = [None] * len(self.envs)
        rewards: list[float | None] = [None] * len(self.envs)
        terminated: list[bool | None] = [None] * len(self.envs)
        truncated: list[bool | None] = [None] * len(self.envs)
        infos: Infos = [None] * len(self.envs)
        for row, result in results.items():
            observations[row], rewards[row], terminated[row], truncated[row], infos[row] = result
        return observations, rewards, terminated, truncated, infos

    def _play(
        self, replies: dict[int, str], tolerant: bool
    ) -> dict[int, tuple[str, float, bool, bool, dict[str, Any]]]:
        """Play one reply in each of the given rows; a row that fails has no result."""
        if not replies:
            return {}
        rows = list(replies)
        failed = prepared([self.envs[row] for row in rows], list(replies.values()))
        for index, error in failed.items():
            if not tolerant:
                raise error
            self.errors[rows[index]], self._running[rows[index]] = error, False
        results = {}
        for row in rows:
            if self.errors[row] is None:
                results[row] = stepped(self.envs[row], replies[row])
                self._running[row] = not (results[row][2] or results[row][3])
                self.on_row()
        return results

    def step_rows(
        self, replies: Mapping[int, str], *, tolerant: bool = False
    ) -> dict[int, tuple[str, float, bool, bool, dict[str, Any]]]:
        """Step some of the running rows; the others wait.

        Args:
            replies: reply by row.
            tolerant: see ``step``.

        Returns:
            Observation, reward, terminated, truncated and info by row, without rows that failed now.

        Raises:
            InfrastructureError, EnvironmentFailed: see ``step``.
            ResetNeeded: a row is not running.
        """
        for row in replies:
            if not 0 <= row < len(self.envs) or not self._running[row]:
                raise ResetNeeded(f"row {row} is not running and takes no reply; call reset() to start again")
        return self._play(dict(replies), tolerant)

    def branch(self, branches: Mapping[int, Sequence[int]]) -> None:
        """Copy the episodes of rows into others, by snapshot: each child continues where its parent stands.

        Args:
            branches: children by parent. Children may be of another task, running or over; what they played is lost.

        Raises:
            UnknownOption: no such row, a child of two parents, or a row that is both. Nothing is changed then.
            ResetNeeded: a parent never began.
        """
        children = [child for those in branches.values() for child in those]
        for row in [*branches, *children]:
            if not is_whole(row) or not 0 <= row < len(self.envs):
                raise UnknownOption(
                    f"there is no row {row!r:.20} in a group of {counted(len(self.envs), 'row')}"
                )
        if len({*branches, *children}) < len(branches) + len(children):
            raise UnknownOption(f"each row is one parent or the child of one, got {dict(branches)!r:.200}")
        snapshots = {parent: self.envs[parent].snapshot() for parent in branches}
        for parent, those in branches.items():
            for child in those:
                self.envs[child].restore(snapshots[parent])
                self._running[child], self.errors[child] = self._running[parent], self.errors[parent]

    def drop(self, row: int) -> None:
        """Drop a running row: it takes no more replies until ``reset``.

        Raises:
            ResetNeeded: the row is not running.
        """
        if not self._running[row]:
            raise ResetNeeded(f"row {row} is not running and cannot be dropped; call reset() to start again")
        self._running[row] = False

    @property
    def running(self) -> list[bool]:
        """Per row, True if it is still running."""
        return list(self._running)


def make_group(env_id: str, tasks: Sequence[str | int], group_size: int, **kwargs: Any) -> GroupEnv:
    """Make a group of environments that step in lockstep; see ``GroupEnv`` for an example.

    Args:
        env_id: registered id or short name.
        tasks: ids, or indexes within the split given by ``split=`` (default test).
        group_size: rows per task.
        **kwargs: options of the environments.

    Raises:
        UnknownOption: the group size is not a whole number of at least 1, or ``tasks`` is a single task instead of a list.
        EnvironmentFailed: the constructor of the environment raised; the message names the error.
    """
    if not is_whole(group_size) or group_size < 1:
        raise UnknownOption(f"group_size must be a whole number of at least 1, got {group_size!r}")
    if isinstance(tasks, str) or not isinstance(tasks, Sequence | np.ndarray):
        raise UnknownOption(f"tasks must be several, ids or indexes in a list, got {tasks!r}")
    entry = find_entry(env_id)
    cls = entry.load_class()
    options = {**entry.kwargs, **kwargs}
    rows = len(tasks) * int(group_size)
    envs = [called("making the environment", EnvironmentFailed, cls, **options) for _ in range(rows)]
    if envs:
        check_attributes(envs[0])
    return GroupEnv(envs, list(tasks), int(group_size))


def clone(env: gym.Env[Any, Any]) -> TextEnv[Any, Any]:
    """Make an environment in the same state: both continue alike under equal actions, and independently.

    For tree search, as ``env_clone_fn`` of ldp's ``TreeSearchRollout``. Data and search engines are shared.

    Example:
        >>> from tstar_envs import clone, find_entry
        >>> env = find_entry("sokoban-easy").make()
        >>> observation, info = env.reset(options={"task": 0})
        >>> twin = clone(env)
        >>> twin.step(env.oracle())[0] == env.step(env.oracle())[0]
        True

    Args:
        env: environment of this suite, or a registered one of your own, with or without Gymnasium's wrappers.

    Returns:
        The copy, without wrappers; in the state of a new environment if no episode was begun.

    Raises:
        UnknownOption: not an environment of ``TextEnv``.
    """
    inner = env.unwrapped
    if not isinstance(inner, TextEnv):
        raise UnknownOption(f"clone takes an environment of tstar_envs, not a {type(inner).__name__}")
    twin = type(inner)(**inner._made_with)
    twin.spec = inner.spec
    twin._np_random, twin._np_random_seed = deepcopy(inner._np_random), inner._np_random_seed
    if inner._task is not None:
        twin.restore(inner.snapshot())
    return twin


class Player(Protocol):
    """Policy of the rows of a group."""

    def replies(self, rows: Sequence[int]) -> Mapping[int, str]:
        """Choose the replies of the running rows.

        Returns:
            Replies by row. A row without a reply is dropped; the player notes the reason in its episode.
        """

    def played(self, row: int, result: StepResult) -> None:
        """Receive the recorded result of a row's reply; not called if its infrastructure failed."""


def new_episode(
    env: TextEnv[Any, Any],
    entry: EnvEntry,
    agent: str,
    task: str,
    *,
    sample: int = 0,
    seed: int | None = None,
) -> Episode:
    """Create the record of an episode before its reset.

    Args:
        env: environment that will play it.
        entry: registry entry of the environment.
        agent: name of the agent in the record.
        task: task id.
        sample: number of the episode among those of the same task.
        seed: seed of the agent's sampling, None if it has none.
    """
    return Episode(
        env=entry.id,
        tier=env.tier,
        task=task,
        split=env.split,
        rules_version=entry.rules_version,
        agent=agent,
        instruction="",
        first_observation="",
        seed=seed,
        sample=sample,
    )


def play_group(
    group: GroupEnv, episodes: Sequence[Episode], player: Player, at_once: int | None = None
) -> None:
    """Roll out a group of episodes in lockstep and record them.

    If a row's infrastructure fails, its episode ends without a result (``ended`` is ``error``) and the others continue.

    Example:
        >>> from tstar_envs import find_entry, make_group, new_episode, play_group
        >>> class Expert:
        ...     def replies(self, rows):
        ...         return {row: group.envs[row].oracle() for row in rows}
        ...     def played(self, row, result):
        ...         pass
        >>> group = make_group("sokoban-easy", tasks=[0], group_size=2)
        >>> entry, task = find_entry("sokoban-easy"), group.envs[0].task_ids()[0]
        >>> episodes = [new_episode(env, entry, "expert", task) for env in group.envs]
        >>> for episode, observation, info in zip(episodes, *group.reset()):
        ...     episode.begin(observation, info)
        >>> play_group(group, episodes, Expert())
        >>> [episode.success for episode in episodes]
        [True, True]

    Args:
        group: environments, one per row, after a reset or replay.
        episodes: one per row, begun.
        player: chooses the replies.
        at_once: maximum number of rows that play side by side; the others begin as rows end. None: all.
    """
    while rows := [row for row, running in enumerate(group.running) if running][:at_once]:
        replies = player.replies(rows)
        for row in rows:
            if row not in replies:
                group.drop(row)
        results = group.step_rows(replies, tolerant=True)
        for row, reply in replies.items():
            error = group.errors[row]
            if error is not None:
                episodes[row].fail(error)
                continue
            observation, reward, terminated, truncated, info = results[row]
            result = StepResult(observation, reward, terminated or truncated, terminated, info)
            write_step(episodes[row], reply, result)
            player.played(row, result)


def write_step(episode: Episode, reply: str, result: StepResult) -> None:
    """Record a turn, and the end of the episode if it was the last."""
    episode.add(reply, result.observation, result.info)
    if result.over:
        episode.end(result.reward, result.terminated, result.info)
