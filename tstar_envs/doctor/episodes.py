"""One episode of the expert in each environment, with the shipped data: makes, resets, plays and wins, or says why not."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator

import gymnasium as gym

from tstar_envs.bench.agents.oracle import OracleAgent
from tstar_envs.bench.runner import play_episode
from tstar_envs.core import TextEnv
from tstar_envs.doctor.finding import BROKEN, MISSING, OK, Finding
from tstar_envs.errors import MissingExtra, install
from tstar_envs.panel import panel
from tstar_envs.registry import EnvEntry, list_envs
from tstar_envs.wording import counted


def examine_environments() -> Iterator[Finding]:
    """Every environment in turn, one finding each as it is done."""
    for entry in list_envs():
        began = time.perf_counter()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                status, detail, mend = *_play(entry), ""
            except MissingExtra as error:
                status, detail, mend = MISSING, f"needs the package {error.package}", install(error.extra)
            except Exception as error:  # noqa: BLE001 - the finding reports whatever keeps an environment from playing
                status, detail, mend = BROKEN, f"{type(error).__name__}: {error}", ""
        detail += "".join(dict.fromkeys(f"; warning: {warning.message}" for warning in caught))
        yield Finding(
            entry.id,
            status,
            detail,
            mend or ("" if status != BROKEN else _ADVICE),
            round(time.perf_counter() - began, 3),
        )


_ADVICE = "install this project again; if that changes nothing, report this line"


def _play(entry: EnvEntry) -> tuple[str, str]:
    env = gym.make(entry.id, data="mini", disable_env_checker=True).unwrapped
    if not isinstance(env, TextEnv):
        return BROKEN, f"gym.make gives a {type(env).__name__}; another package has registered this id"
    fixed = panel("v1")
    fixed.check(env)
    task = fixed[entry.id].tasks[0]
    agent = OracleAgent()
    agent.bind(env)
    episode = play_episode(env, entry, agent, name="oracle", task=task)
    if episode.ended == "error":
        return BROKEN, f"the expert's episode of task {task!r} ended in an error: {episode.error}"
    if not episode.success:
        return (
            BROKEN,
            f"the expert does not solve task {task!r} in {counted(len(episode.steps), 'step')} (reward {episode.reward:g})",
        )
    return (
        OK,
        f"the expert solves task {task!r} in {counted(len(episode.steps), 'step')}; the panel's tasks are as they should be",
    )
