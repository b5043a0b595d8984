"""Keys of states: equal exactly for equal states of one task, and short."""

from __future__ import annotations

import hashlib


def state_hasher(task_id: str) -> hashlib.blake2b:
    """What the keys of all states of a task start from."""
    return hashlib.blake2b(f"{task_id}\0".encode("utf-8", "surrogatepass"), digest_size=16)


def hash_state(hasher: hashlib.blake2b, fingerprint: bytes) -> str:
    """The key of a state, from its task's ``state_hasher`` and what is equal exactly for equal states of the task."""
    own = hasher.copy()
    own.update(fingerprint)
    return own.hexdigest()
