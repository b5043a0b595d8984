"""Count of finished pieces of work of this process, which tells a slow process from one that hangs."""

from __future__ import annotations


class Progress:
    """Count of finished pieces of work; the watchdog passes it on to the other ranks.

    Attributes:
        count: number of pieces since the process began: forward passes, sampled tokens or whole replies, steps of environments,
            blocks of files.
    """

    count = 0

    def advance(self) -> None:
        """Count a piece; each must take far less than ``--timeout-minutes``."""
        self.count += 1


progress = Progress()
