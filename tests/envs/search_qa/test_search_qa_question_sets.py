"""The table of question sets: what ships, what is registered and what is generated follow from it."""

import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from tstar_envs import find_entry
from tstar_envs.envs.search_qa.env import SearchQAEnv
from tstar_envs.envs.search_qa.generate.files import GENERATORS, NAMES
from tstar_envs.envs.search_qa.question_sets import QUESTION_SETS, QuestionSet, question_set
from tstar_envs.envs.search_qa.tasks import RICH_FOLDER, WORLD_FOLDERS, load_set
from tstar_envs.utils import SPLITS


@pytest.mark.parametrize("row", QUESTION_SETS, ids=lambda row: row.name)
def test_the_shipped_questions_are_as_the_table_says(row: QuestionSet) -> None:
    shipped = load_set(row.name, "mini")
    assert tuple(split for split in SPLITS if shipped.by_split[split]) == tuple(
        split for split in SPLITS if split in row.splits
    )
    lengths = {len(task.hops) for task in shipped.tasks.values()}
    assert (min(lengths), max(lengths)) == row.hops
    assert shipped.corpus.parent == WORLD_FOLDERS[row.world]


@pytest.mark.parametrize("row", QUESTION_SETS, ids=lambda row: row.name)
def test_the_registered_environment_follows_from_the_table(row: QuestionSet) -> None:
    entry = find_entry(f"tstar/{row.title}")
    assert entry.name == row.name and entry.kwargs == {"dataset": row.name}
    assert (entry.horizon, entry.splits, entry.summary) == (row.horizon, row.splits, row.summary)
    env = SearchQAEnv(dataset=row.name)
    assert (env.horizon, env.splits) == (row.horizon, row.splits) and row.hint in env.prompt()
    assert row.horizon > row.hops[1], "every look-up, and the answer"
    if row.train_on:
        assert (
            find_entry(entry.train_on).name == row.train_on and "train" in question_set(row.train_on).splits
        )


def test_every_set_has_a_generator() -> None:
    assert {name: made.question_set for name, made in GENERATORS.items()} == {
        row.name: row for row in QUESTION_SETS
    }


def test_questions_of_your_own_have_a_row_too() -> None:
    own, hotpotqa = question_set("mine"), question_set("hotpotqa")
    assert own.name == "mine" and own not in QUESTION_SETS
    assert (own.horizon, own.splits, own.hint) == (hotpotqa.horizon, SPLITS, hotpotqa.hint)


def test_the_command_writes_the_shipped_files(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tstar_envs.envs.search_qa.generate", "rich", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"corpus.jsonl.gz (3650 lines) in {tmp_path}\n"
    assert (tmp_path / "MANIFEST.json").read_bytes() == (RICH_FOLDER / "MANIFEST.json").read_bytes()
    written, shipped = ((folder / "corpus.jsonl.gz").read_bytes() for folder in (tmp_path, RICH_FOLDER))
    assert gzip.decompress(written) == gzip.decompress(shipped)
    refused = subprocess.run(
        [*command[:3], "quizzes", "--out", str(tmp_path)], capture_output=True, text=True
    )
    assert refused.returncode == 2 and all(name in refused.stderr for name in NAMES)
