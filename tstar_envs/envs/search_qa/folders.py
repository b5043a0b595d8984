"""Where the files of a question set lie, and what they may be called."""

from __future__ import annotations

from pathlib import Path

from tstar_envs.data.files import parse_json, read_lines
from tstar_envs.data.locate import Published, data_home
from tstar_envs.envs.search_qa.question_sets import PLAIN_WORLD, RICH_WORLD
from tstar_envs.envs.search_qa.readers.entries import read_entries
from tstar_envs.envs.search_qa.readers.records import SUFFIXES

MINI_FOLDER = Path(__file__).parent / "data"
RICH_FOLDER = MINI_FOLDER / "rich"
CORPORA = tuple(f"corpus{suffix}{packed}" for suffix in (".jsonl", ".json", ".tsv") for packed in ("", ".gz"))
WORLD_FOLDERS = {PLAIN_WORLD: MINI_FOLDER, RICH_WORLD: RICH_FOLDER}


def corpus_in(folder: Path) -> Path | None:
    """The passages of a folder."""
    return next((p for name in CORPORA if (p := folder / name).is_file()), None)


def question_file(folder: Path, name: str, split: str) -> Path | None:
    """``<name>.<split>``, ``<name>/<split>`` or ``<split>``, in any form.

    The public sets call their held-out part ``dev`` where they keep the answers of ``test`` to themselves: then it is the test
    set, as it is for Search-R1 and FlashRAG, and elsewhere it is ``valid``.
    """

    def find(part: str) -> Path | None:
        stems = (folder / f"{name}.{part}", folder / name / part, folder / part)
        return next(
            (p for stem in stems for s in SUFFIXES if (p := stem.with_name(stem.name + s)).is_file()), None
        )

    if split == "test":
        return find("test") or find("dev")
    if split == "valid":
        return find("valid") or (find("dev") if find("test") else None)
    return find(split)


def full_folder() -> Path:
    """Where the public sets lie."""
    return data_home() / "search_qa"


def published_questions(name: str) -> tuple[Published, ...]:
    """The passages and the questions of a set's full tier; ``auto`` takes them when both are there."""
    full = full_folder()
    return (
        Published(
            "passages of the public question sets",
            corpus_in(full),
            (full,),
            "scripts/fetch_data wiki18",
            _first_passage,
        ),
        Published(
            f"public questions of {name}",
            question_file(full, name, "test"),
            (full,),
            f"scripts/fetch_data {name}",
            lambda questions: next(read_entries(questions), None),
        ),
    )


def _first_passage(corpus: Path) -> None:
    number, line = next(read_lines(corpus), (0, "{}"))
    if ".jsonl" in corpus.suffixes:
        parse_json(line, f"{corpus}, line {number}")
