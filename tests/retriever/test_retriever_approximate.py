"""Approximate indexes: product codes with exact rows on disk, the effort that a recall asks for, and the cost told before a build."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT, folder_contents, run_here
from numpy.typing import NDArray

from retriever import BadIndex, BadSetting, DenseIndex, Document, load_index, save_index
from retriever.bench import Latent
from retriever.build import Plan, build_index
from retriever.cli import main
from retriever.corpus import StoredDocuments
from retriever.encoders import encoded
from retriever.estimate import bytes_per_vector, estimated, graph_seconds
from retriever.index import MOST_RESCORED
from retriever.product import CODE_BYTES, RowFile, rotation
from retriever.recall import cut_queries
from retriever.storage import _sha256_json, read_manifest
from retriever.vectors import KINDS, Kind, VectorFile, open_vectors, trained

APPROXIMATE: tuple[Kind, ...] = ("ivf_sq8", "ivf_pq", "hnsw")


COUNT = 2000


class Small(Latent):
    """The benchmark's vectors in a size for tests."""

    dim = 64


def latent(count: int, dim: int, seed: int = 0) -> NDArray[np.float32]:
    generator = np.random.default_rng(seed)
    directions = np.random.default_rng(9).standard_normal((12, dim)) * np.arange(1, 13)[:, None] ** -0.5
    rows = generator.standard_normal((count, 12)) @ directions + 0.1 * generator.standard_normal((count, dim))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("dim", [8, 64, 72, 100])
