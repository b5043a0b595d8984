"""Question sets: settings of the seven sets, and answer scoring."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tstar_envs.utils import SPLITS

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
# TriviaQA's script replaces punctuation with a space, SQuAD's deletes it. TriviaQA's knows four more quotation marks.
_TRIVIAQA_PUNCTUATION = str.maketrans(dict.fromkeys(string.punctuation + "\u2018\u2019\u00b4\u0060", " "))
_CLOSED_ANSWERS = ("yes", "no", "noanswer")


def normalize_answer(text: str) -> str:
    """Normalise as SQuAD does: lower case, ASCII punctuation deleted, articles dropped, white space collapsed."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def normalize_triviaqa(text: str) -> str:
    """Normalise as TriviaQA does (triviaqa_evaluation.py): punctuation becomes a space ("U.S." is "u s"), else as SQuAD."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_TRIVIAQA_PUNCTUATION)).split())


NORMALIZERS: dict[str, Callable[[str], str]] = {"squad": normalize_answer, "triviaqa": normalize_triviaqa}


def exact_match(prediction: str, golden_answers: Sequence[str], normalizer: str = "squad") -> float:
    """Score exact match: 1.0 if the prediction equals any golden answer after normalisation, else 0.0 (SQuAD evaluate-v1.1).

    >>> exact_match("The Beatles", ["beatles"])
    1.0

    Args:
        prediction: the agent's answer.
        golden_answers: all accepted answers.
        normalizer: a key of ``NORMALIZERS``; Search-R1 and FlashRAG use ``squad`` for every set.
    """
    normalize = NORMALIZERS[normalizer]
    predicted = normalize(prediction)
    return float(any(predicted == normalize(gold) for gold in golden_answers))


def sub_exact_match(prediction: str, golden_answers: Sequence[str], normalizer: str = "squad") -> float:
    """Score sub-EM: 1.0 if the prediction contains any golden answer after normalisation, else 0.0 (FlashRAG, Search-R1).

    The match may start and end within words. A golden answer that is empty after normalisation matches no prediction; in the
    public scripts it matches every prediction.
    """
    normalize = NORMALIZERS[normalizer]
    predicted = normalize(prediction)
    return float(any(part in predicted for gold in golden_answers if (part := normalize(gold))))


class F1Rule(NamedTuple):
    """Special cases of F1 in the evaluation script of a set.

    Attributes:
        closed_answers: True gives F1 = 0 if either side is yes, no or noanswer and they differ ("yes it is" for "yes").
        both_empty: F1 of two texts that are empty after normalisation ("the" for "a").
    """

    closed_answers: bool
    both_empty: float


# Closed answers get no partial credit. Equal texts score 1, even empty ones.
ANY_SET = F1Rule(True, 1.0)


def f1_score(
    prediction: str, golden_answers: Sequence[str], normalizer: str = "squad", rule: F1Rule = ANY_SET
) -> float:
    """Score the best token F1 over the golden answers, in [0, 1].

    >>> f1_score("Frank Herbert", ["Herbert"])
    0.6666666666666666

    Args:
        prediction: the agent's answer.
        golden_answers: all accepted answers.
        normalizer: a key of ``NORMALIZERS``.
        rule: special cases of the question set (``QuestionSet.f1``).
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
    """Answer scoring of an environment.

    Attributes:
        normalizer: a key of ``NORMALIZERS``.
        f1: F1 rule of the question set.
    """

    normalizer: str = "squad"
    f1: F1Rule = ANY_SET

    def scores(self, answer: str, golden_answers: Sequence[str]) -> dict[str, float]:
        """Compute ``em``, ``f1`` and ``sub_em`` of an answer, each in [0, 1]."""
        given = (answer, golden_answers, self.normalizer)
        return {"em": exact_match(*given), "f1": f1_score(*given, self.f1), "sub_em": sub_exact_match(*given)}


PLAIN_WORLD = "plain"  # people, works, organisations, cities and countries
RICH_WORLD = "rich"  # families, offices, employers, awards and genres besides

_ONE_HOP = "A question needs one passage; if the first search does not find it, search with other words."
_CLUES = "A question needs one passage that fits all of its clues; if the first search does not find it, search with other words."
_TWO_HOPS = "A question usually needs two searches: the first tells what to look up next."
_MORE_HOPS = "A question needs two to four searches: what they find tells what to look up next."


