"""Index folders: whole, equal for equal input, and refused by name when damaged."""

import json
import random
import shutil
from pathlib import Path

import pytest
from conftest import same_json

from retriever import BadIndex, Bm25Index, Document, HashedIndex, load_index, save_index

Index = HashedIndex | Bm25Index
BOTH = pytest.mark.parametrize("kind", [HashedIndex, Bm25Index])


@BOTH
def test_round_trip(kind: type[Index], documents: list[Document], tmp_path: Path) -> None:
    index = kind.build(documents)
    save_index(index, tmp_path / "made" / "index")
    loaded = load_index(tmp_path / "made" / "index")
    queries = ["ka1 ro2", "Zélie Quarrow", "title 9", ""]
    assert type(loaded) is kind
    assert loaded.info() == index.info()
    assert loaded.search(queries, 10) == index.search(queries, 10)
    save_index(loaded, tmp_path / "again")
    for path in (tmp_path / "made" / "index").iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes(), path.name
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "made"]


@BOTH
def test_every_flipped_bit_is_refused(kind: type[Index], documents: list[Document], tmp_path: Path) -> None:
    folder = tmp_path / "index"
    save_index(kind.build(documents[:30]), folder)
    generator = random.Random(0)
    for path in sorted(folder.iterdir()):
        whole = path.read_bytes()
        for _ in range(6):
            damaged = bytearray(whole)
            damaged[generator.randrange(len(whole))] ^= 1 << generator.randrange(8)
            path.write_bytes(damaged)
            if path.name == "manifest.json" and same_json(bytes(damaged), whole):
                continue
            with pytest.raises(BadIndex) as caught:
                load_index(folder)
            assert str(folder) in str(caught.value)
            assert path.name == "manifest.json" or path.name in str(caught.value)
        path.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(BadIndex, match=path.name):
            load_index(folder)
        path.write_bytes(whole)
    load_index(folder)


def test_missing_and_foreign_files(index_folder: Path, tmp_path: Path) -> None:
    for name in ("vectors.faiss", "documents.jsonl", "manifest.json"):
        folder = tmp_path / f"no {name}"
        shutil.copytree(index_folder, folder)
        (folder / name).unlink()
        with pytest.raises(BadIndex, match=name):
            load_index(folder)
    folder = tmp_path / "more"
    shutil.copytree(index_folder, folder)
    (folder / "stranger").touch()
    with pytest.raises(BadIndex, match="stranger"):
        load_index(folder)
    with pytest.raises(FileNotFoundError, match="python -m retriever build"):
        load_index(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("format", 2),
        ("kind", "ivf"),
        ("kind", "bm25"),
        ("ntotal", 299),
        ("settings", {}),
        ("sha256", []),
        ("kind", ["bm25"]),
    ],
)
def test_foreign_manifest(index_folder: Path, tmp_path: Path, field: str, value: object) -> None:
    folder = tmp_path / "index"
    shutil.copytree(index_folder, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, field: value}))
    with pytest.raises(BadIndex, match=r"manifest\.json"):
        load_index(folder)


def test_nothing_is_overwritten_or_left_behind(
    documents: list[Document], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = HashedIndex.build(documents[:5])
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").touch()
    with pytest.raises(FileExistsError, match="full"):
        save_index(index, tmp_path / "full")
    (tmp_path / "empty").mkdir()
    save_index(index, tmp_path / "empty")

    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise OSError("disk full")

    monkeypatch.setattr(index, "save", fail)
    with pytest.raises(OSError, match="disk full"):
        save_index(index, tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "full"]
