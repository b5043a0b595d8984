"""Endless practice: small fresh worlds in the train split's wordings, for warm starts and curricula.

No two-word name of the shipped valid and test tasks occurs in a practice world, so what is learnt here about names is
tested on combinations never seen. This is the only module that loads the generators; an environment loads it when asked.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from tstar_envs.envs.search_qa.generate.files import GENERATORS
from tstar_envs.envs.search_qa.generate.worlds import WORLDS
from tstar_envs.envs.search_qa.question_sets import QUESTION_SETS, RICH_WORLD, question_set
from tstar_envs.envs.search_qa.tasks import QASet, load_set
from tstar_envs.utils import StableRandom

QUESTIONS = 160


@lru_cache(maxsize=8)
def held_out_names(dataset: str = "hotpotqa") -> frozenset[str]:
    """Two-word names in the shipped valid and test tasks; single words (countries, years) are closed classes.

    The sets over the rich world hold out each other's names too.
    """
    world = question_set(dataset).world
    sets = [each.name for each in QUESTION_SETS if each.world == world] if world == RICH_WORLD else [dataset]
    names = {
        name
        for shipped in (load_set(name, "mini") for name in sets)
        for split in ("valid", "test")
        for task_id in shipped.by_split[split]
        for hop in shipped.tasks[task_id].hops
        # TriviaQA looks for clues: "Garnet School and 1871"
        for name in (*hop.entity.split(" and "), hop.value)
    }
    return frozenset(name for name in names if " " in name)


def practice_set(
    seed: int | str, questions: int = QUESTIONS, dataset: str = "hotpotqa"
) -> tuple[QASet, list[tuple[str, str]]]:
    """A fresh world's questions, in the shares of the shipped splits, and its corpus as (id, contents)."""
    rng = StableRandom(f"practice/{seed}/questions")
    maker = WORLDS[question_set(dataset).world]
    mini = maker.make(f"practice/{seed}", {"train": maker.practice}, sorted(held_out_names(dataset)))
    chosen = rng.shuffled(GENERATORS[dataset].practice(mini, questions, rng))
    tasks = {
        id_: question.task(id_, "train")
        for number, question in enumerate(chosen)
        for id_ in [f"practice-{seed}-{number:04d}"]
    }
    return QASet(dataset, "practice", tasks, {"train": tuple(tasks)}, corpus=Path()), mini.corpus
