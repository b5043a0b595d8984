"""Rows of quotes: what counts is known from the row alone, and heads that copy learn it at once."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policies import tokenizer

from tstar_train.policy.model import new_tiny
from tstar_train.recipes.recipe import ImitationSchedule, ModelRecipe
from tstar_train.warmstart import copy_task_rows, imitate


@settings(max_examples=50, deadline=None)
@given(vocabulary=st.integers(50, 5000), seed=st.integers(0, 2**31))
def test_every_token_that_counts_follows_what_it_followed_before(vocabulary: int, seed: int) -> None:
    for row in itertools.islice(copy_task_rows(vocabulary, seed), 5):
        assert len(row.ids) == len(row.mask)
        assert sum(row.mask) >= 12
        assert all(2 <= token < vocabulary for token in row.ids)
        for place, counts in enumerate(row.mask):
            if counts:
                assert (row.ids[place - 1], row.ids[place]) in zip(
                    row.ids[: place - 1], row.ids[1:place], strict=False
                )


def test_same_seed_same_rows() -> None:
    first, again, other = (list(itertools.islice(copy_task_rows(300, seed), 4)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.slow
def test_copying_heads_learn_to_quote_in_few_updates() -> None:
    """And ordinary heads do not: that is what they are for."""

    def last_loss(copying: bool) -> float:
        model = new_tiny(tokenizer(), 0, ModelRecipe(100_000.0, ((1, 2), (1,)), copying))
        losses: list[float] = []
        schedule = ImitationSchedule(
            steps=80, batch=16, matrix_rate=0.007, other_rate=1.2e-3, decay=0.3, warmup=10
        )
        imitate(
            model,
            copy_task_rows(len(tokenizer()), 0),
            schedule,
            0,
            lambda step, loss, seconds: losses.append(loss),
            every=20,
        )
        return losses[-1]

    assert last_loss(copying=True) < 3.0
    assert last_loss(copying=False) > 5.0
