"""TRL: environments for ``GRPOTrainer(environment_factory=...)``, and the dataset that names their tasks.

    from trl import GRPOConfig, GRPOTrainer
    from tstar_envs.adapters.trl import environment_factory, task_dataset

    trainer = GRPOTrainer(
        "Qwen/Qwen2.5-1.5B-Instruct", args=GRPOConfig(num_generations=8, max_completion_length=2048),
        train_dataset=task_dataset("tstar/Sokoban-easy"), environment_factory=environment_factory("tstar/Sokoban-easy"),
    )
    trainer.train()

TRL makes one instance for each rollout of a batch, resets it with the row of the dataset, gives the model its public methods as tools
and asks it for the reward. The rows name the task, so that all members of a group play the same one.
"""

from __future__ import annotations

import inspect
import itertools
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tstar_envs.core import TextEnv
from tstar_envs.errors import InfrastructureError, MissingExtra
from tstar_envs.evalset import TaskSet, task_set
from tstar_envs.react import render_reply
from tstar_envs.registry import EnvEntry, find_entry
from tstar_envs.tools import TOOLS_NOTE, BadCall, Tool

if TYPE_CHECKING:
    from datasets import Dataset


class Rollout:
    """What the classes of ``environment_factory`` have in common; the tools are methods of each class.

    Attributes:
        info: of the latest reset or step (``TextEnv``); reward functions find it in the instances that TRL hands them as ``environments``.
    """

    _entry: ClassVar[EnvEntry]
    _options: ClassVar[dict[str, Any]]
    _seeds: ClassVar[itertools.count[int]]

    def __init__(self) -> None:
        self._env = _make(self._entry, self._options)
        self._seed: int | None = next(self._seeds)  # of the first reset; later ones draw on
        self._running = False
        self._reward = 0.0
        self._failure: InfrastructureError | None = None
        self.info: dict[str, Any] = {}

    def reset(
        self,
        task: str | int | None = None,
        seed: int | None = None,
        prompt: Sequence[dict[str, Any]] | None = None,
        **columns: Any,
    ) -> str:
        """Start an episode.

        Args:
            task: id, or index within the split; None draws one.
            seed: of that draw, for rows that name a seed instead of a task; else each instance has a stream of its own.
            prompt: of the row. One that says nothing (TRL's own, where there is no dataset) is followed by the rules.
            **columns: further ones of the row, which do not matter here.

        Returns:
            What TRL puts behind the prompt: the first observation.

        Raises:
            UnknownTask: no such task, or none in the split.
        """
        self._running, self._reward, self._failure = False, 0.0, None
        seed, self._seed = self._seed if seed is None else seed, None
        observation, self.info = self._env.reset(seed=seed, options=None if task is None else {"task": task})
        self._running = True
        silent = prompt is not None and not any(message["content"] for message in prompt)
        return f"{instructions(self._env)}\n\n{observation}" if silent else observation

    def get_reward(self) -> float | None:
        """The reward of the episode: 0 where it was not played to its end.

        Returns:
            None where what the environment relies on failed (a search service): TRL leaves such a rollout out of its group.
        """
        return None if self._failure is not None else self._reward

    def _call(self, tool: Tool, arguments: dict[str, Any]) -> str:
        """Play a call. TRL passes the message of an error on to the model, and the rollout goes on.

        Raises:
            ValueError: the episode is over, or has failed; or the call is none (``BadCall``), which costs a turn as any invalid action.
            InfrastructureError: what the environment relies on failed; nothing was played, and the episode has no reward.
        """
        if self._failure is not None:
            raise ValueError(f"the episode has failed: {self._failure}")
        if not self._running:
            raise ValueError(
                "the episode is over: no more calls are played"
                if self.info
                else "no episode is running yet: reset first"
            )
        try:
            action = tool.text(arguments)
        except BadCall:
            # As `eval --tools` plays it.
            self._step(f"{tool.name}({json.dumps(arguments, ensure_ascii=False, default=str)})")
            raise
        return self._step(render_reply("", action))

    def _step(self, reply: str) -> str:
        try:
            observation, reward, terminated, truncated, self.info = self._env.step(reply)
        except InfrastructureError as error:
            self._failure = error
            raise
        self._reward += reward
        self._running = not (terminated or truncated)
        return observation


