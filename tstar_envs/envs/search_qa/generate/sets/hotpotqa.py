"""The mini tier's HotpotQA: bridge questions and comparisons over the plain world, all proved.

What is proved of every question is listed at ``TwoHopProver.rejection``; what is proved of a whole split at ``check_split``.
"""

from __future__ import annotations

import itertools

from tstar_envs.choices import SPLITS
from tstar_envs.envs.search_qa.generate.generator import SIZES, Generator
from tstar_envs.envs.search_qa.generate.proofs.checks import check_disjoint, check_split, check_world
from tstar_envs.envs.search_qa.generate.proofs.two_hop_prover import TwoHopProver
from tstar_envs.envs.search_qa.generate.questions.question import Question
from tstar_envs.envs.search_qa.generate.questions.selection import collect, numbered
from tstar_envs.envs.search_qa.generate.sets.hotpotqa_questions import KINDS, YES_NO, QuestionMaker
from tstar_envs.envs.search_qa.generate.worlds.making import PLAIN, MiniWorld
from tstar_envs.envs.search_qa.question_sets import HOTPOTQA
from tstar_envs.envs.search_qa.task import Task
from tstar_envs.stable_random import StableRandom

SHARES = {  # of each split; bridge questions are 70 %, as in HotpotQA's development set (about 80 %) and notes
    "work-creator": 0.30,
    "work-company": 0.18,
    "org-founder": 0.10,
    "person-city": 0.12,
    "compare-people": 0.10,
    "compare-works": 0.08,
    "same-occupation": 0.06,
    "same-country": 0.06,
}


def draw_split(mini: MiniWorld, prover: TwoHopProver, split: str, size: int, seed: int) -> list[Task]:
    """Questions of one split in the shares of each kind, in random order."""
    rng = StableRandom(f"{seed}/questions/{split}")
    kinds = {kind: round(SHARES[kind] * size) for kind in KINDS}
    # One maker for each kind, all on one stream of chance.
    chosen = collect(
        kinds,
        lambda kind: QuestionMaker(mini.world, split, split, rng).candidates(kind),
        prover.rejection,
        YES_NO,
    )
    return numbered(HOTPOTQA.name, split, rng.shuffled(chosen))


def build(seed: int = PLAIN.seed) -> tuple[MiniWorld, dict[str, list[Task]]]:
    """See ``generator.Build``."""
    mini = PLAIN.make(seed)
    check_world(mini)
    prover = TwoHopProver(mini)
    splits = {split: draw_split(mini, prover, split, SIZES[split], seed) for split in SPLITS}
    for split, tasks in splits.items():
        check_split(split, tasks, SIZES[split])
    check_disjoint(splits)
    return mini, splits


def practice(mini: MiniWorld, count: int, rng: StableRandom) -> list[Question]:
    """See ``generator.Practice``; they are not proved: a caller that needs solvable ones plays them with the oracle."""
    maker = QuestionMaker(mini.world, "train", "train", rng)
    return [
        question
        for kind, share in SHARES.items()
        for question in itertools.islice(maker.candidates(kind), max(1, round(share * count)))
    ]


GENERATOR = Generator(HOTPOTQA, build, practice)
