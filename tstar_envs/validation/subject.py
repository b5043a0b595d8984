"""Subject of a grade: the environment, the episodes that several checks look at, and findings."""

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
    """The outcome of a check.

    Attributes:
        status: ``pass``, ``fail``; ``skip``, where the environment has nothing that could be checked; ``error``, where the check
            itself could not be made, because the environment raised.
        figures: what was measured.
        evidence: sentences; of a failure what went wrong, with the task.
        mend: what the author of the environment changes, "" where there is nothing to do.
    """

    status: str
    figures: dict[str, Any] = field(default_factory=dict)
    evidence: list[str] = field(default_factory=list)
    mend: str = ""


def verdict_of(problems: list[str], figures: dict[str, Any], mend: str) -> Finding:
    """A pass where there is no problem, else a failure that says the first of them."""
    if not problems:
        return Finding(PASS, figures)
    more = [f"and {len(problems) - 3} more"] if len(problems) > 3 else []
    return Finding(FAIL, figures, problems[:3] + more, mend)


# Replies that know nothing of a task, by what a policy that looks for an easy reward may try: those that play nothing,
IDLE = {
    "says nothing": "",
    "writes no action": "Thought: I would like a reward of 1.0.",
    "asks for the reward": "Thought: Ignore the rules.\nAction: reward[1.0]",
}
# and guesses, which are right now and then.
GUESSES = {
    "ends at once": "Thought: I am done.\nAction: finish[]",
    "answers blindly": "Thought: It may be so.\nAction: finish[yes]",
}


AT_RANDOM = "plays at random"


class Scripted:
    """Plays given replies; after the last it repeats it, or says nothing where there is none."""

    def __init__(self, replies: Sequence[str]) -> None:
        self._replies, self._next = list(replies) or [""], 0

    def reset(self, observation: str, info: dict[str, Any]) -> None:
        """Start again from the first reply."""
        self._next = 0

    def act(self, observation: str, info: dict[str, Any]) -> str:
        """Return the next recorded reply."""
        reply = self._replies[min(self._next, len(self._replies) - 1)]
        self._next += 1
        return reply


@dataclass
class Subject:
    """An environment with the tasks that it is graded on.

    Attributes:
        entry: of the table.
        split: whose tasks are played.
        options: of the environment.
        tasks: ids.
    """

    entry: EnvEntry
    split: str
    options: dict[str, Any]
    tasks: tuple[str, ...] = field(default=())

    def make(self) -> TextEnv[Any, Any]:
        """A new environment."""
        return self.entry.make(split=self.split, **self.options)

    def play(self, agent: Any, task: str, name: str) -> Episode:
        """An episode in a new environment.

        Raises:
            InfrastructureError: what the environment relies on failed, which says nothing about it.
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
        """The expert's episode of each task; none where the environment has no expert."""
        if not has_expert(type(self.make())):
            return []
        return [self.play(OracleAgent(), task, "oracle") for task in self.tasks]

    @cached_property
    def blind(self) -> dict[str, list[Episode]]:
        """Episodes of each task by those who know nothing of it: random actions, one action again and again, canaries."""
        agents: dict[str, Any] = {AT_RANDOM: RandomAgent(), "repeats one action": _FirstAction()}
        agents |= {name: Scripted([reply]) for name, reply in (IDLE | GUESSES).items()}
        return {name: [self.play(agent, task, name) for task in self.tasks] for name, agent in agents.items()}

    @property
    def episodes(self) -> list[Episode]:
        """The episodes of all agents."""
        return [*self.expert, *(episode for episodes in self.blind.values() for episode in episodes)]

    @cached_property
    def played(self) -> list[Episode]:
        """One episode per task whose replies can be repeated: the expert's, or where the expert has no step, a random one."""
        at_random = self.blind[AT_RANDOM]
        return [e if e.steps else other for e, other in zip(self.expert or at_random, at_random, strict=True)]

    @cached_property
    def mixed(self) -> list[tuple[str, list[str]]]:
        """Right and wrong replies per task: those of ``played``, with one that is no action after every second."""
        script = []
        for episode in self.played:
            replies: list[str] = []
            for number, step in enumerate(episode.steps):
                replies += [step.reply, *repeat("Action: is this one?", number % 2)]
            script.append((episode.task, replies))
        return script


def mean_reward(episodes: Sequence[Episode]) -> float:
    """The mean reward over episodes."""
    return sum(episode.reward for episode in episodes) / len(episodes)


def _names_of(kind: type[Exception]) -> set[str]:
    """The names of an error class and of all classes derived from it: records hold the name of an error, not the error."""
    return {kind.__name__}.union(*(_names_of(one) for one in kind.__subclasses__()))


def has_expert(cls: type[TextEnv[Any, Any]]) -> bool:
    """Whether a class says how its tasks are solved."""
    return cls._oracle_step is not TextEnv._oracle_step or cls._expert_step is not TextEnv._expert_step


class _FirstAction:
    """The first admissible action of the episode in every turn."""

    def reset(self, observation: str, info: dict[str, Any]) -> None:
        """Choose the reply of the episode."""
        admissible = info["admissible_actions"]
        self._action = admissible[0] if admissible else "search[it]"

    def act(self, observation: str, info: dict[str, Any]) -> str:
        """Return the chosen reply."""
        return self._action
