"""Figures of an evaluation, as pure functions of its episodes.

Episodes that ended in an error (a search service that was down, an agent that crashed) say nothing about the agent: they
are counted apart and enter no rate.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tstar_envs.bench.bootstrap import cluster_bootstrap
from tstar_envs.bench.failures import KINDS, failure_of
from tstar_envs.foreign import as_number
from tstar_envs.record import Episode

Z95 = 1.959963984540054  # 97.5 % quantile of the normal distribution
FACTS = frozenset({"progress", "optimal_length"})  # where one is missing it is not known, and that is not 0


@dataclass(frozen=True)
class Summary:
    """Figures of a set of episodes; rates are fractions of 1, None where there is no episode.

    Attributes:
        episodes: those that ended without an error.
        errors: those that ended in one; in no other figure.
        tasks: different tasks among the episodes.
        success: share of episodes that solved the task.
        wilson: 95 % interval of it, taking every episode as independent.
        clustered: 95 % bootstrap interval over tasks; None unless tasks were played several times. Where all episodes ended
            alike there is nothing to resample, and it is the Wilson interval with one trial per task.
        score: mean reward.
        steps: mean number of steps.
        invalid: share of steps whose action was invalid.
        truncated: share of episodes that ran out of steps.
        extra: mean of each number in ``Episode.extra``, over the episodes (one that never came to it counts 0; what is a fact of the
            task or a measurement, ``FACTS``, is averaged over the episodes that have it). What is no number in one of them is left out.
        progress_unknown: episodes whose progress was asked for and could not be determined.
        failures: episodes by kind of failure (``tstar_envs.bench.failures.KINDS``), those that ended in an error included.
        unreadable: share of steps whose reply held no action that could be read.
    """

    episodes: int
    errors: int
    tasks: int
    success: float | None
    wilson: tuple[float, float] | None
    clustered: tuple[float, float] | None
    score: float | None
    steps: float | None
    invalid: float | None
    truncated: float | None
    extra: dict[str, float]
    progress_unknown: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    unreadable: float = 0.0


def wilson(successes: int, trials: int, z: float = Z95) -> tuple[float, float]:
    """Wilson score interval of a proportion (Wilson 1927), without continuity correction.

    Raises:
        ValueError: no trials, or more successes than trials.
    """
    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(f"need 0 <= successes <= trials and trials >= 1, got {successes} of {trials}")
    rate, z2 = successes / trials, z * z
    centre = (rate + z2 / (2 * trials)) / (1 + z2 / trials)
    half = z / (1 + z2 / trials) * math.sqrt(rate * (1 - rate) / trials + z2 / (4 * trials * trials))
    # At the ends the bound is exact, and rounding must not move it.
    return (0.0 if successes == 0 else max(0.0, centre - half)), (
        1.0 if successes == trials else min(1.0, centre + half)
    )


def _clustered(values: Sequence[Sequence[float]]) -> tuple[float, float]:
    alike = {value for cluster in values for value in cluster}
    return (
        wilson(round(alike.pop()) * len(values), len(values))
        if len(alike) == 1
        else cluster_bootstrap(values)
    )


def summarise(episodes: Sequence[Episode]) -> Summary:
    """The figures of a set of episodes."""
    good = [e for e in episodes if e.ended != "error"]
    errors = len(episodes) - len(good)
    kinds = Counter(failure_of(episode) for episode in episodes)
    failures = {kind: kinds[kind] for kind in KINDS if kinds[kind]}
    if not good:
        return Summary(0, errors, 0, None, None, None, None, None, None, None, {}, failures=failures)
    by_task: dict[str, list[float]] = {}
    for episode in good:
        by_task.setdefault(episode.task, []).append(float(episode.success))
    steps = [step for episode in good for step in episode.steps]
    figures = [
        {name: v for name, value in e.extra.items() if (v := as_number(value)) is not None} for e in good
    ]
    # An edited record may hold anything where the others have a number: null, a list.
    others = {name for e, own in zip(good, figures, strict=True) for name in e.extra.keys() - own.keys()}
    names = sorted({name for own in figures for name in own} - others)
    counted = {name: [e for e in good if name not in FACTS or name in e.extra] for name in names}
    successes = sum(e.success for e in good)
    return Summary(
        episodes=len(good),
        errors=errors,
        tasks=len(by_task),
        success=successes / len(good),
        wilson=wilson(successes, len(good)),
        clustered=_clustered(list(by_task.values())) if len(by_task) < len(good) else None,
        score=sum(e.reward for e in good) / len(good),
        steps=len(steps) / len(good),
        invalid=sum(not s.action_valid for s in steps) / len(steps) if steps else 0.0,
        truncated=sum(e.ended == "truncated" for e in good) / len(good),
        extra={
            name: sum(float(e.extra.get(name, 0.0)) for e in those) / len(those)
            for name, those in counted.items()
        },
        progress_unknown=sum("progress_unknown" in e.extra for e in good),
        failures=failures,
        unreadable=sum(not s.action for s in steps) / len(steps) if steps else 0.0,
    )
