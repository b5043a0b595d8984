"""Steps of episodes that are played side by side, taken together as replies arrive: one search request for all that wait."""

from __future__ import annotations

import asyncio
from typing import Any

from tstar_envs.bench.workers import Workers
from tstar_envs.core import TextEnv
from tstar_envs.errors import TStarError
from tstar_envs.foreign import StepResult, prepared, step_result

Env = TextEnv[Any, Any]
Waiting = list[tuple[Env, str, "asyncio.Future[StepResult]"]]


class StepsTogether:
    """Collects the replies that arrive while the environments are busy, and plays them in one go.

    Args:
        workers: where environments run.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._waiting: Waiting = []
        self._busy: asyncio.Task[None] | None = None

    async def step(self, env: Env, reply: str) -> StepResult:
        """Play a reply.

        Raises:
            TStarError: what it rests on failed (``InfrastructureError``), or its code did (``EnvironmentFailed``).
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[StepResult] = loop.create_future()
        self._waiting.append((env, reply, answer))
        if self._busy is None or self._busy.done():
            self._busy = loop.create_task(self._play())
        return await answer

    async def _play(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            results = await self._workers.run(
                step_rows, [env for env, _, _ in batch], [reply for _, reply, _ in batch]
            )
            for (_, _, answer), result in zip(batch, results, strict=True):
                if answer.done():  # cancelled
                    continue
                if isinstance(result, StepResult):
                    answer.set_result(result)
                else:
                    answer.set_exception(result)


def step_rows(envs: list[Env], replies: list[str]) -> list[StepResult | TStarError]:
    """Step environments of one family, after what they share (``TextEnv.prepare_group_step``); what fails costs its own row."""
    try:
        failed: dict[int, TStarError] = {**prepared(envs, replies)}
    except TStarError as error:
        failed = dict.fromkeys(range(len(envs)), error)
    return [
        failed[i] if i in failed else _step(env, reply)
        for i, (env, reply) in enumerate(zip(envs, replies, strict=True))
    ]


def _step(env: Env, reply: str) -> StepResult | TStarError:
    try:
        return step_result(env, reply)
    except TStarError as error:
        return error
