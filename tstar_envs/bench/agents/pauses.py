"""How long is waited before a request is sent again."""

from __future__ import annotations

import random

# Seconds between tries: doubled each time, of which a random half to all is waited.
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0


class Pauses:
    """Seconds to wait between tries, spread at random: many clients that were refused at once must not come back at once."""

    def __init__(self) -> None:
        self._jitter = random.Random()

    def after(self, tries: int, asked_for: float | None) -> float:
        """Seconds to wait now.

        Args:
            tries: how many there were.
            asked_for: seconds that the server asked for (``Retry-After``), None if it did not; it gets them, and a little more.
        """
        usual = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** (tries - 1)) * self._jitter.uniform(0.5, 1.0)
        return (
            usual
            if asked_for is None
            else asked_for + self._jitter.uniform(0.0, min(1.0, FIRST_WAIT + asked_for / 10))
        )
