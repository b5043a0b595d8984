"""Statistics of an evaluation: rates, intervals, paired tests and their power."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np

from tstar_envs.agents.base import KINDS, Seconds, Usage, failure_of, total
from tstar_envs.errors import UnknownOption
from tstar_envs.foreign import as_number
from tstar_envs.record import Episode

DRAWS = 10_000
_BLOCK = 1 << 16  # values that a block of draws takes


def cluster_bootstrap(
    values: Sequence[Sequence[float]], *, seed: int = 12345, draws: int = DRAWS, level: float = 0.95
) -> tuple[float, float]:
    """Percentile interval of the mean over all values by a cluster bootstrap over tasks (Efron 1979).

    Example:
        >>> from tstar_envs import cluster_bootstrap
        >>> low, high = cluster_bootstrap([[1, 0], [1, 1], [0, 0]])
        >>> 0 <= low <= 0.5 <= high <= 1
        True

    Args:
        values: one non-empty sequence per cluster; the episodes of a task are resampled together.
        seed: seed of the draws (Philox: the same on every machine).
        draws: number of bootstrap draws.
        level: coverage, in (0, 1).

    Returns:
        Lower and upper end; (0, 0) without clusters.
    """
    if len(values) == 0:
        return 0.0, 0.0
    sums = np.array([sum(cluster) for cluster in values], dtype=np.float64)
    sizes = np.array([len(cluster) for cluster in values], dtype=np.float64)
    generator = np.random.Generator(np.random.Philox(key=seed))
    means = np.empty(draws)
    at_once = max(1, _BLOCK // len(values))  # a matrix of all draws would not fit for large benchmarks
    for start in range(0, draws, at_once):
        chosen = generator.integers(0, len(values), (min(at_once, draws - start), len(values)))
        means[start : start + at_once] = sums[chosen].sum(axis=1) / sizes[chosen].sum(axis=1)
    tail = (1 - level) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)


Z95 = 1.959963984540054  # 97.5 % quantile of the normal distribution
_DOUBLINGS = tuple(2**n for n in range(1, 11))  # numbers of episodes for which tables show pass@k
FACTS = frozenset({"progress", "optimal_length"})  # missing values of these are unknown, not 0


@dataclass(frozen=True)
class Summary:
    """Statistics of a set of episodes; rates are in [0, 1], None without episodes.

    Attributes:
        episodes: episodes that ended without an error.
        errors: episodes that ended in an error; excluded from all other figures.
        tasks: number of different tasks.
        success: success rate.
        wilson: 95 % Wilson interval of the success rate, taking every episode as independent.
        clustered: 95 % bootstrap interval over tasks; None unless tasks were played several times. If all episodes ended alike there is
            nothing to resample, and it is the Wilson interval with one trial per task.
        score: mean reward.
        steps: mean number of steps.
        invalid: share of steps with an invalid action.
        truncated: share of episodes that ran out of steps.
        extra: mean of each number in ``Episode.extra``. An episode without it counts 0, except for ``FACTS``, which are averaged over
            the episodes that have them. An entry that is not a number in every episode is left out.
        progress_unknown: episodes for which progress was requested but not computable.
        failures: number of episodes per kind of failure (``tstar_envs.agents.base.KINDS``), including errors.
        unreadable: share of steps with a reply without a readable action.
        passes: pass@k and pass^k for k = 2, 4, 8, ... and the number of samples; empty unless tasks were played several times.
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
    passes: tuple[PassRates, ...] = ()


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
    # At 0 and 1 the bound is exact; avoid rounding errors.
    return (0.0 if successes == 0 else max(0.0, centre - half)), (
        1.0 if successes == trials else min(1.0, centre + half)
    )


@dataclass(frozen=True)
class PassRates:
    """Success over k independent episodes of a task, a mean over tasks.

    Attributes:
        k: number of episodes.
        tasks: tasks with at least k results; others are left out.
        pass_at: pass@k, the probability that at least one of k episodes succeeds.
        pass_at_interval: its 95 % interval (bootstrap over tasks).
        pass_hat: pass^k, the probability that all k episodes succeed.
        pass_hat_interval: its 95 % interval.
    """

    k: int
    tasks: int
    pass_at: float
    pass_at_interval: tuple[float, float]
    pass_hat: float
    pass_hat_interval: tuple[float, float]


