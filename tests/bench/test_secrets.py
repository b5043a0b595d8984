"""Nothing secret reaches terminal, record, settings, traceback or page: keys, names and passwords in addresses, fields by their names."""

import base64
import json
import os
import re
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from chat_server import Raw, serving
from linear import require_linear

from tstar_envs import Episode, UnknownOption
from tstar_envs.agents import ModelOptions, load_agent
from tstar_envs.agents.answers import Unreadable, parse_body
from tstar_envs.agents.base import ENDPOINT, EndpointError
from tstar_envs.agents.endpoint import Endpoint
from tstar_envs.evaluation.log import ResultFile
from tstar_envs.redaction import (
    is_secret_name,
    keep_address_secrets,
    keep_argument_secrets,
    keep_environment_secrets,
    keep_named_secret,
    keep_secret,
    redacted,
    redacted_fields,
    redacted_parts,
)

pytest.importorskip("aiohttp")
ROOT = Path(__file__).parents[2]
KEY = "sk-proj-Q8xA71mmTESTKEYz0-_pL44"
MOVE = "Thought: I go.\nAction: Up"
JSON = {"Content-Type": "application/json"}


def everything(folder: Path) -> str:
    """What stands in all files of a folder."""
    return "\n".join(path.read_text(errors="replace") for path in sorted(folder.rglob("*")) if path.is_file())


def evaluate(
    folder: Path, url: str, *more: str, key: str = KEY, **environment: str
) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "tstar_envs",
        "eval",
        "--env",
        "sokoban-easy",
        "--agent",
        "chat",
        "--model",
        "m",
    ]
    command += [
        "--base-url",
        url,
        "--tasks",
        "1",
        "--retries",
        "0",
        "--option",
        "horizon=2",
        "--out",
        "o.jsonl",
        *more,
    ]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "OPENAI_API_KEY": key, **environment}
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    "around", ["{}\r\n", *(pytest.param(around, marks=pytest.mark.slow) for around in ("{}\n", " {}\t"))]
)
def test_a_key_with_white_space_around_it_is_sent_without(tmp_path: Path, around: str) -> None:
    refusal = Raw(400, b'{"error": {"message": "no such model"}}', JSON)
    with serving(lambda body, number: refusal if number else MOVE) as served:
        done = evaluate(tmp_path, served.url, key=around.format(KEY))
    assert len(served.requests) == 2, "a header with a line break could not be sent at all"
    assert "no such model" in done.stdout and KEY not in done.stdout + done.stderr + everything(tmp_path)


@pytest.mark.parametrize(
    "echo",
    [
        pytest.param('{"error": {"message": "Incorrect API key provided: %s"}}', marks=pytest.mark.slow),
        '{"error": {"message": "%s"}}' % ("x" * 280 + "%s"),  # cut inside the key
        pytest.param('{"detail": {"headers": {"authorization": "Bearer %s"}}}', marks=pytest.mark.slow),
        pytest.param("<h1>%s</h1>", marks=pytest.mark.slow),
        '{"error": {"message": "upstream", "metadata": {"raw": "key=%s"}}}',
    ],
)
def test_a_key_that_a_server_echoes_is_nowhere(tmp_path: Path, echo: str) -> None:
    with serving(lambda body, number: Raw(400, (echo % KEY).encode(), JSON)) as served:
        done = evaluate(tmp_path, served.url)
    assert done.returncode == 1 and "HTTP 400" in done.stdout and "***" in done.stdout
    for shown in (done.stdout, done.stderr, everything(tmp_path)):
        assert KEY not in shown and KEY[:14] not in shown


def test_a_key_in_a_models_words_is_in_no_record_and_on_no_page(tmp_path: Path) -> None:
    with serving(lambda body, number: f"Thought: the key is {KEY}.\nAction: Up") as served:
        done = evaluate(tmp_path, served.url)
    assert done.returncode == 0
    # A record of an older version, which holds it.
    record = tmp_path / "o.jsonl"
    record.write_text(record.read_text().replace("the key is ***", f"the key is {KEY}"))
    assert KEY in record.read_text()
    command = [sys.executable, "-m", "tstar_envs", "report", "o.jsonl", "--out", "page.html"]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "OPENAI_API_KEY": KEY}
    made = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=120)
    assert made.returncode == 0, made.stderr
    assert (
        KEY not in (tmp_path / "page.html").read_text()
        and "the key is ***" in (tmp_path / "page.html").read_text()
    )


