"""The seven question sets: what distinguishes one from another, in one table.

The registry's entries, splits, horizons, the sentence of the prompt, the F1 of each set's own script and the world of its mini tier
all come from here. Only how its questions are made hangs elsewhere, by these names, in ``generate.generators``: nothing that plays
may load a generator.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tstar_envs.choices import SPLITS
from tstar_envs.envs.search_qa.metrics import ANY_SET, F1Rule

PLAIN_WORLD = "plain"  # people, works, organisations, cities and countries
RICH_WORLD = "rich"  # families, offices, employers, awards and genres besides

_ONE_HOP = "A question needs one passage; if the first search does not find it, search with other words."
_CLUES = "A question needs one passage that fits all of its clues; if the first search does not find it, search with other words."
_TWO_HOPS = "A question usually needs two searches: the first tells what to look up next."
_MORE_HOPS = "A question needs two to four searches: what they find tells what to look up next."


@dataclass(frozen=True)
class QuestionSet:
    """One question set.

    Attributes:
        name: value of the option ``dataset``, and how its files are called.
        title: as published; the environment is ``tstar/<title>``.
        summary: one line for lists of environments.
        hops: fewest and most look-ups of a question of the mini tier.
        hint: how many searches a question needs, as the prompt says it.
        horizon: default number of steps: the look-ups, the answer, and one to three steps for second queries.
        f1: what its own evaluation script does where tokens do not decide.
        world: which mini world its questions are asked of.
        train_on: for a set that is published for testing only, the set whose training carries over to it.
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
        """Its splits; a set for testing only has one."""
        return ("test",) if self.train_on else SPLITS


HOTPOTQA = QuestionSet(
    "hotpotqa",
    "HotpotQA",
    "two-hop questions (bridge and comparison) over a searchable corpus",
    hops=(2, 2),
    hint=_TWO_HOPS,
    horizon=6,
    f1=F1Rule(closed_answers=True, both_empty=0.0),  # hotpot_evaluate_v1.py; no common token is 0
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
    """The set of a name; for questions of your own under another name, what holds of any set."""
    return _BY_NAME[name] if name in _BY_NAME else replace(_OTHER, name=name)
