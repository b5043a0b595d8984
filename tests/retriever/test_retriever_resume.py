"""Builds that are killed: one chunk is done again, and the bytes are those of an undisturbed build."""

import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Literal

import faiss
import numpy as np
import pytest
from conftest import environment, folder_contents

from retriever import BadSetting
from retriever.build import Plan, build_index
from retriever.resume import Marks, reserve
from retriever.vectors import KINDS, Kind, fill_graph, fill_lists, trained, training_size

KILLED = """
import os, signal, sys
from pathlib import Path
from retriever.build import Plan, build_index
def report(phase, done, total):
    print(phase, done, total, flush=True)
    if phase == sys.argv[4] and done >= int(sys.argv[5]):
        os.kill(os.getpid(), signal.SIGKILL)
build_index(Plan(corpus=Path(sys.argv[1]), out=Path(sys.argv[2]), kind=sys.argv[3], dim=64, chunk=50), report)
"""


@pytest.mark.parametrize(
    ("kind", "kills"),
    [
        ("flat", [("reading", 1), ("reading", 40_000), ("encoding", 150), ("writing", 0)]),
        ("ivf_sq8", [("encoding", 100), ("assigning", 100), ("placing", 100)]),
        pytest.param("sq8", [("training", 0), ("encoding", 250)], marks=pytest.mark.slow),
    ],
)
def test_a_killed_build_goes_on(
    kind: Kind, kills: list[tuple[str, int]], corpus_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "index"
    finished = {"reading": 0, "encoding": 0}
    centres_known = False
    for phase, at in [*kills, ("", 0)]:
        command = [sys.executable, "-c", KILLED, str(corpus_file), str(out), kind, phase, str(at)]
        done = subprocess.run(
            command, env=environment(), capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode == -signal.SIGKILL) == bool(phase), done.stderr
        assert out.exists() != bool(phase)
        for name, before in finished.items():
            reports = [int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith(name)]
            # What the killed one had finished is not done again: the next report is a chunk further.
            assert all(report > before for report in reports), done.stdout
            finished[name] = max([before, *reports])
        assert not (centres_known and "training" in done.stdout), done.stdout
        centres_known = centres_known or phase == "assigning"
    build_index(Plan(corpus=corpus_file, out=tmp_path / "whole", kind=kind, dim=64, chunk=50))
    assert folder_contents(out) == folder_contents(tmp_path / "whole")
    assert not (tmp_path / ".index.partial").exists()


def test_what_a_killed_write_left_is_cut_off(corpus_file: Path, tmp_path: Path) -> None:
    plan = Plan(corpus=corpus_file, out=tmp_path / "index", chunk=50)

    class Killed(Exception):
        pass

    def report(phase: str, done: int, total: int) -> None:
        if phase == "encoding" and done == 200:
            raise Killed

    with pytest.raises(Killed):
        build_index(plan, report)
    work = tmp_path / ".index.partial"
    for path in (work / "index" / "vectors.faiss", work / "state.tmp"):
        with path.open("ab") as stream:
            stream.write(b"half a chunk")
    for other in (
        Plan(corpus=corpus_file, out=plan.out, chunk=50, dim=64),
        Plan(corpus=corpus_file, out=plan.out, chunk=51),
    ):
        with pytest.raises(BadSetting, match="remove the folder") as caught:
            build_index(other)
        assert str(work) in str(caught.value)
    build_index(plan)
    build_index(Plan(corpus=corpus_file, out=tmp_path / "whole"))
    assert folder_contents(plan.out) == folder_contents(tmp_path / "whole")


KILLED_AT_EVERY_MARK = """
import os, signal, sys
from pathlib import Path
from retriever import load_index
from retriever.build import Plan, build_index
from retriever.resume import Marks

set_marks, times = Marks.set, 0

def killed_before_the_second(self, **marks):
    global times
    times += 1
    if times == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    set_marks(self, **marks)

Marks.set = killed_before_the_second
corpus, out, encoder, kind = sys.argv[1:]
plan = Plan(corpus=Path(corpus), out=Path(out), encoder=encoder, kind=kind, dim=16, chunk=70)
runs = 0
while True:
    runs += 1
    child = os.fork()
    if not child:
        build_index(plan)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if status == 0:
        break
    assert os.WTERMSIG(status) == signal.SIGKILL, status
print(runs)
"""


def sets_of_marks(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> int:
    """Build, and count how often something was marked as done."""
    times = 0
    original = Marks.set

    def counted(self: Marks, **marks: int | str) -> None:
        nonlocal times
        times += 1
        original(self, **marks)

    with monkeypatch.context() as patch:
        patch.setattr(Marks, "set", counted)
        build_index(plan)
    return times


@pytest.mark.parametrize(
    ("encoder", "kind"),
    [
        ("bm25", "flat"),
        *(pytest.param("hashed", kind, marks=[] if kind == "flat" else pytest.mark.slow) for kind in KINDS),
    ],
)
def test_whoever_is_killed_at_every_chunk_repeats_one_each_time(
    encoder: Literal["hashed", "bm25"],
    kind: Kind,
    corpus_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "index"
    command = [sys.executable, "-c", KILLED_AT_EVERY_MARK, str(corpus_file), str(out), encoder, kind]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    marks = sets_of_marks(
        Plan(corpus=corpus_file, out=tmp_path / "whole", encoder=encoder, kind=kind, dim=16, chunk=70),
        monkeypatch,
    )
    # Each run sets one mark, has done the work of the next and is killed; that work alone is done again.
    assert int(done.stdout) == marks
    assert marks >= {"flat": 11, "fp16": 11, "sq8": 16, "ivf_sq8": 31, "ivf_pq": 36, "hnsw": 16}[kind]
    assert folder_contents(out) == folder_contents(tmp_path / "whole")


# Without noise there are seven different vectors, and most lists stay empty.
@pytest.mark.parametrize(("count", "noise"), [(40, 0.05), (300, 0.05), (5000, 0.05), (1000, 0.0)])
@pytest.mark.parametrize("kind", ["ivf_sq8", "ivf_pq", "hnsw"])
def test_arranged_by_chunks_is_what_faiss_writes(
    kind: Kind, count: int, noise: float, tmp_path: Path
) -> None:
    rows = np.random.default_rng(count).standard_normal((count, 24)).astype(np.float32)
    rows = (rows * noise + rows[np.arange(count) % 7]).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    staged = faiss.IndexFlatIP(24)
    staged.add(rows)
    sample = rows[np.arange(training_size(kind, count)) * count // max(1, training_size(kind, count))]
    whole = trained(kind, 24, count, sample)
    for start in range(0, count, 64):
        whole.add(rows[start : start + 64])
    fill = fill_graph if kind == "hnsw" else partial(fill_lists, kind)
    fill(staged, tmp_path / "vectors.faiss", 64, Marks(tmp_path, {}), lambda *_: None)
    assert (tmp_path / "vectors.faiss").read_bytes() == faiss.serialize_index(whole).tobytes()


@pytest.mark.parametrize("system_reserves", [True, False])
def test_reserved_files_keep_what_they_hold(
    system_reserves: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not system_reserves:
        monkeypatch.delattr("os.posix_fallocate", raising=False)
    path = tmp_path / "file"
    path.write_bytes(b"header")
    for size in (3_000_000, 10):
        reserve(path, size)
        assert path.read_bytes() == b"header" + bytes(2_999_994)


@pytest.mark.parametrize(("encoder", "kind"), [("bm25", "flat"), ("hashed", "ivf_sq8")])
def test_what_the_disk_may_not_have_is_written_again_after_a_new_start_of_the_machine(
    encoder: Literal["hashed", "bm25"],
    kind: Kind,
    corpus_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    boot = tmp_path / "boot"
    boot.write_text("first")
    monkeypatch.setattr("retriever.resume.BOOT_ID", boot)
    placed: list[int] = []

    def report(phase: str, done: int, total: int) -> None:
        if phase in ("placing", "scoring"):
            placed.append(done)
            if placed in ([100], [100, 200], [100, 200, 100]):
                raise KeyboardInterrupt

    plan = Plan(corpus=corpus_file, out=tmp_path / "index", encoder=encoder, kind=kind, dim=64, chunk=100)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            build_index(plan, report)
    boot.write_text("second")
    file = (
        tmp_path
        / ".index.partial"
        / "index"
        / ("data.csc.index.npy" if encoder == "bm25" else "vectors.faiss")
    )
    file.write_bytes(file.read_bytes()[:-200] + bytes(200))  # what a power failure may leave
    with pytest.raises(KeyboardInterrupt):
        build_index(plan, report)
    build_index(plan, report)
    assert placed == [100, 200, 100, 200, 300]
    build_index(
        Plan(corpus=corpus_file, out=tmp_path / "whole", encoder=encoder, kind=kind, dim=64, chunk=100)
    )
    assert folder_contents(plan.out) == folder_contents(tmp_path / "whole")


@pytest.mark.parametrize("name", ["", "lock", "index", "index/passages", "marks.json"])
def test_a_build_never_follows_a_link_out_of_its_folder(name: str, corpus_file: Path, tmp_path: Path) -> None:
    victim = tmp_path / "elsewhere" / "victim"
    victim.parent.mkdir()
    victim.write_text("do not lose me")
    link = tmp_path / ".out.partial" / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(victim if name not in ("", "index") else victim.parent)
    with pytest.raises(BadSetting, match="is a link to .*elsewhere"):
        build_index(Plan(corpus=corpus_file, out=tmp_path / "out", dim=64))
    assert victim.read_text() == "do not lose me" and link.is_symlink()
