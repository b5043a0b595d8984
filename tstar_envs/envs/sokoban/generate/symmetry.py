"""Which levels and rooms are the same up to the eight symmetries of the square, and which split a room belongs to.

The split is a function of the room's shape alone, so no room can occur in two splits: not in the shipped set, and not
in any level that is ever generated later.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from tstar_envs.envs.sokoban.level_files.xsb import level_rows
from tstar_envs.envs.sokoban.state import State
from tstar_envs.envs.sokoban.task import Room

# Of 6,501 rooms so many go to each split: the sizes of the shipped set.
SHARES = (("train", 5000), ("valid", 501), ("test", 1000))


def canonical_form(rows: Sequence[str]) -> str:
    """The same text for all rotations, reflections and translations of a walled grid."""
    filled = [number for number, row in enumerate(rows) if row.strip("#")]
    inside = rows[filled[0] : filled[-1] + 1]
    left = min(len(row) - len(row.lstrip("#")) for row in inside)
    right = min(len(row) - len(row.rstrip("#")) for row in inside)
    grid = [row[left : len(row) - right] for row in inside]
    forms = []
    for _ in range(4):
        turned = ["".join(column) for column in zip(*grid, strict=True)]  # mirrored in the diagonal
        forms += ["\n".join(grid), "\n".join(turned)]
        grid = turned[::-1]  # together: a quarter turn
    return min(forms)


def level_key(room: Room, state: State) -> str:
    """Equal exactly for levels that are the same up to symmetry and translation."""
    return canonical_form(level_rows(room, state))


def room_key(room: Room) -> str:
    """Equal exactly for rooms whose floor has the same shape up to symmetry and translation (targets do not count)."""
    return canonical_form(level_rows(room, None))


def split_of_room(room: Room) -> str:
    """The split that all levels in rooms of this shape belong to."""
    digest = hashlib.blake2b(room_key(room).encode(), digest_size=8).digest()
    number = int.from_bytes(digest, "big") % sum(share for _, share in SHARES)
    for split, share in SHARES:
        if number < share:
            return split
        number -= share
    raise AssertionError("the shares cover every number")
