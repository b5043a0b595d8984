"""Exact match on the mini question sets of two guesses made without searching (docs/results/search_qa.md).

    python scripts/studies/closed_book.py               # the two guesses
    python scripts/studies/closed_book.py --contents    # look-ups, questions by split and kinds of every set

Two guesses, both made from the train split alone and scored by exact match on test: always the most frequent answer, and the
most frequent answer of the train question that shares most words with the test question ("question only"). A set without a train
split is guessed from the set that one trains on instead, and its majority answer from its own test questions (an upper bound).
"""

from __future__ import annotations

import argparse
from collections import Counter

from tstar_envs import EnvEntry, find_entry, list_envs
from tstar_envs.envs.search_qa.question_sets import exact_match, normalize_answer
from tstar_envs.envs.search_qa.tasks import Task, load_set


def score(answers: list[str], asked: list[Task]) -> float:
    """Mean exact match."""
    return sum(exact_match(a, t.golden_answers) for a, t in zip(answers, asked, strict=True)) / len(asked)


def tasks(entry: EnvEntry, split: str) -> list[Task]:
    """The questions of a split."""
    found = load_set(entry.kwargs["dataset"], "mini")
    return [found.tasks[i] for i in found.by_split[split]]


def baselines(entry: EnvEntry) -> tuple[float, float]:
    """Exact match on test of the majority answer and of the nearest train question's answer."""
    test = tasks(entry, "test")
    train = tasks(find_entry(entry.train_on or entry.id), "train")
    majority = Counter(t.golden_answers[0] for t in (test if entry.train_on else train)).most_common(1)[0][0]
    by_words = [(frozenset(normalize_answer(t.question).split()), t.golden_answers[0]) for t in train]
    nearest = []
    for task in test:
        words = frozenset(normalize_answer(task.question).split())
        overlaps = [len(words & known) / len(words | known) for known, _ in by_words]
        best = max(overlaps)
        tied = Counter(
            answer for (_, answer), overlap in zip(by_words, overlaps, strict=True) if overlap == best
        )
        nearest.append(tied.most_common(1)[0][0])
    return score([majority] * len(test), test), score(nearest, test)


def contents(entry: EnvEntry) -> tuple[str, str, str]:
    """Look-ups of a set's questions, its questions by split, and its kinds with their shares."""
    found = load_set(entry.kwargs["dataset"], "mini")
    questions = [task for split in found.by_split for task in tasks(entry, split)]
    hops = sorted({len(task.hops) for task in questions})
    kinds = Counter(task.kind for task in questions).most_common()
    return (
        ", ".join(map(str, hops)),
        ", ".join(f"{len(ids):,} {split}" for split, ids in found.by_split.items()),
        ", ".join(f"{kind or 'one kind'} {count / len(questions):.0%}" for kind, count in kinds),
    )


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--contents", action="store_true", help="describe the sets instead")
    described = parser.parse_args().contents
    print(
        "| set | look-ups | questions | kinds |\n|---|---|---|---|"
        if described
        else "| set | majority answer | question only |\n|---|---|---|"
    )
    for entry in list_envs():
        if entry.family == "search_qa":
            cells = contents(entry) if described else tuple(f"{guess:.1%}" for guess in baselines(entry))
            print("| " + " | ".join((f"`{entry.id}`", *cells)) + " |")


if __name__ == "__main__":
    main()
