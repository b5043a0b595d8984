"""How far a mean over tasks may be off: the cluster bootstrap, of the benchmark and of the trainer's measurements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

DRAWS = 10_000


def cluster_bootstrap(
    values: Sequence[Sequence[float]], *, seed: int = 12345, draws: int = DRAWS, level: float = 0.95
) -> tuple[float, float]:
    """Percentile interval of the mean over all values when whole clusters (tasks) are drawn with replacement (Efron 1979).

    Args:
        values: one sequence per cluster, none of them empty: the episodes of a task stay together.
        seed: of the draws (Philox: the same on every machine).
        draws: how many.
        level: coverage.

    Returns:
        Its two ends; (0, 0) where there is no cluster.
    """
    if len(values) == 0:
        return 0.0, 0.0
    sums = np.array([sum(cluster) for cluster in values], dtype=np.float64)
    sizes = np.array([len(cluster) for cluster in values], dtype=np.float64)
    generator = np.random.Generator(np.random.Philox(key=seed))
    means = np.empty(draws)
    for draw in range(draws):  # one draw at a time: a whole table of draws would not fit for large benchmarks
        chosen = generator.integers(0, len(values), len(values))
        means[draw] = sums[chosen].sum() / sizes[chosen].sum()
    tail = (1 - level) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)
