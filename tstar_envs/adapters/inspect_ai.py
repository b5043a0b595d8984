"""Adapter for inspect_ai: an environment as a task of ``inspect eval`` (tested with inspect_ai 0.3.285; docs/adapters.md).

    from inspect_ai import eval
    from tstar_envs.adapters.inspect_ai import play

    eval(play("tstar/Sokoban-easy", panel="v1"), model="openai/gpt-4o-mini")

If this package is installed with ``pip install`` (not ``-e``), ``inspect eval tstar_envs/play -T env=tstar/Sokoban-easy -T panel=v1
--model ...`` does the same.
"""

from __future__ import annotations

import json
from typing import Any

from tstar_envs.core import TextEnv
from tstar_envs.errors import InfrastructureError, MissingExtra
from tstar_envs.evalset import TaskSet, task_set
from tstar_envs.tools import NOT_PLAYED, TOOLS_NOTE, Tool, reply_to_call

try:
    from inspect_ai import Task, task
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.model import (
        ChatMessage,
        ChatMessageAssistant,
        ChatMessageSystem,
        ChatMessageTool,
        ChatMessageUser,
    )
    from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
    from inspect_ai.solver import Generate, Solver, TaskState, solver
    from inspect_ai.tool import ToolDef, ToolParams
except ImportError as error:
    raise MissingExtra("the adapter for inspect_ai", error.name or "inspect_ai", "inspect") from error


@task
def play(
    env: str = "tstar/Sokoban-easy",
    split: str = "test",
    panel: str | None = None,
    limit: int | None = None,
    tools: bool = False,
    options: dict[str, Any] | None = None,
) -> Task:
    """Make a task with one sample per task of an environment; its scores are the reward and success.

    Args:
        env: environment id or short name.
        split: split of the tasks.
        panel: play the tasks of an evaluation set (``v1``) instead; the log then has its hash.
        limit: play only the first tasks, at most so many.
        tools: True to act by typed tool calls instead of ``Action:`` lines.
        options: options of the environment.

    Raises:
        UnknownOption: unknown environment, split, panel or option.
        PanelMismatch: the environment made here does not play the panel's tasks.
    """
    tasks = task_set(env, split=split, panel=panel, limit=limit, **(options or {}))
    return Task(
        dataset=MemoryDataset(_samples(tasks, tools), name=tasks.env),
        solver=episode(tasks, tools),
        scorer=reward(),
        version=tasks.rules_version,
        name=tasks.env.rpartition("/")[2],
        metadata={**tasks.record(), "tools": tools, "options": tasks.options},
    )


def _samples(tasks: TaskSet, tools: bool) -> list[Sample]:
    made = tasks.make()
    rules = f"{made.prompt()}\n\n{TOOLS_NOTE}" if tools else made.prompt()
    samples = []
    for name in tasks.ids:
        text, info = made.reset(options={"task": name})
        opening: list[ChatMessage] = [ChatMessageSystem(content=rules), ChatMessageUser(content=text)]
        samples.append(Sample(id=name, input=opening, target=info["instruction"], metadata=tasks.record()))
    made.close()
    return samples


@solver
def episode(tasks: TaskSet, tools: bool = False) -> Solver:
    """Play an episode: step the environment with the model's replies until it is over.

    A failure of a search service is raised, so that the sample has an error and no score.
    """

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        made = tasks.make()
        try:
            made.reset(options={"task": str(state.sample_id)})
            state.tools = [_described(tool) for tool in made.tools] if tools else []
            _keep(state, 0.0, False, 0)
            over = False
            while not over:
                state = await generate(state, tool_calls="none")
                reply, answered = _reply(made, state.output.message)
                try:
                    text, earned, terminated, truncated, info = made.step(reply)
                except InfrastructureError as error:
                    state.store.set("failed", str(error))
                    raise
                over = terminated or truncated
                _keep(state, earned if over else 0.0, info["success"], info["step"])
                state.messages.extend(answered(text))
            state.completed = True
        finally:
            made.close()
        return state

    return solve


def _keep(state: TaskState, earned: float, success: bool, steps: int) -> None:
    for name, value in (("reward", earned), ("success", success), ("steps", steps)):
        state.store.set(name, value)


def _described(tool: Tool) -> Any:
    """Convert a typed tool for inspect_ai; the environment executes the calls, not inspect_ai."""

    async def execute(**arguments: str) -> str:
        raise RuntimeError("calls are played by the environment")

    parameters = tool.schema()["function"]["parameters"]
    return ToolDef(
        execute,
        name=tool.name,
        description=tool.description,
        parameters=ToolParams.model_validate(parameters),
    ).as_tool()


def _reply(made: TextEnv[Any, Any], message: ChatMessageAssistant) -> tuple[str, Any]:
    """Convert a model's message to a reply and a wrapper of the observation; one call per turn."""
    calls = message.tool_calls or []
    if not calls:
        return message.text, lambda text: [ChatMessageUser(content=text)]
    first, *rest = calls
    reply, problem = reply_to_call(made.tools, first.function, json.dumps(first.arguments), message.text)
    wrong = f"Error: {problem}\n" if problem else ""

    def answered(text: str) -> list[ChatMessage]:
        left = [
            ChatMessageTool(
                content=NOT_PLAYED,
                tool_call_id=call.id,
                function=call.function,
            )
            for call in rest
        ]
        return [ChatMessageTool(content=wrong + text, tool_call_id=first.id, function=first.function), *left]

    return reply, answered


@scorer(metrics={"reward": [mean(), stderr()], "success": [mean(), stderr()]})
def reward() -> Scorer:
    """Score a sample by the environment's reward; 0 if a limit of inspect_ai ended the episode.

    An episode whose search service failed is unscored; inspect_ai asks for its score if ``score_on_error`` is set.
    """

    async def score(state: TaskState, target: Target) -> Score:
        if (failed := state.store.get("failed")) is not None:
            return Score.unscored(reason="infrastructure_failed", explanation=failed)
        earned, solved = float(state.store.get("reward", 0.0)), float(state.store.get("success", False))
        return Score(
            value={"reward": earned, "success": solved}, metadata={"steps": state.store.get("steps", 0)}
        )

    return score
