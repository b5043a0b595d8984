"""Answer metrics: exact match and token F1, as the SQuAD and HotpotQA evaluation scripts define them."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CLOSED_ANSWERS = ("yes", "no", "noanswer")


def normalize_answer(text: str) -> str:
    """SQuAD normalisation: lower case, ASCII punctuation deleted, articles dropped, white space collapsed."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, golden_answers: Sequence[str]) -> float:
    """1.0 if the normalised prediction equals any normalised golden answer, else 0.0 (SQuAD evaluate-v1.1)."""
    predicted = normalize_answer(prediction)
    return float(any(predicted == normalize_answer(gold) for gold in golden_answers))


def f1_score(prediction: str, golden_answers: Sequence[str]) -> float:
    """Best token F1 over the golden answers, in [0, 1].

    HotpotQA's rule (hotpot_evaluate_v1.py): when either side is yes, no or noanswer and they differ, F1 is 0.
    """
    return max((_f1(normalize_answer(prediction), normalize_answer(gold)) for gold in golden_answers), default=0.0)


def _f1(predicted: str, gold: str) -> float:
    if predicted != gold and (predicted in _CLOSED_ANSWERS or gold in _CLOSED_ANSWERS):
        return 0.0
    ours, theirs = predicted.split(), gold.split()
    if not ours or not theirs:
        return float(ours == theirs)
    common = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * common / (len(ours) + len(theirs))
