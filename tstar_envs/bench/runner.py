"""Plays episodes of an agent and records them; a failure of the infrastructure is an ``error``, never a reward of 0."""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

from tstar_envs.bench.agents import Agent
from tstar_envs.bench.results import Key
from tstar_envs.core import TextEnv
from tstar_envs.errors import TStarError
from tstar_envs.group import GroupEnv
from tstar_envs.playing import StepResult, new_episode, play_group
from tstar_envs.record import Episode
from tstar_envs.registry import EnvEntry

ERRORS_IN_A_ROW = 5  # then something is broken for good, and going on would only fill the file


class BrokenRun(TStarError):
    """Several episodes in a row ended in an error."""


class AgentError(TStarError):
    """An agent raised, or returned something that is not a string."""


def agent_seed(seed: int, task: str, sample: int) -> int:
    """A seed of 63 bits for one episode's sampling: the same whichever episodes were played before it."""
    digest = hashlib.blake2b(f"{seed}\0{task}\0{sample}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def play_episode(
    env: TextEnv[Any, Any], entry: EnvEntry, agent: Agent, *, name: str, task: str, seed: int = 0, sample: int = 0, progress: bool = False
) -> Episode:  # fmt: skip
    """Play one episode to its end.

    Args:
        env: where.
        entry: its entry in the table, for the record.
        agent: who.
        name: how the record calls the agent.
        task: task id.
        seed: with the task and the sample it gives ``info["agent_seed"]``, which ``agent.reset`` gets.
        sample: number of the episode among those of the task.
        progress: whether ``extra`` gets ``progress``, how far the episode came (``TextEnv.progress`` of its last state); where that
            cannot be told (a solver gave up), the result stands and ``progress_unknown`` says why.

    Returns:
        The record. If the environment's infrastructure or the agent failed, ``ended`` is ``error`` and ``error`` says why.
    """
    episode = new_episode(env, entry, name, task, sample=sample, seed=seed)
    try:
        group = GroupEnv([env], [task], 1)
        (observation,), (info,) = group.reset()
        episode.begin(observation, info)
        play_group(group, [episode], _AgentPlayer(agent, episode, observation, info))
    except TStarError as error:
        episode.fail(error)
    if progress and episode.ended != "error":
        try:
            episode.extra["progress"] = env.progress()
        except TStarError as error:  # a measurement that fails says nothing about the episode, which was played
            episode.extra["progress_unknown"] = f"{type(error).__name__}: {error}"
    return episode


class _AgentPlayer:
    """An agent as the player of one episode."""

    def __init__(self, agent: Agent, episode: Episode, observation: str, info: dict[str, Any]) -> None:
        self._agent, self._observation, self._info = agent, observation, info
        seed = agent_seed(episode.seed or 0, episode.task, episode.sample)
        _call(agent.reset, observation, {**info, "agent_seed": seed, "sample": episode.sample})

    def replies(self, rows: Sequence[int]) -> dict[int, str]:
        reply = _call(self._agent.act, self._observation, self._info)
        if not isinstance(reply, str):
            raise AgentError(f"act(observation, info) must return a str, returned {type(reply).__name__}")
        return {0: reply}

    def played(self, row: int, result: StepResult) -> None:
        self._observation, self._info = result.observation, result.info


def _call(function: Any, observation: str, info: dict[str, Any]) -> Any:
    try:
        return function(observation, info)
    except TStarError:
        raise
    except Exception as error:  # an agent is foreign code: its crash costs this episode, not the run
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{last.filename}, line {last.lineno}, in {last.name}"
        raise AgentError(f"the agent raised {type(error).__name__}: {error} ({where})") from error


def play_missing(
    env: TextEnv[Any, Any],
    entry: EnvEntry,
    agent: Agent,
    wanted: Sequence[Key],
    done: dict[Key, Episode],
    *,
    name: str,
    seed: int,
    progress: bool = False,
) -> Iterator[Episode]:
    """Play what is wanted and not done (or ended in an error), in order; yields each episode as it ends.

    Raises:
        BrokenRun: several episodes in a row ended in an error.
    """
    in_a_row = 0
    for task, sample in wanted:
        before = done.get((task, sample))
        if before is not None and before.ended != "error":
            continue
        episode = play_episode(env, entry, agent, name=name, task=task, seed=seed, sample=sample, progress=progress)
        yield episode
        in_a_row = in_a_row + 1 if episode.ended == "error" else 0
        if in_a_row == ERRORS_IN_A_ROW:
            raise BrokenRun(f"stopped after {in_a_row} episodes in a row ended in an error, the last: {episode.error}")