@dataclass(slots=True)
class Figures:
    """Numbers of an episode from which statistics, costs and tables are made; a tenth of its size.

    Attributes:
        env: Gymnasium id.
        task: task id.
        instruction: the goal in words.
        kind: type of the task in ALFWorld, "" if none.
        panel: name and hash of the evaluation set, "" if none.
        ended: how the episode ended.
        error: error message, "" if none.
        failure: cause of the failure, "" if it solved its task.
        success: True if the task was solved.
        reward: terminal reward, in [0, 1].
        steps: number of steps.
        invalid: steps with an invalid action.
        unreadable: steps with a reply without a readable action.
        extra: numbers of ``Episode.extra``; None for its other entries.
        usage: totals over the requests.
        reply_seconds: time of the agent for each reply, where measured, earlier attempts included.
    """

    env: str
    task: str
    instruction: str
    kind: str
    panel: str
    ended: str
    error: str
    failure: str
    success: bool
    reward: float
    steps: int
    invalid: int
    unreadable: int
    extra: dict[str, float | None]
    usage: Usage
    reply_seconds: Seconds

    @classmethod
    def of(cls, episode: Episode) -> Figures:
        """Take the figures of an episode."""
        seconds = Seconds("d")
        for attempt in episode.attempts:
            seconds.extend(step["seconds"] for step in attempt["steps"] if step.get("seconds"))
        invalid = unreadable = 0
        for step in episode.steps:
            invalid += not step.action_valid
            unreadable += not step.action
            if step.seconds:  # 0 means that it was not measured
                seconds.append(step.seconds)
        return cls(
            env=_interned(episode.env),
            task=_interned(episode.task),
            instruction=_interned(episode.instruction),
            kind=_interned(str(episode.extra.get("task_type", ""))),
            panel=_interned(episode.panel),
            ended=_interned(episode.ended),
            error=_interned(episode.error),
            failure=failure_of(episode),
            success=episode.success,
            reward=episode.reward,
            steps=len(episode.steps),
            invalid=invalid,
            unreadable=unreadable,
            extra={_interned(name): as_number(value) for name, value in episode.extra.items()},
            usage=total(episode.calls) if episode.calls else _NO_USAGE,
            reply_seconds=seconds,
        )


_NO_USAGE = total([])


def _interned(text: str) -> str:
    """Return the one copy of a text that thousands of episodes share."""
    return sys.intern(text) if type(text) is str else text


def figures_of(episodes: Iterable[Episode | Figures]) -> list[Figures]:
    """Take the figures of episodes; those that are figures already stay."""
    return [each if isinstance(each, Figures) else Figures.of(each) for each in episodes]


def results_by_task(episodes: Iterable[Episode | Figures]) -> dict[tuple[str, str], list[float]]:
    """Group the successes (0 or 1) of the episodes with a result by environment and task."""
    found: dict[tuple[str, str], list[float]] = {}
    for episode in episodes:
        if episode.ended != "error":
            found.setdefault((episode.env, episode.task), []).append(float(episode.success))
    return found


def pass_rates(results: Mapping[Any, Sequence[float]], k: int) -> PassRates:
    """Estimate pass@k and pass^k without bias from n >= k episodes of each task, c of them successful.

    pass@k = 1 - C(n - c, k) / C(n, k) (Chen et al. 2021, equation 1); pass^k = C(c, k) / C(n, k) (Yao et al. 2024, tau-bench). Both are
    means over tasks. Checked against the enumeration of all k-subsets.

    Args:
        results: task -> success of each of its episodes, 0 or 1.
        k: number of episodes, 1 or more.

    Raises:
        UnknownOption: k is below 1, or no task has so many results.
    """
    counts = [(len(values), round(sum(values))) for values in results.values() if len(values) >= k >= 1]
    if not counts:
        most = max(map(len, results.values()), default=0)
        raise UnknownOption(
            f"k must be from 1 to {most}, the most results of a task, got {k}: play more samples"
        )
    some = [1 - math.comb(n - c, k) / math.comb(n, k) for n, c in counts]
    every = [math.comb(c, k) / math.comb(n, k) for n, c in counts]
    return PassRates(k, len(counts), _mean(some), _rate_interval(some), _mean(every), _rate_interval(every))


def _rate_interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the mean of rates of tasks; as ``interval`` where all are alike, but a rate is never below 0."""
    if max(values) - min(values) > 1e-12:
        return cluster_bootstrap([[value] for value in values])
    kept = wilson(len(values), len(values))[0]
    return kept * values[0], kept * values[0] + 1 - kept


def _clustered(values: Sequence[Sequence[float]]) -> tuple[float, float]:
    alike = {value for cluster in values for value in cluster}
    return (
        wilson(round(alike.pop()) * len(values), len(values))
        if len(alike) == 1
        else cluster_bootstrap(values)
    )


def success_bounds(episodes: Sequence[Episode | Figures]) -> tuple[float, float]:
    """95 % interval of the success rate of episodes that have a result: over tasks if they were played several times, else Wilson's."""
    by_task = results_by_task(episodes)
    if len(by_task) < len(episodes):
        return _clustered(list(by_task.values()))
    return wilson(sum(episode.success for episode in episodes), len(episodes))