def test_secrets_of_the_command_line_are_in_no_file(tmp_path: Path) -> None:
    secrets = ("tok", "field-secret-1", "nested-secret-2", "me:hunter2", "hunter2")
    more = ("--request", f"api_token={secrets[0]}", "--request", f"x_api_key={secrets[1]}")
    more += (
        "--request",
        json.dumps({"auth": {"password": secrets[2]}}).join(["headers=", ""]),
        "--request",
        "reasoning_effort=low",
    )
    with serving(lambda body, number: MOVE) as served:
        done = evaluate(tmp_path, served.url.replace("://", f"://{secrets[3]}@"), *more)
        assert done.returncode == 0, done.stderr
        sent = served.requests[0]
        assert (sent["api_token"], sent["x_api_key"], sent["headers"]["auth"]["password"]) == secrets[:3], (
            "they are sent"
        )
        settings = json.loads((tmp_path / "o.jsonl.config.json").read_text())["agent_settings"]["request"]
        assert settings == {
            "api_token": "***",
            "x_api_key": "***",
            "headers": {"auth": "***"},
            "reasoning_effort": "low",
        }
        again = evaluate(tmp_path, served.url, "--request", "api_token=another", *more[2:])
        assert again.returncode == 0 and "resuming" in again.stdout, "another key is no other setting"
    for shown in (done.stdout, done.stderr, everything(tmp_path)):
        for secret in secrets[1:]:
            assert secret not in shown


def test_a_search_service_with_name_and_password(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "tstar_envs",
        "eval",
        "--env",
        "hotpotqa",
        "--agent",
        "oracle",
        "--tasks",
        "1",
        "--out",
        "o.jsonl",
    ]
    command += ["--option", "retriever=http://user:pw@127.0.0.1:9/retrieve?token=abcdef123456"]
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=120)
    files = everything(tmp_path)
    assert "127.0.0.1:9" in done.stdout and "127.0.0.1:9" in files
    for shown in (done.stdout, done.stderr, files):
        assert "user:pw" not in shown and "abcdef123456" not in shown


def test_an_agent_of_ones_own_that_quotes_a_key_of_the_environment(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import os\nclass A:\n    def act(self, observation, info):\n"
        "        raise ValueError('Invalid header value ' + repr('Bearer ' + os.environ['MY_API_KEY']))\n"
    )
    command = [
        sys.executable,
        "-m",
        "tstar_envs",
        "eval",
        "--env",
        "sokoban-easy",
        "--agent",
        "mine:A",
        "--tasks",
        "1",
        "--out",
        "o.jsonl",
    ]
    variables = {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}", "MY_API_KEY": "another-key-77\r\n"}
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=120)
    assert "Invalid header value" in done.stdout
    assert "another-key-77" not in done.stdout + done.stderr + (tmp_path / "o.jsonl").read_text()


def test_no_traceback_of_the_python_interface_quotes_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with serving(
        lambda body, number: Raw(401, f'{{"error": {{"message": "bad key {KEY}"}}}}'.encode(), JSON)
    ) as served:
        endpoint = Endpoint("m", served.url.replace("://", "://name:word-99@"))

        async def ask() -> None:
            try:
                await endpoint.ask([{"role": "user", "content": "x"}], "act", max_tokens=5)
            finally:
                await endpoint.close()

        with pytest.raises(EndpointError) as caught:
            asyncio.run(ask())
    assert "word-99" not in repr(endpoint)
    shown = "".join(traceback.format_exception(caught.value))
    assert "bad key ***" in shown and KEY not in shown and "word-99" not in shown


