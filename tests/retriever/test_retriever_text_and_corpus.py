"""Words, documents and corpus files."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retriever import BadCorpus, Bm25Index, Document, HashedIndex, read_corpus
from retriever.corpus import normalise, tokenise


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Who wrote “The Opera”?", ["who", "wrote", "the", "opera"]),
        ("STRASSE straße", ["strasse", "strasse"]),
        ("\ufb01ne \u2460 \uff21", ["fine", "1", "a"]),
        ("cafe\u0301 café", ["café", "café"]),
        ("don't U.S. snake_case", ["don", "t", "u", "s", "snake", "case"]),
        ("हिन्दी", ["हिन्दी"]),
        ("a\u00a0b\u2003c\x00d\ud800e", ["a", "b", "c", "d", "e"]),
        ("?! \n", []),
    ],
)
def test_words(text: str, words: list[str]) -> None:
    assert tokenise(text) == words


@given(st.text(st.characters()))
def test_any_string_has_a_form(text: str) -> None:
    form = normalise(text)
    assert form == " ".join(form.split())
    assert form == normalise(f"  {text}!")


@pytest.mark.parametrize(
    ("contents", "title", "text"),
    [
        ('"Title"\nbody\nmore', "Title", "body\nmore"),
        ('"The ""Quoted"" Opera"\nbody', 'The "Quoted" Opera', "body"),
        ("Plain\nbody", "Plain", "body"),
        ("one line", "one line", ""),
        ('"\nbody', '"', "body"),
        ("", "", ""),
    ],
)
def test_title_and_text(contents: str, title: str, text: str) -> None:
    document = Document("0", contents)
    assert (document.title, document.text) == (title, text)


def test_corpus_plain_and_compressed(tmp_path: Path) -> None:
    lines = b'{"id": 5, "contents": "\\"A\\"\\nb", "extra": 1}\n\n{"id": "6", "contents": "\xc3\xa9"}'
    (tmp_path / "c.jsonl").write_bytes(lines)
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(lines))
    expected = [Document("5", '"A"\nb'), Document("6", "é")]
    assert read_corpus(tmp_path / "c.jsonl") == expected
    assert read_corpus(tmp_path / "c.jsonl.gz") == expected


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"id": "1"}', '"contents" is missing'),
        (b'{"contents": "x"}', '"id" is missing'),
        (b'{"id": "1", "contents": null}', '"contents" must be a string'),
        (b'{"id": true, "contents": "x"}', '"id" must be'),
        (b'{"id": "0", "contents": "x"}', '"id" repeats'),
        (b'["1", "x"]', "found list"),
        (b'{"id": "1", ', "not a line of JSON"),
        (b'{"id": "1", "contents": "\xff"}', "not a line of JSON"),
    ],
)
def test_bad_line_is_named(tmp_path: Path, line: bytes, said: str) -> None:
    path = tmp_path / "c.jsonl"
    path.write_bytes(b'{"id": "0", "contents": "x"}\n' + line + b"\n")
    with pytest.raises(BadCorpus) as caught:
        read_corpus(path)
    assert str(caught.value).startswith(f"{path}, line 2: ")
    assert said in str(caught.value)


# Without a clock in the bytes, since they name the tests, and every process must collect the same ones.
WHOLE = gzip.compress(json.dumps({"id": "0", "contents": "x " * 500}).encode(), mtime=0)


@pytest.mark.parametrize("data", [WHOLE[:-20], WHOLE[:20] + b"?" + WHOLE[21:], b"plain", b""])
def test_damaged_gzip_is_named(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "c.jsonl.gz"
    path.write_bytes(data)
    with pytest.raises(BadCorpus, match=r"c\.jsonl\.gz"):
        read_corpus(path)


@pytest.mark.parametrize("index", [HashedIndex, Bm25Index])
@pytest.mark.parametrize(
    "documents", [[], [Document("a", "x"), Document("a", "y")], [Document("a", "?!"), Document("b", "")]]
)
def test_no_index_of_nothing(index: type[HashedIndex], documents: list[Document]) -> None:
    with pytest.raises(BadCorpus):
        index.build(documents)