def summarise(episodes: Iterable[Episode | Figures]) -> Summary:
    """Compute the statistics of a set of episodes."""
    every = figures_of(episodes)
    good = [e for e in every if e.ended != "error"]
    errors = len(every) - len(good)
    kinds = Counter(each.failure for each in every)
    failures = {kind: kinds[kind] for kind in KINDS if kinds[kind]}
    if not good:
        return Summary(0, errors, 0, None, None, None, None, None, None, None, {}, failures=failures)
    by_task = results_by_task(good)
    most = max(map(len, by_task.values()))
    steps = sum(e.steps for e in good)
    # An edited record may hold null or a list instead of a number.
    others = {name for e in good for name, value in e.extra.items() if value is None}
    names = sorted({name for e in good for name in e.extra} - others)
    counted = {name: [e for e in good if name not in FACTS or name in e.extra] for name in names}
    successes = sum(e.success for e in good)
    return Summary(
        episodes=len(good),
        errors=errors,
        tasks=len(by_task),
        success=successes / len(good),
        wilson=wilson(successes, len(good)),
        clustered=success_bounds(good) if len(by_task) < len(good) else None,
        score=sum(e.reward for e in good) / len(good),
        steps=steps / len(good),
        invalid=sum(e.invalid for e in good) / steps if steps else 0.0,
        truncated=sum(e.ended == "truncated" for e in good) / len(good),
        extra={
            name: sum(e.extra.get(name) or 0.0 for e in those) / len(those) for name, those in counted.items()
        },
        progress_unknown=sum("progress_unknown" in e.extra for e in good),
        failures=failures,
        unreadable=sum(e.unreadable for e in good) / steps if steps else 0.0,
        passes=tuple(pass_rates(by_task, k) for k in sorted({*_DOUBLINGS, most}) if 1 < k <= most),
    )


EXACT = 14  # maximum number of nonzero differences for exact enumeration of all 2^n flips
_CELLS = 1 << 20  # signs held in memory at a time
_ROUNDING = 1e-9  # relative to the sum of absolute differences: sums equal up to rounding count as equal


def sign_flip_p(differences: Sequence[float], *, seed: int = 12345, draws: int = DRAWS) -> float:
    """Compute a two-sided p-value of the mean paired difference by sign flips (Fisher 1935).

    The null hypothesis is that both signs of each difference are equally likely. Differences of 0 have no sign and are left out. Up to
    ``EXACT`` others all 2^n flips are enumerated. Beyond that flips are drawn, and the observed one counts as one of them,
    (b + 1) / (draws + 1), so p is never 0 (Phipson and Smyth 2010, equation 2). Checked against
    ``scipy.stats.permutation_test(permutation_type="samples")``.

    Args:
        differences: one per task.
        seed: seed of the draws (Philox: the same on every machine).
        draws: number of draws.

    Returns:
        p, in (0, 1]; 1 if all differences are 0.
    """
    values = np.array([value for value in differences if value != 0], dtype=np.float64)
    if not len(values):
        return 1.0
    reached = abs(values.sum()) - _ROUNDING * np.abs(values).sum()
    if len(values) <= EXACT:
        bits = (np.arange(2 ** len(values))[:, None] >> np.arange(len(values))) & 1
        return float(np.mean(np.abs((2 * bits - 1) @ values) >= reached))
    generator = np.random.Generator(np.random.Philox(key=seed))
    at_once = max(1, _CELLS // len(values))
    count = 0
    for start in range(0, draws, at_once):
        signs = 2 * generator.integers(0, 2, (min(at_once, draws - start), len(values)), dtype=np.int8) - 1
        count += int(np.sum(np.abs(signs @ values) >= reached))
    return (count + 1) / (draws + 1)


def holm(values: Sequence[float]) -> list[float]:
    """Adjust p-values by Holm's step-down method (Holm 1979), in the given order.

    The i-th smallest of m (i from 0) becomes the maximum of (m - j) p_j over j <= i, at most 1. It is below alpha exactly if the
    procedure rejects at alpha. The probability of rejecting any true hypothesis is at most alpha, however the comparisons depend on
    each other.
    """
    order = sorted(range(len(values)), key=values.__getitem__)
    adjusted = [0.0] * len(values)
    largest = 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(values) - rank) * values[index]))
        adjusted[index] = largest
    return adjusted


ALPHA = 0.05
POWER = 0.8


