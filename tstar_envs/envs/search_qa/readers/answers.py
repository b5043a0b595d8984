"""The accepted answers of a published record, whichever field and form they have.

A text is never taken apart into letters, an object never into keys, and a number never into digits: 1931.0, which spreadsheets make
of 1931, is "1931" (normalisation deletes the point, so "1931.0" would be "19310"), and an empty cell (NaN) is no answer.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tstar_envs.data.files import parse_json
from tstar_envs.errors import BadData

Record = Mapping[str, Any]
_WHOLE = re.compile(r"-?\d+\.0+")
# What numpy prints, and pandas writes into a table: no commas, or its name around the list.
_ARRAY = re.compile(r"array\((\[.*\])(?:,\s{0,20}dtype=[^()]{1,40})?\)", re.DOTALL)
_NUMPY_TEXT = re.compile(r"'([^'\\]*+)'|\"([^\"\\]*+)\"")
_NUMPY_LIST = re.compile(rf"\[\s*+(?:{_NUMPY_TEXT.pattern})(?:\s++(?:{_NUMPY_TEXT.pattern}))++\s*+\]")
_EMPTY_CELLS = ("nan", "NaN")
_LONGEST_LIST = 1_000_000  # characters of a list in a cell


def answers_of(record: Record, where: str, table: bool = False) -> tuple[str, ...]:
    """Every accepted answer, the main one first, each once.

    Args:
        record: a question as published.
        where: its place, for the message.
        table: whether it is a row of a table, whose cells are texts (lists and numbers too).

    Raises:
        BadData: there is none, or not in its form; the field is named.
    """
    # A column that is empty here (merged files) is no field of this record.
    name = next((name for name in _ANSWERS if record.get(name) is not None), None)
    if name is None:
        empty = next((name for name in _ANSWERS if name in record), "")
        if empty:
            raise BadData(f"{where}: field {empty!r} is not what its form has there: None (no answer)")
        raise BadData(
            f"{where}: no field with answers ({', '.join(_ANSWERS)}); found {', '.join(map(str, record))}"
        )
    value = record[name]
    try:
        written = _cell(value) if table or _is_list(value) else value
        # A text in braces that is no answer's object is meant as it is.
        plain = isinstance(value, str) and isinstance(written, Mapping) and not _is_struct(written)
        found = _flat(_ANSWERS[name](value if plain else written))
    except (KeyError, TypeError, ValueError) as error:
        raise BadData(
            f"{where}: field {name!r} is not what its form has there: {value!r:.80} ({error!r:.200})"
        ) from error
    if len(found) == 1 and isinstance(found[0], str) and found[0] == value:
        found = _alternatives(found[0])
    texts = list(_texts(found, name, where, table))
    if not texts:
        raise BadData(f"{where}: field {name!r} holds no answer")
    for field in _ALIASES:
        aliases = record.get(field)
        aliases = [] if aliases is None or _is_nan(aliases) else aliases
        if isinstance(aliases, str):
            aliases = _cell(aliases) if aliases.strip() else []
        if not isinstance(aliases, list):
            raise BadData(f"{where}: field {field!r} must be a list, found {aliases!r:.80}")
        texts += _texts(aliases, field, where, table)
    return tuple(dict.fromkeys(texts))


def _alternatives(text: str) -> list[Any]:
    """The answers that some sets join in one text by ``||``, where each has a word; a list says its answers without."""
    parts = [part.strip() for part in text.split("||")]
    return parts if len(parts) > 1 and all(any(map(str.isalnum, part)) for part in parts) else [text]


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _texts(found: list[Any], name: str, where: str, table: bool) -> Iterator[str]:
    """The answers of a field that are not blank."""
    for answer in found:
        if (isinstance(answer, float) and not math.isfinite(answer)) or (table and answer in _EMPTY_CELLS):
            raise BadData(
                f"{where}: field {name!r} holds {answer}, an empty cell of a spreadsheet; give the answer or leave the line out"
            )
        if isinstance(answer, bool) or not isinstance(answer, str | int | float):
            raise BadData(f"{where}: field {name!r} holds {answer!r:.80}; every answer must be a text")
        text = str(int(answer)) if isinstance(answer, float) and answer.is_integer() else str(answer)
        if table and _WHOLE.fullmatch(text.strip()):
            text = text.strip().partition(".")[0]
        if text.strip() in _NO_ANSWER:
            raise BadData(
                f"{where}: field {name!r} holds {text.strip()!r}, which marks a question without an answer; leave the line out"
            )
        if text.strip():
            yield text


def _is_list(value: object) -> bool:
    """True for a list or object that was written out as a text: ``"['a', 'b']"``, ``"array(['a'], dtype=object)"``."""
    if not isinstance(value, str):
        return False
    text = value.strip()
    return (text[:1], text[-1:]) in (("[", "]"), ("{", "}")) or (
        text[-1:] == ")" and text.startswith(("array([", "('", '("'))
    )


def _flat(found: list[Any]) -> list[Any]:
    """Answers, each with its own other names where it is an object: ``{"answer", "aliases"}`` or ``{"text"}``."""
    flat: list[Any] = []
    for answer in found:
        if not isinstance(answer, Mapping):
            flat.append(answer)
            continue
        main = next((answer[key] for key in ("answer", "text", "value") if key in answer), None)
        flat += [answer if main is None else main, *_listed(answer.get("aliases") or [])]
    return flat


def _cell(text: Any) -> Any:
    """A list in a cell of a table: as JSON (PopQA) or as Python prints it (DPR); anything else as it is."""
    if not isinstance(text, str) or not text.strip().startswith(("[", "{", "array([", "('", '("')):
        return text
    if len(text) > _LONGEST_LIST:
        raise ValueError(f"a cell of {len(text)} characters")
    if (array := _ARRAY.fullmatch(text.strip())) is not None:
        text = array[1]
    if (
        _NUMPY_LIST.fullmatch(text.strip()) is not None
    ):  # Python would join texts without a comma between them
        return [found[1] or found[2] for found in _NUMPY_TEXT.finditer(text)]
    try:
        return parse_json(text, "the cell", object)
    except BadData as error:
        try:
            value = ast.literal_eval(text.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            if text.lstrip("[ ")[:1] not in ("'", '"'):  # a text in brackets, as the title of the film [REC]
                return text
            raise ValueError(str(error)) from None
        return list(value) if isinstance(value, list | tuple) else text


# A text would come apart into its letters and an object into its keys, each of which would count as an answer.
def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError("a list is expected")
    return value


def _several(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return _struct(value)
    return [value] if isinstance(value, str | int | float) else _listed(value)


def _is_struct(value: Mapping[str, Any]) -> bool:
    return any(str(key).lower() in ("value", "text", "ground_truth") for key in value)


def _struct(value: Mapping[str, Any]) -> list[Any]:
    """TriviaQA's object: its own script compares with the normalised aliases, which its other names are in."""
    named = {str(key).replace("_", "").lower(): found for key, found in value.items()}
    if "text" in named:  # SQuAD: every text that was accepted, with where it begins
        return _several(named["text"])
    if not isinstance(named["value"], str | int | float):
        raise TypeError("'value' is a text")
    return [
        named["value"],
        *(
            alias
            for key in ("aliases", "normalizedaliases", "humananswers")
            for alias in _listed(named.get(key) or [])
        ),
    ]