def test_a_fault_of_our_own_is_shown_without_the_key(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tstar_envs.cli import listing, main

    def broken(command: object, console: object) -> int:
        raise RuntimeError(f"Illegal header value b'Bearer {KEY}'")

    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(listing, "run", broken)
    assert main(["list"]) == 1
    shown = capsys.readouterr().err
    assert "Traceback" in shown and "Bearer ***" in shown and KEY not in shown


@pytest.mark.parametrize("key", ["sk-“curly”-quotes", "sk-a\nsk-b", "sk with blanks", "clé-secrète"])
def test_a_key_that_no_header_can_carry_is_refused_without_saying_it(
    monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(
        UnknownOption, match=r"OPENAI_API_KEY holds U\+[0-9A-F]{4} at position \d+ of \d+"
    ) as caught:
        Endpoint("m", "http://127.0.0.1:9/v1")
    assert key not in str(caught.value)


def test_values_are_replaced_in_every_form_they_are_quoted_in() -> None:
    keep_secret('pa"ss\\word-ä1')
    keep_address_secrets("https://ann:p%40ss-77@host.example/v1?api_key=query-secret&page=2")
    basic = base64.b64encode(b"ann:p@ss-77").decode()
    for form in (
        'pa"ss\\word-ä1',
        repr('pa"ss\\word-ä1'),
        json.dumps('pa"ss\\word-ä1'),
        "p@ss-77",
        "p%40ss-77",
        basic,
        "query-secret",
    ):
        shown = redacted(f"<{form}>")
        assert "***" in shown and "word-" not in shown and "ss-77" not in shown and basic not in shown
    assert redacted("https://ann:p%40ss-77@host.example/v1") == "https://***@host.example/v1"
    assert redacted_parts({"a": ["query-secret", {"query-secret": 1}], "n": 3}) == {
        "a": ["***", {"***": 1}],
        "n": 3,
    }


@pytest.mark.parametrize(
    "secret", ["sk-proj-Q8xA71/mm+TES=KEYz0-_pL44", "abc123", "hunter2x", "Secret~~??>>1"]
)
def test_a_secret_is_found_in_codes_of_octets(secret: str) -> None:
    keep_secret(secret)
    for before in ("", "a", "ab", "user:", "Bearer "):
        for after in ("", "z", ":"):
            code = base64.b64encode(f"{before}{secret}{after}".encode()).decode()
            for form in (code, code.replace("+", "-").replace("/", "_")):
                shown = redacted(form)
                assert "***" in shown and len(shown) - 3 <= len(form) - len(secret), (before, after)
    for form in (
        secret.encode().hex(),
        quote(secret),
        re.sub("%..", lambda escape: escape[0].lower(), quote_plus(secret)),
        secret.replace("/", "\\/"),
        repr(secret.encode()),
    ):
        assert redacted(f"<{form}>").strip("<b'>") == "***", form


@pytest.mark.parametrize(
    "key",
    [
        "sk-ant-api03-abcdefghijklmnopqrst",
        "ghp_abcdefghijklmnopqrstuv123456",
        "github_pat_11ABCDEFG0abcdefghijkl_mnop",
        "hf_abcdefghijklmnopqrstuv",
        "AIzaSyA-1234567890abcdefghijklmnopqrstu",
        "gsk_abcdefghijklmnopqrstuv12",
        "eyJhbGciOi.SecretJwt.abcdef",
        "Bearer opaque-word-17x",
    ],
)
def test_what_has_the_form_of_a_key_is_hidden_though_nobody_said_that_it_is_one(
    tmp_path: Path, key: str
) -> None:
    written = key.removeprefix("Bearer ")
    assert written not in redacted(f"refused: {key!r}")
    ResultFile(tmp_path / "o.jsonl", {"agent_settings": {"note": f"x {key}"}})
    assert written not in everything(tmp_path)
    assert redacted("Bearer responsibilities, a task-1234567890, risk-averse-investors-and-more") == (
        "Bearer responsibilities, a task-1234567890, risk-averse-investors-and-more"
    )


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("PGPASSWORD", "pgSecret123", "pgSecret123"),
        ("OPENAIKEY", "abcSecret1234", "abcSecret1234"),
        ("HFTOKEN", "tokSecret1234", "tokSecret1234"),
        ("MY_PAT", "patSecret1234", "patSecret1234"),
        ("DATABASE_URL", "postgres://u:dbSecret99@h/db", "dbSecret99"),
        ("BLOB", "https://h/c?sv=1&sig=sigSecret99", "sigSecret99"),
        ("SOME_KEY", '"quotedSecret9"', "quotedSecret9"),
    ],
)
def test_variables_of_other_names(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, secret: str
) -> None:
    monkeypatch.setenv(name, value)
    monkeypatch.setenv("REMOTE", "ssh://developer@host/x")
    keep_environment_secrets()
    assert secret not in redacted(f"bad {secret}") and redacted("a developer") == "a developer"


