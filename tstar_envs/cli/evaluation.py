"""The plan of an evaluation, made from the command line of ``eval``: environment, agents, tasks, and the settings of the file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tstar_envs.bench.agents import Agent, ModelOptions, load_agent, more_agents, options_of
from tstar_envs.bench.handles import require_handles
from tstar_envs.bench.results import Key
from tstar_envs.bench.runner import Seat, Setting
from tstar_envs.bench.what_agents_see import bind_agent
from tstar_envs.cli.eval_command import EvalCommand
from tstar_envs.cli.options import make_env, parse_options
from tstar_envs.core import TextEnv
from tstar_envs.errors import UnknownOption, UnknownTask
from tstar_envs.evalset import panel
from tstar_envs.foreign import task_ids_of
from tstar_envs.redaction import redacted_fields
from tstar_envs.registry import EnvEntry

FORMAT = 1  # of the settings file


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation plays, ready to begin.

    Attributes:
        command: what was asked for.
        entry: the environment's entry in the table.
        env: the first seat's environment.
        agent: the first seat's agent, bound to it.
        options: of the environment.
        wishes: those of them that the agent, or the one that --options-of names, asks for.
        own: those that the user named.
        wanted: the episodes.
        panel: name and hash of the panel that the tasks are of, "" if of none.
        privileged: whether the agent got the environment itself.
    """

    command: EvalCommand
    entry: EnvEntry
    env: TextEnv[Any, Any]
    agent: Agent
    options: dict[str, Any]
    wishes: dict[str, Any]
    own: dict[str, Any]
    wanted: list[Key]
    panel: str
    privileged: bool

    @property
    def settings(self) -> dict[str, Any]:
        """What must be equal for two runs to belong to one file; what is not set is left out, so that older files go on."""
        command, entry = self.command, self.entry
        settings: dict[str, Any] = {
            "format": FORMAT,
            "env": entry.id,
            "rules_version": entry.rules_version,
            "tier": self.env.tier,
            "split": command.split,
            "agent": command.agent,
            "seed": command.seed,
            "options": self.options,
        }
        own = getattr(self.agent, "settings", None)
        more = {
            "temperature": command.temperature,
            "progress": command.progress or None,
            "panel": self.panel or None,
            "agent_settings": None if own is None else redacted_fields(own),
        }
        return {**settings, **{name: value for name, value in more.items() if value is not None}}

    @property
    def panel_label(self) -> str:
        """The panel for a table, and how much of it is played where that is not all; "" without one."""
        tasks = {task for task, _ in self.wanted}
        whole = (
            len(panel(self.command.panel)[self.entry.id].tasks)
            if self.command.panel is not None
            else len(tasks)
        )
        return (
            self.panel if len(tasks) == whole else f"{self.panel} (the first {len(tasks)} of {whole} tasks)"
        )

    @property
    def setting(self) -> Setting:
        """The setting that the runner works with."""
        return Setting(self.entry, self.command.agent, self.command.seed, self.command.progress, self.panel)

    def seats(self, missing: int) -> list[Seat]:
        """An environment and an agent for each episode that is played at the same time.

        Args:
            missing: episodes to play; more seats are not made.

        Raises:
            UnknownOption: a concurrency that the agent, or this machine, cannot have.
        """
        command = self.command
        wanted = (
            command.concurrency if command.concurrency is not None else getattr(self.agent, "concurrency", 1)
        )
        count = max(1, min(wanted, missing))
        require_handles(count, self.agent)
        agents = more_agents(self.agent, count, command.agent, lambda: _load(command, self.entry))
        seats = [Seat(self.env, self.agent)]
        for agent in agents[1:]:
            env = make_env(self.entry, {"split": command.split, **self.options})
            bind_agent(agent, env)
            seats.append(Seat(env, agent))
        return seats


def prepare(command: EvalCommand, entry: EnvEntry) -> Evaluation:
    """Load the agent, make its environment, choose the tasks.

    Raises:
        UnknownOption: options that do not fit together, or an agent that is none.
        UnknownTask: the split is empty.
        PanelMismatch: the panel is of other tasks than are here.
    """
    if command.concurrency is not None and command.concurrency < 1:
        raise UnknownOption(f"--concurrency must be 1 or more, got {command.concurrency}")
    if command.concurrency is not None and command.concurrency > 1 and command.agent == "human":
        raise UnknownOption(f"--concurrency {command.concurrency}: a person plays one episode at a time")
    agent = _load(command, entry)
    wishes, own = _wishes(command, entry, agent), _own_options(command, entry)
    options = {**wishes, **own}
    if command.panel is not None and "data" not in options and entry.has_public_data():
        options["data"] = "mini"  # a panel is of the shipped data, whatever public data this machine has
    env = make_env(entry, {"split": command.split, **options})
    tasks, shown_panel = _tasks(command, entry, env)
    wanted = [(task, sample) for task in tasks for sample in range(command.samples)]
    return Evaluation(
        command, entry, env, agent, options, wishes, own, wanted, shown_panel, bind_agent(agent, env)
    )


def _load(command: EvalCommand, entry: EnvEntry) -> Agent:
    model = ModelOptions(
        command.model,
        command.base_url,
        command.max_tokens,
        command.context_tokens,
        command.tools,
        command.timeout,
        command.retries,
        _request_fields(command.request),
    )
    return load_agent(
        command.agent, env_id=entry.id, seed=command.seed, temperature=command.temperature, model=model
    )


def _request_fields(pairs: tuple[str, ...]) -> dict[str, Any]:
    """``KEY=VALUE`` as fields of a request: JSON where it is, else the text."""
    fields: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UnknownOption(
                f"--request takes KEY=VALUE, got {pair!r}: for example --request reasoning_effort=low"
            )
        try:
            fields[name] = json.loads(value)
        except ValueError:
            fields[name] = value
    return fields


def _wishes(command: EvalCommand, entry: EnvEntry, agent: Agent) -> dict[str, Any]:
    """What the agent wishes of its environment, or the agent that --options-of names."""
    if command.options_of is not None:
        return options_of(command.options_of, env_id=entry.id, seed=command.seed)
    return dict(getattr(agent, "env_options", {}))


def _own_options(command: EvalCommand, entry: EnvEntry) -> dict[str, Any]:
    """The user's own options, which stand above any wishes."""
    return parse_options(entry, command.option, {"split": "--split"})


def _tasks(command: EvalCommand, entry: EnvEntry, env: TextEnv[Any, Any]) -> tuple[list[str], str]:
    """The tasks to play, and the panel that they are of."""
    if command.samples < 1:
        raise UnknownOption(f"--samples must be at least 1, got {command.samples}")
    ids, of, shown = task_ids_of(env, command.split), f"split {command.split!r}", ""
    if command.panel is not None:
        chosen = panel(command.panel)
        if command.split != "test":
            raise UnknownOption(
                f"panel {chosen.version} is made of test tasks: leave --split {command.split} out"
            )
        chosen.check(env)
        part = chosen[entry.id]
        ids, of, shown = list(part.tasks), f"panel {chosen.version}", f"{chosen.version} {part.hash}"
    if not ids:
        raise UnknownTask(
            f"split {command.split!r} of {entry.name} has no tasks; choose another split or another data tier"
        )
    count = len(ids) if command.tasks is None else command.tasks
    if not 1 <= count <= len(ids):
        raise UnknownOption(f"--tasks must be from 1 to {len(ids)}, the size of {of}, got {count}")
    return ids[:count], shown