def environment_factory(env_id: str, *, seed: int = 0, split: str = "train", **options: Any) -> type[Rollout]:
    """A class for ``GRPOTrainer(environment_factory=...)``, or for a value of the mapping that it takes as well.

    Args:
        env_id: registered id or short name.
        seed: of the tasks that are drawn where a row names none; instance n has the seed ``seed + n``.
        split: where tasks are drawn from, and within which an index counts.
        **options: of the environment.

    Returns:
        A class without constructor arguments whose public methods are ``reset``, ``get_reward`` and the environment's typed tools.

    Raises:
        UnknownOption: no such environment, split or option.
    """
    entry, options = find_entry(env_id), {"split": split, **options}
    tools = _make(entry, options).tools  # an option may change them, and a wrong one is refused here
    shared = {"_entry": entry, "_options": options, "_seeds": itertools.count(seed), "__module__": __name__}
    name = entry.id.partition("/")[2].replace("-", "_")  # TRL names the reward after it
    return type(
        name, (Rollout,), {**shared, "__doc__": entry.summary, **{tool.name: _method(tool) for tool in tools}}
    )


def _make(entry: EnvEntry, options: dict[str, Any]) -> TextEnv[Any, Any]:
    return entry.load_class()(**{**entry.kwargs, **options})


def _method(tool: Tool) -> Callable[..., str]:
    """A tool as a method, described as TRL reads it: by type hints and a docstring in Google's form."""
    hints = {name: Literal[tool.choices[name]] if name in tool.choices else str for name in tool.parameters}
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    rest = [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=hint)
        for name, hint in hints.items()
    ]
    signature = inspect.Signature([own, *rest], return_annotation=str)

    def method(self: Rollout, /, *values: Any, **named: Any) -> str:
        try:
            arguments = dict(signature.bind(self, *values, **named).arguments)
            del arguments["self"]
        except TypeError:  # one too many, one missing or another name: for the tool to say
            arguments = {**{str(number): value for number, value in enumerate(values)}, **named}
        return self._call(tool, arguments)

    described = "\n".join(f"    {name}: {text}" for name, text in tool.parameters.items())
    method.__doc__ = (
        f"{tool.description}\n\nArgs:\n{described}\n\nReturns:\n    What the environment answers."
    )
    method.__name__, method.__qualname__ = tool.name, f"{Rollout.__name__}.{tool.name}"
    method.__annotations__ = {**hints, "return": str}
    method.__signature__ = signature  # type: ignore[attr-defined]
    return method


def instructions(env: TextEnv[Any, Any]) -> str:
    """The rules as text for a model that acts by tool calls."""
    return f"{env.prompt()}\n\n{TOOLS_NOTE}"


def task_rows(tasks: TaskSet) -> list[dict[str, str | list[dict[str, str]]]]:
    """The rows of ``task_dataset``, for who puts them into a data set of another kind."""
    env = tasks.make()
    # TRL puts the first observation behind the last message.
    prompt = [{"role": "system", "content": instructions(env)}, {"role": "user", "content": ""}]
    env.close()
    return [{"prompt": prompt, "task": task, "tasks_hash": tasks.hash} for task in tasks.ids]


def task_dataset(
    env_id: str, split: str = "train", *, panel: str | None = None, limit: int | None = None, **options: Any
) -> Dataset:
    """The data set to train on: one row for each task, so that all members of a group play the same one.

    Args:
        env_id: registered id or short name.
        split: whose tasks.
        panel: a version of the fixed panel (``v1``), for its tasks instead.
        limit: only so many, from the first on.
        **options: of the environment, the same as those of ``environment_factory``: the rules and what a task holds may depend on them.

    Returns:
        Columns ``prompt`` (the rules as system message, and an empty message that TRL puts the first observation behind), ``task`` (its
        id) and ``tasks_hash`` (the same wherever the same tasks are played); ``info.description`` has the task set's whole record, as
        JSON. GRPOTrainer takes nothing but such a data set, so that there is no other form of it here.

    Raises:
        MissingExtra: the package datasets is not installed.
        UnknownOption: no such environment, split, panel or option.
        PanelMismatch: with these options the environment does not play the panel's tasks.
    """
    try:
        import datasets
    except ImportError as error:
        raise MissingExtra("task_dataset", "datasets", "trl") from error
    tasks = task_set(env_id, split=split, panel=panel, limit=limit, **options)
    text = datasets.Value("string")
    features = datasets.Features(
        {"prompt": [{"role": text, "content": text}], "task": text, "tasks_hash": text}
    )
    info = datasets.DatasetInfo(description=json.dumps(tasks.record()), features=features)
    return datasets.Dataset.from_list(task_rows(tasks), info=info)
