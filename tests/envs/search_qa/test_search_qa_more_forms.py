"""Further public forms of questions and corpora, files that are no text at all, and a corpus that changes in one process."""

from __future__ import annotations

import bz2
import json
import lzma
import os
from pathlib import Path
from typing import Any

import pytest

from retriever import BadCorpus, BadIndex, load_index, read_corpus
from retriever.file_kinds import kind_of_file
from tstar_envs import BadData
from tstar_envs.envs.search_qa.env import SearchQAEnv
from tstar_envs.envs.search_qa.readers import read_entries


@pytest.mark.parametrize(
    ("record", "read"),
    [
        (
            {"qid": "x1", "question": "q", "answer": ["a"], "aug_answer": ["b", "c"]},
            ("x1", "q", ("a", "b", "c")),
        ),
        ({"id": "1", "question": "q", "answer": "a", "aliases": ["b"]}, ("1", "q", ("a", "b"))),
        ({"id": "1", "question": "q", "answer": "['a', 'b']"}, ("1", "q", ("a", "b"))),
        (
            {"id": "1", "question": "q", "answer": '["a", "b"]', "aliases": "['c']"},
            ("1", "q", ("a", "b", "c")),
        ),
        ({"id": "1", "question": "q", "answer": "[REC]"}, ("1", "q", ("[REC]",))),
        ({"id": "1", "question": "q", "answer": "a||b"}, ("1", "q", ("a", "b"))),
        # Written out by numpy, by Python as a tuple, and as JSON.
        ({"id": "1", "question": "q", "answer": "['a b' 'c']"}, ("1", "q", ("a b", "c"))),
        ({"id": "1", "question": "q", "answer": "['a'\n \"b's\" 'c']"}, ("1", "q", ("a", "b's", "c"))),
        ({"id": "1", "question": "q", "answer": "array(['a', 'b'], dtype=object)"}, ("1", "q", ("a", "b"))),
        ({"id": "1", "question": "q", "answer": "('a', 'b')"}, ("1", "q", ("a", "b"))),
        ({"id": "1", "question": "q", "answer": "('Til I Kissed You)"}, ("1", "q", ("('Til I Kissed You)",))),
        (
            {"id": "1", "question": "q", "answer": '{"value": "a", "aliases": ["b"]}'},
            ("1", "q", ("a", "b")),
        ),
        ({"id": "1", "question": "q", "answer": "{}"}, ("1", "q", ("{}",))),
        ({"id": "1", "question": "q", "answer": "a", "aug_answers": ["b"]}, ("1", "q", ("a", "b"))),
        ({"id": "1", "question": "q", "ground_truth": ["a", "b"]}, ("1", "q", ("a", "b"))),
        ({"id": "1", "question": "q", "Answers": ["a"]}, ("1", "q", ("a",))),
        ({"id": "1", "problem": "q", "answer": "a", "metadata": "{'topic': 'x'}"}, ("1", "q", ("a",))),
        ({"id": "1", "prompt": "Answer it. Question: who?\n", "answer": "a"}, ("1", "who?", ("a",))),
        (
            {
                "id": "1",
                "prompt": '[{"role": "user", "content": "x Question: who?"}]',
                "answer": "a",
            },
            ("1", "who?", ("a",)),
        ),
        # A list needs no mark between its answers, and a mark alone is no answer's neighbour.
        ({"id": "1", "question": "q", "golden_answers": ["a||b", "||"]}, ("1", "q", ("a||b", "||"))),
        ({"id": "1", "question": "q", "answer": "the operator ||"}, ("1", "q", ("the operator ||",))),
        ({"id": "1", "question": "q", "answer": "or (||)"}, ("1", "q", ("or (||)",))),
        ({"id": "1", "question": "q", "answer": "a", "aliases": ["b||c"]}, ("1", "q", ("a", "b||c"))),
        (
            {"id": "1", "question": "q", "answers": {"text": ["a", "b"], "answer_start": [1, 2]}},
            ("1", "q", ("a", "b")),
        ),
        (
            {"id": "1", "question": "q", "answers": [{"answer": "a", "aliases": ["b"]}]},
            ("1", "q", ("a", "b")),
        ),
        ({"id": "1", "question": "q", "answers": [{"text": "a"}, {"text": "c"}]}, ("1", "q", ("a", "c"))),
        ({"query_id": 7, "query": "q", "answer": "a"}, ("7", "q", ("a",))),
        ({"id": "1", "problem": "q", "answer": "a"}, ("1", "q", ("a",))),
        ({"id": "1", "Prompt": "q", "Answer": "a"}, ("1", "q", ("a",))),
        ({"id": "1", "messages": [{"role": "user", "content": "q"}], "answer": "a"}, ("1", "q", ("a",))),
        (
            {
                "id": "1",
                "prompt": [
                    {"role": "user", "content": "Answer the given question. For example ... Question: who?\n"}
                ],
                "reward_model": {"ground_truth": {"target": ["a"]}},
            },
            ("1", "who?", ("a",)),
        ),
    ],
)
def test_forms_of_questions_and_answers(
    tmp_path: Path, record: Any, read: tuple[str, str, tuple[str, ...]]
) -> None:
    file = tmp_path / "test.jsonl"
    file.write_text(json.dumps(record) + "\n", encoding="utf-8")
    (entry,) = read_entries(file)
    assert (entry.id, entry.question, entry.answers) == read


