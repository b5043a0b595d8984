"""Historical compatibility: what a trajectory has done to the world so far, as a key that can be compared."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal

from tstar_train.tree.node import TrajectoryLike

History = Literal["sequence", "state"]


def history_keys(group: Sequence[TrajectoryLike], history: History) -> list[list[str]]:
    """S(v) of every step, up to and including its own action, as a string that is equal where histories are.

    Args:
        group: the trajectories.
        history: "sequence" hashes the ordered effect keys of the state-modifying steps, "state" takes
            `state_key`.

    Returns:
        Per trajectory, one key per step.

    Raises:
        ValueError: `history="state"` and a step without a state key, which would merge with everything.
    """
    keys: list[list[str]] = []
    for i, trajectory in enumerate(group):
        if history == "state":
            keys.append([step.state_key for step in trajectory.steps])
            if not all(keys[-1]):
                t = next(t for t, key in enumerate(keys[-1]) if not key)
                raise ValueError(
                    f"step {t} of trajectory {i} has no state_key: give one or use history='sequence'"
                )
            continue
        row: list[str] = []
        digest = b""
        for step in trajectory.steps:
            if step.modifies_state:
                # The digest has a fixed length, so no two sequences of keys run together into the same bytes.
                # Keys may quote model output, and with it lone surrogates.
                own = step.effect_key.encode("utf-8", "surrogatepass")
                digest = hashlib.blake2b(digest + own, digest_size=16).digest()
            row.append(digest.hex())
        keys.append(row)
    return keys
