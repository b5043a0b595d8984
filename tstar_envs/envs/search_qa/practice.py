"""Endless practice: small fresh worlds in the train split's wordings, for warm starts and curricula.

No two-word name of the shipped valid and test tasks occurs in a practice world, so what is learnt here about names is
tested on combinations never seen.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from tstar_envs.envs.search_qa import bamboogle, musique, nq, popqa, triviaqa, two_wiki
from tstar_envs.envs.search_qa.chains import ChainProver
from tstar_envs.envs.search_qa.generate import SHARES, make_world
from tstar_envs.envs.search_qa.proofs import MiniWorld
from tstar_envs.envs.search_qa.question_sets import QUESTION_SETS, RICH_WORLD, question_set
from tstar_envs.envs.search_qa.questions import Question, QuestionMaker
from tstar_envs.envs.search_qa.second_corpus import make_second_world
from tstar_envs.envs.search_qa.tasks import QASet, load_set, task_from_question
from tstar_envs.envs.search_qa.world import RegionSize
from tstar_envs.stable_random import StableRandom

SIZE = RegionSize(people=90, works=70, companies=16, schools=16, cities=30, countries=12)
SECOND_SIZE = RegionSize(people=240, works=130, companies=24, schools=18, cities=40, countries=12, awards=12)
QUESTIONS = 160
RECIPES = {
    two_wiki.NAME: two_wiki.RECIPE,
    musique.NAME: musique.RECIPE,
    bamboogle.NAME: replace(
        musique.RECIPE, shares={"2hop": 1.0}
    ),  # nothing to train on of its own: other chains of two
}


@lru_cache(maxsize=8)
def held_out_names(dataset: str = "hotpotqa") -> frozenset[str]:
    """Two-word names in the shipped valid and test tasks; single words (countries, years) are closed classes.

    The sets over the second corpus hold out each other's names too.
    """
    world = question_set(dataset).world
    sets = [s.name for s in QUESTION_SETS if s.world == world] if world == RICH_WORLD else [dataset]
    names = {
        name
        for shipped in (load_set(name, "mini") for name in sets)
        for split in ("valid", "test")
        for task_id in shipped.by_split[split]
        for hop in shipped.tasks[task_id].hops
        for name in (
            *hop.entity.split(" and "),
            hop.value,
        )  # TriviaQA looks for clues: "Garnet School and 1871"
    }
    return frozenset(name for name in names if " " in name)


def practice_set(
    seed: int | str, questions: int = QUESTIONS, dataset: str = "hotpotqa"
) -> tuple[QASet, list[tuple[str, str]]]:
    """A fresh world's questions, in the shares of the shipped splits, and its corpus as (id, contents).

    Questions that chain facts are proved as shipped ones are, since joins often cannot be found; those of HotpotQA and NQ are
    not: a caller that needs solvable ones plays them with the oracle.
    """
    draw = StableRandom(f"practice/{seed}/questions")
    build, size = (
        (make_second_world, SECOND_SIZE) if question_set(dataset).world == RICH_WORLD else (make_world, SIZE)
    )
    mini = build(f"practice/{seed}", {"train": size}, sorted(held_out_names(dataset)))
    chosen = draw.shuffled(_questions(mini, dataset, questions, draw))
    tasks = [task_from_question(f"practice-{seed}-{n:04d}", "train", q) for n, q in enumerate(chosen)]
    ids = tuple(t.id for t in tasks)
    return QASet(dataset, "practice", {t.id: t for t in tasks}, {"train": ids}, Path()), mini.corpus


def _questions(mini: MiniWorld, dataset: str, count: int, draw: StableRandom) -> list[Question]:
    """Questions in the style of a set, some ``count`` of them."""
    if dataset == "nq":
        return list(itertools.islice(nq.questions(mini, "train", "train", draw), count))
    if dataset == "triviaqa":
        return list(
            itertools.islice(triviaqa.questions(mini, ChainProver(mini), "train", "train", draw), count)
        )
    if dataset == "popqa":  # its forms are fixed, so it has no wordings of a train split
        return draw.shuffled(list(popqa.questions(mini, ChainProver(mini), "train", draw)))[:count]
    if dataset in RECIPES:
        recipe, prover = RECIPES[dataset], ChainProver(mini)
        chosen: list[Question] = []
        for kind, number in recipe.counts(count).items():
            drawn = itertools.islice(recipe.candidates(mini.world, "train", "train", draw, kind), 20 * number)
            chosen += itertools.islice(
                (question for question in drawn if not recipe.rejection(prover, question)), number
            )
        return chosen
    maker = QuestionMaker(mini.world, "train", "train", draw)
    return [
        q
        for kind, share in SHARES.items()
        for q in itertools.islice(maker.candidates(kind), max(1, round(share * count)))
    ]
