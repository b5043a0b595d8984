"""A fixed walk through an environment that works for every family, and its transcript.

Run as a script it prints the digest of the transcript: processes with different hash seeds must print the same.
"""

import hashlib
import json
import sys
from typing import Any

import gymnasium as gym
import pytest

import tstar_envs
from tstar_envs import TextEnv, list_envs

# As ``pytestmark`` of a module: each of its tests runs once per registered environment, under its id.
FOR_EVERY_ENV = pytest.mark.parametrize("entry", list_envs(), ids=[entry.id for entry in list_envs()])

GARBAGE = (
    "",
    "Action:",
    "jump up and down",
    "<answer></answer>",
    "Thought: hm",
    "search[",
    "\x00\ud800",
    "]]]][[[[",
)


def make(env_id: str, **options: Any) -> TextEnv[Any, Any]:
    env = gym.make(env_id, **options).unwrapped
    assert isinstance(env, TextEnv)
    return env


def reply_for(env: TextEnv[Any, Any], number: int) -> str:
    """Of three replies one is the expert's, one a believable mistake, one garbage."""
    if number % 3 == 0:
        return env.oracle() or "nothing"
    return env.mistake(number) if number % 3 == 1 else GARBAGE[number // 3 % len(GARBAGE)]


def walk(env: TextEnv[Any, Any], seed: int = 11, steps: int = 50) -> list[Any]:
    """Everything that comes back from ``steps`` steps, with a reset at every end."""
    seen: list[Any] = [env.reset(seed=seed)]
    over = False
    for number in range(steps):
        if over:
            seen.append(env.reset())
        seen.append(env.step(reply_for(env, number)))
        over = seen[-1][2] or seen[-1][3]
    return seen


def digest(seen: list[Any]) -> str:
    return hashlib.sha256(json.dumps(seen, sort_keys=True).encode()).hexdigest()


if __name__ == "__main__":
    tstar_envs.register_all()
    for name in sys.argv[1:]:
        print(digest(walk(make(name))))
