"""``serve`` where OpenEnv is not installed, as in most places; tests/adapters/openenv is about where it is."""

from __future__ import annotations

import socket
import sys
from functools import partial
from pathlib import Path

import pytest
from cli_process import Call, call_main

from tstar_envs.errors import MissingExtra, install


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    monkeypatch.chdir(tmp_path)
    # An import of what is None here fails as that of a package that is not installed does.
    monkeypatch.setitem(sys.modules, "openenv", None)
    for name in ("tstar_envs.adapters.openenv", "tstar_envs.adapters.openenv"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return partial(call_main, capsys)


def test_the_extra_is_named_with_the_command_that_installs_it(call: Call):
    code, out, error = call("serve", "--env", "sokoban-easy", "--port", "0")
    assert code == 2 and out == "" and len(error.splitlines()) == 1
    assert "the OpenEnv server needs the package 'openenv" in error and install("openenv") in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--env", "sokobn-easy"], "unknown environment 'sokobn-easy'; did you mean sokoban-easy?"),
        (["--env", "sokoban-easy", "--option", "horizn=3"], "tstar/Sokoban-easy has no option 'horizn'"),
        (["--env", "sokoban-easy", "--option", "split=train"], "use --split train"),
        (["--env", "sokoban-easy", "--port", "70000"], "--port must be from 0 to 65535, got 70000"),
        (
            ["--env", "sokoban-easy", "--host", "no.such.host.invalid"],
            "cannot listen on no.such.host.invalid port 8000",
        ),
        (["--env", "sokoban-easy", "--prt", "1"], "'--prt' is not an option"),
    ],
)
def test_what_is_mistyped_is_reported_in_a_line(call: Call, arguments: list[str], message: str):
    code, out, error = call("serve", *arguments)
    assert code == 2 and out == "" and message in error


def test_a_port_that_is_taken_is_reported(call: Call):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, out, error = call("serve", "--env", "sokoban-easy", "--port", str(port))
    assert code == 2 and out == ""
    assert (
        f"cannot listen on 127.0.0.1 port {port}: Address already in use; choose another --port or --host"
        in error
    )


def test_the_adapter_itself_says_what_it_lacks(call: Call):
    with pytest.raises(MissingExtra, match="openenv"):
        import tstar_envs.adapters.openenv  # noqa: F401
