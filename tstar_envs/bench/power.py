"""How small a difference a comparison could see, and how many tasks it would take to see one."""

from __future__ import annotations

import math
from statistics import NormalDist

ALPHA = 0.05
POWER = 0.8


def minimal_detectable_effect(
    deviation: float, tasks: int, *, alpha: float = ALPHA, power: float = POWER
) -> float:
    """The true mean difference that a two-sided test at ``alpha`` finds with probability ``power``.

    (z(1 - alpha / 2) + z(power)) * deviation / sqrt(tasks), that is 2.80 standard errors by default (Bloom, Evaluation Review 19,
    1995); the normal approximation, which flatters fewer than some 20 tasks. Checked by simulation.

    Args:
        deviation: standard deviation over tasks of the paired differences (n - 1 in the denominator), in units of the metric.
        tasks: how many.
        alpha: chance of finding a difference where there is none.
        power: chance of finding this one.

    Raises:
        ValueError: no tasks, or a negative deviation.
    """
    if tasks < 1 or deviation < 0:
        raise ValueError(f"need tasks >= 1 and deviation >= 0, got {tasks} and {deviation}")
    return (_z(1 - alpha / 2) + _z(power)) * deviation / math.sqrt(tasks)


def tasks_to_decide(
    difference: float, deviation: float, *, alpha: float = ALPHA, power: float = 0.5
) -> int | None:
    """Tasks that would distinguish a difference of this size from 0: the equation above solved for ``tasks``.

    Args:
        difference: mean over tasks of the paired differences, in [-1, 1].
        deviation: their standard deviation. Where it is 0 the interval is ``compare``'s for tasks that all differ alike.
        alpha: of the two-sided test.
        power: .5 is where the interval's end comes to lie on 0 if mean and deviation are what they are now, so that new tasks
            decide it in half of all cases; .8 asks for a better chance.

    Returns:
        All tasks, those there are included; None for a difference of 0, which no number of tasks decides.
    """
    if difference == 0:
        return None
    # So that the smallest p of all sign flips, 2^(1 - n), is below alpha.
    fewest = math.floor(1 - math.log2(alpha)) + 1
    size = abs(difference)
    ratio = (_z(1 - alpha / 2) + _z(power)) * deviation / size
    alike = _z(1 - alpha / 2) ** 2 / size if deviation == 0 else 0.0
    return max(fewest, math.floor(max(ratio * ratio, alike)) + 1)


def _z(probability: float) -> float:
    return NormalDist().inv_cdf(probability)
