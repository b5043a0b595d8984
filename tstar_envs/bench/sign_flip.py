"""Whether paired differences may be chance: the sign-flip permutation test."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

EXACT = 14  # differences other than 0 up to which all 2^n flips are counted
DRAWS = 10_000
_CELLS = 1 << 20  # signs held at a time
_ROUNDING = 1e-9  # of the sum of absolute differences: sums that are equal but for rounding count as equal


def sign_flip_p(differences: Sequence[float], *, seed: int = 12345, draws: int = DRAWS) -> float:
    """Two-sided p of the mean of paired differences, under the hypothesis that either sign of each is as likely (Fisher 1935).

    A difference of 0 has no sign and changes no flip's sum, so it is left out. Up to ``EXACT`` others every one of the 2^n flips is
    counted; beyond, flips are drawn, and the observed one counts as one of them, (b + 1) / (draws + 1), so that p is never 0
    (Phipson and Smyth 2010, equation 2). Checked against ``scipy.stats.permutation_test(permutation_type="samples")``.

    Args:
        differences: one per task.
        seed: of the draws (Philox: the same on every machine).
        draws: how many.

    Returns:
        p, in (0, 1]; 1 where no difference is other than 0.
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
