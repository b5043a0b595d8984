"""scripts/fetch_data, from a mirror of small archives on this disk."""

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "fetch_data"
ARCHIVES = ("json_2.1.1_json.zip", "json_2.1.1_pddl.zip", "json_2.1.2_tw-pddl.zip")


def fetch(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True)


def test_alfworld(tmp_path: Path) -> None:
    for number, name in enumerate(ARCHIVES):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr(f"json_2.1.1/train/a/trial_1/file{number}", name)
    out = tmp_path / "data"
    done = fetch("alfworld", "--out", str(out), "--mirror", tmp_path.as_uri())
    assert done.returncode == 0, done.stderr
    assert sorted(p.name for p in (out / "json_2.1.1/train/a/trial_1").iterdir()) == [
        "file0",
        "file1",
        "file2",
    ]
    assert f"set ALFWORLD_DATA={out}" in done.stdout
    again = fetch("alfworld", "--out", str(out), "--mirror", tmp_path.as_uri())
    assert again.returncode == 0 and again.stdout.count("there already") == 3


def test_a_broken_mirror_is_reported_and_leaves_nothing_half_done(tmp_path: Path) -> None:
    out = tmp_path / "data"
    assert fetch("alfworld", "--out", str(out), "--mirror", (tmp_path / "nowhere").as_uri()).returncode == 2
    (tmp_path / ARCHIVES[0]).write_bytes(b"no zip")
    done = fetch("alfworld", "--out", str(out), "--mirror", tmp_path.as_uri())
    assert done.returncode == 2 and "--mirror" in done.stderr
    assert list(out.iterdir()) == []
    assert fetch("no such benchmark").returncode == 2


def test_webshop(tmp_path: Path) -> None:
    """The files are usable as they come; a page instead of a file is reported."""
    for path in (SCRIPT.parents[1] / "tests/data/webshop").glob("items_*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    out = tmp_path / "data"
    done = fetch("webshop", "--out", str(out), "--mirror", tmp_path.as_uri())
    assert done.returncode == 0, done.stderr
    assert "MIT licence" in done.stdout and f"use it with data={out}" in done.stdout
    digest = hashlib.sha256((out / "items_shuffle.json").read_bytes()).hexdigest()
    assert f"sha256 {digest}" in done.stdout and digest in (out / ".items_shuffle.json.done").read_text()
    assert done.stdout.count("not the file that others have used (") == 3
    assert (
        fetch("webshop", "--out", str(out), "--mirror", tmp_path.as_uri()).stdout.count("there already") == 3
    )
    (tmp_path / "items_ins_v2_1000.json").write_bytes(b"{}")
    (tmp_path / "items_shuffle_1000.json").write_text("<!DOCTYPE html>Quota exceeded")
    other = fetch("webshop-1000", "--out", str(tmp_path / "other"), "--mirror", tmp_path.as_uri())
    assert other.returncode == 2 and "something else than the file items_shuffle_1000.json" in other.stderr
    assert not list((tmp_path / "other").iterdir())
