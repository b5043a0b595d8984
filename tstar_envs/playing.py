"""Playing the rows of a group in step, as the trainer and ``replay`` do, and writing their episodes.

``eval``, whose agents wait each for a model of their own, plays seat by seat (``bench.runner``) and writes episodes by the functions here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tstar_envs.core import TextEnv
from tstar_envs.group import GroupEnv
from tstar_envs.hooks import StepResult
from tstar_envs.record import Episode
from tstar_envs.registry import EnvEntry

__all__ = ["Player", "StepResult", "new_episode", "play_group", "write_step"]


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
                group.leave(row)
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
