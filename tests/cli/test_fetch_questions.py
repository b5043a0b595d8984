"""scripts/fetch_data for the question sets, from a real server that breaks off, changes its files, or answers nonsense."""

import gzip
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from test_fetch_data import fetch

from tstar_envs import MissingData
from tstar_envs.envs.search_qa.env import SearchQAEnv
from tstar_envs.envs.search_qa.tasks import load_set

SAMPLES = Path(__file__).resolve().parents[3] / "shared" / "data" / "qa"
LICENCES = {
    "nq": "CC BY-SA 3.0",
    "triviaqa": "Apache-2.0",
    "popqa": "MIT",
    "hotpotqa": "CC BY-SA 4.0",
    "2wikimultihopqa": "Apache-2.0",
    "musique": "CC BY 4.0",
    "bamboogle": "licence not verified",
}
SETS = {
    "nq": ("train", "dev", "test"),
    "triviaqa": ("train", "dev", "test"),
    "popqa": ("test",),
    "hotpotqa": ("train", "dev"),
    "2wikimultihopqa": ("train", "dev"),
    "musique": ("train", "dev"),
    "bamboogle": ("test",),
}


class Mirror:
    """Files by path, with ranges as RFC 9110 has them; ``cut`` breaks the next answers off after so many bytes."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[tuple[str, str | None]] = []  # (path, Range)
        self.cut: list[int] = []
        mirror = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                name, wanted = self.path.lstrip("/"), self.headers["Range"]
                mirror.asked.append((name, wanted))
                self.close_connection = True
                if name not in mirror.files:
                    self.send_error(404)
                    return
                content, start = mirror.files[name], 0
                tag = f'"{hash(content)}"'
                if wanted and self.headers["If-Range"] in (None, tag):
                    start = int(re.fullmatch(r"bytes=(\d+)-", wanted).group(1))  # type: ignore[union-attr]
                    if start >= len(content):
                        self.send_error(416)
                        return
                self.send_response(206 if start else 200)
                self.send_header("ETag", tag)
                self.send_header("Content-Length", str(len(content) - start))
                self.end_headers()
                self.wfile.write(content[start:][: mirror.cut.pop(0) if mirror.cut else None])

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self.listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.listening.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.listening.server_port}"


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    made = Mirror()
    thread = threading.Thread(target=made.listening.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.listening.shutdown()
    made.listening.server_close()
    thread.join()


def lines(count: int, first: int = 0) -> bytes:
    made = (
        {"id": f"q{n}", "question": f"who is {n}", "golden_answers": [f"name {n}"]}
        for n in range(first, first + count)
    )
    return "".join(json.dumps(line) + "\n" for line in made).encode()


def corpus(*titles: str) -> bytes:
    passages = b"".join(
        json.dumps({"id": str(n), "contents": f'"{t}"\ntext'}).encode() + b"\n" for n, t in enumerate(titles)
    )
    return gzip.compress(passages, mtime=0)


def hidden(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.rglob(".*") if not p.name.endswith(".done"))


@pytest.mark.parametrize("name", list(SETS))
def test_each_set_is_playable_as_it_comes(name: str, mirror: Mirror, tmp_path: Path) -> None:
    sample = SAMPLES / f"flashrag_form_{name}.jsonl"
    if not sample.is_file():
        pytest.skip(f"{sample.name} is not in the shared samples")
    content = sample.read_bytes()
    for part in SETS[name]:
        mirror.files[f"{name}/{part}.jsonl"] = content.replace(b'"id": "', f'"id": "{part}-'.encode())
    mirror.files["corpus.jsonl.gz"] = corpus("A", "B", "C")
    out = tmp_path / "data"
    done = fetch(name, "--out", str(out), "--mirror", mirror.url)
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    assert re.search(
        f"; .*: {re.escape(LICENCES[name])}.*FlashRAG_datasets.: licence not verified", printed[0]
    ), "before the download"
    assert "while its publisher counts" in done.stdout and "scripts/fetch_data wiki18" in done.stdout
    assert fetch("wiki18", "--out", str(out), "--mirror", mirror.url).returncode == 0
    assert not hidden(out)
    found = load_set(name, str(out))
    assert len(found.by_split["test"]) == len(content.splitlines()) and found.tier == "path"
    env = SearchQAEnv(dataset=name, data=str(out))
    info = env.reset(options={"task": 0})[1]
    assert env.step(f"finish[{found.tasks[info['task_id']].golden_answers[0]}]")[1] == 1.0
    before = list(mirror.asked)
    assert fetch(name, "--out", str(out), "--mirror", mirror.url).stdout.count("there already") == len(
        SETS[name]
    )
    assert mirror.asked == before


def test_a_download_that_breaks_off_goes_on(mirror: Mirror, tmp_path: Path) -> None:
    mirror.files["popqa/test.jsonl"] = content = lines(14_267)
    mirror.cut = [100_000, 200_000]
    command = ("popqa", "--out", str(tmp_path), "--mirror", mirror.url)
    for kept in (100_000, 300_000):
        done = fetch(*command)
        assert (
            done.returncode == 2
            and f"broke off after {kept:,} of {len(content):,} bytes" in done.stderr
            and "to go on" in done.stderr
        )
        assert not (tmp_path / "popqa" / "test.jsonl").exists()
    done = fetch(*command)
    assert (
        done.returncode == 0
        and "going on after 300,000 bytes" in done.stdout
        and "publisher" not in done.stdout
    )
    assert (tmp_path / "popqa" / "test.jsonl").read_bytes() == content and not hidden(tmp_path)
    assert [wanted for _, wanted in mirror.asked] == [None, "bytes=100000-", "bytes=300000-"]


@pytest.mark.parametrize("second", [lines(900, first=50), lines(3)])
def test_a_file_that_changed_meanwhile_is_fetched_anew(second: bytes, mirror: Mirror, tmp_path: Path) -> None:
    mirror.files["bamboogle/test.jsonl"] = lines(1000)
    mirror.cut = [20_000]
    command = ("bamboogle", "--out", str(tmp_path), "--mirror", mirror.url)
    assert fetch(*command).returncode == 2
    mirror.files["bamboogle/test.jsonl"] = second
    assert fetch(*command).returncode == 0
    assert (tmp_path / "bamboogle" / "test.jsonl").read_bytes() == second


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<html>Sign in</html>", "line 1: not JSON"),
        (
            lines(3) + b'{"id": "x", "question": "who", "golden_answers": []}\n',
            "line 4: field 'golden_answers' holds no answer",
        ),
        (lines(3) + lines(1), "repeats the id 'q0'"),
        (b"", "it holds no question"),
        (b"\xff\xfe\x00", "not a text file"),
        (lines(2)[:-20] + b"\n", "line 2: not JSON"),
    ],
)
def test_what_is_no_question_file_is_refused(
    content: bytes, message: str, mirror: Mirror, tmp_path: Path
) -> None:
    mirror.files["nq/train.jsonl"] = content
    done = fetch("nq", "--out", str(tmp_path), "--mirror", mirror.url)
    assert (
        done.returncode == 2
        and message in done.stderr
        and done.stderr.count("\n") == 1
        and "Traceback" not in done.stderr
    )
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


# Named, and without the time of day in the bytes: pytest-xdist's workers must collect the same names.
@pytest.mark.parametrize(
    "content",
    [corpus("A")[:-9], b"no gzip", gzip.compress(b"[]\n", mtime=0), gzip.compress(b'{"text": 1}\n', mtime=0)],
    ids=["cut off", "no gzip", "no passages", "passage without contents"],
)
def test_a_damaged_corpus_is_refused(content: bytes, mirror: Mirror, tmp_path: Path) -> None:
    mirror.files["corpus.jsonl.gz"] = content
    done = fetch("wiki18", "--out", str(tmp_path), "--mirror", mirror.url)
    assert done.returncode == 2 and "corpus" in done.stderr and "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_several_at_once_into_the_default_folder(
    mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TSTAR_DATA", str(tmp_path))
    for name in ("popqa", "bamboogle"):
        mirror.files[f"{name}/test.jsonl"] = lines(5)
    mirror.files["corpus.jsonl.gz"] = corpus("A", "B")
    assert fetch("popqa", "bamboogle", "wiki18", "--mirror", mirror.url).returncode == 0
    assert load_set("popqa", "auto").tier == "full" == load_set("bamboogle", "full").tier
    monkeypatch.setenv("TSTAR_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(MissingData, match="scripts/fetch_data musique wiki18"):
        load_set("musique", "full")
    missing = fetch("musique", "--mirror", mirror.url)
    assert missing.returncode == 2 and "404" in missing.stderr