@dataclass(frozen=True)
class QuestionSet:
    """Settings of a question set.

    Attributes:
        name: value of the option ``dataset``, and stem of its files.
        title: published name; the environment is ``tstar/<title>``.
        summary: one line for lists of environments.
        hops: minimum and maximum number of look-ups of a question of the mini tier.
        hint: sentence of the prompt about the number of searches.
        horizon: default number of steps: the look-ups, the answer, and one to three steps for second queries.
        f1: special cases of its own evaluation script.
        world: mini world of its questions.
        train_on: for a test-only set, the set to train on.
    """

    name: str
    title: str
    summary: str
    hops: tuple[int, int]
    hint: str
    horizon: int
    f1: F1Rule
    world: str = PLAIN_WORLD
    train_on: str = ""

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of its splits; a test-only set has one."""
        return ("test",) if self.train_on else SPLITS


HOTPOTQA = QuestionSet(
    "hotpotqa",
    "HotpotQA",
    "two-hop questions (bridge and comparison) over a searchable corpus",
    hops=(2, 2),
    hint=_TWO_HOPS,
    horizon=6,
    f1=F1Rule(closed_answers=True, both_empty=0.0),  # hotpot_evaluate_v1.py; no common token gives 0
)
NQ = QuestionSet(
    "nq",
    "NQ",
    "lower-case questions about one fact over a searchable corpus",
    hops=(1, 1),
    hint=_ONE_HOP,
    horizon=4,
    f1=F1Rule(closed_answers=False, both_empty=0.0),  # SQuAD's evaluate-v1.1.py
)
TWO_WIKI = QuestionSet(
    "2wikimultihopqa",
    "2WikiMultihopQA",
    "compositional, inference, comparison and bridge-comparison questions over a searchable corpus",
    hops=(2, 4),
    hint=_MORE_HOPS,
    horizon=8,
    f1=F1Rule(closed_answers=True, both_empty=0.0),  # 2wikimultihop_evaluate_v1.1.py, made from HotpotQA's
    world=RICH_WORLD,
)
MUSIQUE = QuestionSet(
    "musique",
    "MuSiQue",
    "chains of two to four facts, straight and branching, over a searchable corpus",
    hops=(2, 4),
    hint=_MORE_HOPS,
    horizon=8,
    f1=F1Rule(closed_answers=False, both_empty=1.0),  # metrics/answer.py, as SQuAD's evaluate-v2.0.py
    world=RICH_WORLD,
)
TRIVIAQA = QuestionSet(
    "triviaqa",
    "TriviaQA",
    "quiz questions whose clues only together fix the answer, over a searchable corpus",
    hops=(1, 1),
    hint=_CLUES,
    horizon=4,
    f1=F1Rule(closed_answers=False, both_empty=0.0),  # triviaqa_evaluation.py
    world=RICH_WORLD,
)
POPQA = QuestionSet(
    "popqa",
    "PopQA",
    "1,000 test questions in fixed forms about little known entities",
    hops=(1, 1),
    hint=_ONE_HOP,
    horizon=4,
    f1=F1Rule(closed_answers=False, both_empty=0.0),
    world=RICH_WORLD,
    train_on="nq",
)
BAMBOOGLE = QuestionSet(
    "bamboogle",
    "Bamboogle",
    "125 two-hop test questions that chain relations of no other set",
    hops=(2, 2),
    hint=_TWO_HOPS,
    horizon=6,
    f1=F1Rule(closed_answers=False, both_empty=0.0),
    world=RICH_WORLD,
    train_on="musique",
)
QUESTION_SETS = (HOTPOTQA, NQ, TWO_WIKI, MUSIQUE, TRIVIAQA, POPQA, BAMBOOGLE)
_BY_NAME = {each.name: each for each in QUESTION_SETS}
_OTHER = replace(HOTPOTQA, title="", summary="questions of your own", hops=(1, 4), f1=ANY_SET)


def question_set(name: str) -> QuestionSet:
    """Get a question set by name; any other name gets the defaults, for custom questions."""
    return _BY_NAME[name] if name in _BY_NAME else replace(_OTHER, name=name)
