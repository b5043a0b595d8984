"""Time in proportion to the length of a text, whatever the speed of the machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

TIMES, NOISE, LEAST = 8, 3.0, 0.05


def require_linear(work: Callable[[str], Any], sign: str, count: int) -> None:
    """Fail where eight times the text takes more than 24 times the CPU seconds: a quadratic reader takes 64 times."""

    def seconds(count: int) -> float:
        text, began = sign * count, time.process_time()
        work(text)
        return time.process_time() - began

    short = max(seconds(count // TIMES), LEAST)
    took = seconds(count)
    assert took < TIMES * NOISE * short, f"{count:,} of {sign!r}: {took:.2f} s, {short:.2f} s for an eighth"
