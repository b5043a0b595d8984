"""What a search-QA task is: a question, its golden answers, and the look-ups that lead there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tstar_envs.data.tasks import LoadedTasks


@dataclass(frozen=True, slots=True)
class Hop:
    """One look-up.

    Attributes:
        entity: name of the entity to look up.
        relation: which fact of it is asked for.
        value: the object of that fact, as text.
        passage: id of the passage that states it, the entity's id.
        queries: what to search for, best first; at most two.
    """

    entity: str
    relation: str
    value: str
    passage: str
    queries: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Task:
    """One question.

    Attributes:
        id: unique in its set.
        split: train, valid or test.
        question: as asked.
        golden_answers: any of them is right; the first is the main one, the rest are aliases.
        kind: what kind of question ("" if the file does not say).
        template: id of its wording ("" if unknown).
        hops: the chain of look-ups; empty where the file gives none.
        popularity: how well known the entity is that is asked about; 0 where the file does not say.
    """

    id: str
    split: str
    question: str
    golden_answers: tuple[str, ...]
    kind: str = ""
    template: str = ""
    hops: tuple[Hop, ...] = ()
    popularity: int = 0


@dataclass(frozen=True, eq=False, kw_only=True)
class QASet(LoadedTasks[Task]):
    """The tasks of one question set, and the corpus they are asked over."""

    corpus: Path
