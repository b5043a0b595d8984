"""Question and corpus files by path: public formats are read as they are, bad lines are named."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tstar_envs import BadData, MissingData, UnknownTask
from tstar_envs.envs.search_qa.env import SearchQAEnv
from tstar_envs.envs.search_qa.readers import read_entries
from tstar_envs.envs.search_qa.search import EmbeddedSearcher, corpus_digest, first_contents
from tstar_envs.envs.search_qa.tasks import MINI_FOLDER, load_set

SAMPLES = Path(__file__).resolve().parents[3] / "shared" / "data" / "qa"
CORPUS = [{"id": n, "contents": f'"Title {n}"\nBody number {n} of the corpus.'} for n in range(5)]
QUESTION = {
    "id": "test_0",
    "question": "who?",
    "golden_answers": ["Title 1", "one"],
    "metadata": {"type": "bridge"},
}


def write(path: Path, records: list[Any]) -> None:
    text = "".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "corpus.jsonl", CORPUS)
    write(tmp_path / "hotpotqa.test.jsonl", [QUESTION, "", {**QUESTION, "id": "test_1", "metadata": None}])
    return tmp_path


@pytest.mark.parametrize(
    "names", [("corpus.jsonl", "test.jsonl"), ("corpus.jsonl.gz", "hotpotqa.test.jsonl.gz")]
)
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
    with pytest.raises(MissingData, match=r"hotpotqa\.<split>, "):
        SearchQAEnv(data=str(tmp_path))


def test_full_tier_is_found_where_tstar_data_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TSTAR_DATA", str(tmp_path))
    assert load_set("hotpotqa", "auto").tier == "mini"
    with pytest.raises(MissingData):
        load_set("hotpotqa", "full")
    (tmp_path / "search_qa").mkdir()
    write(tmp_path / "search_qa" / "corpus.jsonl", CORPUS)
    write(tmp_path / "search_qa" / "hotpotqa.test.jsonl", [QUESTION])
    assert load_set("hotpotqa", "auto").tier == "full"  # what was read before does not stand in its way
    assert load_set("hotpotqa", "mini").corpus.parent == MINI_FOLDER
    monkeypatch.setenv("TSTAR_DATA", str(tmp_path / "elsewhere"))
    assert load_set("hotpotqa", "auto").tier == "mini"


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


def test_public_forms_are_recognised_by_their_keys(tmp_path: Path) -> None:
    """Small files of our own in each published form; the real samples are read further down."""
    tables = {
        "popqa.tsv": 'id\tquestion\tprop\tpossible_answers\n7\tWho wrote X?\tauthor\t"[""A. B."", ""Ab""]"\n',
        "bamboogle.csv": 'Question,Answer\n"Who, then?",Nobody\n',
    }
    records = {
        "nq.jsonl": [{"question": "who wrote it", "answer": ["A", "B", "A"]}],
        "musique.jsonl": [
            {
                "id": "2hop__1_2",
                "question": "Who?",
                "answer": "A",
                "answer_aliases": ["B"],
                "answerable": True,
            },
            {"id": "2hop__1_3", "question": "Who?", "answer": "A", "answer_aliases": [], "answerable": False},
        ],
        "hotpotqa.json": [
            {
                "_id": "5a",
                "question": "Who?",
                "answer": "yes",
                "type": "comparison",
                "supporting_facts": [["T", 0]],
            }
        ],
        "triviaqa.json": {
            "Data": [
                {"QuestionId": "tc_1", "Question": "Who?", "Answer": {"Value": "A", "Aliases": ["B", "A"]}}
            ]
        },
    }
    for name, text in tables.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    for name, content in records.items():
        if name.endswith(".jsonl"):
            write(tmp_path / name, content)
        else:
            (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
    read = {
        name: [(e.id, e.question, e.answers, e.kind) for e in read_entries(tmp_path / name)]
        for name in (*tables, *records)
    }
    assert read == {
        "popqa.tsv": [("7", "Who wrote X?", ("A. B.", "Ab"), "author")],
        "bamboogle.csv": [("bamboogle-1", "Who, then?", ("Nobody",), "")],
        "nq.jsonl": [("nq-1", "who wrote it", ("A", "B"), "")],
        "musique.jsonl": [("2hop__1_2", "Who?", ("A", "B"), "")],
        "hotpotqa.json": [("5a", "Who?", ("yes",), "comparison")],
        "triviaqa.json": [("tc_1", "Who?", ("A", "B"), "")],
    }


def test_search_r1_parquet(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [
        {
            "id": "train_0",
            "question": "who?",
            "reward_model": {"ground_truth": {"target": ["A", "B"]}, "style": "rule"},
        },
        {
            "id": "train_1",
            "question": "where?",
            "reward_model": {"ground_truth": {"target": []}, "style": "rule"},
        },
    ]
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "train.parquet")
    entries = read_entries(tmp_path / "train.parquet")
    assert next(entries)[1:4] == ("train_0", "who?", ("A", "B"))
    with pytest.raises(BadData, match=r"train\.parquet, row 2: field 'reward_model' holds no answer"):
        next(entries)
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "train.parquet").read_bytes()[:-9])
    with pytest.raises(BadData, match=r"cut\.parquet"):
        list(read_entries(tmp_path / "cut.parquet"))


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.tsv", "id\tquestion\tpossible_answers\n1\tWho?\n", "line 2: 3 columns"),
        ("a.tsv", "id\tquestion\tpossible_answers\n1\tWho?\tnot json\n", "line 2: field 'possible_answers'"),
        ("a.csv", "Question,Answer\n,x\n", "line 2: field 'Question'"),
        ("a.json", "{}", "a list of questions"),
        ("a.json", '[{"question": "q", "answer": "a"}, 3]', "entry 2: expected an object"),
        ("a.json", '{"Data": [{"Question": "q", "Answer": {"Aliases": []}}]}', "entry 1: field 'Answer'"),
        ("a.json", '[{"question": "q"}]', "entry 1: no field with answers"),
        ("a.json", "[" * 200_000, "not JSON"),
        # A text is no list of letters, an object no list of its keys: each would count as a right answer.
        (
            "a.json",
            '{"Data": [{"Question": "q", "Answer": {"Value": "v", "Aliases": "abc"}}]}',
            "entry 1: field 'Answer'",
        ),
        (
            "a.jsonl",
            '{"question": "q", "answer": "a", "answer_aliases": "abc"}',
            "line 1: field 'answer_aliases' must be a list",
        ),
        (
            "a.jsonl",
            '{"question": "q", "answer": "a", "answer_aliases": 5}',
            "line 1: field 'answer_aliases' must be a list",
        ),
        (
            "a.jsonl",
            '{"question": "q", "answer": "a", "answer_aliases": ["b", null]}',
            "line 1: field 'answer_aliases' holds None",
        ),
        (
            "a.jsonl",
            '{"question": "q", "answer": " ", "answer_aliases": ["b"]}',
            "line 1: field 'answer' holds no answer",
        ),
        (
            "a.jsonl",
            '{"id": "1", "question": "q", "golden_answers": {"a": 1}}',
            "line 1: field 'golden_answers'",
        ),
        ("a.jsonl", '{"question": "q", "answer": {"a": 1}}', "line 1: field 'answer'"),
        (
            "a.jsonl",
            '{"question": "q", "reward_model": {"ground_truth": {"target": {"a": 1}}}}',
            "line 1: field 'reward_model'",
        ),
        (
            "a.tsv",
            'id\tquestion\tpossible_answers\n1\tWho?\t"{""a"": 1}"\n',
            "line 2: field 'possible_answers'",
        ),
        ("a.json", '[{"_id": [5], "question": "q", "answer": "a"}]', "entry 1: field '_id' must be"),
        (
            "a.json",
            '{"Data": [{"QuestionId": true, "Question": "q", "Answer": "a"}]}',
            "entry 1: field 'QuestionId' must be",
        ),
        ("a.txt", "x", "question files end in"),
    ],
)
def test_what_is_wrong_in_any_form_is_named(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(BadData) as caught:
        list(read_entries(tmp_path / name))
    assert str(tmp_path / name) in str(caught.value) and said in str(caught.value)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (("train", "dev"), {"train": 1, "valid": 0, "test": 1}),
        (("train", "dev", "test"), {"train": 1, "valid": 1, "test": 1}),
        (("test",), {"train": 0, "valid": 0, "test": 1}),
    ],
)
def test_dev_is_the_test_set_where_there_is_no_other(
    tmp_path: Path, files: tuple[str, ...], expected: dict[str, int]
) -> None:
    write(tmp_path / "corpus.jsonl", CORPUS)
    (tmp_path / "hotpotqa").mkdir()
    for name in files:
        write(tmp_path / "hotpotqa" / f"{name}.jsonl", [{**QUESTION, "id": name}])
    assert {
        split: len(ids) for split, ids in load_set("hotpotqa", str(tmp_path)).by_split.items()
    } == expected


@pytest.mark.parametrize(
    ("name", "count", "first"),
    [
        ("nq_open_dev_head.jsonl", 40, "nq_open_dev_head-1"),
        ("triviaqa_sample_official.json", None, None),
        ("hipporag_musique_style_sample.json", None, "sample/question_1.json"),
        ("r1searcher_hotpotqa_head.jsonl", None, "r1searcher_hotpotqa_head-1"),
    ],
)
def test_real_samples_in_other_forms(name: str, count: int | None, first: str | None) -> None:
    if not (SAMPLES / name).is_file():
        pytest.skip(f"{name} is not in the shared samples")
    entries = list(read_entries(SAMPLES / name))
    assert entries and all(e.question.strip() and e.answers for e in entries)
    assert count in (None, len(entries)) and first in (None, entries[0].id)
    assert len({e.id for e in entries}) == len(entries)


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz"])
def test_a_corpus_has_the_digest_of_its_index_whatever_its_form(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"corpus.{ending}"
    records = [{**record, "id": str(record["id"])} for record in CORPUS]
    write(path, records)
    assert corpus_digest(path) == EmbeddedSearcher(path).digest()
    assert first_contents(path, 2) == (CORPUS[0]["contents"], CORPUS[1]["contents"])
    digests = {corpus_digest(path)}
    for odd in (
        "[" * 200_000,
        '{"id": "9"}',
        "no JSON",
    ):  # a line that cannot be read as a passage counts as it is
        write(path, [*records, odd])
        digests.add(corpus_digest(path))
    assert len(digests) == 4


def test_the_first_passages_of_a_damaged_corpus_are_named(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl.gz"
    write(path, [CORPUS[0], "[" * 200_000])
    with pytest.raises(BadData, match=r"corpus\.jsonl\.gz, line 2: .*brackets within one another"):
        first_contents(path)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(BadData, match=r"corpus\.jsonl\.gz: a damaged archive"):
        first_contents(path)