def test_an_agents_own_settings_and_a_cut_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(
        "class A:\n    settings = {'api_key': 'setting-secret-9', 'model': 'x'}\n"
        "    def act(self, observation, info):\n        raise ValueError('wrong setting-secret-9')\n"
    )
    command = [sys.executable, "-m", "tstar_envs", "eval", "--env", "sokoban-easy", "--agent", "mine:A"]
    command += ["--tasks", "1", "--out", "o.jsonl"]
    variables = {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=120)
    written = "".join(path.read_text() for path in tmp_path.glob("o.jsonl*"))
    assert "wrong ***" in done.stdout and "setting-secret-9" not in done.stdout + done.stderr + written
    assert json.loads((tmp_path / "o.jsonl.config.json").read_text())["agent_settings"] == {
        "api_key": "***",
        "model": "x",
    }
    keep_secret(KEY)
    for after in range(150, 200, 3):  # a message that quotes the end begins inside the key
        chunk = 'data: {"choices": [{"delta": {"content": "%s"}}]}\n\n' % (KEY + "y" * after)
        with pytest.raises(Unreadable) as caught:
            parse_body(chunk.encode(), True)
        assert KEY[-6:] not in str(caught.value)


def test_what_is_no_secret_stays() -> None:
    for word in ("none", "EMPTY", "key", "1234"):
        keep_secret(word)
        assert redacted(f"{word} of them") == f"{word} of them"
    for name in ("max_tokens", "monkey", "keyboard", "tokens", "hockey_team", "author"):
        assert not is_secret_name(name)
    for name in (
        "api_key",
        "X-Api-Key",
        "apiKey",
        "accessToken",
        "Authorization",
        "MY_PASSWORD",
        "client-secret",
        "Proxy-Authorization",
    ):
        assert is_secret_name(name)
    fields = {"max_tokens": 5, "reasoning": {"effort": "low"}, "temperature": None, "token": None}
    assert redacted_fields(fields) == fields


@pytest.mark.parametrize(
    "argument",
    [
        "api_key=arg-secret-1",
        "command:node a.js --api-key arg-secret-1 --fast",
        "command:curl -H 'Authorization: Bearer arg-secret-1' x",
        '{"password": "arg-secret-1"}',
        "extra_body={'access_token': 'arg-secret-1'}",
        "retriever=http://arg-secret-1@host/",
        "a:b=c;secret=arg-secret-1",
    ],
)
def test_secrets_are_found_in_arguments(argument: str) -> None:
    keep_argument_secrets(["eval", "--agent", argument])
    assert "arg-secret-1" not in redacted(f"unknown agent {argument!r}")


@pytest.mark.parametrize("sign", ["a", "-", " ", "=", ":", "a ", "a=", "--a ", "a://", "://@", "api_key="])
def test_finding_secrets_takes_time_in_proportion_to_the_text(sign: str) -> None:
    def find(text: str) -> None:
        keep_argument_secrets([text])
        keep_named_secret("x", text)

    require_linear(find, sign, 8_000)


def test_settings_of_an_older_version_that_hold_a_key_are_still_compared(tmp_path: Path) -> None:
    old = {"agent": "chat", "agent_settings": {"request": {"user": "old-secret-123"}}}
    ResultFile(tmp_path / "o.jsonl", old)
    assert "old-secret-123" in (tmp_path / "o.jsonl.config.json").read_text(), (
        "nobody has said that it is one"
    )
    keep_secret("old-secret-123")
    ResultFile(tmp_path / "o.jsonl", old)
    with pytest.raises(UnknownOption) as caught:
        ResultFile(tmp_path / "o.jsonl", {**old, "agent_settings": {"request": {"user": "other"}}})
    assert "old-secret-123" not in str(caught.value) and "agent_settings.request.user" in str(caught.value)


def play_record(**fields: Any) -> Episode:
    return Episode("e", "mini", "t", "test", "1", "a", "", "", **fields)


def test_records_hide_what_is_known(tmp_path: Path) -> None:
    keep_secret("record-secret-5")
    line = play_record(error="EndpointError: record-secret-5", ended="error", failure=ENDPOINT).to_json()
    assert "record-secret-5" not in line and Episode.from_json(line).error == "EndpointError: ***"
    assert (
        load_agent("chat", env_id="x", seed=0, model=ModelOptions("m", "http://127.0.0.1:9/v1")) is not None
    )
