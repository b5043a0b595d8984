"""Agents as users write them, for test_agents.py."""

import asyncio
import time
from typing import Any


def function(observation: str, info: dict[str, Any]) -> str:
    return f"search[{observation[:5]}]"


def nothing(observation: str, info: dict[str, Any]) -> None:
    return None


def wrong(one: int, two: int, three: int) -> str:
    return ""


def seeded(seed: int, env_id: str) -> "Full":
    return Full(seed, env_id)


def sampling(temperature: float = 0.7) -> "Full":
    agent = Full()
    agent.temperature = temperature
    return agent


def broken() -> None:
    raise RuntimeError("no licence")


def no_agent() -> int:
    return 3


class OnlyAct:
    env_options = {"topk": 1}

    def act(self, observation: str, info: dict[str, Any]) -> str:
        return "finish[x]"


class Full:
    def __init__(self, seed: int = -1, env_id: str = "") -> None:
        self.made_with = (seed, env_id)
        self.temperature = 1.0
        self.resets: list[dict[str, Any]] = []

    def reset(self, observation: str, info: dict[str, Any]) -> None:
        self.resets.append(info)

    def act(self, observation: str, info: dict[str, Any]) -> str:
        info.clear()  # an agent may do what it likes with what it gets
        return "finish[x]"


class Crashing(OnlyAct):
    def act(self, observation: str, info: dict[str, Any]) -> str:
        raise TimeoutError("the model did not answer")


class BadOptions(OnlyAct):
    env_options = ["topk"]  # type: ignore[assignment]


instance = Full(7)


class Slow(OnlyAct):
    env_options: dict[str, Any] = {}

    def act(self, observation: str, info: dict[str, Any]) -> str:
        time.sleep(0.02)
        return "Left"


class SlowAsync:
    async def act(self, observation: str, info: dict[str, Any]) -> str:
        await asyncio.sleep(0.02)
        return "Left"


class Sleeping:
    def act(self, observation: str, info: dict[str, Any]) -> str:
        time.sleep(60)
        return "Left"


class AsleepAsync:
    async def act(self, observation: str, info: dict[str, Any]) -> str:
        await asyncio.sleep(60)
        return "Left"


class Deaf:
    """Does not let itself be cancelled."""

    async def act(self, observation: str, info: dict[str, Any]) -> str:
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                continue


class ClosesForEver(OnlyAct):
    env_options: dict[str, Any] = {}

    def close(self) -> None:
        time.sleep(60)


class ClosesForEverAsync(OnlyAct):
    env_options: dict[str, Any] = {}

    async def close(self) -> None:
        await asyncio.sleep(60)


class ClosesDeaf(OnlyAct):
    env_options: dict[str, Any] = {}

    async def close(self) -> None:
        await Deaf().act("", {})
