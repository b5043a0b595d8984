"""Endless practice: small fresh worlds in the train split's wordings, for warm starts and curricula.

No two-word name of the shipped valid and test tasks occurs in a practice world, so what is learnt here about names is
tested on combinations never seen.
"""

from __future__ import annotations

import itertools
from functools import lru_cache
from pathlib import Path

from tstar_envs.envs.search_qa import nq
from tstar_envs.envs.search_qa.generate import SHARES, make_world
from tstar_envs.envs.search_qa.questions import Question, QuestionMaker
from tstar_envs.envs.search_qa.tasks import QASet, load_set, task_from_question
from tstar_envs.envs.search_qa.world import RegionSize
from tstar_envs.stable_random import StableRandom

SIZE = RegionSize(people=90, works=70, companies=16, schools=16, cities=30, countries=12)
QUESTIONS = 160


@lru_cache(maxsize=4)
def held_out_names(dataset: str = "hotpotqa") -> frozenset[str]:
    """Two-word names in the shipped valid and test tasks. Single words (countries, years) are closed classes."""
    shipped = load_set(dataset, "mini")
    names = {
        name
        for split in ("valid", "test")
        for task_id in shipped.by_split[split]
        for hop in shipped.tasks[task_id].hops
        for name in (hop.entity, hop.value)
    }
    return frozenset(name for name in names if " " in name)


def practice_set(seed: int | str, questions: int = QUESTIONS, dataset: str = "hotpotqa") -> tuple[QASet, list[tuple[str, str]]]:
    """A fresh world's questions, in the shares of the shipped splits, and its corpus as (id, contents).

    The questions are not proved one by one: a caller that needs solvable ones plays them with the oracle.
    """
    mini = make_world(f"practice/{seed}", {"train": SIZE}, sorted(held_out_names(dataset)))
    draw = StableRandom(f"practice/{seed}/questions")
    chosen: list[Question] = []
    if dataset == "nq":
        chosen += itertools.islice(nq.questions(mini, "train", "train", draw), questions)
    else:
        maker = QuestionMaker(mini.world, "train", "train", draw)
        for kind, share in SHARES.items():
            candidates = maker.candidates(kind)
            chosen += [next(candidates) for _ in range(max(1, round(share * questions)))]
    tasks = [task_from_question(f"practice-{seed}-{n:04d}", "train", q) for n, q in enumerate(draw.shuffled(chosen))]
    ids = tuple(t.id for t in tasks)
    return QASet(dataset, "practice", {t.id: t for t in tasks}, {"train": ids}, Path()), mini.corpus
