"""Recipes of question sets: drawing, proving and selecting questions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tstar_envs.envs.search_qa.generate.graph import World
from tstar_envs.envs.search_qa.generate.questions import (
    ChainProver,
    ProofFailed,
    Question,
    check_disjoint,
    check_split,
    check_world,
)
from tstar_envs.envs.search_qa.generate.worlds import WORLDS, MiniWorld
from tstar_envs.envs.search_qa.question_sets import QuestionSet
from tstar_envs.envs.search_qa.tasks import Task
from tstar_envs.utils import StableRandom


def collect(
    kinds: Mapping[str, int],
    candidates: Callable[[str], Iterator[Question]],
    rejection: Callable[[Question], str],
    yes_no: Collection[str] = (),
) -> list[Question]:
    """Collect proved questions, a given number of each kind, with no facts repeated.

    Args:
        kinds: kind -> number of questions; a kind in ``yes_no`` gets half of them (rounded down) for each answer.
        candidates: kind -> stream of questions, preferably endless.
        rejection: reason why a question is unfit, "" if it is fit.
        yes_no: kinds of yes/no questions.

    Raises:
        ProofFailed: too few fit candidates.
    """
    chosen: list[Question] = []
    for kind, wanted in kinds.items():
        seen: set[object] = set()
        kept = {"yes": 0, "no": 0, "other": 0}
        goal = wanted // 2 * 2 if kind in yes_no else wanted
        for question in itertools.islice(candidates(kind), 200 * wanted):
            facts = (kind, *sorted((h.passage, h.relation) for h in question.hops))
            side = question.answer if question.answer in kept else "other"
            full = side != "other" and kept[side] >= wanted // 2
            if full or facts in seen or rejection(question):
                continue
            seen.add(facts)
            kept[side] += 1
            chosen.append(question)
            if sum(kept.values()) >= goal:
                break
        else:
            raise ProofFailed(f"{kind}: only {sum(kept.values())} of {goal} questions are fit to ship")
    return chosen


def numbered(name: str, split: str, questions: Iterable[Question]) -> list[Task]:
    """Convert questions to numbered tasks of the mini tier."""
    return [
        question.task(f"{name}-mini-{split}-{number:04d}", split) for number, question in enumerate(questions)
    ]


SIZES = {"train": 2000, "valid": 500, "test": 1000}

# seed of the world -> world and proved tasks of every split; raises ProofFailed
Build = Callable[[int], tuple[MiniWorld, dict[str, list[Task]]]]
# (practice world, number, random source) -> about that many questions, worded as the train split
Practice = Callable[[MiniWorld, int, StableRandom], list[Question]]


@dataclass(frozen=True)
class Generator:
    """Question generator of a set.

    Attributes:
        question_set: the set.
        build: generates its shipped questions.
        practice: generates questions over a new world.
    """

    question_set: QuestionSet
    build: Build
    practice: Practice


PATIENCE = 20_000  # maximum consecutive draws without a question

# (world, region, split of the templates, random source, kind, turn) -> one question, or None
Draw = Callable[[World, str, str, StableRandom, str, int], Question | None]


@dataclass(frozen=True)
class Recipe:
    """Recipe of a question set that chains facts.

    Attributes:
        question_set: the set.
        shares: kind of draw -> its share of a split.
        draw: draws one question.
        rejection: reason why a question is unfit, "" if it is fit.
        sizes: split -> number of questions.
        yes_no: kinds of draw with yes/no questions.
    """

    question_set: QuestionSet
    shares: Mapping[str, float]
    draw: Draw
    rejection: Callable[[ChainProver, Question], str]
    sizes: Mapping[str, int] = field(default_factory=lambda: SIZES)
    yes_no: Collection[str] = ()

    def candidates(
        self, world: World, region: str, split: str, rng: StableRandom, kind: str
    ) -> Iterator[Question]:
        """Generate questions of one kind until the world is exhausted; sides and yes/no answers alternate."""
        turn = idle = 0
        while idle < PATIENCE:
            question = self.draw(world, region, split, rng, kind, turn)
            idle = idle + 1 if question is None else 0
            if question is not None:
                turn += 1
                yield question

    def counts(self, size: int) -> dict[str, int]:
        """Split ``size`` questions over the kinds of draw; the first kind takes the rounding rest."""
        counts = {kind: round(share * size) for kind, share in self.shares.items()}
        first = next(iter(counts))
        counts[first] += size - sum(counts.values())
        return counts

    def build(self, seed: int) -> tuple[MiniWorld, dict[str, list[Task]]]:
        """See ``Build``."""
        mini = WORLDS[self.question_set.world].make(seed)
        check_world(mini)
        prover = ChainProver(mini)
        splits: dict[str, list[Task]] = {}
        for split, size in self.sizes.items():
            rng = StableRandom(f"{seed}/{self.question_set.name}/{split}")
            chosen = collect(
                self.counts(size),
                lambda kind, split=split, rng=rng: self.candidates(mini.world, split, split, rng, kind),  # type: ignore[misc]
                lambda question: self.rejection(prover, question),
                self.yes_no,
            )
            splits[split] = numbered(self.question_set.name, split, rng.shuffled(chosen))
            check_split(split, splits[split], size)
        check_disjoint(splits)
        return mini, splits

    def practice(self, mini: MiniWorld, count: int, rng: StableRandom) -> list[Question]:
        """See ``Practice``; the questions are proved like shipped ones, since many joins cannot be found by search."""
        prover, chosen = ChainProver(mini), list[Question]()
        for kind, number in self.counts(count).items():
            drawn = itertools.islice(self.candidates(mini.world, "train", "train", rng, kind), 20 * number)
            fit = (question for question in drawn if not self.rejection(prover, question))
            chosen += itertools.islice(fit, number)
        return chosen
