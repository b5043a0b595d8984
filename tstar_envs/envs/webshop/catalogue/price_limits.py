"""The price limit of a goal."""

from __future__ import annotations

from tstar_envs.stable_random import StableRandom

NO_BOUND = 1_000_000
PRICE_STEPS = [10.0 * step for step in range(1, 100)]


def draw_bound(price: float, rng: StableRandom) -> tuple[float, str]:
    """A price limit and its words: the larger of two of the first four multiples of ten above the price."""
    steps = [step for step in PRICE_STEPS if step > price][:4]
    if len(steps) < 2:
        return NO_BOUND, ""
    bound = max(rng.shuffled(steps)[:2])
    return bound, f", and price lower than {bound:.2f} dollars"
