"""The valid numbers of an option, given where the option is declared: ``rank: Annotated[int, FROM_0] = 0``."""

from __future__ import annotations

import math
from typing import Annotated, Any, NamedTuple, get_args, get_origin


class Range(NamedTuple):
    """Valid numbers: ``low`` to ``high``, both included unless they are open."""

    low: float
    high: float = math.inf
    open_low: bool = False
    infinite: bool = False  # whether infinity has a meaning: everything merges, nothing is clipped, no end

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, int | float) or math.isnan(value):
            return False
        return (value > self.low if self.open_low else value >= self.low) and value <= self.high

    def __str__(self) -> str:
        if self.high == math.inf:
            return f"above {self.low:g}" if self.open_low else f"{self.low:g} or more"
        return f"{'above' if self.open_low else 'from'} {self.low:g} {'and at most' if self.open_low else 'to'} {self.high:g}"


FROM_0, FROM_1, ABOVE_0 = Range(0), Range(1), Range(0, open_low=True)
FROM_0_OR_INFINITE, ABOVE_0_OR_INFINITE = FROM_0._replace(infinite=True), ABOVE_0._replace(infinite=True)
THREADS = Range(1, 1024)  # PyTorch ends the process at some tens of thousands
SHARE, ABOVE_0_TO_1 = Range(0, 1), Range(0, 1, open_low=True)


def range_of(hint: Any) -> Range | None:
    """The range that a type is annotated with, None if there is none."""
    notes = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return next((note for note in notes if isinstance(note, Range)), None)
