"""The command line, as a user runs it."""

import gzip
import re
import shutil
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import requests
from conftest import ROOT, environment, make_documents, run_cli, run_here, serving

from retriever import HashedIndex, load_index, save_index
from retriever.bench import opening
from retriever.cli import main


def check_refused(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    """One message, exit code 2, no traceback."""
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    for part in parts:
        assert part in done.stderr


@pytest.mark.parametrize("kind", ["hashed", "bm25"])
def test_build_is_the_same_in_every_process(kind: str, corpus_file: Path, tmp_path: Path) -> None:
    for seed in ("0", "1"):
        done = run_cli(
            "build", "--corpus", corpus_file, "--out", tmp_path / seed, "--kind", kind, PYTHONHASHSEED=seed
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert "300 documents" in done.stdout
    assert (tmp_path / "0" / "manifest.json").read_bytes() == (tmp_path / "1" / "manifest.json").read_bytes()
    assert load_index(tmp_path / "0").ntotal == 300


def test_build_mistakes(corpus_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "index"
    run = partial(run_here, capsys)
    check_refused(run_cli("build", "--corpus", tmp_path / "none.jsonl", "--out", out), "none.jsonl")
    check_refused(run("build", "--corpus", corpus_file, "--out", out, "--dim", "100"), "dim", "100")
    (tmp_path / "bad.jsonl").write_text('{"id": "0", "contents": "x"}\n{"id": 1}\n')
    check_refused(
        run("build", "--corpus", tmp_path / "bad.jsonl", "--out", out), "bad.jsonl", "line 2", "contents"
    )
    check_refused(run("build", "--corpus", corpus_file, "--out", tmp_path), "already exists")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.jsonl"]


@pytest.mark.parametrize(("kind", "limit"), [("hashed", 2_000), ("hashed", 100_000), ("bm25", 2_000)])
def test_a_full_disk_is_reported_with_path_and_remedy(
    kind: str, limit: int, corpus_file: Path, tmp_path: Path
) -> None:
    # A limit on the size of a file makes writes fail as a full disk does: in the documents, or in the index.
    out = tmp_path / "index"
    code = (
        f"import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, resource.RLIM_INFINITY)); "
        "from retriever.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            code,
            "build",
            "--corpus",
            str(corpus_file),
            "--out",
            str(out),
            "--kind",
            kind,
        ],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    check_refused(done, f"{out} cannot be written: ", "free disk space")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("module", "extra"), [("fastapi", "retriever"), ("uvicorn", "retriever"), ("faiss", "search")]
)
def test_a_missing_library_names_its_extra(module: str, extra: str, tmp_path: Path) -> None:
    # How Python itself marks what cannot be imported.
    code = f"import sys; sys.modules[{module!r}] = None; from retriever.cli import main; sys.exit(main(sys.argv[1:]))"
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"id": "0", "contents": "x"}\n')
    arguments = (
        ["serve", "--port", "0"]
        if extra == "retriever"
        else ["build", "--corpus", corpus, "--out", tmp_path / "i"]
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    check_refused(done, f'"{module}"', f"pip install -c constraints.txt -e '.[{extra}]'")


def test_serve_mistakes(index_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = partial(run_here, capsys)
    check_refused(run("serve", "--index", tmp_path / "none"), "none", "python -m retriever build")
    check_refused(run("serve", "--index", index_folder, "--port", "70000"), "--port 70000")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        check_refused(run("serve", "--index", index_folder, "--port", port), port, "in use")
    # Found only when the index is read, after the port is open: the server ends by itself.
    damaged = tmp_path / "damaged"
    shutil.copytree(index_folder, damaged)
    with (damaged / "vectors.faiss").open("r+b") as stream:
        stream.seek(5000)
        stream.write(b"\0\1\2\3")
    check_refused(run_cli("serve", "--index", damaged, "--port", "0"), "vectors.faiss", "SHA-256")


def test_damage_found_behind_ends_the_server(tmp_path: Path) -> None:
    save_index(HashedIndex.build(make_documents(700)), tmp_path / "index")
    path = tmp_path / "index" / "vectors.faiss"
    with path.open("r+b") as stream:
        stream.seek((1 << 20) + 1000)
        stream.write(b"\0\1\2\3")
    check_refused(
        run_cli("serve", "--port", "0", "--verify", "behind", "--index", tmp_path / "index"),
        str(path),
        "SHA-256",
    )
    check_refused(
        run_cli("serve", "--port", "0", "--index", "http://127.0.0.1:9"), "no server at http://127.0.0.1:9"
    )


def test_mini_corpus_is_found_by_path(corpus_file: Path, tmp_path: Path) -> None:
    package = tmp_path / "tstar_envs"
    data = package / "envs" / "search_qa" / "data"
    data.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    check_refused(run_cli("serve", "--port", "0", cwd=tmp_path), "corpus.jsonl.gz", "--index FOLDER")
    (data / "corpus.jsonl.gz").write_bytes(gzip.compress(corpus_file.read_bytes()))
    with serving("--topk", "2", cwd=tmp_path) as url:
        result = requests.post(f"{url}/retrieve", json={"query": "title 9"}, timeout=30).json()["result"]
        assert len(result[0]) == 2
        assert "9" in {document["id"] for document in result[0]}


def test_bench_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Small: what it measures is for quiet machines; here only that all of it works.
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    said: list[str] = []
    opening(tmp_path / "open", 3000, 64, said.append)
    assert said[-1].startswith("| 3,000 x 64, flat float32 | 0.00 GB | ") and said[-1].endswith(" s after |")
    arguments = [
        "--what",
        "service",
        "flat",
        "--encoder",
        "hashed",
        "--passages",
        "500",
        "--clients",
        "1",
        "3",
        "--seconds",
        "0.3",
    ]
    assert (
        main(
            [
                "bench",
                *arguments,
                "--rounds",
                "1",
                "--vectors",
                "2000",
                "--dim",
                "64",
                "--folder",
                str(tmp_path),
            ]
        )
        == 0
    )
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split(" | ") for line in lines if line.startswith(("| retriever serve", "| one search"))]
    assert [row[1] for row in rows] == ["1", "1", "3", "3"]
    for row in rows:
        middle, least, most = map(float, re.findall(r"[\d.]+", row[2]))
        assert 0 < least <= middle <= most, row
    assert lines[-1].startswith("sq8 in batches of 64 takes ") and lines[-1].endswith("times as long as flat")
    assert [path.name for path in tmp_path.iterdir()] == ["open"], "temporary folders are gone"
