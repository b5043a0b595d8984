"""An HTTP search service behind the retriever's protocol, with a real one on loopback."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from email.utils import formatdate
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import requests
from conftest import run_here, serving
from loopback import QuietHandler, listening

from retriever import BadSetting, HttpSource, SearchFailed, Unavailable, WebSearcher
from retriever.service import SearchService

SECRET = "s3cr&t/key"


class Engine(QuietHandler):
    """A search engine: its results are the words of the query; ``plan`` holds what goes wrong before it answers."""

    protocol_version = "HTTP/1.1"
    plan: list[tuple[int, dict[str, str], Any]] = []
    asked: list[dict[str, Any]] = []

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        fields = {name: values[0] for name, values in parse_qs(address.query, keep_blank_values=True).items()}
        self.reply(fields["q"], int(fields.get("n", "10")), {"path": address.path, **fields})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.reply(body["q"], body["num"], {"body": body})

    def reply(self, query: str, count: int, seen: dict[str, Any]) -> None:
        type(self).asked.append({"query": query, "key": self.headers.get("X-Key"), **seen})
        words = query.split()[:count]
        results = [
            {
                "title": f'All about "{word}"',
                "link": f"http://x/{word}",
                "snippet": f"{word} is a word.",
                "rank": {"score": len(word)},
            }
            for word in words
        ]
        status, headers, content = self.plan.pop(0) if self.plan else (200, {}, {"web": {"results": results}})
        if content == "slow":
            sleep(0.6)
            content = {}
        text = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(text)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text)


@pytest.fixture
def engine() -> Iterator[str]:
    Engine.plan, Engine.asked = [], []
    with listening(Engine) as address:
        yield address


@pytest.fixture
def make(engine: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., WebSearcher]:
    """A searcher of the engine; its pauses are short."""
    monkeypatch.setattr("retriever.web._PAUSE_SECONDS", 0.01)
    monkeypatch.setenv("ENGINE_KEY", SECRET)

    def made(**changes: Any) -> WebSearcher:
        settings: dict[str, Any] = {
            "url": f"{engine}/find?q={{query}}&n={{topk}}",
            "headers": ("X-Key: {key}",),
            "key_variable": "ENGINE_KEY",
            "results": "web.results",
            "id": "link",
            "text": "snippet",
        }
        return WebSearcher(HttpSource(**{**settings, **changes}))

    return made


def test_results_are_documents_in_the_services_order(make: Callable[..., WebSearcher]) -> None:
    rows = make().search(["red fox", "a&b=c {key}", "", "red fox"], topk=2)
    assert [[hit.document.id for hit in row] for row in rows] == [
        ["http://x/red", "http://x/fox"],
        ["http://x/a&b=c", "http://x/{key}"],
        [],
        ["http://x/red", "http://x/fox"],
    ]
    first = rows[0][0]
    assert (first.document.title, first.document.text, first.score) == (
        'All about "red"',
        "red is a word.",
        1.0,
    )
    assert first.document.contents == '"All about ""red"""\nred is a word.'
    assert sorted(seen["query"] for seen in Engine.asked) == ["a&b=c {key}", "red fox"], (
        "each once, the blank one never"
    )
    assert {seen["key"] for seen in Engine.asked} == {SECRET}


def test_a_json_post_with_scores(make: Callable[..., WebSearcher], engine: str) -> None:
    body = '{"q": "{query}", "num": "{topk}", "auth": ["{key}"], "page": 1}'
    searcher = make(url=engine, body=body, headers=(), score="rank.score")
    assert [hit.document.id for hit in searcher.search(["a ccc bb {topk}"], topk=3)[0]] == [
        f"http://x/{w}" for w in ("ccc", "bb", "a")
    ]
    assert Engine.asked[0]["body"] == {"q": "a ccc bb {topk}", "num": 3, "auth": [SECRET], "page": 1}


def test_retries_with_retry_after(make: Callable[..., WebSearcher]) -> None:
    in_a_second = formatdate(time() + 1, usegmt=True)
    Engine.plan = [(429, {"Retry-After": "0.2"}, {}), (503, {"Retry-After": in_a_second}, {}), (500, {}, {})]
    start = monotonic()
    assert len(make().search(["red"], 3)[0]) == 1
    assert monotonic() - start >= 0.2 and len(Engine.asked) == 4
    Engine.plan = [(429, {"Retry-After": "3600"}, {})]
    with pytest.raises(Unavailable, match="answers 429") as caught:
        make().search(["red"], 3)
    assert caught.value.retry_after == 3600 and len(Engine.asked) == 5, "an hour is left to the client"
    Engine.plan = [(502, {}, {})] * 3
    with pytest.raises(Unavailable, match="3 tries"):
        make(tries=3).search(["red"], 3)
    Engine.plan = [(200, {}, "slow")]
    with pytest.raises(Unavailable, match="ReadTimeout"):
        make(tries=1, timeout=0.1).search(["red"], 3)
    with pytest.raises(Unavailable, match="ConnectionError"):
        make(url="http://127.0.0.1:9/{query}?k={key}", tries=1).search(["red"], 3)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (
            (401, {}, f"unknown key {SECRET} or s3cr%26t%2Fkey"),
            r"answers 401: 'unknown key \*\*\* or \*\*\*'",
        ),
        ((302, {"Location": "http://elsewhere/"}, ""), "redirects"),
        ((200, {}, "<html>"), "no JSON"),
        ((200, {}, {"hits": []}), r"no list at 'web\.results'"),
        ((200, {}, {"web": {"results": [{"name": "x"}]}}), "--http.title"),
        ((200, {}, {"web": {"results": [{"title": 3}]}}), "--http.id, --http.title"),
    ],
)
def test_what_a_service_gets_wrong_is_told_without_the_key(
    reply: tuple[int, dict[str, str], Any], message: str, make: Callable[..., WebSearcher]
) -> None:
    Engine.plan = [reply]
    with pytest.raises(SearchFailed, match=message) as caught:
        make().search(["red"], 3)
    assert SECRET not in str(caught.value) and len(Engine.asked) == 1


