"""The episodes that go into the page: evenly spaced over the file, as many as a browser opens at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tstar_envs import Episode, Step
from tstar_train.report.embed import Budget, clipped, evenly
from tstar_train.report.read import number

MOST_EPISODES = 300
MOST_CHARACTERS = 3_000_000


def browsable(episodes: Sequence[Episode]) -> list[dict[str, Any]]:
    """What the page's script needs of the chosen episodes, in the file's order."""
    budget = Budget(MOST_CHARACTERS)
    return [
        entry
        for index in evenly(range(len(episodes)), MOST_EPISODES)
        if budget.take(entry := _episode(episodes[index]))
    ]


def _episode(episode: Episode) -> dict[str, Any]:
    extra = dict(episode.extra)
    iteration, kind, advantages = (
        extra.pop("iteration", None),
        extra.pop("kind", ""),
        extra.pop("advantages", None),
    )
    if not isinstance(advantages, list) or len(advantages) != len(episode.steps):
        advantages = [None] * len(episode.steps)
    return {
        "task": clipped(str(episode.task), 200),
        "sample": episode.sample,
        "iteration": iteration if isinstance(iteration, int) else None,
        "kind": clipped(str(kind), 100),
        "instruction": clipped(str(episode.instruction)),
        "start": clipped(str(episode.first_observation)),
        "reward": number(episode.reward),
        "success": bool(episode.success),
        "ended": str(episode.ended),
        "error": clipped(str(episode.error)),
        "figures": {clipped(str(name), 60): _figure(value) for name, value in extra.items()},
        "steps": [_step(step, number(a)) for step, a in zip(episode.steps, advantages, strict=True)],
    }


def _step(step: Step, advantage: float | None) -> dict[str, Any]:
    return {
        "thought": clipped(str(step.thought)),
        "action": clipped(str(step.action)),
        # The reply itself says something only where no action could be read from it.
        "reply": "" if step.action else clipped(str(step.reply)),
        "observation": clipped(str(step.observation)),
        "valid": bool(step.action_valid),
        "reason": clipped(str(step.invalid_reason), 300),
        "modifies": bool(step.modifies_state),
        "advantage": advantage,
        "effect": clipped(str(step.effect_key), 200),
    }


def _figure(value: object) -> str:
    known = number(value)
    return f"{known:.4g}" if known is not None else clipped(str(value), 200)
