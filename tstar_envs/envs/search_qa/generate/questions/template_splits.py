"""Which templates belong to which split: whole templates are held out, their parts are not."""

from __future__ import annotations

from collections.abc import Sequence

from tstar_envs.stable_random import StableRandom


def split_templates(seed: str, first: int, second: int) -> dict[str, list[tuple[int, int]]]:
    """Deal the pairs (index of first part, index of second part) to train, valid and test.

    Args:
        seed: names the family of templates, so that each is dealt on its own.
        first: how many first parts (frames, leads, predicates) there are.
        second: how many second parts (descriptions, forms, openings) there are.

    Returns:
        Split -> pairs. About 1/8 go to valid and 1/4 to test. Every part occurs in some training pair.
    """
    rng = StableRandom(f"templates/{seed}")
    pairs = [(a, b) for a in range(first) for b in range(second)]
    valid, test = max(1, len(pairs) // 8), max(1, len(pairs) // 4)
    for _ in range(1000):
        mixed = rng.shuffled(pairs)
        parts = {"valid": mixed[:valid], "test": mixed[valid : valid + test], "train": mixed[valid + test :]}
        if len({a for a, _ in parts["train"]}) == first and len({b for _, b in parts["train"]}) == second:
            return {split: sorted(chosen) for split, chosen in parts.items()}
    raise ValueError(
        f"no deal of {first} x {second} templates keeps every part in training: add wordings to {seed!r}"
    )


def deal(
    family: str, split: str, first: Sequence[object], second: Sequence[object], rng: StableRandom
) -> tuple[int, int]:
    """A pair of indexes that belongs to a split."""
    return rng.choice(split_templates(family, len(first), len(second))[split])