def test_fields_that_may_be_missing(make: Callable[..., WebSearcher]) -> None:
    Engine.plan = [
        (200, {}, {"nothing": 1}),
        (200, {}, {"web": {"results": [{"title": "a"}, {"snippet": ["b", "c  d"]}, {"link": 1}]}}),
    ]
    searcher = make(results="web.results?")
    assert searcher.search(["nothing"], 3) == [[]]
    titled, untitled = searcher.search(["something"], 3)[0]
    assert (titled.document.title, titled.document.text) == ("a", "")
    assert untitled.document.contents == '""\nb c d' and titled.document.id != untitled.document.id


def test_a_cache_replays_without_the_service(make: Callable[..., WebSearcher], tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    first = make(cache=folder).search(["red fox", "blue"], 2)
    asked = len(Engine.asked)
    assert make(cache=folder).search(["blue", "red fox"], 2) == first[::-1] and len(Engine.asked) == asked
    replayed = make(cache=folder, replay=True)
    assert replayed.search(["red fox", "blue"], 2) == first
    with pytest.raises(SearchFailed, match="green.*not in .*kept"):
        replayed.search(["green"], 2)
    assert len(Engine.asked) == asked
    # Other fields of the reply are other results.
    make(cache=folder, text="title").search(["blue"], 2)
    assert len(Engine.asked) == asked + 1
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) == 3 and not any(SECRET in path.read_text() for path in files)
    files[0].write_text("[]")
    with pytest.raises(SearchFailed, match="remove the file"):
        for searcher in (make(cache=folder), make(cache=folder, text="title")):
            searcher.search(["red fox", "blue"], 2)


def test_what_was_found_is_not_asked_again_when_another_query_fails(
    make: Callable[..., WebSearcher], serve_here: Callable[[SearchService], str]
) -> None:
    url = serve_here(SearchService(lambda: make(parallel=1)))
    Engine.plan = [(200, {}, {"web": {"results": [{"title": "first"}]}}), (403, {}, "no"), (403, {}, "no")]
    deadline = monotonic() + 30
    while requests.get(f"{url}/ready", timeout=10).status_code != 200 and monotonic() < deadline:
        sleep(0.01)
    reply = requests.post(f"{url}/retrieve", json={"queries": ["one", "two"], "topk": 2}, timeout=30)
    assert (reply.status_code, "answers 403" in reply.json()["detail"]) == (502, True)
    assert [seen["query"] for seen in Engine.asked] == ["one", "two", "two"]
    assert "ready" in requests.get(f"{url}/ready", timeout=10).text


def test_settings_that_do_not_fit(
    make: Callable[..., WebSearcher], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for changes, message in (
        ({"url": "find"}, "--http.url"),
        ({"url": "http://user:pass@x/{query}"}, "password"),
        ({"url": "http://x/"}, "{query}"),
        ({"headers": ()}, "--http.key-variable"),
        ({"key_variable": None}, "--http.key-variable"),
        ({"headers": ("X-Key {key}",)}, "Name: value"),
        ({"body": "{"}, "not JSON"),
        ({"tries": 0}, "--http.tries 0"),
        ({"replay": True}, "--http.cache"),
        ({"key_variable": "NO_SUCH_KEY"}, "NO_SUCH_KEY"),
    ):
        with pytest.raises(BadSetting) as caught:
            make(**changes)
        assert message in str(caught.value)
    monkeypatch.setenv("ENGINE_KEY", SECRET + "\n")
    with pytest.raises(BadSetting, match="ENGINE_KEY") as caught:
        make()
    assert SECRET not in str(caught.value)
    for arguments, message in (
        (("--http.url", "http://x/{query}"), "--backend http"),
        (("--backend", "http"), "--http.url"),
        (("--backend", "http", "--http.url", "http://x/{query}", "--index", "x"), "--index"),
    ):
        done = run_here(capsys, "serve", *arguments)
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr


def test_served_as_any_index(engine: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The environments' client asks this server as it asks any other."""
    from tstar_envs.envs.search_qa.service import HttpSearcher

    monkeypatch.setenv("ENGINE_KEY", SECRET)
    options = [
        "--backend",
        "http",
        "--http.url",
        f"{engine}/find?q={{query}}&n={{topk}}",
        "--http.results",
        "web.results",
    ]
    options += [
        "--http.id",
        "link",
        "--http.text",
        "snippet",
        "--http.headers",
        "X-Key: {key}",
        "--http.key-variable",
        "ENGINE_KEY",
    ]
    with serving(*options, "--http.cache", tmp_path / "kept") as url:
        about = requests.get(f"{url}/info", timeout=10).json()
        assert about["source"].startswith(engine) and SECRET not in json.dumps(about)
        client = HttpSearcher(url)
        rows = client.search(["red fox", "C++"], topk=1)
        assert [(row[0].id, row[0].title, row[0].text) for row in rows] == [
            ("http://x/red", 'All about "red"', "red is a word."),
            ("http://x/C++", 'All about "C++"', "C++ is a word."),
        ]
        assert client.query_key("C++") != client.query_key("C#")
    assert {seen["key"] for seen in Engine.asked} == {SECRET}
