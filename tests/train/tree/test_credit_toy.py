"""scripts/studies/credit_toy.py: its credits, by hand on section 10's example of the specification."""

from __future__ import annotations

import math
from typing import get_args, get_type_hints

import numpy as np
import pytest

from scripts.studies.credit_toy import Options, Turn, Walk, credits
from tstar_train import make_config
from tstar_train.algorithms.tstar import TStar
from tstar_train.tree import build_tree

NAMES = get_args(get_args(get_type_hints(Options)["credit"])[0])
STD = math.sqrt(0.5) + 1e-6  # of the rewards 1 and 0
# Values at gamma .95: V(S) = .95 V(a), V(b) = .95, V(a) = .95 (V(b) + V(S)) / 2.
A = 0.45125 / 0.54875
START, B = 0.95 * A, 0.95


def walk(states: str, reward: float, truncated: bool = False) -> Walk:
    """An episode that begins in S and comes by these states."""
    steps = [Turn(key, np.array([0]), 0, action=f"to {key}") for key in states]
    return Walk("S", steps, reward, truncated)


def example() -> list[Walk]:
    """S, a, b, won beside S, a, S, a cut off."""
    return [walk("abW", 1.0), walk("aSa", 0.0, truncated=True)]


SOLVED = [(A - START, B - A, 1 - B), (A - START, START - A, A - START)]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("grpo", [(0.5 / STD,) * 3, (-0.5 / STD,) * 3]),
        ("bellman", [tuple(gain / STD for gain in row) for row in SOLVED]),
        ("way", [tuple(gain / STD + 0.5 for gain in SOLVED[0]), tuple(gain / STD for gain in SOLVED[1])]),
        ("way-only", [(0.5,) * 3, (0.0,) * 3]),
    ],
)
def test_credits_are_those_worked_by_hand(name, wanted):
    found = credits(name, example(), 0.95)
    assert [row.tolist() for row in found] == [pytest.approx(row, abs=1e-8) for row in wanted]


@pytest.mark.parametrize("name", ["way", "way-only"])
def test_the_way_is_imitated_as_by_the_trainer(name):
    """`TStar.imitate` on the same tree, bit for bit."""
    group = [walk("abaW", 1.0), walk("acW", 1.0), walk("aSa", 0.0, truncated=True), walk("L", 0.0)]
    tree = build_tree(group, None, gamma=0.95, nodes="state", values="bellman", start_key="S")
    config = make_config("sokoban-easy", graft={"source": "way", "way_only": name == "way-only"})
    trainer = TStar(config, *[None] * 4)  # type: ignore[arg-type]
    wanted = trainer.imitate(tree, tree.way(), tree.advantages(credit="transition"))
    for row, expected in zip(credits(name, group, 0.95), wanted, strict=True):
        np.testing.assert_array_equal(row, expected)


@pytest.mark.parametrize("name", NAMES)
def test_equal_rewards_teach_nothing(name):
    assert not any(row.any() for row in credits(name, [walk("abW", 1.0), walk("acW", 1.0)], 0.95))