def test_the_rotation_keeps_inner_products_and_shares_the_variance(dim: int) -> None:
    rows = latent(2000, dim)
    turned = rotation(rows)
    assert turned.shape == (-(-dim // CODE_BYTES) * CODE_BYTES, dim)
    np.testing.assert_allclose(turned.T @ turned, np.eye(dim), atol=1e-5)
    np.testing.assert_allclose((rows @ turned.T) @ (rows[:50] @ turned.T).T, rows @ rows[:50].T, atol=1e-5)
    if dim == 100:
        # One large direction a part: together they would be the error of one part.
        variance = (rows @ turned.T).reshape(2000, CODE_BYTES, -1).var(axis=0)
        large = np.sort(np.linalg.eigvalsh(np.cov(rows.T)))[-12:].min() * 0.99
        assert (variance > large).sum() == 12 and ((variance > large).sum(axis=1) <= 1).all()


def write_rows(path: Path, rows: NDArray[np.float32], kind: Kind = "sq8") -> None:
    file = VectorFile(trained(kind, rows.shape[1], len(rows), rows))
    with path.open("wb") as stream:
        file.begin(stream)
        file.append(stream, rows)
        file.finish(stream, len(rows))


def test_rows_are_read_where_they_are(tmp_path: Path) -> None:
    rows = latent(5000, 40)
    write_rows(tmp_path / "rows", rows)
    codec = open_vectors(tmp_path / "rows")
    file = RowFile(tmp_path / "rows", codec)
    wanted = np.random.default_rng(0).integers(-1, 5000, 300)
    file.expect(wanted)
    file.expect(np.empty(0, np.int64))
    wanted = wanted[wanted >= 0]
    np.testing.assert_array_equal(file.read(wanted), codec.reconstruct_batch(wanted))
    np.testing.assert_allclose(file.read(wanted), rows[wanted], atol=0.01)
    assert file.read(np.array([4999, 0, 4999]))[2] == pytest.approx(rows[4999], abs=0.01)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Passages of the latent encoder of the benchmark: only their numbers count."""
    path = tmp_path_factory.mktemp("latent") / "corpus.jsonl"
    path.write_text("".join(Document(str(n), f'"P {n}"\n{n}').to_json() + "\n" for n in range(COUNT)))
    return path


def plan(corpus: Path, out: Path, kind: Kind, recall: float | None = None) -> Plan:
    return Plan(corpus=corpus, out=out, kind=kind, encoder=f"{__name__}:Small", recall=recall)


def exact(queries: list[str], topk: int = 10) -> list[set[int]]:
    """The best by a plain matrix product."""
    encoder = Small()
    rows = encoder.encode_documents([str(number) for number in range(COUNT)])
    scores = encoder.encode_queries(queries) @ rows.T
    return [set(np.argsort(-row, kind="stable")[:topk].tolist()) for row in scores]


def share(index: DenseIndex, queries: list[str]) -> float:
    found = index.search_vectors(encoded(index.encoder, queries, queries=True), 10)
    pairs = zip(found, exact(queries), strict=True)
    return float(np.mean([len({place for place, _ in row} & best) / 10 for row, best in pairs]))


@pytest.mark.parametrize("kind", APPROXIMATE)
def test_a_recall_chooses_the_smallest_effort(kind: Kind, corpus: Path, tmp_path: Path) -> None:
    said: list[str] = []
    recall = build_index(plan(corpus, tmp_path / "index", kind, 0.9), say=said.append)
    index = load_index(tmp_path / "index")
    assert isinstance(index, DenseIndex)
    documents = StoredDocuments(tmp_path / "index")
    held_out, chosen_on = cut_queries(documents), cut_queries(documents, between=True)
    assert not set(held_out) & set(chosen_on)
    effort = int(index.info()["breadth" if kind == "hnsw" else "probes"])
    reached = share(index, chosen_on)
    assert reached >= 0.9 and recall["@10"] == pytest.approx(share(index, held_out), abs=1e-3)
    assert re.match(
        rf"recall 0\.9: effort {effort} of \d+.* gives {reached:.4f}; recall@10 {recall['@10']:.4f} on",
        said[-1],
    ), said
    assert effort > 1
    index.look_further(effort - 1)
    assert share(index, chosen_on) < 0.9
    manifest = read_manifest(tmp_path / "index")
    assert manifest["recall_target"] == 0.9 and manifest["recall"] == recall
    if kind == "ivf_sq8":
        build_index(plan(corpus, tmp_path / "again", kind, 0.9))
        assert folder_contents(tmp_path / "again") == folder_contents(tmp_path / "index")


def test_a_recall_out_of_reach_is_told(corpus: Path, tmp_path: Path) -> None:
    said: list[str] = []
    build_index(plan(corpus, tmp_path / "index", "ivf_sq8", 1.0), say=said.append)
    index = load_index(tmp_path / "index")
    assert isinstance(index, DenseIndex)
    reached = share(index, cut_queries(StoredDocuments(tmp_path / "index"), between=True))
    assert index.info()["probes"] == index.info()["lists"] and 0.98 < reached < 1
    assert (
        said[-1].startswith("recall 1 is not reached: the largest effort")
        and f"gives {reached:.4f}" in said[-1]
    )
    assert "--type sq8" in said[-1]


def test_product_codes_find_what_rows_rank(corpus: Path, tmp_path: Path) -> None:
    """With every list and many candidates the answer is that of exact search over the 8-bit rows."""
    for kind in ("ivf_pq", "sq8"):
        build_index(plan(corpus, tmp_path / kind, kind))
    ours, rows = (load_index(tmp_path / kind) for kind in ("ivf_pq", "sq8"))
    assert isinstance(ours, DenseIndex)
    ours.look_further(ours.most_effort, MOST_RESCORED)
    queries = [str(number) for number in range(0, COUNT, 30)]
    assert ours.search(queries, 10) == rows.search(queries, 10)
    assert ours.search(queries, 10) == [ours.search([query], 10)[0] for query in queries], (
        "a batch changes no answer"
    )
    ours.look_further(4, 1)
    some = np.mean(
        [
            len(set(a) & set(b)) / 10
            for a, b in zip(ours.search(queries, 10), rows.search(queries, 10), strict=True)
        ]
    )
    assert 0.3 < some < 0.99
    codes = (tmp_path / "ivf_pq" / "vectors.faiss").stat().st_size
    fixed = 4 * 64 * (64 + 256 + 51)  # rotation, centres of the codes, centres of the lists
    assert codes == pytest.approx(COUNT * (CODE_BYTES + 8) + fixed, rel=0.01)
    save_index(ours, tmp_path / "saved")
    assert load_index(tmp_path / "saved").info()["rescored"] == 1


Edit = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("name", "value"),
    [("probes", 0), ("probes", 10**9), ("probes", "many"), ("rescored", 0), ("rescored", MOST_RESCORED + 1)],
)
def test_an_effort_that_the_index_cannot_have(
    name: str, value: object, corpus_file: Path, tmp_path: Path
) -> None:
    build_index(Plan(corpus=corpus_file, out=tmp_path / "index", kind="ivf_pq", dim=16))
    path = tmp_path / "index" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["settings"][name] = value
    manifest["sha256_manifest"] = _sha256_json(
        {key: entry for key, entry in manifest.items() if key != "sha256_manifest"}
    )
    path.write_text(json.dumps(manifest))
    with pytest.raises(BadIndex, match=r"manifest\.json"):
        load_index(tmp_path / "index")


def test_rows_of_another_index(corpus_file: Path, tmp_path: Path) -> None:
    build_index(Plan(corpus=corpus_file, out=tmp_path / "index", kind="ivf_pq", dim=64))
    index = load_index(tmp_path / "index")
    assert isinstance(index, DenseIndex)
    for rows, kind in ((latent(299, 64), "sq8"), (latent(300, 56), "sq8"), (latent(300, 64), "fp16")):
        write_rows(tmp_path / "index" / "rows.faiss", rows, kind)  # type: ignore[arg-type]  # a type each
        with pytest.raises(BadIndex, match=r"rows\.faiss"):
            DenseIndex.open(tmp_path / "index", index.documents, index.encoder, 1, "")


def test_settings_that_do_not_fit(
    corpus_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, message in (
        (("--type", "sq8", "--recall", "0.9"), "approximate types"),
        (("--encoder", "bm25", "--recall", "0.9"), "approximate types"),
        (("--type", "hnsw", "--recall", "95"), "at most 1"),
    ):
        done = run_here(capsys, "build", "--corpus", corpus_file, "--out", tmp_path / "x", *arguments)
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr
    build_index(Plan(corpus=corpus_file, out=tmp_path / "index", kind="ivf_sq8", dim=16))
    index = load_index(tmp_path / "index")
    assert isinstance(index, DenseIndex)
    with pytest.raises(BadSetting, match="only ivf_pq"):
        index.look_further(None, 3)
    with pytest.raises(BadSetting, match="effort 0"):
        index.look_further(0)
    build_index(Plan(corpus=corpus_file, out=tmp_path / "pq", kind="ivf_pq", dim=16))
    index = load_index(tmp_path / "pq")
    assert isinstance(index, DenseIndex)
    with pytest.raises(BadSetting, match=f"rescored 0 .*1 to {MOST_RESCORED}"):
        index.look_further(None, 0)


def test_the_cost_is_told_before_the_passages_are_encoded(corpus_file: Path, tmp_path: Path) -> None:
    for kind in KINDS:
        told: list[str] = []
        build_index(
            Plan(corpus=corpus_file, out=tmp_path / kind, kind=kind, dim=64),
            lambda phase, done, total, told=told: told.append(phase),
            told.append,
        )
        line = next(said for said in told if said.startswith(f"plan: {kind} over 300 passages of 64 numbers"))
        assert told.index(line) < told.index("encoding")
        assert ("CPU after encoding" in line) == (kind in APPROXIMATE) and ("times as long" in line) == (
            kind == "hnsw"
        )


@pytest.mark.parametrize("kind", KINDS)
def test_the_estimated_size_is_what_is_written(kind: Kind, corpus: Path, tmp_path: Path) -> None:
    build_index(plan(corpus, tmp_path / "index", kind))
    written = sum(path.stat().st_size for path in (tmp_path / "index").glob("*.faiss"))
    fixed = 4 * 64 * (64 + 256) if kind == "ivf_pq" else 0
    lists = 4 * 64 * 51 if kind.startswith("ivf") else 0
    assert written == pytest.approx(estimated(kind, COUNT, 64).disk + fixed + lists, rel=0.02)
    assert bytes_per_vector(kind, 64)[0] * COUNT == estimated(kind, COUNT, 64).memory


def test_rule_for_graphs() -> None:
    """Within a factor of two of all that was measured: (vectors, ms a vector) of 768 numbers, in two runs."""
    for count, milliseconds in (
        (10_000, 0.205),
        (30_000, 0.309),
        (100_000, 0.485),
        (200_000, 0.615),
        (10_000, 0.42),
        (30_000, 0.75),
    ):
        assert 0.5 < graph_seconds(count, 768) / (count * milliseconds / 1000) < 2


@pytest.mark.parametrize("kinds", [["flat"], pytest.param(["flat", "ivf_sq8"], marks=pytest.mark.slow)])
def test_bench_of_types(
    kinds: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    arguments = ["--sizes", "1500", "--types", *kinds, "--recall", "0.9", "--folder", str(tmp_path)]
    assert main(["bench", "--what", "scale", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split(" | ") for line in lines if line.startswith(("| flat |", "| ivf_sq8 |"))]
    assert [row[0] for row in rows] == [f"| {kind}" for kind in kinds] * 2
    measured, extrapolated = rows[: len(kinds)], rows[len(kinds) :]
    assert measured[0][8] == "1.000" and all(row[1] == "1,500" and float(row[8]) > 0.8 for row in measured)
    assert [row[1] for row in extrapolated] == ["64.5", "16.3"][: len(kinds)], "GB in memory at 21 million"
    assert main(["bench", "--what", "scale", "--types", "hnsw"]) == 2
    assert not list(tmp_path.iterdir())
