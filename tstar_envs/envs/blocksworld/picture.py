"""The towers as a drawing, for a person who plays."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from tstar_envs.envs.blocksworld.state import State, held_block, towers


def picture(state: State, labels: Sequence[str]) -> str:
    """Towers side by side on the table, and what the hand holds.

    Args:
        state: to be shown.
        labels: names of the blocks.
    """
    piles = [[labels[block] for block in tower] for tower in towers(state)]
    widths = [max(map(len, pile)) for pile in piles]
    layers = zip_longest(*piles, fillvalue="")  # from the table up
    rows = [
        "  ".join(name.center(width) for name, width in zip(layer, widths, strict=True)).rstrip()
        for layer in layers
    ]
    held = held_block(state)
    table = "-" * (sum(widths) + 2 * max(0, len(widths) - 1))
    return "\n".join([*reversed(rows), table, f"hand: {'empty' if held is None else labels[held]}"])
