"""One question out of a record of any form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tstar_envs.data.faults import Faults
from tstar_envs.data.files import parse_json
from tstar_envs.data.limits import QUESTIONS
from tstar_envs.envs.search_qa.readers.answers import Record, answers_of
from tstar_envs.envs.search_qa.readers.records import read_records
from tstar_envs.errors import BadData

_IDS = ("id", "_id", "QuestionId", "question_id", "qid", "query_id", "example_id")
_QUESTIONS = ("question", "Question", "input", "query", "problem", "Problem", "Prompt", "prompt", "messages")
_YES = ("true", "1", "1.0", "yes", "y", "t")
_ASKED = "Question:"  # before the question, in Search-R1's prompt


class Entry(NamedTuple):
    """A question as published; ``metadata`` is what the file says beyond it, ``where`` names file and line for errors.

    ``source`` is the set that the file says it is of, ``answer_id`` the entity (2Wiki), "" where it does not say.
    """

    where: str
    id: str
    question: str
    answers: tuple[str, ...]
    kind: str
    metadata: Record
    source: str = ""
    answer_id: str = ""


def read_entries(path: Path, faults: Faults | None = None) -> Iterator[Entry]:
    """The questions of a file, in order.

    Args:
        path: a file with one of ``SUFFIXES``.
        faults: takes what cannot be read, so that the rest is; without it the first fault is raised.

    Raises:
        BadData: the file, or something in it, cannot be read.
        MissingExtra: a parquet file, and pyarrow is not installed.
    """
    stem = path.name.partition(".")[0]
    table = path.suffix in (".tsv", ".csv")
    for where, number, record in read_records(path, faults):
        QUESTIONS.check(number, path)
        place = f"{path}, {where}"
        try:
            entry = _entry(record, f"{stem}-{number}", place, table)
        except BadData as error:
            if faults is None:
                raise
            faults.add(place, str(error).removeprefix(f"{place}: "))
            continue
        if entry is not None:
            yield entry


def _entry(record: Any, unnamed: str, where: str, table: bool) -> Entry | None:
    """One record of any form; None for questions that cannot be answered (MuSiQue's, SQuAD's)."""
    if not isinstance(record, Mapping):
        raise BadData(
            f"{where}: expected an object with 'id', 'question' and 'golden_answers' (or another known form), found {record!r:.80}"
        )
    if _says(record.get("answerable")) == "no" or _says(record.get("is_impossible")) == "yes":
        return None
    extra = record.get("extra_info")
    asked = (
        record if "question" in record or not isinstance(extra, Mapping) or "question" not in extra else extra
    )
    question = _question(asked, where)
    named = next((key for key in _IDS if record.get(key) not in (None, "")), "id")
    id_ = record.get(named) if record.get(named) not in (None, "") else unnamed
    if isinstance(id_, float) and id_.is_integer():
        id_ = int(id_)
    # FlashRAG's lines have ids; a merged file of Search-R1 may leave them out.
    if "golden_answers" in record and id_ is unnamed and "data_source" not in record:
        raise BadData(
            f"{where}: field 'id' is missing; lines with 'golden_answers' have one, by which results are recorded"
        )
    if isinstance(id_, bool) or not isinstance(id_, str | int):
        raise BadData(f"{where}: field {named!r} must be a string or a whole number, found {id_!r:.80}")
    metadata = record.get("metadata")
    if isinstance(metadata, str) and (table or metadata[:1] in ("", "{")):  # an object that was written out
        metadata = {}
    metadata = {} if metadata is None else metadata
    if not isinstance(metadata, Mapping):
        raise BadData(f"{where}: field 'metadata' must be an object, found {metadata!r:.80}")
    kinds = (metadata.get("kind"), metadata.get("type"), record.get("type"), record.get("prop"))
    source, answer_id = (
        value if isinstance(value := record.get(key), str) else "" for key in ("data_source", "answer_id")
    )
    return Entry(
        where,
        str(id_),
        question,
        answers_of(record, where, table),
        next((k for k in kinds if isinstance(k, str) and k), ""),
        metadata,
        source,
        answer_id,
    )


def _says(value: Any) -> str:
    """``yes`` or ``no``, however a field says it; "" where it does not."""
    said = str(value).strip().lower()
    return "no" if said in ("false", "0", "0.0", "no", "n", "f") else "yes" if said in _YES else ""


def _question(record: Record, where: str) -> str:
    """The question, whatever its field is called; of a conversation what its one user says."""
    name = next((name for name in _QUESTIONS if name in record), "")
    if not name:
        raise BadData(
            f"{where}: field 'question' is missing; found {', '.join(map(str, record))[:300] or 'no field'}"
        )
    said = record[name]
    if name in ("prompt", "messages"):
        if isinstance(said, str) and said.lstrip()[:2] == "[{":  # written out in a table
            said = parse_json(said, where, object)
        said = said.rpartition(_ASKED)[2].strip() if isinstance(said, str) else _asked_in(said)
    if not isinstance(said, str) or not said.strip():
        raise BadData(f"{where}: field {name!r} must be a text, found {record[name]!r:.80}")
    return said


def _asked_in(messages: Any) -> str | None:
    """What the user asks in a conversation of one message (Search-R1's ends in the question); None if it is none."""
    if not isinstance(messages, list):
        return None
    asked = [m.get("content") for m in messages if isinstance(m, Mapping) and m.get("role") == "user"]
    if len(asked) != 1 or not isinstance(asked[0], str):
        return None
    return asked[0].rpartition(_ASKED)[2].strip()
