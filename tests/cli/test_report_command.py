"""``report`` by its command line: real evaluations, an agent behind an endpoint with attempts and prices, and what is refused."""

import json
import re
from functools import partial
from pathlib import Path

import pytest
from chat_server import Body, serving
from cli_process import Call, call_main, run_process

pytest.importorskip("jinja2")
PLAY = ("eval", "--env", "sokoban-easy", "--panel", "v1", "--tasks", "6", "--progress")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Evaluations of random and the oracle, made by the command line."""
    made = tmp_path_factory.mktemp("report")
    for agent in ("random", "oracle"):
        done = run_process(made, *PLAY, "--agent", agent, "--out", f"runs/{agent}.jsonl")
        assert done.returncode == 0, done.stderr
    return made


@pytest.fixture
def call(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    monkeypatch.chdir(folder)
    return partial(call_main, capsys, "report")


def test_a_page_of_real_evaluations(folder: Path) -> None:
    done = run_process(folder, "report", "runs", "--out", "pages/page.html", "--title", "First page")
    assert done.returncode == 0 and not done.stderr and "pages/page.html: 2 evaluations" in done.stdout
    html = (folder / "pages" / "page.html").read_text()
    expected = (
        "<h1>First page</h1>",
        "6 of 200 tasks of panel v1",
        "decided, <bdi>oracle</bdi> is better",
        "asks no model",
        "holds 12 of",
    )
    for part in expected:
        assert part in html, part
    assert [path.name for path in (folder / "pages").iterdir()] == ["page.html"]


def test_an_agent_behind_an_endpoint(folder: Path, call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("aiohttp")

    def answer(body: Body, number: int) -> str:
        return (
            "next time I push"
            if "You did not solve" in body["messages"][-1]["content"]
            else "Thought: up.\nAction: Up"
        )

    with serving(answer) as served:
        played = [
            *PLAY,
            "--agent",
            "reflexion",
            "--model",
            "gpt-4o-mini",
            "--base-url",
            served.url,
            "--out",
            "chat/easy.jsonl",
        ]
        assert call_main(capsys, *played, "--option", "horizon=2")[0] == 0
    Path("prices.toml").write_text(
        'currency = "EUR"\nas_of = "2031-05"\n[models]\n"gpt-4o-mini" = { input = 1000, output = 1000 }\n'
    )
    assert call("chat/easy.jsonl", "runs", "--out", "chat.html", "--prices", "prices.toml")[0] == 0
    html = Path("chat.html").read_text()
    for part in (
        "reflexion gpt-4o-mini",
        "2031-05 in EUR",
        "none solved",
        "next time I push",
        "horizon=2",
        "under different options",
    ):
        assert part in html, part
    row = html[html.index('<section id="cost"') :]
    row = row[row.index("<bdi>reflexion gpt-4o-mini</bdi>") :]
    cells = [cell.replace(",", "") for cell in re.findall(r"<td>(.*?)</td>", row[: row.index("</tr>")])]
    assert cells[0] == str(len(served.requests)) == str(6 * (4 * 2 + 3)) and cells[1] == "0"
    calls = [
        call
        for line in Path("chat/easy.jsonl").read_text().splitlines()
        for call in json.loads(line)["calls"]
    ]
    given, answered = (sum(call[name] for call in calls) for name in ("input_tokens", "output_tokens"))
    assert (
        cells[2:5] == [str(given), "0", str(answered)] and cells[7] == f"{(given + answered) / 1000:.2f} EUR"
    )


def test_what_cannot_be_meant(call: Call, folder: Path) -> None:
    before = (folder / "runs" / "random.jsonl").read_bytes()
    for arguments, message in (
        (("runs", "--out", "runs/random.jsonl"), "the page is HTML, so its name must end in .html"),
        (("runs", "--out", "p.html", "--episodes", "-1"), "--episodes must be 0 or more, got -1"),
        (("nowhere", "--out", "p.html"), "nowhere: there is no such file"),
        (("runs", "--out", "p.html", "--prices", "nowhere.toml"), "nowhere.toml: there is no such file"),
        (("runs", "--out", "folder.html"), "folder.html cannot be written"),
        (("--out", "p.html"), "give at least one file or folder"),
    ):
        (folder / "folder.html").mkdir(exist_ok=True)
        code, out, err = call(*arguments)
        assert code == 2 and not out and message in err and "Traceback" not in err, arguments
    assert (folder / "runs" / "random.jsonl").read_bytes() == before and not (folder / "p.html").exists()


def test_files_without_episodes_are_left_out_and_named(call: Call) -> None:
    Path("empty.jsonl").touch()
    code, out, _ = call("runs", "empty.jsonl", "--out", "some.html")
    assert code == 0 and "empty.jsonl holds no episode yet: left out" in out and "2 evaluations" in out