def _popqa(value: Any) -> list[Any]:
    return _several(parse_json(value, "the list", object)) if isinstance(value, str) else _several(value)


def _search_r1(value: Any) -> list[Any]:
    if isinstance(value, str):
        raise ValueError("an object printed by Python; save the table as parquet or JSON lines")
    truth = value["ground_truth"]
    return _several(truth["target"]) if isinstance(truth, Mapping) else _several(truth)


def _kilt(value: Any) -> list[Any]:
    return [output["answer"] for output in _listed(value) if output.get("answer") is not None]


_ALIASES = ("answer_aliases", "aliases", "aug_answer", "aug_answers", "answer_alias")
_NO_ANSWER = ("No Answer Present.",)  # MS MARCO
# In order of preference; "answer" is a list in NQ-open, an object in the trivia_qa of Hugging Face and one text elsewhere.
_ANSWERS: dict[str, Callable[[Any], list[Any]]] = {
    "golden_answers": _listed,
    "possible_answers": _popqa,
    "reward_model": _search_r1,
    "answers": _several,
    "answer": _several,
    "Answer": _several,
    "Answers": _several,
    "output": _kilt,
    **dict.fromkeys(
        (
            "ground_truth",
            "ground_truths",
            "gold_answer",
            "gold_answers",
            "answer_list",
            "correct_answer",
            "target",
            "targets",
        ),
        _several,
    ),
}
