"""Which of the drawn questions are taken."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from tstar_envs.envs.search_qa.generate.proofs.checks import ProofFailed
from tstar_envs.envs.search_qa.generate.questions.question import Question
from tstar_envs.envs.search_qa.task import Task


def collect(
    kinds: Mapping[str, int],
    candidates: Callable[[str], Iterator[Question]],
    rejection: Callable[[Question], str],
    yes_no: Collection[str] = (),
) -> list[Question]:
    """Collect the wanted number of questions of each kind, proved one by one, none about the same facts twice.

    Args:
        kinds: kind -> how many; of a kind in ``yes_no`` half of them (rounded down) for each answer.
        candidates: kind -> questions, at best without end.
        rejection: why a question may not be taken, "" if it may.
        yes_no: the kinds that ask for yes or no.

    Raises:
        ProofFailed: too few candidates are fit.
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
    """Questions as tasks of a set of the mini tier."""
    return [
        question.task(f"{name}-mini-{split}-{number:04d}", split) for number, question in enumerate(questions)
    ]
