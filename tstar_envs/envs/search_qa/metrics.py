"""Answer metrics: exact match, exact match of a part, and token F1, as the public evaluation scripts define them."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
# TriviaQA's script puts a space where SQuAD's leaves nothing, and knows four more quotation marks.
_TRIVIAQA_PUNCTUATION = str.maketrans(dict.fromkeys(string.punctuation + "\u2018\u2019\u00b4\u0060", " "))
_CLOSED_ANSWERS = ("yes", "no", "noanswer")


def normalize_answer(text: str) -> str:
    """SQuAD normalisation: lower case, ASCII punctuation deleted, articles dropped, white space collapsed."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def normalize_triviaqa(text: str) -> str:
    """TriviaQA's normalisation (triviaqa_evaluation.py): as SQuAD's, but punctuation becomes a space ("U.S." is "u s")."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_TRIVIAQA_PUNCTUATION)).split())


NORMALIZERS: dict[str, Callable[[str], str]] = {"squad": normalize_answer, "triviaqa": normalize_triviaqa}


def exact_match(prediction: str, golden_answers: Sequence[str], normalizer: str = "squad") -> float:
    """1.0 if the normalised prediction equals any normalised golden answer, else 0.0 (SQuAD evaluate-v1.1).

    Args:
        prediction: the answer given.
        golden_answers: any of them is right.
        normalizer: a key of ``NORMALIZERS``; Search-R1 and FlashRAG use ``squad`` for every set.
    """
    normalize = NORMALIZERS[normalizer]
    predicted = normalize(prediction)
    return float(any(predicted == normalize(gold) for gold in golden_answers))


def sub_exact_match(prediction: str, golden_answers: Sequence[str], normalizer: str = "squad") -> float:
    """1.0 if any normalised golden answer is a part of the normalised prediction, else 0.0 (FlashRAG's and Search-R1's sub-EM).

    The part need not begin or end with a word. A golden answer of which normalisation leaves nothing counts for no prediction;
    in the public scripts it counts for every one.
    """
    normalize = NORMALIZERS[normalizer]
    predicted = normalize(prediction)
    return float(any(part in predicted for gold in golden_answers if (part := normalize(gold))))


class F1Rule(NamedTuple):
    """What a set's own script does where tokens do not decide.

    Attributes:
        closed_answers: whether F1 is 0 when either side is yes, no or noanswer and they differ ("yes it is" for "yes").
        both_empty: F1 of two texts of which normalisation leaves nothing ("the" for "a").
    """

    closed_answers: bool
    both_empty: float


# Closed answers get no partial credit, and equal texts have 1 whatever is left of them.
ANY_SET = F1Rule(True, 1.0)


def f1_score(
    prediction: str, golden_answers: Sequence[str], normalizer: str = "squad", rule: F1Rule = ANY_SET
) -> float:
    """Best token F1 over the golden answers, in [0, 1].

    Args:
        prediction: the answer given.
        golden_answers: any of them is right.
        normalizer: a key of ``NORMALIZERS``.
        rule: of the question set (``QuestionSet.f1``).
    """
    normalize = NORMALIZERS[normalizer]
    return max((_f1(normalize(prediction), normalize(gold), rule) for gold in golden_answers), default=0.0)


def _f1(predicted: str, gold: str, rule: F1Rule) -> float:
    if (
        rule.closed_answers
        and predicted != gold
        and (predicted in _CLOSED_ANSWERS or gold in _CLOSED_ANSWERS)
    ):
        return 0.0
    ours, theirs = predicted.split(), gold.split()
    if not ours and not theirs:
        return rule.both_empty
    common = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * common / (len(ours) + len(theirs))


class Scoring(NamedTuple):
    """How the answers of an environment are scored.

    Attributes:
        normalizer: a key of ``NORMALIZERS``.
        f1: of the question set.
    """

    normalizer: str = "squad"
    f1: F1Rule = ANY_SET

    def scores(self, answer: str, golden_answers: Sequence[str]) -> dict[str, float]:
        """``em``, ``f1`` and ``sub_em`` of an answer, each in [0, 1]."""
        given = (answer, golden_answers, self.normalizer)
        return {"em": exact_match(*given), "f1": f1_score(*given, self.f1), "sub_em": sub_exact_match(*given)}
