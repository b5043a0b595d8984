"""Scripted replies with what `eval` gives for them: every adapter must give the same rewards for the same replies on the same tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tstar_envs import find_entry, parse_reply
from tstar_envs import tools as tools_module
from tstar_envs.evalset import TaskSet, task_set
from tstar_envs.evaluation.runner import play_episode
from tstar_envs.tools import Tool

# One of each family.
ENVS = ("tstar/Sokoban-easy", "tstar/Blocksworld-stack", "tstar/HotpotQA", "tstar/WebShop", "tstar/ALFWorld")
PANEL = "v1"


@dataclass(frozen=True)
class Script:
    """One episode.

    Attributes:
        task: id.
        replies: ReAct replies, as many as the episode has steps.
        reward: that `eval` records.
        success: likewise.
    """

    task: str
    replies: tuple[str, ...]
    reward: float
    success: bool


class _Scripted:
    """Plays fixed replies; without further ones what no environment takes."""

    def __init__(self, replies: list[str]) -> None:
        self._replies = iter(replies)

    def reset(self, observation: str, info: dict[str, Any]) -> None:
        pass

    def act(self, observation: str, info: dict[str, Any]) -> str:
        return next(self._replies, "Thought: I am lost.\nAction: nothing at all")


def tasks(env: str) -> TaskSet:
    """The tasks that scripts are of: the first of the panel."""
    return task_set(env, panel=PANEL, limit=4)


@lru_cache
def scripts(env: str) -> tuple[Script, ...]:
    """Four episodes: the expert's; the expert's after an invalid action; one that is given up; the expert's replies for another task."""
    found = tasks(env)
    expert = {task: _expert(found, task) for task in found.ids}
    one, two, three, four = found.ids
    wanted = {
        one: expert[one],
        two: ["Thought: What does this do?\nAction: nothing at all", *expert[two]],
        three: [],
        four: expert[one],
    }
    return tuple(_played(found, task, replies) for task, replies in wanted.items())


def _expert(found: TaskSet, task: str) -> list[str]:
    env, replies, over = found.make(), [], False
    env.reset(options={"task": task})
    while not over:
        replies.append(env.oracle())
        _, _, terminated, truncated, _ = env.step(replies[-1])
        over = terminated or truncated
    return replies


def _played(found: TaskSet, task: str, replies: list[str]) -> Script:
    episode = play_episode(
        found.make(), find_entry(found.env), _Scripted(replies), name="scripted", task=task
    )
    said = tuple(
        [*replies, *["Thought: I am lost.\nAction: nothing at all"] * len(episode.steps)][
            : len(episode.steps)
        ]
    )
    return Script(task, said, episode.reward, episode.success)


def scripted_answer(env: str) -> Callable[[list[dict[str, Any]]], str]:
    """What a model that follows the scripts says next, from the messages of a chat."""
    made = tasks(env).make()
    by_start = {made.reset(options={"task": script.task})[0]: script for script in scripts(env)}

    def answer(messages: list[dict[str, Any]]) -> str:
        said = [message for message in messages if message["role"] == "assistant"]
        start = next(_text(message) for message in messages if message["role"] == "user")
        return by_start[start].replies[len(said)]

    return answer


def _text(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def call_of(tools: tuple[Tool, ...], reply: str) -> tuple[str, dict[str, str]] | None:
    """The typed call that a reply's action stands for; None where there is none."""
    return tools_module.call_of(tools, parse_reply(reply).action)


__all__ = ["ENVS", "PANEL", "Script", "call_of", "scripted_answer", "scripts", "tasks"]