@pytest.mark.parametrize("value", ["false", "False", 0, False, "no"])
def test_questions_that_cannot_be_answered_are_not_asked(tmp_path: Path, value: Any) -> None:
    file = tmp_path / "test.jsonl"
    records = [
        {"id": "1", "question": "q", "answer": "a", "answerable": value},
        {"id": "2", "question": "q", "answer": "a", "answerable": "true"},
    ]
    file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    assert [entry.id for entry in read_entries(file)] == ["2"]


@pytest.mark.parametrize(
    ("content", "ids"),
    [
        ({"question": ["q", "r"], "answer": ["a", "b"]}, ["test-1", "test-2"]),
        ({"1": {"question": "q", "answer": "a"}, "2": {"question": "r", "answer": "b"}}, ["1", "2"]),
        ({"data": [{"id": "x", "question": "q", "answer": "a"}]}, ["x"]),
        ({"questions": [{"id": "x", "question": "q", "answer": "a"}]}, ["x"]),
        ({"rows": [{"row_idx": 0, "row": {"question": "q", "answer": "a"}}]}, ["test-1"]),
    ],
)
def test_forms_of_json_files(tmp_path: Path, content: Any, ids: list[str]) -> None:
    file = tmp_path / "test.json"
    file.write_text(json.dumps(content, indent=1), encoding="utf-8")
    assert [entry.id for entry in read_entries(file)] == ids


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.json", '{"test": [{"id": "1"}], "train": []}', "several lists ('test', 'train'); write each split to a file of its own"),
        ("a.jsonl", '{\n "id": "1",\n "question": "q"\n}\n', "an object over several lines"),
        ("a.jsonl", '{"question": "q", "golden_answers": ["a"]}', "field 'id' is missing"),
        ("a.jsonl", '{"id": "1", "question": "q", "answers": ["No Answer Present."]}', "marks a question without an answer"),
        ("a.jsonl", '{"id": "1", "question": "q", "reward_model": "{\'ground_truth\': array([\'a\'])}"}', "printed by Python"),
        ("a.jsonl", '{"id": "1", "messages": [{"role": "user"}, {"role": "user"}], "answer": "a"}', "field 'messages'"),
        ("a.json", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        ("a.json", "<!DOCTYPE html><html><title>Google Drive - Virus scan warning</title></html>", "a web page"),
        ("a.jsonl", "\0" * 4096, "bytes of value 0"),
        ("a.jsonl", b"PAR1" + b"\x15\x04" * 90, "a parquet file"),
        ("a.json", bz2.compress(b"[]"), "bunzip2"),
        ("a.jsonl", lzma.compress(b"{}"), "unxz"),
        ("a.csv", b"PK\x03\x04" + b"\xff" * 50, "a zip archive"),
        ("a.jsonl", b"IxFI" + b"\xff" * 50, "a FAISS index"),
        ("a.jsonl", b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive"),
        ("a.jsonl", b"%PDF-1.7", "a PDF"),
        ("a.jsonl", b"x" * 257 + b"ustar\0" + b"\0" * 300, "a tar archive"),
        ("a.json", "/annex/objects/MD5E-s1--0\n", "git annex get"),
        ("a.json", "<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "XML, not JSON"),
        ("a.json", "404: Not Found", "the file is not there"),
    ],
)  # fmt: skip
def test_what_a_file_is_instead_is_said(tmp_path: Path, name: str, content: str | bytes, said: str) -> None:
    file = tmp_path / name
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(BadData) as caught:
        list(read_entries(file))
    assert said in str(caught.value) and str(file) in str(caught.value)


def test_a_row_of_simple_qa_is_read(tmp_path: Path) -> None:
    file = tmp_path / "test.csv"
    file.write_text("metadata,problem,answer\n\"{'topic': 'x'}\",Who?,Oslo\n", encoding="utf-8")
    (entry,) = read_entries(file)
    assert (entry.question, entry.answers) == ("Who?", ("Oslo",))


@pytest.mark.parametrize(
    ("record", "read"),
    [
        ({"idx": 3, "title": "T", "text": "b"}, ("3", '"T"\nb')),
        ({"docid": "d", "content": "c d"}, ("d", "c d")),
        ({"pid": 1, "passage": "c d"}, ("1", "c d")),
        ({"docid": "D1", "url": "u", "title": "T", "body": "b"}, ("D1", '"T"\nb')),  # MS MARCO
        ({"id": "1", "title": "T", "text": [["s.", " t."], ["u."]]}, ("1", '"T"\ns. t. u.')),  # HotpotQA
        ({"id": "1", "title": "T", "sentences": ["s.", "t."]}, ("1", '"T"\ns. t.')),
        (
            {"wikipedia_id": "9", "wikipedia_title": "T", "text": ["T\n", "First.\n", "Second."]},
            ("9", '"T"\nT First. Second.'),
        ),
        ({"id": "1", "contents": "whole", "title": "T", "text": "b"}, ("1", "whole")),
    ],
)
def test_forms_of_passages(tmp_path: Path, record: Any, read: tuple[str, str]) -> None:
    for name, text in (("corpus.jsonl", json.dumps(record)), ("corpus.json", json.dumps([record]))):
        (tmp_path / name).write_text(text + "\n", encoding="utf-8")
        (document,) = read_corpus(tmp_path / name)
        assert (document.id, document.contents) == read


def test_what_is_no_corpus_and_no_index_is_said(tmp_path: Path) -> None:
    for number, (head, said) in enumerate(
        {
            b"PAR1": "parquet",
            b"BZh9": "bunzip2",
            b"version https://git-lfs": "git lfs pull",
            b"<HTML>": "web page",
        }.items()
    ):
        file = tmp_path / f"{number}.jsonl"
        file.write_bytes(head + b" x\n" * 9)
        with pytest.raises(BadCorpus, match=said):
            read_corpus(file)
    index = tmp_path / "wiki.index"
    index.write_bytes(b"IxFI" + bytes(range(200)))
    with pytest.raises(
        BadIndex,
        match="a FAISS index, without its passages, which cannot be served alone; run: python -m retriever build",
    ):
        load_index(index)
    assert kind_of_file(tmp_path / "nothing") == "" == kind_of_file(tmp_path)


def test_a_changed_corpus_is_read_anew_in_the_same_process(tmp_path: Path) -> None:
    """Notebooks edit files and make the environment again."""
    (tmp_path / "test.jsonl").write_text(
        '{"id": "1", "question": "who", "golden_answers": ["he"]}\n', encoding="utf-8"
    )
    corpus = tmp_path / "corpus.jsonl"
    for backend in ("hashed", "bm25"):
        seen = []
        for body in ("first words here", "second words here"):
            corpus.write_text(json.dumps({"id": "1", "contents": f"T\n{body}"}) + "\n", encoding="utf-8")
            env = SearchQAEnv(data=tmp_path, retriever=backend)
            env.reset(options={"task": 0})
            seen.append(env.step("search[words]")[0])
        assert "first words" in seen[0] and "second words" in seen[1], backend
    with pytest.raises(BadData):
        corpus.write_text("", encoding="utf-8")
        SearchQAEnv(data=tmp_path).reset(options={"task": 0})


def test_a_file_of_the_same_time_and_size_is_read_anew(tmp_path: Path) -> None:
    """As rsync and ``cp -p`` leave one."""
    files = {
        "corpus.jsonl": '{"id": "1", "contents": "\\"T\\"\\nalpha one"}\n',
        "test.jsonl": '{"id": "1", "question": "alpha?", "golden_answers": ["one"]}\n',
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    for word in ("one", "two"):
        for name, text in files.items():
            before = (tmp_path / name).stat()
            (tmp_path / name).write_text(text.replace("one", word))
            os.utime(tmp_path / name, ns=(before.st_atime_ns, before.st_mtime_ns))
        env = SearchQAEnv(data=tmp_path)
        env.reset(options={"task": 0})
        assert env.task.golden_answers == (word,)
        assert f"alpha {word}" in env.step("Action: search[alpha]")[0]


@pytest.mark.parametrize("broken", ["questions", "passages"])
def test_public_questions_that_cannot_be_used_name_the_shipped_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    monkeypatch.setenv("TSTAR_DATA", str(tmp_path))
    folder = tmp_path / "search_qa"
    folder.mkdir()
    (folder / "corpus.jsonl").write_text(
        "{x" if broken == "passages" else '{"id": "1", "contents": "T\\nx"}\n'
    )
    line = '{"id": "1", "question": "q", "golden_answers": ["a"]}\n'
    (folder / "hotpotqa.test.jsonl").write_text("{x" if broken == "questions" else line)
    with pytest.raises(BadData, match=r"line 1: not .*JSON.*\ndata='mini' plays the shipped tasks instead"):
        SearchQAEnv()
    SearchQAEnv(data="mini")
    with pytest.raises(BadData) as caught:
        SearchQAEnv(data=folder)
    assert "mini" not in str(caught.value), "a folder that was named is what is wanted"


@pytest.mark.parametrize(
    "marked",
    [
        {"answerable": 0.0},
        {"answerable": "n"},
        {"answerable": "FALSE"},
        {"is_impossible": True},
        {"is_impossible": "true"},
    ],
)
def test_questions_without_an_answer_are_passed_over_however_they_say_it(
    tmp_path: Path, marked: dict[str, Any]
) -> None:
    kept: dict[str, Any] = {"answerable": 1, "is_impossible": False}
    records = [
        {"id": "1", "question": "q", "answers": {"text": []}, **marked},
        {"id": "2", "question": "q", "answer": "a", **kept},
        {"id": "3", "question": "q", "answer": "a", "answerable": None},
    ]
    (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, records)))
    assert [entry.id for entry in read_entries(tmp_path / "test.jsonl")] == ["2", "3"]


def test_squads_own_file_and_columns_of_pandas(tmp_path: Path) -> None:
    asked = [
        {"id": "1", "question": "q", "answers": [{"text": "a", "answer_start": 0}], "is_impossible": False},
        {"id": "2", "question": "p", "answers": [], "is_impossible": True},
    ]
    squad = {"version": "v2.0", "data": [{"title": "T", "paragraphs": [{"context": "c", "qas": asked}]}]}
    columns = {"id": {"0": "1", "7": "2"}, "question": {"0": "q", "7": "p"}, "answer": {"0": "a", "7": "b"}}
    for content, ids in ((squad, ["1"]), (squad["data"], ["1"]), (columns, ["1", "2"])):
        (tmp_path / "test.json").write_text(json.dumps(content))
        read = list(read_entries(tmp_path / "test.json"))
        assert [entry.id for entry in read] == ids and read[0].answers == ("a",)
