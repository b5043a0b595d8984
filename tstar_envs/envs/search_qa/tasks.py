"""Question files: FlashRAG lines, read into tasks, with the mini tier's hops where they are given."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tstar_envs.core import SPLITS
from tstar_envs.envs.search_qa.questions import Hop, Question
from tstar_envs.errors import BadData, MissingData

MINI_FOLDER = Path(__file__).parent / "data"


@dataclass(frozen=True, slots=True)
class QATask:
    """One question.

    Attributes:
        id: unique in its set.
        split: train, valid or test.
        question: as asked.
        golden_answers: any of them is right.
        kind: what kind of question ("" if the file does not say).
        template: id of its wording ("" if unknown).
        hops: the chain of look-ups; empty where the file gives none.
    """

    id: str
    split: str
    question: str
    golden_answers: tuple[str, ...]
    kind: str = ""
    template: str = ""
    hops: tuple[Hop, ...] = ()


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
    return QATask(id_, split, question.text, (question.answer,), question.kind, question.template, question.hops)


def task_to_line(task: QATask) -> str:
    """A task as a line of the shipped files: FlashRAG's fields, the rest under ``metadata``."""
    hops = [
        {"entity": h.entity, "relation": h.relation, "value": h.value, "passage": h.passage, "queries": list(h.queries)} for h in task.hops
    ]
    record = {
        "id": task.id,
        "question": task.question,
        "golden_answers": list(task.golden_answers),
        "metadata": {"kind": task.kind, "template": task.template, "hops": hops},
    }
    return json.dumps(record, ensure_ascii=False)


def _task_from_record(record: Any, split: str, where: str) -> QATask:
    for field, kind in (("id", str), ("question", str), ("golden_answers", list)):
        if not isinstance(record, dict) or not isinstance(record.get(field), kind):
            raise BadData(f"{where}: field {field!r} must be a {kind.__name__}; expected FlashRAG lines with id, question, golden_answers")
    if not record["golden_answers"]:
        raise BadData(f"{where}: field 'golden_answers' is empty")
    for answer in record["golden_answers"]:
        if isinstance(answer, bool) or not isinstance(answer, str | int | float):
            raise BadData(f"{where}: field 'golden_answers' holds {answer!r:.80}; every answer must be a string")
    metadata = record.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise BadData(f"{where}: field 'metadata' must be an object, found {metadata!r:.80}")
    try:
        hops = tuple(Hop(h["entity"], h["relation"], h["value"], h["passage"], tuple(h["queries"])) for h in metadata.get("hops", ()))
    except (KeyError, TypeError) as error:
        raise BadData(
            f"{where}: field 'metadata.hops' must be a list of objects with entity, relation, value, passage, queries ({error})"
        ) from error
    return QATask(
        record["id"], split, record["question"], tuple(map(str, record["golden_answers"])),
        str(metadata.get("kind", metadata.get("type", ""))), str(metadata.get("template", "")), hops,
    )  # fmt: skip


def _lines(path: Path) -> Iterator[str]:
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as handle:
            yield from handle
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BadData(f"{path}: not a text file in UTF-8, or a damaged gzip ({error})") from error


def _first_existing(folder: Path, stem: str) -> Path | None:
    return next((p for p in (folder / f"{stem}.jsonl", folder / f"{stem}.jsonl.gz") if p.is_file()), None)


@lru_cache(maxsize=16)
def load_set(name: str, data: str) -> QASet:
    """Read a question set.

    Args:
        name: of the set, for example ``hotpotqa``.
        data: ``mini`` (shipped), ``full`` (``$TSTAR_DATA/search_qa``), ``auto`` (full if it is there, else mini), or a
            folder. A folder holds ``corpus.jsonl`` and ``<name>.<split>.jsonl`` or ``<split>.jsonl``, each also as ``.gz``.

    Raises:
        MissingData: the folder, its corpus or all of its question files are not there.
        BadData: a line cannot be used; file, line and field are named.
    """
    full = Path(os.environ.get("TSTAR_DATA", "~/.cache/tstar")).expanduser() / "search_qa"
    if data == "auto":
        data = "full" if _first_existing(full, "corpus") and _first_existing(full, f"{name}.test") else "mini"
    folder = {"mini": MINI_FOLDER, "full": full}.get(data, Path(data))
    tier = data if data in ("mini", "full") else "path"
    corpus = _first_existing(folder, "corpus")
    if corpus is None:
        raise MissingData(f"no corpus.jsonl or corpus.jsonl.gz in {folder} (data={data!r}); data='mini' works without any files")
    tasks: dict[str, QATask] = {}
    by_split: dict[str, tuple[str, ...]] = {}
    found = False
    for split in SPLITS:
        path = _first_existing(folder, f"{name}.{split}") or _first_existing(folder, split)
        ids: list[str] = []
        for number, line in enumerate(_lines(path) if path else (), start=1):
            where = f"{path}, line {number}"
            if not line.strip():
                continue
            try:
                task = _task_from_record(json.loads(line), split, where)
            except (json.JSONDecodeError, RecursionError) as error:
                raise BadData(f"{where}: not JSON ({error})") from error
            if task.id in tasks:
                raise BadData(f"{where}: field 'id' repeats {task.id!r}")
            tasks[task.id] = task
            ids.append(task.id)
        found = found or path is not None
        by_split[split] = tuple(ids)
    if not found:
        raise MissingData(f"no {name}.<split>.jsonl or <split>.jsonl (train, valid, test) in {folder} (data={data!r})")
    return QASet(name, tier, tasks, by_split, corpus)
