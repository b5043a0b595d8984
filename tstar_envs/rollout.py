"""Rollouts: groups of episodes played in step, and their records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tstar_envs.core import TextEnv
from tstar_envs.errors import EnvironmentFailed, InfrastructureError, ResetNeeded, UnknownOption
from tstar_envs.foreign import StepResult, called, check_attributes, prepared, reset_result, stepped
from tstar_envs.record import Episode
from tstar_envs.registry import EnvEntry, find_entry
from tstar_envs.utils import counted, is_whole

Infos = list[dict[str, Any] | None]


class GroupEnv:
    """Row r plays task ``r // group_size``; built by ``make_group``.

    Attributes:
        envs: the rows' environments.
        tasks: the tasks, by id or index within the split.
        group_size: rows per task.
        errors: for each row why its episode failed, None where it did not (see ``step``).
    """

    def __init__(
        self, envs: Sequence[TextEnv[Any, Any]], tasks: Sequence[str | int], group_size: int
    ) -> None:
        self.envs = list(envs)
        self.tasks = list(tasks)
        self.group_size = group_size
        self.errors: list[InfrastructureError | None] = [None] * len(self.envs)
        self._running = [False] * len(self.envs)

    def __len__(self) -> int:
        return len(self.envs)

    def reset(self, tasks: Sequence[str | int] | None = None) -> tuple[list[str], list[dict[str, Any]]]:
        """Start every row's episode; ``tasks`` (as many as before) replaces the tasks.

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
        results = [reset_result(env, self.tasks[r // self.group_size]) for r, env in enumerate(self.envs)]
        self.errors = [None] * len(self.envs)
        self._running = [True] * len(self.envs)
        return [obs for obs, _ in results], [info for _, info in results]

    def replay(self, prefixes: Sequence[Sequence[str]], *, tolerant: bool = False) -> None:
        """Start every row anew and play recorded replies again, so that each stands where its prefix ends.

        Args:
            prefixes: per row, the replies to play; they may differ in number.
            tolerant: see ``step``.

        Raises:
            InfrastructureError: see ``step``.
            ResetNeeded: a prefix goes on after its episode is over.
        """
        if len(prefixes) != len(self.envs):
            raise UnknownOption(
                f"replay needs {len(self.envs)} prefixes, one for each row, got {len(prefixes)}"
            )
        self.reset()
        for turn in range(max(map(len, prefixes), default=0)):
            rows = [r for r, prefix in enumerate(prefixes) if turn < len(prefix) and self.errors[r] is None]
            self._play({row: prefixes[row][turn] for row in rows}, tolerant)

    def step(
        self, replies: Sequence[str | None], *, tolerant: bool = False
    ) -> tuple[list[str | None], list[float | None], list[bool | None], list[bool | None], Infos]:
        """Play one reply per row.

        Args:
            replies: a string for each running row, None for each finished one.
            tolerant: a row whose infrastructure fails leaves and ``errors`` says why, instead of the error being raised.

        Returns:
            Observations, rewards, terminated, truncated and infos, one entry per row; None where the row was finished before, or
            has failed now: a failed row has no reward, not one of 0.

        Raises:
            InfrastructureError: a search service failed; nothing was played, so that the same step may be tried again.
            EnvironmentFailed: an environment, which may be anybody's code, raised something or returned what it must not.
            ResetNeeded: a reply for a finished row, or none for a running one.
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
                    else f"{left} and takes None; call reset() to start anew"
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
        """Play one reply in each of some rows; a row that fails has no result."""
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
        return results

    def drop(self, row: int) -> None:
        """Give a running row up: it takes no more replies until ``reset``.

        Raises:
            ResetNeeded: the row does not run.
        """
        if not self._running[row]:
            raise ResetNeeded(f"row {row} does not run and cannot leave; call reset() to start anew")
        self._running[row] = False

    @property
    def running(self) -> list[bool]:
        """Which rows still play."""
        return list(self._running)


def make_group(env_id: str, tasks: Sequence[str | int], group_size: int, **kwargs: Any) -> GroupEnv:
    """Many episodes side by side.

    Args:
        env_id: registered id or its short name.
        tasks: ids, or indexes within the split given by ``split=`` (default test).
        group_size: rows per task.
        **kwargs: options of the environment.

    Raises:
        UnknownOption: a group size that is no whole number of at least 1, or one task instead of several.
        EnvironmentFailed: the environment's class cannot be made; what it raised is named.
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


class Player(Protocol):
    """Who plays the rows of a group."""

    def replies(self, rows: Sequence[int]) -> Mapping[int, str]:
        """Decide what the running rows say.

        Args:
            rows: their indexes.

        Returns:
            The reply of each row. A row that is left out is not played on: what its episode says about that is the player's to write.
        """

    def played(self, row: int, result: StepResult) -> None:
        """Hear what came of the row's last reply; its episode has the step already. A row whose infrastructure failed hears nothing."""


def new_episode(
    env: TextEnv[Any, Any],
    entry: EnvEntry,
    agent: str,
    task: str,
    *,
    sample: int = 0,
    seed: int | None = None,
) -> Episode:
    """The record of an episode that is about to be reset.

    Args:
        env: where it will be played.
        entry: its entry in the table.
        agent: how the record calls who plays.
        task: task id.
        sample: number of the episode among those of the task.
        seed: of the agent's sampling, None if it has none.
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


def play_group(group: GroupEnv, episodes: Sequence[Episode], player: Player) -> None:
    """Play every running row of a group to its end, writing into its episode.

    A row whose infrastructure fails ends without a result: its episode's ``ended`` is ``error``, and the others play on.

    Args:
        group: environments, one per row, reset or replayed.
        episodes: one per row, begun.
        player: decides what is replied.
    """
    while rows := [row for row, running in enumerate(group.running) if running]:
        replies = player.replies(rows)
        for row in rows:
            if row not in replies:
                group.drop(row)
        observations, rewards, terminated, truncated, infos = group.step(
            [replies.get(r) for r in range(len(group))], tolerant=True
        )
        for row, reply in replies.items():
            observation, reward, info, error = observations[row], rewards[row], infos[row], group.errors[row]
            if error is not None:
                episodes[row].fail(error)
                continue
            if observation is None or reward is None or info is None:
                raise RuntimeError(f"row {row} was stepped but gave no result")
            result = StepResult(
                observation, reward, bool(terminated[row] or truncated[row]), bool(terminated[row]), info
            )
            write_step(episodes[row], reply, result)
            player.played(row, result)


def write_step(episode: Episode, reply: str, result: StepResult) -> None:
    """Write a turn, and the end if it was the last."""
    episode.add(reply, result.observation, result.info)
    if result.over:
        episode.end(result.reward, result.terminated, result.info)
