"""Builds the mini tier of the QA sets, proves it, and writes it; the build fails if a proof fails.

``python -m tstar_envs.envs.search_qa.generate --out FOLDER`` writes ``corpus.jsonl.gz``, ``hotpotqa.<split>.jsonl.gz``
and ``MANIFEST.json`` (sha256 of the uncompressed bytes, which are the same for one seed on every machine).
What is proved of every question is listed at ``proofs.Prover.rejection``; what is proved of a whole split at ``check_split``.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from tstar_envs.choices import SPLITS
from tstar_envs.envs.search_qa import lexicon, passages
from tstar_envs.envs.search_qa.metrics import normalize_answer
from tstar_envs.envs.search_qa.proofs import MiniWorld, ProofFailed, Prover
from tstar_envs.envs.search_qa.questions import KINDS, YES_NO, Question, QuestionMaker
from tstar_envs.envs.search_qa.real_names import REAL_NAMES
from tstar_envs.envs.search_qa.searcher import EMBEDDED_BACKENDS, EmbeddedSearcher
from tstar_envs.envs.search_qa.tasks import QATask, task_from_question, task_to_line
from tstar_envs.envs.search_qa.world import RegionSize, World, build_world
from tstar_envs.stable_random import StableRandom

SEED = 20260101
SIZES = {"train": 2000, "valid": 500, "test": 1000}
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
REGIONS = {
    "train": RegionSize(people=460, works=330, companies=66, schools=60, cities=130, countries=40),
    "valid": RegionSize(people=130, works=95, companies=22, schools=20, cities=40, countries=14),
    "test": RegionSize(people=250, works=180, companies=40, schools=36, cities=75, countries=24),
    # Never asked about: siblings, namesakes and like-named towns that a sloppy query finds instead.
    "distractors": RegionSize(people=300, works=120, companies=30, schools=30, cities=60, countries=12),
}
MOST_COMMON_SHARE = 0.03


def make_world(seed: int | str, regions: Mapping[str, RegionSize], taken: Sequence[str] = ()) -> MiniWorld:
    """A world and its passages; ``taken`` names are avoided."""
    return with_passages(build_world(seed, dict(regions), taken), seed)


def with_passages(world: World, seed: int | str) -> MiniWorld:
    """A world with one passage for each entity."""
    draw = StableRandom(f"{seed}/passages")
    corpus = [(e.id, f'"{e.title}"\n{passages.render(world, e, draw)}') for e in world.entities.values()]
    return MiniWorld(world, corpus)


def collect(
    kinds: Mapping[str, int],
    candidates: Callable[[str], Iterator[Question]],
    rejection: Callable[[Question], str],
    yes_no: Collection[str] = (),
) -> list[Question]:
    """As many questions of each kind as wanted, proved one by one, none about the same facts twice.

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


def draw_split(mini: MiniWorld, prover: Prover, split: str, size: int, seed: int | str) -> list[QATask]:
    """Questions of one split in the shares of each kind, in random order."""
    draw = StableRandom(f"{seed}/questions/{split}")
    kinds = {kind: round(SHARES[kind] * size) for kind in KINDS}
    # One maker for each kind, all on one stream of chance.
    chosen = collect(
        kinds,
        lambda kind: QuestionMaker(mini.world, split, split, draw).candidates(kind),
        prover.rejection,
        YES_NO,
    )
    return numbered("hotpotqa", split, draw.shuffled(chosen))


def numbered(name: str, split: str, questions: Iterable[Question]) -> list[QATask]:
    """Questions as tasks of a set of the mini tier."""
    return [
        task_from_question(f"{name}-mini-{split}-{number:04d}", split, question)
        for number, question in enumerate(questions)
    ]


def check_split(split: str, tasks: Sequence[QATask], size: int) -> None:
    """Proofs about a whole split: its size, no frequent answer, yes and no in balance.

    Raises:
        ProofFailed: saying which.
    """
    if len(tasks) != size:
        raise ProofFailed(f"{split}: {len(tasks)} questions instead of {size}")
    answers = Counter(normalize_answer(t.golden_answers[0]) for t in tasks)
    yes, no = answers.pop("yes", 0), answers.pop("no", 0)
    if yes != no:
        raise ProofFailed(f"{split}: {yes} yes and {no} no")
    answer, count = answers.most_common(1)[0]
    if count >= MOST_COMMON_SHARE * size:
        raise ProofFailed(f"{split}: always answering {answer!r} would be right {count} times in {size}")


