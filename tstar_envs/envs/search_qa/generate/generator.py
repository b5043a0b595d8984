"""What every question set's module makes: its questions, proved for the shipped files, and in smaller numbers for practice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tstar_envs.envs.search_qa.generate.questions.question import Question
from tstar_envs.envs.search_qa.generate.worlds.making import MiniWorld
from tstar_envs.envs.search_qa.question_sets import QuestionSet
from tstar_envs.envs.search_qa.task import Task
from tstar_envs.stable_random import StableRandom

SIZES = {"train": 2000, "valid": 500, "test": 1000}

# seed of the world -> the world and the tasks of every split, all proved; ProofFailed where they cannot be
Build = Callable[[int], tuple[MiniWorld, dict[str, list[Task]]]]
# (practice world, number, source of chance) -> about so many questions in the wordings of the train split
Practice = Callable[[MiniWorld, int, StableRandom], list[Question]]


@dataclass(frozen=True)
class Generator:
    """How the questions of a set are made.

    Attributes:
        question_set: the set.
        build: its shipped questions.
        practice: questions over a fresh world.
    """

    question_set: QuestionSet
    build: Build
    practice: Practice