def minimal_detectable_effect(
    deviation: float, tasks: int, *, alpha: float = ALPHA, power: float = POWER
) -> float:
    """Compute the true mean difference that a two-sided test at ``alpha`` detects with probability ``power``.

    (z(1 - alpha / 2) + z(power)) * deviation / sqrt(tasks), which is 2.80 standard errors by default (Bloom, Evaluation Review 19,
    1995). The normal approximation is optimistic below some 20 tasks. Checked by simulation.

    Args:
        deviation: standard deviation over tasks of the paired differences (n - 1 in the denominator), in units of the metric.
        tasks: number of tasks.
        alpha: probability of a false positive.
        power: probability of detecting this difference.

    Raises:
        ValueError: no tasks, or a negative deviation.
    """
    if tasks < 1 or deviation < 0:
        raise ValueError(f"need tasks >= 1 and deviation >= 0, got {tasks} and {deviation}")
    return (_z(1 - alpha / 2) + _z(power)) * deviation / math.sqrt(tasks)


def tasks_to_decide(
    difference: float, deviation: float, *, alpha: float = ALPHA, power: float = 0.5
) -> int | None:
    """Compute the tasks needed to detect a difference: ``minimal_detectable_effect`` solved for ``tasks``.

    Args:
        difference: mean over tasks of the paired differences, in [-1, 1].
        deviation: their standard deviation. If it is 0, the interval of ``compare`` for identical differences is used.
        alpha: level of the two-sided test.
        power: at .5 the interval just touches 0 if mean and deviation stay the same, so new tasks decide it in half of all cases; .8
            gives a better chance.

    Returns:
        Total number of tasks, including the present ones; None for a difference of 0, which no number of tasks decides.
    """
    if difference == 0:
        return None
    # So that the smallest possible p of all sign flips, 2^(1 - n), is below alpha.
    fewest = math.floor(1 - math.log2(alpha)) + 1
    size = abs(difference)
    ratio = (_z(1 - alpha / 2) + _z(power)) * deviation / size
    alike = _z(1 - alpha / 2) ** 2 / size if deviation == 0 else 0.0
    return max(fewest, math.floor(max(ratio * ratio, alike)) + 1)


def _z(probability: float) -> float:
    return NormalDist().inv_cdf(probability)


Values = Mapping[str, Sequence[float]]  # task id -> metric of each of its episodes, in [0, 1]


@dataclass(frozen=True)
class Comparison:
    """Paired comparison of two agents.

    Attributes:
        first: name of the first agent.
        second: name of the second agent.
        tasks: number of common tasks.
        difference: mean over tasks of the first's mean minus the second's, in [-1, 1]; each task has weight one.
        low: lower end of its 95 % interval (percentile bootstrap over tasks).
        high: upper end.
        p: p-value of the two-sided sign-flip permutation test.
        p_holm: p-value after Holm's correction for all comparisons made together.
        deviation: standard deviation over tasks of the differences; None for a single task.
        detectable: true difference detected in 80 % of cases with this number of tasks (alpha .05, two-sided); None if all tasks differ
            alike, since the spread cannot be estimated.
        decided: True if the interval excludes 0 and ``p_holm`` is below .05. Both, because the bootstrap of a few tasks is
            overconfident.
        more: further tasks that would decide it if the difference stays the same (see ``tasks_to_decide``), at Bonferroni's level for
            all comparisons; None if it is decided, or no number would.
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
    """Compute per task (sorted by id) the first's mean minus the second's mean.

    Raises:
        ValueError: different tasks, no tasks, or a task without episodes.
    """
    if first.keys() != second.keys() or not first or not all(first.values()) or not all(second.values()):
        raise ValueError(
            "both need values of the same tasks, at least one task, and at least one value for each"
        )
    return [_mean(first[task]) - _mean(second[task]) for task in sorted(first)]


def interval(differences: Sequence[float], *, draws: int = DRAWS) -> tuple[float, float]:
    """Compute a 95 % interval of the mean of differences in [-1, 1], by bootstrap over tasks.

    If all differ alike, by v, there is nothing to resample, but that is not certainty: a share u of all tasks may differ otherwise, by
    -1 to 1, where u is the complement of Wilson's lower bound for n of n. The ends are then (1 - u) v - u and (1 - u) v + u.
    """
    if max(differences) - min(differences) > 1e-12:
        return cluster_bootstrap([[value] for value in differences], draws=draws)
    value, other = differences[0], 1 - wilson(len(differences), len(differences))[0]
    return max(-1.0, (1 - other) * value - other), min(1.0, (1 - other) * value + other)


def compare(agents: Mapping[str, Values], *, draws: int = DRAWS) -> list[Comparison]:
    """Compare every pair of agents, in the given order, with Holm's correction over all pairs.

    Args:
        agents: agent name -> values; at least two agents, on the same tasks.
        draws: number of bootstrap draws.

    Raises:
        ValueError: fewer than two agents, or different tasks.
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
    if deviation is not None and deviation < 1e-12:  # rounding errors only
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
