"""Adapter for verifiers: a v1 taskset and its environment (tested with verifiers 0.4.0; docs/adapters.md).

verifiers finds a taskset by the name of a top-level module. Write one, ``my_tasks.py``:

    from tstar_envs.adapters.verifiers import TStarEnv, TStarTaskset

    __all__ = ["TStarEnv", "TStarTaskset"]

and run ``vf-eval my_tasks --env.taskset.env tstar/Sokoban-easy --env.taskset.panel v1``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tstar_envs.errors import MissingExtra
from tstar_envs.evalset import TaskSet, task_set

try:
    import verifiers.v1 as vf
    from pydantic import Field
except ImportError as error:
    raise MissingExtra("the adapter for verifiers", error.name or "verifiers", "verifiers") from error

__all__ = ["TStarEnv", "TStarTaskset"]


class TStarData(vf.TaskData):
    """One task: id, the rules as system prompt, the first observation as prompt, and its set."""

    env: str
    split: str
    rules_version: str
    panel: str | None
    tasks_hash: str
    options: dict[str, Any]


class TStarConfig(vf.TasksetConfig):
    """Configuration of the tasks: ``--env.taskset.env``, ``.split``, ``.panel`` and ``.options``."""

    env: str = "tstar/Sokoban-easy"
    split: str = "test"
    panel: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)


class TStarTask(vf.Task[TStarData, vf.State, vf.TaskConfig]):
    """Task scored by its environment, without rewards of its own."""


class TStarTaskset(vf.Taskset[TStarTask, TStarConfig]):
    """Tasks of a split or evaluation set, in order, each with the hash of the whole set."""

    def load(self) -> Iterator[TStarTask]:
        """Load the tasks in the form that verifiers expects.

        Raises:
            UnknownOption: unknown environment, split, panel or option.
            PanelMismatch: the environment made here does not play the panel's tasks.
        """
        config = self.config
        tasks = task_set(config.env, split=config.split, panel=config.panel, **config.options)
        made = tasks.make()
        rules = made.prompt()
        for name in tasks.ids:
            text, _ = made.reset(options={"task": name})
            data = TStarData(
                id=name, name=name, system_prompt=rules, prompt=text, options=tasks.options, **tasks.record()
            )
            yield TStarTask(data, config.task)


class TStarEnvConfig(vf.EnvConfig):
    """Configuration of the player; by default a chat model in a local process, without programs."""

    player: vf.AgentConfig = vf.AgentConfig.model_validate(
        {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
    )


class TStarEnv(vf.Env[TStarEnvConfig]):
    """Environment that steps with the player's replies until the episode is over."""

    async def run(self, task: TStarTask, agents: Any) -> None:
        """Play a task; ``reward`` is the environment's, ``success`` and ``steps`` are metrics.

        A failure of a search service is raised, so that the episode has an error and no reward. If the model's endpoint fails there is no
        reward either: verifiers notes the error in the trace.
        """
        data = task.data
        tasks = TaskSet(
            data.env,
            data.split,
            data.rules_version,
            (str(data.id),),
            data.tasks_hash,
            data.panel,
            data.options,
        )
        made = tasks.make()
        try:
            made.reset(options={"task": data.id})
            earned, info, over = 0.0, {"success": False, "step": 0}, False
            async with agents.player.interaction(task) as interaction:
                segment = await interaction.turn()
                while not segment.terminated:
                    text, earned, terminated, truncated, info = made.step(segment.last_reply)
                    over = terminated or truncated
                    if over:
                        break
                    segment = await interaction.turn(text)
            trace = interaction.trace
            if trace.errors and not over:
                return
            trace.record_reward("reward", earned if over else 0.0)
            trace.record_metrics({"success": float(info["success"]), "steps": float(info["step"])})
        finally:
            made.close()
