"""Question files read into tasks, with the mini tier's hops where they are given."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from tstar_envs.choices import SPLITS
from tstar_envs.data.faults import Faults, check_skip_bad
from tstar_envs.data.locate import PathLike, Stamped, choose_tier, existing, stamped, with_mini_named
from tstar_envs.envs.search_qa.folders import (
    CORPORA,
    WORLD_FOLDERS,
    corpus_in,
    full_folder,
    published_questions,
    question_file,
)
from tstar_envs.envs.search_qa.question_sets import question_set
from tstar_envs.envs.search_qa.readers.aliases import read_aliases
from tstar_envs.envs.search_qa.readers.entries import Entry, read_entries
from tstar_envs.envs.search_qa.readers.records import SUFFIXES
from tstar_envs.envs.search_qa.task import Hop, QASet, Task
from tstar_envs.errors import BadData, MissingData

ALIASES = "id_aliases.json"


def _task(entry: Entry, split: str) -> Task:
    try:
        hops = tuple(
            Hop(h["entity"], h["relation"], h["value"], h["passage"], tuple(h["queries"]))
            for h in entry.metadata.get("hops", ())
        )
    except (KeyError, TypeError) as error:
        raise BadData(
            f"{entry.where}: field 'metadata.hops' must be a list of objects with entity, relation, value, passage, queries ({error})"
        ) from error
    popularity = entry.metadata.get("popularity", 0)
    if isinstance(popularity, bool) or not isinstance(popularity, int):
        raise BadData(
            f"{entry.where}: field 'metadata.popularity' must be a whole number, found {popularity!r:.80}"
        )
    return Task(
        entry.id,
        split,
        entry.question,
        entry.answers,
        entry.kind,
        str(entry.metadata.get("template", "")),
        hops,
        popularity,
    )


def load_set(name: str, data: PathLike, skip_bad: bool = False) -> QASet:
    """Read a question set; one that was read before is kept until a file changes.

    Args:
        name: of the set, for example ``hotpotqa``.
        data: ``mini`` (shipped), ``full`` (``$TSTAR_DATA/search_qa``), ``auto`` (full if it is there, else mini), or a
            folder. A folder holds a corpus (``corpus`` with ``.jsonl``, ``.json`` or ``.tsv``, plain or ``.gz``) and question files in
            any public form (see ``readers``), named ``<name>.<split>``, ``<name>/<split>`` or ``<split>`` with the form's ending. Of a
            file that holds several sets (``data_source``) this one's questions are taken, or all if none is this one's.
            2Wiki's ``id_aliases.json`` beside them adds the other names of its answers.
        skip_bad: leave questions out that cannot be used; ``left_out`` of what comes back says how many and why.

    Raises:
        MissingData: the folder, its corpus or all of its question files are not there.
        BadData: questions cannot be used; all are named, with file, line and field.
        UnknownOption: an empty path.
    """
    check_skip_bad(skip_bad)
    tier = choose_tier(data, lambda: all(part.found for part in published_questions(name)))
    if tier == "path":
        folder = existing(
            data, "data", "a folder with a corpus and question files; data='mini' works without any files"
        )
    else:
        data = tier
        folder = full_folder() if tier == "full" else WORLD_FOLDERS[question_set(name).world]
    corpus = corpus_in(folder)
    if corpus is None:
        fetched = f"; scripts/fetch_data {name} wiki18 fetches the public ones" if data == "full" else ""
        raise MissingData(
            f"no corpus.jsonl ({', '.join(CORPORA[1:])}) in {folder} (data={str(data)!r}); data='mini' works without any files{fetched}"
        )
    files = {split: path for split in SPLITS if (path := question_file(folder, name, split))}
    if not files:
        raise MissingData(
            f"no {name}.<split>, {name}/<split> or <split> (train, valid, test; {', '.join(SUFFIXES)}) in {folder} (data={str(data)!r})"
        )
    aliases = [path for path in (folder / name / ALIASES, folder / ALIASES) if path.is_file()][:1]
    with with_mini_named(tier):
        return _read_set(
            name, tier, corpus, tuple(files), stamped(files.values()), stamped(aliases), skip_bad
        )


@lru_cache(maxsize=16)
def _read_set(
    name: str,
    tier: str,
    corpus: Path,
    splits: tuple[str, ...],
    files: Stamped,
    aliases: Stamped,
    skip_bad: bool,
) -> QASet:
    faults = Faults(skip_bad)
    tasks: dict[str, Task] = {}
    by_split: dict[str, tuple[str, ...]] = dict.fromkeys(SPLITS, ())
    for split, (path, *_) in zip(splits, files, strict=True):
        entries: list[Entry] = []
        with faults.collect(path):
            entries += read_entries(path, faults)
        ids: list[str] = []
        for entry in _with_aliases(_of_set(entries, name), aliases):
            with faults.collect(entry.where):
                task = _task(entry, split)
                if entry.id in tasks:
                    raise BadData(f"{entry.where}: field 'id' repeats {entry.id!r}")
                tasks[entry.id] = task
                ids.append(entry.id)
        by_split[split] = tuple(ids)
    left_out = faults.settle(len(tasks), "questions")
    return QASet(name, tier, tasks, by_split, left_out=left_out, corpus=corpus)


def _of_set(entries: list[Entry], name: str) -> list[Entry]:
    """The questions of one set out of a file that may hold several, whose ids begin anew in each."""
    sources = {entry.source for entry in entries}
    if len(sources) < 2:
        return entries
    ours = [entry for entry in entries if entry.source.lower().removeprefix("searchr1_") == name]
    return [
        entry._replace(id=f"{entry.source}/{entry.id}") if entry.source else entry
        for entry in ours or entries
    ]


def _with_aliases(entries: list[Entry], aliases: Stamped) -> list[Entry]:
    wanted = {entry.answer_id for entry in entries if entry.answer_id}
    if not wanted or not aliases:
        return entries
    names = read_aliases(aliases[0][0], wanted)
    return [
        entry._replace(answers=tuple(dict.fromkeys((*entry.answers, *names.get(entry.answer_id, ())))))
        for entry in entries
    ]
