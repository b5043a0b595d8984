"""Question files as they are in the world: merged ones, structs, DPR, KILT, spreadsheets, 2Wiki's aliases; and hostile ones."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tstar_envs import BadData, MissingData, UnknownOption
from tstar_envs.data.faults import Faults
from tstar_envs.envs.search_qa.env import SearchQAEnv
from tstar_envs.envs.search_qa.readers import Entry, read_entries
from tstar_envs.envs.search_qa.tasks import load_set

CORPUS = '{"id": 0, "contents": "T\\nbody of it"}\n'


def written(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = content if isinstance(content, str) else "".join(json.dumps(record) + "\n" for record in content)
    path.write_text(text, encoding="utf-8")
    return path


def only(path: Path) -> Entry:
    (entry,) = read_entries(path)
    return entry


@pytest.mark.parametrize(
    ("record", "answers"),
    [
        # trivia_qa of Hugging Face
        (
            {
                "question_id": "tc_3",
                "question": "q",
                "answer": {"value": "A.", "aliases": ["B"], "normalized_aliases": ["a", "b"]},
            },
            ("A.", "B", "a", "b"),
        ),
        (
            {
                "question_id": "tc_3",
                "question": "q",
                "answer": {"value": "A", "aliases": None, "matched_wiki_entity_name": "W"},
            },
            ("A",),
        ),
        (
            {
                "QuestionId": "tc_3",
                "Question": "q",
                "Answer": {"Value": "A", "Aliases": [], "NormalizedAliases": ["a"]},
            },
            ("A", "a"),
        ),
        # DPR's training files
        (
            {"id": "tc_3", "question": "q", "answers": ["A", "B", "A"], "positive_ctxs": [{"title": "T"}]},
            ("A", "B"),
        ),
        # KILT: outputs without an answer only say where it stands
        (
            {
                "id": "tc_3",
                "input": "q",
                "output": [{"answer": "A"}, {"provenance": [{"title": "T"}]}, {"answer": "B", "meta": {}}],
            },
            ("A", "B"),
        ),
        # Search-R1 and verl-agent
        (
            {
                "id": "tc_3",
                "prompt": [{}],
                "extra_info": {"question": "q"},
                "reward_model": {"ground_truth": {"target": ["A"]}},
            },
            ("A",),
        ),
        ({"id": "tc_3", "question": "q", "reward_model": {"style": "rule", "ground_truth": "A"}}, ("A",)),
        # merged tables leave columns empty
        ({"id": "tc_3", "question": "q", "golden_answers": None, "answer": "A"}, ("A",)),
        ({"id": "tc_3", "question": "q", "answer": 1931.0}, ("1931",)),
        ({"id": "tc_3", "question": "q", "golden_answers": [2, -7.0, 3.25]}, ("2", "-7", "3.25")),
        (
            {
                "id": "tc_3",
                "question": "q",
                "answer": "9.0",
                "type": float("nan"),
                "answer_aliases": float("nan"),
            },
            ("9.0",),
        ),
        ({"id": "tc_3", "question": "q", "answer": "nan"}, ("nan",)),
    ],
)
def test_forms_of_answers(tmp_path: Path, record: dict[str, Any], answers: tuple[str, ...]) -> None:
    entry = only(written(tmp_path / "a.jsonl", [record]))
    assert (entry.id, entry.question, entry.answers, entry.kind) == ("tc_3", "q", answers, "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"id": "1", "question": "q", "answer": NaN}', "field 'answer' holds nan, an empty cell"),
        (
            '{"id": "1", "question": "q", "golden_answers": ["A", Infinity]}',
            "field 'golden_answers' holds inf",
        ),
        ('{"id": "1", "question": NaN, "answer": "A"}', "field 'question' must be a text"),
        ('{"id": NaN, "question": "q", "answer": "A"}', "field 'id' must be"),
        (
            '{"id": "1", "question": "q", "answer": {"aliases": ["A"]}}',
            "field 'answer' is not what its form has there",
        ),
        ('{"id": "1", "question": "q", "answer": {"value": "A", "aliases": "AB"}}', "field 'answer' is not"),
        ('{"id": "1", "input": "q", "output": [{"provenance": []}]}', "field 'output' holds no answer"),
        ('{"id": "1", "input": "q", "output": "A"}', "field 'output' is not"),
        ('{"id": "1", "question": "q", "answers": null}', "field 'answers' is not"),
        ('{"id": "1", "question": "q", "answer": ' + "9" * 5000 + "}", "not usable JSON"),
        ('{"id": "1", "question": "q", "answer": ' + "[" * 300 + "]" * 300 + "}", "TSTAR_MAX_JSON_DEPTH"),
    ],
)
def test_what_is_no_answer_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path / "a.jsonl", f"\n{text}\n")
    with pytest.raises(BadData) as caught:
        list(read_entries(path))
    assert str(caught.value).startswith(f"{path}, line 2: ") and said in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (
            "a.csv",
            'who was it?,Ann\nwhere?,"Oslo, Norway"\n',
            [("who was it?", ("Ann",)), ("where?", ("Oslo, Norway",))],
        ),
        # DPR's nq-test.qas.csv
        (
            "a.csv",
            "who was it?\t['Ann', \"O'Hara\"]\nwhere?\t['Oslo']\n",
            [("who was it?", ("Ann", "O'Hara")), ("where?", ("Oslo",))],
        ),
        ("a.tsv", 'who was it?\t"[""Ann"", ""Bo""]"\n', [("who was it?", ("Ann", "Bo"))]),
        ("a.csv", "question,answer\nwhich film?,[REC]\n", [("which film?", ("[REC]",))]),
        ("a.csv", "\ufeffquestion,answer\nq,1931.0\n", [("q", ("1931",))]),
        ("a.tsv", "Question\tanswers\nq\t['1931.0', '9.25']\n", [("q", ("1931", "9.25"))]),
        (
            "a.json",
            '{"question": "q", "answer": "A"}\n\n{"question": "r", "answer": "B"}\n',
            [("q", ("A",)), ("r", ("B",))],
        ),
        ("a.json", '{\n "Data": [\n {"Question": "q", "Answer": "A"}]}\n', [("q", ("A",))]),
        ("a.json", '{"Data": [{"Question": "q", "Answer": "A"}]}\n', [("q", ("A",))]),
    ],
)
def test_tables_and_lines_in_other_files(
    tmp_path: Path, name: str, text: str, expected: list[tuple[str, tuple[str, ...]]]
) -> None:
    entries = list(read_entries(written(tmp_path / name, text)))
    assert [(entry.question, entry.answers) for entry in entries] == expected
    assert len({entry.id for entry in entries}) == len(entries)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", "asked,answer\nq,A\n", "line 1: no column 'question'"),
        ("a.csv", "a,b,c\n", "line 1: no column 'question' in 'a, b, c'"),
        ("a.csv", "question,answer\nq,nan\n", "line 2: field 'answer' holds nan, an empty cell"),
        ("a.csv", "question,answer\nq,\n", "line 2: field 'answer' holds no answer"),
        ("a.tsv", "who?\tA\nwhere?\n", "line 2: 2 columns expected"),
        (
            "a.tsv",
            "question\tanswers\nq\t['A', open('x')]\n",
            "line 2: field 'answers' is not what its form has there",
        ),
    ],
)
def test_what_is_wrong_in_a_table_is_named(tmp_path: Path, name: str, text: str, said: str) -> None:
    path = written(tmp_path / name, text)
    with pytest.raises(BadData) as caught:
        list(read_entries(path))
    assert str(caught.value).startswith(f"{path}, {said}")


def merged(*sources: str) -> list[dict[str, Any]]:
    return [
        {"id": f"test_{n}", "question": f"{source} {n}?", "golden_answers": ["A"], "data_source": source}
        for source in sources
        for n in range(2)
    ]


def test_a_merged_file_has_one_sets_questions_for_each_environment(tmp_path: Path) -> None:
    """Search-R1 evaluates on one file of all seven sets, whose ids begin anew in each."""
    written(tmp_path / "corpus.jsonl", CORPUS)
    written(tmp_path / "test.jsonl", merged("nq", "hotpotqa", "searchR1_musique"))
    for name, source in (("nq", "nq"), ("hotpotqa", "hotpotqa"), ("musique", "searchR1_musique")):
        tasks = load_set(name, tmp_path).tasks
        assert list(tasks) == [f"{source}/test_0", f"{source}/test_1"]
        assert [task.question for task in tasks.values()] == [f"{source} 0?", f"{source} 1?"]
    # None of them is this set's: the folder means them all.
    assert len(load_set("bamboogle", tmp_path).tasks) == 6
    written(tmp_path / "test.jsonl", merged("nq"))
    assert list(load_set("nq", tmp_path).tasks) == ["test_0", "test_1"], "one set alone keeps its ids"


def test_two_wikis_aliases(tmp_path: Path) -> None:
    written(tmp_path / "corpus.jsonl", CORPUS)
    records = [
        {"_id": "a", "question": "q", "answer": "Norway", "answer_id": "Q20", "type": "compositional"},
        {"_id": "b", "question": "q", "answer": "yes", "answer_id": None, "type": "comparison"},
    ]
    (tmp_path / "dev.json").write_text(json.dumps(records))
    aliases = written(
        tmp_path / "id_aliases.json",
        [
            {"Q_id": "Q20", "aliases": ["Kingdom of Norway", "Norway"], "demonyms": ["Norwegian"]},
            {"Q_id": "Q21", "aliases": ["England"], "demonyms": []},
        ],
    )
    tasks = load_set("2wikimultihopqa", tmp_path).tasks
    assert tasks["a"].golden_answers == ("Norway", "Kingdom of Norway", "Norwegian") and tasks[
        "b"
    ].golden_answers == ("yes",)
    written(aliases, [{"Q_id": "Q20", "aliases": "Norge"}])
    os.utime(aliases, (1, 1))
    with pytest.raises(BadData, match=r"id_aliases\.json, line 1: field 'aliases' must be a list of texts"):
        load_set("2wikimultihopqa", tmp_path)


GOOD = {"id": "g", "question": "q", "golden_answers": ["A"]}
BAD = [
    "{",
    {"id": "x", "question": "", "golden_answers": ["A"]},
    {"id": "y", "question": "q", "golden_answers": []},
    GOOD,
]


def test_all_faults_at_once_and_the_rest_with_skip_bad(tmp_path: Path) -> None:
    written(tmp_path / "corpus.jsonl", CORPUS)
    path = written(
        tmp_path / "test.jsonl",
        "".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in [GOOD, *BAD]),
    )
    written(
        tmp_path / "train.jsonl", [GOOD | {"id": "h"}, {"id": "z", "question": "q", "golden_answers": [None]}]
    )
    with pytest.raises(BadData) as caught:
        SearchQAEnv(data=tmp_path)
    for line in (f"{path}, line {n}: " for n in (2, 3, 4, 5)):
        assert line in str(caught.value)
    assert "train.jsonl, line 2: " in str(
        caught.value
    ) and "5 of 7 questions cannot be used; skip_bad=True" in str(caught.value)
    env = SearchQAEnv(data=tmp_path, skip_bad=True)
    assert (env.task_ids("test"), env.task_ids("train"), env.left_out.count) == (("g",), ("h",), 5)
    assert SearchQAEnv.survey(data=tmp_path, skip_bad=True) == ("path", {"train": 1, "valid": 0, "test": 1})
    with pytest.raises(UnknownOption, match="skip_bad"):
        SearchQAEnv(skip_bad="yes")  # type: ignore[arg-type]
    assert SearchQAEnv().left_out.count == 0


@pytest.mark.parametrize("name", ["test.csv", "test.json"])
def test_skip_bad_in_tables_and_lists(tmp_path: Path, name: str) -> None:
    text = (
        "question,answer\nq,A\nq,B,C\nr,nan\n"
        if name.endswith("csv")
        else '[{"question": "q", "answer": "A"}, 3, {"question": "r"}]'
    )
    faults = Faults(skip_bad=True)
    entries = list(read_entries(written(tmp_path / name, text), faults))
    assert [entry.answers for entry in entries] == [("A",)] and faults.so_far().count == 2


def test_a_changed_file_is_read_anew(tmp_path: Path) -> None:
    written(tmp_path / "corpus.jsonl", CORPUS)
    written(tmp_path / "test.jsonl", [GOOD])
    assert list(load_set("nq", tmp_path).tasks) == ["g"]
    written(tmp_path / "test.jsonl", [GOOD | {"id": "new"}])
    assert list(load_set("nq", tmp_path).tasks) == ["new"]


def test_hostile_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "corpus.jsonl", CORPUS)
    fifo = tmp_path / "pipe.jsonl"
    os.mkfifo(fifo)
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "nowhere")
    for name, error in (("pipe.jsonl", BadData), ("folder.jsonl", BadData), ("link.jsonl", MissingData)):
        with pytest.raises(error, match=name):
            list(read_entries(tmp_path / name))
    marked = tmp_path / "bom.jsonl"
    marked.write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode())
    assert only(marked).id == "g"
    monkeypatch.setenv("TSTAR_MAX_LINES", "1000")
    (tmp_path / "blank.jsonl.gz").write_bytes(gzip.compress(b"\n" * 100_000))
    with pytest.raises(BadData, match=r"blank\.jsonl\.gz.*TSTAR_MAX_LINES"):
        list(read_entries(tmp_path / "blank.jsonl.gz"))
    monkeypatch.setenv("TSTAR_MAX_QUESTIONS", "2")
    with pytest.raises(BadData, match="TSTAR_MAX_QUESTIONS"):
        list(read_entries(written(tmp_path / "many.jsonl", [GOOD] * 3)))
    with pytest.raises(UnknownOption, match="data=''"):
        load_set("nq", "")
    with pytest.raises((BadData, MissingData)):
        load_set("nq", "x" * 5000)


@pytest.mark.parametrize("name", ["corpus.json", "corpus.tsv.gz"])
def test_an_environment_over_other_corpora(tmp_path: Path, name: str) -> None:
    table = 'id\ttext\ttitle\nd1\tBorn in Oslo.\t"Ann ""A"" Bo"\n'
    text = (
        '[{"_id": "d1", "title": "Ann \\"A\\" Bo", "text": "Born in Oslo."}]'
        if name.endswith("json")
        else table
    )
    (tmp_path / name).write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    written(tmp_path / "test.jsonl", [GOOD])
    env = SearchQAEnv(data=tmp_path, prompt_style="search_r1")
    env.reset(options={"task": "g"})
    observation, *_, info = env.step("<search>Ann Bo</search>")
    assert (
        observation == '\n\n<information>Doc 1(Title: "Ann ""A"" Bo") Born in Oslo.</information>\n\n'
        and info["doc_ids"] == ["d1"]
    )
