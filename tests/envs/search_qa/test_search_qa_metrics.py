"""Exact match and F1 against hand-worked examples and the rules of the published scripts.

SQuAD: evaluate-v1.1.py (lower case, punctuation, articles, white space). HotpotQA: hotpot_evaluate_v1.py (no partial credit
between yes, no, noanswer and anything else).
"""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tstar_envs.envs.search_qa.env import SearchQAEnv
from tstar_envs.envs.search_qa.question_sets import (
    NORMALIZERS,
    exact_match,
    f1_score,
    normalize_answer,
    normalize_triviaqa,
    question_set,
    sub_exact_match,
)
from tstar_envs.envs.search_qa.tasks import Passage, QASet, Task


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The Beatles", "beatles"),
        ("a An the", ""),
        ("Theatre, an  Anthem!", "theatre anthem"),
        ("U.S.", "us"),
        ("rock-and-roll", "rockandroll"),
        ("the-end", "theend"),  # punctuation goes first, so no article is left to drop
        ("  Two\n words\t", "two words"),
        ("Zoë’s", "zoë’s"),  # only ASCII punctuation is deleted
        ("", ""),
    ],
)
def test_normalisation(text: str, normal: str) -> None:
    assert normalize_answer(text) == normal


@pytest.mark.parametrize(
    ("prediction", "golds", "em", "f1"),
    [
        ("Paris", ["Paris"], 1.0, 1.0),
        (
            "the city of Paris",
            ["Paris"],
            0.0,
            2 * (1 / 3) * 1 / (1 / 3 + 1),
        ),  # 1 of 3 tokens right, all of 1 found: 0.5
        ("Denver Broncos", ["Denver Broncos", "The Denver Broncos", "Broncos"], 1.0, 1.0),
        (
            "Broncos of Denver",
            ["Denver Broncos"],
            0.0,
            2 * (2 / 3) * 1 / (2 / 3 + 1),
        ),  # order does not count: 0.8
        (
            "a b b c",
            ["b b d"],
            0.0,
            2 * (2 / 3) * (2 / 3) / (4 / 3),
        ),  # "a" is dropped; two of b b c against b b d
        ("1912", ["1911"], 0.0, 0.0),
        ("yes", ["yes"], 1.0, 1.0),
        ("Yes.", ["yes"], 1.0, 1.0),
        ("yes it is", ["yes"], 0.0, 0.0),  # HotpotQA; plain SQuAD F1 would be 0.5
        ("no", ["no way out"], 0.0, 0.0),
        ("noanswer", ["noanswer here"], 0.0, 0.0),
        ("yes", ["no"], 0.0, 0.0),
        ("no", ["nothing", "no"], 1.0, 1.0),
        ("", [""], 1.0, 1.0),
        ("the", ["a"], 1.0, 1.0),  # both normalise to nothing (MuSiQue: 1)
        ("", ["x"], 0.0, 0.0),
        ("x", [], 0.0, 0.0),
    ],
)
def test_scores(prediction: str, golds: list[str], em: float, f1: float) -> None:
    assert exact_match(prediction, golds) == em
    assert f1_score(prediction, golds) == pytest.approx(f1)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Cat's (hat)!", "cat s hat"),
        ("U.S.", "u s"),
        ("O\u2019Neill", "o neill"),
        ("snake_case", "snake case"),
        ("The", ""),
    ],
)
def test_triviaqa_normalisation(text: str, normal: str) -> None:
    """triviaqa_evaluation.py: punctuation and four more quotation marks become spaces."""
    assert normalize_triviaqa(text) == normal


@pytest.mark.parametrize(
    ("prediction", "golds", "sub_em"),
    [
        ("the band the Beatles", ["The Beatles", "Fab Four"], 1.0),
        ("14 December 1972", ["1972"], 1.0),
        ("1972", ["December 1972"], 0.0),
        ("russia", ["US"], 1.0),  # a part, not a word: as the public scripts have it
        (
            "anything",
            ["the"],
            0.0,
        ),  # nothing is left of this gold; the public scripts count it for every prediction
        ("", ["the"], 0.0),
        ("x", [], 0.0),
    ],
)
def test_exact_match_of_a_part(prediction: str, golds: list[str], sub_em: float) -> None:
    assert sub_exact_match(prediction, golds) == sub_em


def test_the_normaliser_decides() -> None:
    assert exact_match("U.S.", ["US"]) == 1.0 and exact_match("U.S.", ["US"], "triviaqa") == 0.0
    assert f1_score("U.S.", ["U S"]) == 0.0 and f1_score("U.S.", ["U S"], "triviaqa") == 1.0
    assert (
        sub_exact_match("the U.S. army", ["US army"]) == 1.0
        and sub_exact_match("the U.S. army", ["US army"], "triviaqa") == 0.0
    )


@given(st.text(), st.lists(st.text(), max_size=3), st.sampled_from(sorted(NORMALIZERS)))
def test_bounds(prediction: str, golds: list[str], normalizer: str) -> None:
    em, f1 = exact_match(prediction, golds, normalizer), f1_score(prediction, golds, normalizer)
    assert em in (0.0, 1.0) and 0.0 <= f1 <= 1.0
    assert em == 0.0 or f1 == 1.0
    assert exact_match(prediction, [*golds, prediction], normalizer) == 1.0
    if em and NORMALIZERS[normalizer](prediction):
        assert sub_exact_match(prediction, golds, normalizer) == 1.0


@pytest.mark.parametrize(
    ("prediction", "gold", "by_set"),
    [
        # HotpotQA's and 2Wiki's scripts give no partial credit here; the others know no such rule.
        (
            "no way out",
            "no",
            {
                "hotpotqa": 0.0,
                "2wikimultihopqa": 0.0,
                "musique": 0.5,
                "nq": 0.5,
                "triviaqa": 0.5,
                "popqa": 0.5,
            },
        ),
        (
            "noanswer found",
            "noanswer",
            {"hotpotqa": 0.0, "2wikimultihopqa": 0.0, "musique": 2 / 3, "bamboogle": 2 / 3},
        ),
        ("yes", "Yes!", {"hotpotqa": 1.0, "musique": 1.0, "nq": 1.0}),
        # Nothing is left of either: SQuAD 2.0's line is in MuSiQue's script only.
        (
            "an",
            "The",
            {
                "hotpotqa": 0.0,
                "2wikimultihopqa": 0.0,
                "musique": 1.0,
                "nq": 0.0,
                "triviaqa": 0.0,
                "popqa": 0.0,
            },
        ),
        ("", "x", {"hotpotqa": 0.0, "musique": 0.0, "nq": 0.0}),
    ],
)
def test_each_set_has_its_own_scripts_f1(prediction: str, gold: str, by_set: dict[str, float]) -> None:
    for dataset, f1 in by_set.items():
        assert f1_score(prediction, [gold], rule=question_set(dataset).f1) == pytest.approx(f1), dataset


@pytest.mark.parametrize(("dataset", "f1"), [("nq", 0.4), ("hotpotqa", 0.0)])
def test_an_environment_uses_its_sets_rule(dataset: str, f1: float) -> None:
    task = Task("1", "test", "is it?", ("yes",))
    env = SearchQAEnv(
        dataset=dataset,
        task_set=QASet(dataset, "path", {"1": task}, {"test": ("1",)}, corpus=Path()),
        searcher=Nothing(),
    )
    env.reset(options={"task": "1"})
    assert env.step("finish[yes I think so]")[4]["f1"] == pytest.approx(f1)


class Nothing:
    """A searcher that finds nothing."""

    def search(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        return [[] for _ in queries]