def check_lengths(mini: MiniWorld) -> None:
    """Every passage is short enough that three fit any observation.

    Raises:
        ProofFailed: naming the first that is not.
    """
    for id_, contents in mini.corpus:
        words = len(contents.partition("\n")[2].split())
        if not passages.SHORTEST <= words <= passages.LONGEST:
            raise ProofFailed(f"passage {id_} has {words} words: {contents!r}")


def check_names(world: World) -> None:
    """No invented word equals a real name, so nothing can be answered from memory."""
    words = {w.casefold() for name in dir(lexicon) if name.endswith("_WORDS") for w in getattr(lexicon, name)}
    english = {w.casefold() for w in (*lexicon.CITY_WORDS, *lexicon.COMPANY_WORDS, *lexicon.SCHOOL_WORDS)}
    real = sorted((words - english) & REAL_NAMES)
    if real:
        raise ProofFailed(f"the lexicon holds real names: {', '.join(real)}")


def check_disjoint(splits: Mapping[str, Sequence[QATask]]) -> None:
    """No entity and no template of one split occurs in another; every split has only its own."""
    owner: dict[str, str] = {}
    for split, tasks in splits.items():
        for task in tasks:
            for key in (*(h.entity for h in task.hops), f"template {task.template}"):
                if owner.setdefault(key, split) != split:
                    raise ProofFailed(f"{key!r} occurs in {split} and in {owner[key]}")


def build(seed: int = SEED) -> tuple[MiniWorld, dict[str, list[QATask]]]:
    """The mini tier: world, corpus and the HotpotQA questions of the three splits, all proved."""
    mini = make_world(seed, REGIONS)
    check_names(mini.world)
    check_lengths(mini)
    prover = Prover(mini, {name: EmbeddedSearcher(mini.corpus, name) for name in EMBEDDED_BACKENDS})
    splits = {split: draw_split(mini, prover, split, SIZES[split], seed) for split in SPLITS}
    for split, tasks in splits.items():
        check_split(split, tasks, SIZES[split])
    check_disjoint(splits)
    return mini, splits


def corpus_bytes(mini: MiniWorld) -> bytes:
    """The corpus as Search-R1's lines."""
    return "".join(
        json.dumps({"id": i, "contents": c}, ensure_ascii=False) + "\n" for i, c in mini.corpus
    ).encode()


def files(mini: MiniWorld, splits: Mapping[str, Sequence[QATask]]) -> dict[str, bytes]:
    """File name (without ``.gz``) -> bytes."""
    result = {"corpus.jsonl": corpus_bytes(mini)}
    for split, tasks in splits.items():
        result[f"hotpotqa.{split}.jsonl"] = "".join(task_to_line(t) + "\n" for t in tasks).encode()
    return result


def write(folder: Path, contents: Mapping[str, bytes], seed: int, module: str = "generate") -> None:
    """Write the files gzipped (without time stamps) and the manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    manifest = {
        "what": "mini tier of the question-answering sets, generated by this project (Apache-2.0)",
        "made_by": f"python -m tstar_envs.envs.search_qa.{module} --seed {seed} --out FOLDER",
        "sha256_uncompressed": {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()},
    }
    for name, data in contents.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(data, mtime=0))
    (folder / "MANIFEST.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Command line of the generator."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="folder for the files")
    parser.add_argument("--seed", type=int, default=SEED)
    arguments = parser.parse_args()
    mini, splits = build(arguments.seed)
    write(arguments.out, files(mini, splits), arguments.seed)
    print(
        f"{len(mini.corpus)} passages, "
        + ", ".join(f"{len(t)} {s}" for s, t in splits.items())
        + f" questions in {arguments.out}"
    )


if __name__ == "__main__":
    main()
