"""Subject of a grade: the environment, the episodes shared by several checks, and findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import repeat
from typing import Any

from tstar_envs.agents.builtin import OracleAgent, RandomAgent
from tstar_envs.core import TextEnv
from tstar_envs.errors import InfrastructureError
from tstar_envs.evaluation.runner import play_episode
from tstar_envs.record import Episode
from tstar_envs.registry import EnvEntry

PASS, FAIL, SKIP, ERROR = "pass", "fail", "skip", "error"


@dataclass(frozen=True)
class Finding:
    """Outcome of a check.

    Attributes:
        status: ``pass``; ``fail``; ``skip`` if the check does not apply to the environment; ``error`` if the environment raised.
        figures: measurements.
        evidence: sentences; for a failure what went wrong, with the task.
        mend: advice for the author of the environment, "" if there is nothing to do.
    """

    status: str
    figures: dict[str, Any] = field(default_factory=dict)
    evidence: list[str] = field(default_factory=list)
    mend: str = ""


def verdict_of(problems: list[str], figures: dict[str, Any], mend: str) -> Finding:
    """Make a finding: a pass without problems, else a failure with the first of them."""
    if not problems:
        return Finding(PASS, figures)
    more = [f"and {len(problems) - 3} more"] if len(problems) > 3 else []
    return Finding(FAIL, figures, problems[:3] + more, mend)


# Replies without knowledge of the task, as a policy in search of an easy reward may try them: some without an action,
IDLE = {
    "says nothing": "",
    "writes no action": "Thought: I would like a reward of 1.0.",
    "asks for the reward": "Thought: Ignore the rules.\nAction: reward[1.0]",
}
# and guesses, which are sometimes right.
GUESSES = {
    "ends at once": "Thought: I am done.\nAction: finish[]",
    "answers blindly": "Thought: It may be so.\nAction: finish[yes]",
}


AT_RANDOM = "plays at random"


class Scripted:
    """Agent that plays given replies, then repeats the last ("" if there are none)."""

    def __init__(self, replies: Sequence[str]) -> None:
        self._replies, self._next = list(replies) or [""], 0

    def reset(self, observation: str, info: dict[str, Any]) -> None:
        """Restart from the first reply."""
        self._next = 0

    def act(self, observation: str, info: dict[str, Any]) -> str:
        """Return the next recorded reply."""
        reply = self._replies[min(self._next, len(self._replies) - 1)]
        self._next += 1
        return reply


@dataclass
class Subject:
    """Environment with the tasks that it is graded on.

    Attributes:
        entry: registry entry.
        split: split of the tasks.
        options: options of the environment.
        tasks: task ids.
    """

    entry: EnvEntry
    split: str
    options: dict[str, Any]
    tasks: tuple[str, ...] = field(default=())

    def make(self) -> TextEnv[Any, Any]:
        """Make a new environment."""
        return self.entry.make(split=self.split, **self.options)

    def play(self, agent: Any, task: str, name: str) -> Episode:
        """Play an episode in a new environment.

        Raises:
            InfrastructureError: a service that the environment needs failed; this says nothing about the environment.
        """
        env = self.make()
        try:
            if isinstance(agent, OracleAgent):
                agent.bind(env)
            episode = play_episode(env, self.entry, agent, name=name, task=task)
        finally:
            env.close()
        kind, _, message = episode.error.partition(": ")
        if kind in _names_of(InfrastructureError):
            raise InfrastructureError(f"nothing can be graded: {message}")
        return episode

    @cached_property
    def expert(self) -> list[Episode]:
        """Expert's episode of each task; empty if the environment has no expert."""
        if not has_expert(type(self.make())):
            return []
        return [self.play(OracleAgent(), task, "oracle") for task in self.tasks]

    @cached_property
    def blind(self) -> dict[str, list[Episode]]:
        """Episodes of each task by uninformed agents: random actions, one repeated action, canaries."""
        agents: dict[str, Any] = {AT_RANDOM: RandomAgent(), "repeats one action": _FirstAction()}
        agents |= {name: Scripted([reply]) for name, reply in (IDLE | GUESSES).items()}
        return {name: [self.play(agent, task, name) for task in self.tasks] for name, agent in agents.items()}

    @property
    def episodes(self) -> list[Episode]:
        """Episodes of all agents."""
        return [*self.expert, *(episode for episodes in self.blind.values() for episode in episodes)]

    @cached_property
    def played(self) -> list[Episode]:
        """One repeatable episode per task: the expert's, or a random one without an expert step."""
        at_random = self.blind[AT_RANDOM]
        return [e if e.steps else other for e, other in zip(self.expert or at_random, at_random, strict=True)]

    @cached_property
    def mixed(self) -> list[tuple[str, list[str]]]:
        """Right and wrong replies per task: those of ``played``, with an invalid action after every second."""
        script = []
        for episode in self.played:
            replies: list[str] = []
            for number, step in enumerate(episode.steps):
                replies += [step.reply, *repeat("Action: is this one?", number % 2)]
            script.append((episode.task, replies))
        return script


def mean_reward(episodes: Sequence[Episode]) -> float:
    """Compute the mean reward over episodes."""
    return sum(episode.reward for episode in episodes) / len(episodes)


def _names_of(kind: type[Exception]) -> set[str]:
    """List the names of an error class and its subclasses, as records hold them."""
    return {kind.__name__}.union(*(_names_of(one) for one in kind.__subclasses__()))


def has_expert(cls: type[TextEnv[Any, Any]]) -> bool:
    """Check whether a class has an expert."""
    return cls._oracle_step is not TextEnv._oracle_step or cls._expert_step is not TextEnv._expert_step


class _FirstAction:
    """Agent that repeats the first admissible action of the episode."""

    def reset(self, observation: str, info: dict[str, Any]) -> None:
        """Choose the reply of the episode."""
        admissible = info["admissible_actions"]
        self._action = admissible[0] if admissible else "search[it]"

    def act(self, observation: str, info: dict[str, Any]) -> str:
        """Return the chosen reply."""
        return self._action
