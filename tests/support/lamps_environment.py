"""An environment that is not the suite's, and what may be wrong with one."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tstar_envs
from tstar_envs import EnvEntry, TextEnv
from tstar_envs.outcome import Outcome
from tstar_envs.tools import tool
from tstar_envs.utils import StableRandom

LAMPS = 6
SPLITS = {"train": range(1, 40), "valid": range(40, 50), "test": range(50, 63)}
State = tuple[bool, ...]


class Lamps(TextEnv[int, State]):
    """Turn all lamps on, one by one."""

    tools = (tool("flip", "Flip a lamp.", "flip {lamp}", lamp="its number, from 1"),)

    def task_ids(self, split: str | None = None) -> Sequence[str]:
        return [f"lamps-{number}" for number in SPLITS[split or self.split]]

    def _load_task(self, task_id: str) -> tuple[int, str]:
        for split in SPLITS:
            if task_id in self.task_ids(split):
                return int(task_id.rpartition("-")[2]), split
        raise tstar_envs.UnknownTask(f"no task {task_id!r}")

    def _start(self, task: int) -> tuple[State, str]:
        state = tuple(bool(task >> lamp & 1) for lamp in range(LAMPS))
        return state, self._text(state)

    def _text(self, state: State) -> str:
        return "Lamps: " + " ".join("on" if lamp else "off" for lamp in state)

    def _apply(self, task: int, state: State, action: str) -> Any:
        verb, _, number = action.partition(" ")
        if verb.lower() != "flip" or number not in map(str, range(1, LAMPS + 1)):
            return Outcome(state, "Nothing happens.", action, "say: flip NUMBER", score=0.0)
        after = tuple(lamp != (place == int(number)) for place, lamp in enumerate(state, start=1))
        won = all(after)
        return Outcome(
            after, self._text(after), f"flip {number}", "", number, won, won, self._score_of(after)
        )

    def _score_of(self, state: State) -> float:
        return float(all(state))

    def _instruction(self, task: int) -> str:
        return "Turn all lamps on."

    def _state_fingerprint(self, task: int, state: State) -> str:
        return str(state)

    def _admissible(self, task: int, state: State) -> Sequence[str]:
        return [f"flip {place}" for place in range(1, LAMPS + 1)]

    @classmethod
    def practice(cls, seed: int | str, **options: Any) -> Lamps:
        return cls(split="train", **options)

    def modifies_state(self, action: str) -> bool:
        return action.startswith("flip")

    def prompt(self, style: str | None = None) -> str:
        return "Turn all lamps on. Action: flip NUMBER"

    def _oracle_step(self, task: int, state: State, paraphrase: int) -> tuple[str, str] | None:
        return "This lamp is off.", f"flip {state.index(False) + 1}"

    def _suboptimal_action(self, task: int, state: State, draw: StableRandom) -> tuple[str, str]:
        return "Any lamp.", f"flip {1 + draw.below(LAMPS)}"

    def _distance(self, task: int, state: State) -> float | None:
        return float(state.count(False))


class OtherInEveryProcess(Lamps):
    def _task_content(self, task: int) -> str:
        return f"{task} {os.getpid()}"


class SaysAnotherHorizon(Lamps):
    default_horizon = 13


class TakesAnotherHorizon(Lamps):
    def __init__(self, **options: Any) -> None:
        super().__init__(**{"horizon": 13, **options})


class SaysAnotherRulesVersion(Lamps):
    metadata = {**Lamps.metadata, "rules_version": "0"}


class SharedTask(Lamps):
    def task_ids(self, split: str | None = None) -> Sequence[str]:
        return [*super().task_ids(split), "lamps-7"]


class OneTaskForAllSeeds(Lamps):
    def _choose_task(self, wanted: Any) -> str:
        return "lamps-50" if wanted is None else super()._choose_task(wanted)


class TooMuch(Lamps):
    def _score_of(self, state: State) -> float:
        return float(sum(state))


class NoInstruction(Lamps):
    def _instruction(self, task: int) -> Any:
        return None


class ForgetsInTheSnapshot(Lamps):
    _steps = 0

    def _text(self, state: State) -> str:
        self._steps += 1
        return f"{super()._text(state)} ({self._steps} texts so far)"


class Chance(Lamps):
    def _text(self, state: State) -> str:
        return f"{super()._text(state)} {random.random()}"


class Touching(Lamps):
    lit: list[int] = []

    def _start(self, task: int) -> tuple[State, str]:
        self.lit.clear()
        return super()._start(task)

    def _apply(self, task: int, state: State, action: str) -> Any:
        outcome = super()._apply(task, state, action)
        self.lit.append(sum(outcome.state))
        return replace(outcome, observation=f"{outcome.observation} {len(self.lit)}")


class NoTool(Lamps):
    tools = (tool("press", "Press.", "press {lamp}", lamp="its number"),)


class WeakExpert(Lamps):
    def _oracle_step(self, task: int, state: State, paraphrase: int) -> tuple[str, str] | None:
        return "The first.", "flip 1"


class NoExpert(Lamps):
    _oracle_step = TextEnv._oracle_step


class WonByChance(Lamps):
    def _apply(self, task: int, state: State, action: str) -> Any:
        outcome = super()._apply(task, state, action)
        won = {"terminated": True, "success": True, "score": 1.0}
        return outcome if outcome.invalid_reason else replace(outcome, **won)


class RewardsTheIdle(Lamps):
    def _apply(self, task: int, state: State, action: str) -> Any:
        outcome = super()._apply(task, state, action)
        return replace(outcome, score=0.5) if outcome.invalid_reason else outcome


class Raises(Lamps):
    def _admissible(self, task: int, state: State) -> Sequence[str]:
        if sum(state) == 4:
            raise KeyError("four lamps")
        return super()._admissible(task, state)


def entry_of(cls: type[Lamps]) -> EnvEntry:
    """Of the table."""
    return EnvEntry(
        id=f"mine/{cls.__name__}",
        family="lamps",
        entry_point=f"lamps_environment:{cls.__name__}",
        horizon=12,
        rules_version="1",
        extra="",
        summary="turn all lamps on",
    )


# What each is for: the check that must find it.
BROKEN = {
    OtherInEveryProcess: "static.task_distribution_pinning",
    SaysAnotherHorizon: "runtime.task_declaration_accuracy",
    TakesAnotherHorizon: "runtime.task_declaration_accuracy",
    SaysAnotherRulesVersion: "runtime.task_declaration_accuracy",
    SharedTask: "runtime.task_declaration_accuracy",
    OneTaskForAllSeeds: "runtime.seed_control",
    TooMuch: "runtime.reward_well_formed",
    NoInstruction: "runtime.observation_schema",
    ForgetsInTheSnapshot: "runtime.state_contract",
    Chance: "runtime.episode_determinism",
    Touching: "runtime.episode_isolation",
    NoTool: "runtime.tool_declaration_accuracy",
    WeakExpert: "semantic.oracle_max",
    WonByChance: "semantic.floor_gap",
    RewardsTheIdle: "semantic.canary_floor",
}
