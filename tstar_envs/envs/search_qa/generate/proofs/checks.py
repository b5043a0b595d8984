"""Proofs about a whole split and a whole world; the build fails if one fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tstar_envs.envs.search_qa.generate.worlds import lexicon, passages
from tstar_envs.envs.search_qa.generate.worlds.graph import World
from tstar_envs.envs.search_qa.generate.worlds.making import MiniWorld
from tstar_envs.envs.search_qa.generate.worlds.real_names import REAL_NAMES
from tstar_envs.envs.search_qa.metrics import normalize_answer
from tstar_envs.envs.search_qa.task import Task

MOST_COMMON_SHARE = 0.03


class ProofFailed(RuntimeError):
    """What the generator made is not what it promises."""


def check_split(split: str, tasks: Sequence[Task], size: int) -> None:
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


def check_disjoint(splits: Mapping[str, Sequence[Task]]) -> None:
    """No entity and no template of one split occurs in another; every split has only its own."""
    owner: dict[str, str] = {}
    for split, tasks in splits.items():
        for task in tasks:
            for key in (*(h.entity for h in task.hops), f"template {task.template}"):
                if owner.setdefault(key, split) != split:
                    raise ProofFailed(f"{key!r} occurs in {split} and in {owner[key]}")


def check_aliases(world: World) -> None:
    """No form of a name, as answers are compared, means two things, and none repeats another form of the same thing.

    Works share their bare names with namesakes; questions that such a name answers are kept out one by one.

    Raises:
        ProofFailed: naming the form.
    """
    owner: dict[str, str] = {}
    for entity in world.entities.values():
        forms = [normalize_answer(form) for form in (entity.name, *entity.aliases)]
        if len(set(forms)) < len(forms) or "" in forms:
            raise ProofFailed(
                f"two forms of {entity.title!r} are equal or empty as answers are compared: {forms}"
            )
        for form in forms:
            other = owner.setdefault(form, entity.name)
            if other != entity.name:
                raise ProofFailed(f"{form!r} means {other!r} and {entity.name!r}")


def check_world(mini: MiniWorld) -> None:
    """Everything that is promised of a world and its passages.

    Raises:
        ProofFailed: saying which promise is broken.
    """
    check_names(mini.world)
    check_lengths(mini)
    check_aliases(mini.world)
