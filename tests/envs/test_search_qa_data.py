"""Question and corpus files by path: public formats are read as they are, bad lines are named."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tstar_envs import BadData, MissingData, UnknownTask
from tstar_envs.envs.search_qa.env import SearchQAEnv
from tstar_envs.envs.search_qa.tasks import MINI_FOLDER, load_set

SAMPLES = Path(__file__).resolve().parents[3] / "shared" / "data" / "qa"
CORPUS = [{"id": n, "contents": f'"Title {n}"\nBody number {n} of the corpus.'} for n in range(5)]
QUESTION = {"id": "test_0", "question": "who?", "golden_answers": ["Title 1", "one"], "metadata": {"type": "bridge"}}


def write(path: Path, records: list[Any]) -> None:
    text = "".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "corpus.jsonl", CORPUS)
    write(tmp_path / "hotpotqa.test.jsonl", [QUESTION, "", {**QUESTION, "id": "test_1", "metadata": None}])
    return tmp_path


@pytest.mark.parametrize("names", [("corpus.jsonl", "test.jsonl"), ("corpus.jsonl.gz", "hotpotqa.test.jsonl.gz")])
def test_public_files(tmp_path: Path, names: tuple[str, str]) -> None:
    write(tmp_path / names[0], CORPUS)
    write(tmp_path / names[1], [QUESTION])
    env = SearchQAEnv(data=str(tmp_path))
    _, info = env.reset(options={"task": 0})
    assert (env.tier, info["task_id"], info["kind"]) == ("path", "test_0", "bridge")
    observation, *_ = env.step("search[Title 3]")
    assert observation.startswith("Doc 1 (Title: Title 3) Body number 3")
    assert env.step(env.oracle() or "")[1] == 1.0, "without hops the expert knows the answer"
    assert env.task_ids("train") == ()
    with pytest.raises(UnknownTask, match="'train'.* has no tasks"):
        SearchQAEnv(data=str(tmp_path), split="train").reset()


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("{not json", "not JSON"),
        ("[1, 2]", "'id'"),
        ({"question": "q", "golden_answers": ["a"]}, "'id'"),
        ({"id": "x", "question": 3, "golden_answers": ["a"]}, "'question'"),
        ({"id": "x", "question": "q", "golden_answers": "a"}, "'golden_answers'"),
        ({"id": "x", "question": "q", "golden_answers": []}, "'golden_answers'"),
        ({"id": "x", "question": "q", "golden_answers": [None]}, "'golden_answers'"),
        ({**QUESTION, "id": "x", "metadata": "bridge"}, "'metadata'"),
        ({**QUESTION, "id": "x", "metadata": {"hops": [{"entity": "e"}]}}, "'metadata.hops'"),
        ({**QUESTION, "id": "x", "metadata": {"hops": 3}}, "'metadata.hops'"),
        (QUESTION, "'id' repeats"),
    ],
)
def test_bad_question_lines_are_named(folder: Path, line: Any, field: str) -> None:
    path = folder / "hotpotqa.test.jsonl"
    write(path, [QUESTION, line])
    with pytest.raises(BadData) as caught:
        SearchQAEnv(data=str(folder))
    assert f"{path}, line 2: " in str(caught.value) and field in str(caught.value)


@pytest.mark.parametrize("line", ["{", {"contents": "x"}, {"id": "9"}, {"id": "9", "contents": 3}, CORPUS[0]])
def test_bad_corpus_lines_are_named(folder: Path, line: Any) -> None:
    write(folder / "corpus.jsonl", [*CORPUS, line])
    with pytest.raises(BadData, match=r"corpus\.jsonl, line 6: "):
        SearchQAEnv(data=str(folder))


@pytest.mark.parametrize("content", [b"\xff\xfe broken", b"\x1f\x8b\x08broken"])
def test_damaged_files_are_named(folder: Path, content: bytes) -> None:
    (folder / "hotpotqa.test.jsonl").unlink()
    name = "test.jsonl.gz" if content.startswith(b"\x1f") else "test.jsonl"
    (folder / name).write_bytes(content)
    with pytest.raises(BadData, match=r"test\.jsonl"):
        SearchQAEnv(data=str(folder))


def test_missing_files_say_what_works(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match="data='mini' works"):
        SearchQAEnv(data=str(tmp_path / "nowhere"))
    write(tmp_path / "corpus.jsonl", CORPUS)
    with pytest.raises(MissingData, match=r"hotpotqa\.<split>\.jsonl"):
        SearchQAEnv(data=str(tmp_path))


def test_full_tier_is_found_where_tstar_data_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TSTAR_DATA", str(tmp_path))
    load_set.cache_clear()
    try:
        assert load_set("hotpotqa", "auto").tier == "mini"
        with pytest.raises(MissingData):
            load_set("hotpotqa", "full")
        (tmp_path / "search_qa").mkdir()
        write(tmp_path / "search_qa" / "corpus.jsonl", CORPUS)
        write(tmp_path / "search_qa" / "hotpotqa.test.jsonl", [QUESTION])
        load_set.cache_clear()
        assert load_set("hotpotqa", "auto").tier == "full"
        assert load_set("hotpotqa", "mini").corpus.parent == MINI_FOLDER
    finally:
        load_set.cache_clear()


SETS = ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")


@pytest.mark.parametrize("name", [*(f"flashrag_form_{s}" for s in SETS), "flashrag_nq_test_sample"])
def test_real_samples(name: str, tmp_path: Path) -> None:
    source, corpus = SAMPLES / f"{name}.jsonl", SAMPLES / "searchr1_corpus_sample.jsonl"
    if not source.is_file() or not corpus.is_file():
        pytest.skip(f"{source.name} is not in the shared samples")
    # Read in place: the folder only gives the public files the names that a data folder has.
    (tmp_path / "test.jsonl").symlink_to(source)
    (tmp_path / "corpus.jsonl").symlink_to(corpus)
    env = SearchQAEnv(data=str(tmp_path), topk=1)
    lines = source.read_text(encoding="utf-8").splitlines()
    assert len(env.task_ids()) == len(lines)
    for line in lines:
        record = json.loads(line)
        observation, _ = env.reset(options={"task": record["id"]})
        assert observation == f"Question: {record['question']}"
        assert not env.step(f"search[{' '.join(record['question'].split())[:900]}]")[2]
        for gold in record["golden_answers"]:
            env.reset(options={"task": record["id"]})
            if gold.strip() and len(gold) <= 1000:
                assert env.step(f"finish[{' '.join(gold.split())}]")[4]["em"] == 1.0
