"""Several comparisons at once: Holm's correction."""

from __future__ import annotations

from collections.abc import Sequence


def holm(values: Sequence[float]) -> list[float]:
    """Adjusted p values, in the order given (Holm 1979): below alpha exactly where the step-down procedure rejects at alpha.

    The i-th smallest of m (i from 0) becomes the largest of (m - j) p_j over j <= i, at most 1. The chance that any true
    hypothesis is rejected is at most alpha, however the comparisons depend on each other.

    Args:
        values: p values.
    """
    order = sorted(range(len(values)), key=values.__getitem__)
    adjusted = [0.0] * len(values)
    largest = 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(values) - rank) * values[index]))
        adjusted[index] = largest
    return adjusted
