"""Two agents on the same tasks: the difference, how sure it is, and what it would take to be surer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tstar_envs.bench.bootstrap import DRAWS, cluster_bootstrap
from tstar_envs.bench.holm import holm
from tstar_envs.bench.power import ALPHA, POWER, minimal_detectable_effect, tasks_to_decide
from tstar_envs.bench.sign_flip import sign_flip_p
from tstar_envs.bench.stats import wilson

Values = Mapping[str, Sequence[float]]  # task id -> the metric of each of its episodes, in [0, 1]


@dataclass(frozen=True)
class Comparison:
    """The first agent against the second.

    Attributes:
        first: name of the one.
        second: name of the other.
        tasks: how many both have played.
        difference: mean over tasks of the first's mean less the second's, in [-1, 1]; a task counts once, however often it was played.
        low: lower end of its 95 % interval (percentile bootstrap over tasks).
        high: upper end.
        p: of the two-sided sign-flip permutation test.
        p_holm: the same after Holm's correction for all comparisons made together.
        deviation: standard deviation over tasks of the differences; None for a single task.
        detectable: the true difference found in 80 % of all cases with so many tasks (alpha .05, two-sided); None where all tasks
            differ alike, so that no spread can be estimated.
        decided: whether the interval excludes 0 and ``p_holm`` is below .05. Both are asked for, because the bootstrap of a few tasks
            is too sure of itself.
        more: further tasks that would decide it if the difference stays as it is (see ``tasks_to_decide``), at Bonferroni's level of
            all comparisons; None where it is decided, or where no number would.
        more_surely: the same for an 80 % chance of it.
    """

    first: str
    second: str
    tasks: int
    difference: float
    low: float
    high: float
    p: float
    p_holm: float
    deviation: float | None
    detectable: float | None
    decided: bool
    more: int | None
    more_surely: int | None


def paired_differences(first: Values, second: Values) -> list[float]:
    """Per task, sorted by id: the mean over the first's episodes less the mean over the second's.

    Raises:
        ValueError: they have not played the same tasks, none at all, or a task without episodes.
    """
    if first.keys() != second.keys() or not first or not all(first.values()) or not all(second.values()):
        raise ValueError(
            "both need values of the same tasks, at least one task, and at least one value for each"
        )
    return [_mean(first[task]) - _mean(second[task]) for task in sorted(first)]


def interval(differences: Sequence[float], *, draws: int = DRAWS) -> tuple[float, float]:
    """95 % interval of the mean of differences in [-1, 1], by bootstrap over tasks.

    Where all differ alike, by v, there is nothing to resample, and that is not certainty: a share u of all tasks may differ
    otherwise, by -1 to 1, u being the complement of Wilson's lower bound for n of n; the ends are (1 - u) v - u and (1 - u) v + u.
    """
    if max(differences) - min(differences) > 1e-12:
        return cluster_bootstrap([[value] for value in differences], draws=draws)
    value, other = differences[0], 1 - wilson(len(differences), len(differences))[0]
    return max(-1.0, (1 - other) * value - other), min(1.0, (1 - other) * value + other)


def compare(agents: Mapping[str, Values], *, draws: int = DRAWS) -> list[Comparison]:
    """Every pair of agents, in the order given, with Holm's correction over all pairs.

    Args:
        agents: by name; two at least, on the same tasks.
        draws: of the bootstrap.

    Raises:
        ValueError: fewer than two, or not the same tasks.
    """
    names = list(agents)
    if len(names) < 2:
        raise ValueError(f"need two agents at least, got {len(names)}")
    pairs = [(first, second) for place, first in enumerate(names) for second in names[place + 1 :]]
    differences = [paired_differences(agents[first], agents[second]) for first, second in pairs]
    values = [sign_flip_p(those) for those in differences]
    return [
        _comparison(pair, those, p, adjusted, ALPHA / len(pairs), draws)
        for pair, those, p, adjusted in zip(pairs, differences, values, holm(values), strict=True)
    ]


def _comparison(
    pair: tuple[str, str], differences: list[float], p: float, adjusted: float, alpha: float, draws: int
) -> Comparison:
    tasks, mean = len(differences), _mean(differences)
    low, high = interval(differences, draws=draws)
    deviation = (
        math.sqrt(math.fsum((d - mean) ** 2 for d in differences) / (tasks - 1)) if tasks > 1 else None
    )
    if deviation is not None and deviation < 1e-12:  # of rounding alone
        deviation = 0.0
    decided = (low > 0 or high < 0) and adjusted < ALPHA
    more: list[int | None] = [None, None]
    if not decided and deviation is not None:
        wanted = [tasks_to_decide(mean, deviation, alpha=alpha, power=power) for power in (0.5, POWER)]
        more = [None if number is None else max(1, number - tasks) for number in wanted]
    return Comparison(
        *pair,
        tasks=tasks,
        difference=mean,
        low=low,
        high=high,
        p=p,
        p_holm=adjusted,
        deviation=deviation,
        detectable=minimal_detectable_effect(deviation, tasks) if deviation else None,
        decided=decided,
        more=more[0],
        more_surely=more[1],
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
