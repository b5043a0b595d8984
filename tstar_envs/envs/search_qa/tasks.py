"""Question files read into tasks, with the mini tier's hops where they are given."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tstar_envs.choices import SPLITS
from tstar_envs.envs.search_qa.questions import Hop, Question
from tstar_envs.envs.search_qa.readers import SUFFIXES, Entry, read_entries
from tstar_envs.errors import BadData, MissingData

MINI_FOLDER = Path(__file__).parent / "data"
SECOND_FOLDER = MINI_FOLDER / "world2"
SECOND_WORLD = ("triviaqa", "popqa", "2wikimultihopqa", "musique", "bamboogle")  # sets of the mini tier over the second corpus


@dataclass(frozen=True, slots=True)
class QATask:
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


@dataclass(frozen=True)
class QASet:
    """The tasks of one question set and the corpus they are asked over."""

    name: str
    tier: str
    tasks: dict[str, QATask]
    by_split: dict[str, tuple[str, ...]]
    corpus: Path

    def __deepcopy__(self, memo: dict[int, Any]) -> QASet:
        return self  # never changed after loading, so copies of an environment share it


def task_from_question(id_: str, split: str, question: Question) -> QATask:
    """A task straight from the generator."""
    golden = (question.answer, *question.aliases)
    return QATask(id_, split, question.text, golden, question.kind, question.template, question.hops, question.popularity)


def task_to_line(task: QATask) -> str:
    """A task as a line of the shipped files: FlashRAG's fields, the rest under ``metadata``."""
    hops = [
        {"entity": h.entity, "relation": h.relation, "value": h.value, "passage": h.passage, "queries": list(h.queries)} for h in task.hops
    ]
    record: dict[str, Any] = {
        "id": task.id,
        "question": task.question,
        "golden_answers": list(task.golden_answers),
        "metadata": {"kind": task.kind, "template": task.template, "hops": hops},
    }
    if task.popularity:
        record["metadata"]["popularity"] = task.popularity
    return json.dumps(record, ensure_ascii=False)


def _task(entry: Entry, split: str) -> QATask:
    try:
        hops = tuple(
            Hop(h["entity"], h["relation"], h["value"], h["passage"], tuple(h["queries"])) for h in entry.metadata.get("hops", ())
        )
    except (KeyError, TypeError) as error:
        raise BadData(
            f"{entry.where}: field 'metadata.hops' must be a list of objects with entity, relation, value, passage, queries ({error})"
        ) from error
    popularity = entry.metadata.get("popularity", 0)
    if isinstance(popularity, bool) or not isinstance(popularity, int):
        raise BadData(f"{entry.where}: field 'metadata.popularity' must be a whole number, found {popularity!r:.80}")
    return QATask(entry.id, split, entry.question, entry.answers, entry.kind, str(entry.metadata.get("template", "")), hops, popularity)


def _corpus(folder: Path) -> Path | None:
    return next((p for p in (folder / "corpus.jsonl", folder / "corpus.jsonl.gz") if p.is_file()), None)


def _question_file(folder: Path, name: str, split: str) -> Path | None:
    """``<name>.<split>``, ``<name>/<split>`` or ``<split>``, in any form.

    The public sets call their held-out part ``dev`` where they keep the answers of ``test`` to themselves: then it is the test
    set, as it is for Search-R1 and FlashRAG, and elsewhere it is ``valid``.
    """

    def find(part: str) -> Path | None:
        stems = (folder / f"{name}.{part}", folder / name / part, folder / part)
        return next((p for stem in stems for s in SUFFIXES if (p := stem.with_name(stem.name + s)).is_file()), None)

    if split == "test":
        return find("test") or find("dev")
    if split == "valid":
        return find("valid") or (find("dev") if find("test") else None)
    return find(split)


def load_set(name: str, data: str) -> QASet:
    """Read a question set; one that was read before is kept.

    Args:
        name: of the set, for example ``hotpotqa``.
        data: ``mini`` (shipped), ``full`` (``$TSTAR_DATA/search_qa``), ``auto`` (full if it is there, else mini), or a
            folder. A folder holds ``corpus.jsonl`` (or ``.gz``) and question files in any public form (see ``readers``), named
            ``<name>.<split>``, ``<name>/<split>`` or ``<split>`` with the form's ending.

    Raises:
        MissingData: the folder, its corpus or all of its question files are not there.
        BadData: a line cannot be used; file, line and field are named.
    """
    full = Path(os.environ.get("TSTAR_DATA", "~/.cache/tstar")).expanduser() / "search_qa"
    if data == "auto":
        data = "full" if _corpus(full) and _question_file(full, name, "test") else "mini"
    mini = SECOND_FOLDER if name in SECOND_WORLD else MINI_FOLDER
    return _read_set(name, data, {"mini": mini, "full": full}.get(data, Path(data)))


# The folder is part of the key: what "full" and "auto" mean changes with $TSTAR_DATA.
@lru_cache(maxsize=16)
def _read_set(name: str, data: str, folder: Path) -> QASet:
    tier = data if data in ("mini", "full") else "path"
    corpus = _corpus(folder)
    if corpus is None:
        fetched = f"; scripts/fetch_data {name} wiki18 fetches the public ones" if data == "full" else ""
        raise MissingData(f"no corpus.jsonl or corpus.jsonl.gz in {folder} (data={data!r}); data='mini' works without any files{fetched}")
    tasks: dict[str, QATask] = {}
    by_split: dict[str, tuple[str, ...]] = {}
    found = False
    for split in SPLITS:
        path = _question_file(folder, name, split)
        ids: list[str] = []
        for entry in read_entries(path) if path else ():
            if entry.id in tasks:
                raise BadData(f"{entry.where}: field 'id' repeats {entry.id!r}")
            tasks[entry.id] = _task(entry, split)
            ids.append(entry.id)
        found = found or path is not None
        by_split[split] = tuple(ids)
    if not found:
        raise MissingData(
            f"no {name}.<split>, {name}/<split> or <split> (train, valid, test; {', '.join(SUFFIXES)}) in {folder} (data={data!r})"
        )
    return QASet(name, tier, tasks, by_split, corpus)
