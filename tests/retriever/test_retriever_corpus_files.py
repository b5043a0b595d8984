"""Corpora as they are published, all of their faults at once, and files that are none."""

import gzip
import json
import os
from pathlib import Path

import pytest

from retriever import BadCorpus, BadSetting, read_corpus, stream_corpus
from retriever.build import Plan, build_index
from retriever.storage import load_index

TABLE = 'id\ttext\ttitle\n1\t"Aaron is ""a"" prophet"\tAaron\n2\tplain\t"The ""Opera"""\n'


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (
            "c.jsonl",
            '{"id": 1, "contents": "\\"T\\"\\nbody", "title": "other"}',
            [("1", "T", "body")],
        ),  # Search-R1
        ("c.jsonl", '{"id": "d", "title": "T \\"x\\"", "text": "body"}', [("d", 'T "x"', "body")]),
        (
            "c.jsonl",
            '{"_id": "MED-1", "title": "", "text": "body", "metadata": {}}',
            [("MED-1", "", "body")],
        ),  # BEIR
        ("c.jsonl", '{"id": "d", "text": "Title\\nbody"}', [("d", "Title", "body")]),  # FlashRAG
        (
            "c.jsonl",
            '{"id": "d", "title": null, "text": "Title\\nbody", "contents": null}',
            [("d", "Title", "body")],
        ),
        (
            "c.jsonl",
            '\ufeff{"id": "d", "title": "two\\nlines", "text": "body"}',
            [("d", "two lines", "body")],
        ),
        (
            "c.json",
            ' [{"id": 1, "contents": "T\\nx"},\n {"_id": "2", "title": "U", "text": "y"}]',
            [("1", "T", "x"), ("2", "U", "y")],
        ),
        (
            "c.json",
            '{"id": 1, "contents": "T\\nx"}\n{"id": 2, "contents": "U\\ny"}\n',
            [("1", "T", "x"), ("2", "U", "y")],
        ),
        (
            "c.tsv",
            TABLE,
            [("1", "Aaron", 'Aaron is "a" prophet'), ("2", 'The "Opera"', "plain")],
        ),  # DPR's psgs_w100
        (
            "c.tsv",
            TABLE.partition("\n")[2],
            [("1", "Aaron", 'Aaron is "a" prophet'), ("2", 'The "Opera"', "plain")],
        ),
        ("c.tsv", "title\t_id\ttext\r\nT\t7\tbody\r\n", [("7", "T", "body")]),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_published_forms(
    tmp_path: Path, name: str, text: str, expected: list[tuple[str, str, str]], packed: bool
) -> None:
    path = tmp_path / (name + ".gz" if packed else name)
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    assert [(document.id, document.title, document.text) for document in read_corpus(path)] == expected
    lines = list(stream_corpus(path))
    for at, line in enumerate(lines):
        assert list(stream_corpus(path, line.end, line.number)) == lines[at + 1 :]


@pytest.mark.parametrize("name", ["c.json", "c.tsv"])
def test_an_index_is_built_from_any_form(tmp_path: Path, name: str) -> None:
    count = 40
    if name == "c.tsv":
        text = "id\ttext\ttitle\n" + "".join(f"{n}\tword{n} here\tT{n}\n" for n in range(count))
    else:
        text = json.dumps([{"_id": str(n), "title": f"T{n}", "text": f"word{n} here"} for n in range(count)])
    (tmp_path / name).write_text(text)
    build_index(Plan(corpus=tmp_path / name, out=tmp_path / "index", chunk=7))
    assert load_index(tmp_path / "index").search(["word31"], 1)[0][0].document.id == "31"


def test_all_faults_are_reported_at_once(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    good = '{"id": "%d", "contents": "x"}\n'
    path.write_text(
        good % 1 + "{\n" + good % 2 + '{"id": "3"}\n' + good % 1 + '{"id": 4, "title": 5, "text": "x"}\n'
    )
    with pytest.raises(BadCorpus) as caught:
        read_corpus(path)
    assert [line.split(": ")[0] for line in str(caught.value).splitlines()] == [
        f"{path}, line {n}" for n in (2, 4, 5, 6)
    ]
    path.write_text("{\n" * 50)
    with pytest.raises(BadCorpus, match="and 30 more"):
        read_corpus(path)


def test_what_is_no_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "folder.jsonl").mkdir()
    for path in (tmp_path / "pipe.jsonl", tmp_path / "folder.jsonl", Path("/dev/zero")):
        with pytest.raises(BadCorpus, match="not a regular file"):
            read_corpus(path)
    for path in (Path("x" * 5000), Path("a\0b")):
        with pytest.raises((BadCorpus, FileNotFoundError)):
            read_corpus(path)
    deep = tmp_path / "deep.jsonl"
    deep.write_text("[" * 100_000)
    with pytest.raises(BadCorpus, match=r"deep\.jsonl, line 1"):
        read_corpus(deep)
    deep.write_text('{"id": ' + "9" * 10_000 + ', "contents": "x"}')
    with pytest.raises(BadCorpus, match=r"deep\.jsonl, line 1"):
        read_corpus(deep)
    bomb = tmp_path / "bomb.jsonl.gz"
    bomb.write_bytes(gzip.compress(b"\n" * 3_000_000))
    with pytest.raises(BadCorpus, match="RETRIEVER_MAX_BLANK_LINES"):
        read_corpus(bomb)
    monkeypatch.setenv("RETRIEVER_MAX_LINE_BYTES", "1000")
    bomb.write_bytes(gzip.compress(b"x" * 10_000_000))
    with pytest.raises(BadCorpus, match="RETRIEVER_MAX_LINE_BYTES"):
        read_corpus(bomb)
    monkeypatch.setenv("RETRIEVER_MAX_LINES", "many")
    with pytest.raises(BadSetting, match="RETRIEVER_MAX_LINES"):
        read_corpus(bomb)
