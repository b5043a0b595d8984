"""Nothing secret reaches a run's terminal, files or pages; what is secret in its options is given again to go on."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from service_process import ServiceProcess
from train_process import run

from scripts.studies.small_models import save_small
from tstar_envs.redaction import HIDDEN, without_secrets
from tstar_train.config import Config

PASSWORD = "pw-4f9a/b c"
SMALL = (
    *("--env", "hotpotqa", "--rollout.tasks-per-iteration", 2, "--rollout.group-size", 2),
    *("--evaluation.tasks", 2, "--evaluation.samples", 1, "--rollout.horizon", 1),
    *("--rollout.max-tokens", 8, "--evaluation.validate-every", 0),
)

# Its step quotes the key that it was given, as clients of services do.
TELLTALE = """
import tstar_envs
from tstar_envs.envs.sokoban.env import SokobanEnv

class Telltale(SokobanEnv):
    def __init__(self, *, api_key: str = "", **options):
        super().__init__(**options)
        self.api_key = api_key

    def step(self, reply):
        raise ValueError(f"401 for Authorization: Bearer {self.api_key}")

tstar_envs.register(
    tstar_envs.EnvEntry("mine/Telltale", "telltale", "telltale:Telltale", horizon=9, rules_version="1", extra="", summary="quotes a key")
)
"""


def secrets_in(folder: Path) -> list[str]:
    """Files that hold the password in some form."""
    forms = [PASSWORD.encode(), quote(PASSWORD, safe="").encode(), b"sk-live"]
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return [str(path) for path in files if any(form in path.read_bytes() for form in forms)]


def test_a_password_in_an_address_is_nowhere_and_is_given_again(tmp_path: Path) -> None:
    out = tmp_path / "run"
    service = ServiceProcess()
    try:
        address = service.url.replace("://", f"://me:{quote(PASSWORD, safe='')}@")
        shown = service.url.replace("://", f"://{HIDDEN}@")
        run(
            tmp_path,
            *(*SMALL, "--processes", 1, "--iterations", 1, "--out", out),
            *("--env-option", f"retriever={address}"),
            *("--training-option", "topk=2", "--training-option", f"retriever={address}"),
        )
        assert secrets_in(tmp_path) == []
        stored = json.loads((out / "config.json").read_text())
        assert stored["env_options"]["retriever"] == shown
        assert stored["training_options"] == {"topk": 2, "retriever": shown}

        more = ("--resume", out, "--iterations", 2)
        refused = run(tmp_path, *more, check=False)
        assert refused.returncode == 2 and "give them again" in refused.stderr
        asked = shlex.split(refused.stderr.partition(f"--resume {out} ")[2])
        assert asked == [
            *("--env-option", f"retriever={shown}"),
            *("--training-option", f"retriever={shown}"),
        ]
        other = run(tmp_path, *more, "--env-option", "retriever=http://me:other@127.0.0.1:9", check=False)
        assert other.returncode == 2 and "takes no others" in other.stderr and "me:other" not in other.stderr
        run(tmp_path, *more, *(word.replace(shown, address) for word in asked))
        assert json.loads((out / "summary.json").read_text())["iterations"] == 2

        service.kill()
        down = run(
            tmp_path,
            *("--resume", out, "--iterations", 3, *(word.replace(shown, address) for word in asked)),
            check=False,
        )
        assert down.returncode == 2 and "is saved in" in down.stderr, down.stderr
        again = shlex.split(down.stderr.partition("go on with: ")[2])
        assert again[-len(asked) :] == asked
        assert secrets_in(tmp_path) == []
    finally:
        service.kill()


@pytest.mark.parametrize("processes", [1, 2])
def test_a_key_that_an_environment_quotes_is_not_shown(
    processes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the sentence that it ends in, in records, and in what a helper process prints."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "telltale.py").write_text(TELLTALE)
    monkeypatch.syspath_prepend(tmp_path / "own")
    save_small("qwen2", tmp_path / "model")
    out = tmp_path / "run"
    done = run(
        tmp_path,
        *("--env", "telltale:mine/Telltale", *SMALL[2:], "--processes", processes, "--iterations", 1),
        *("--model", tmp_path / "model", "--env-option", "api_key=sk-live-0123456789", "--out", out),
        check=False,
        environment={"PYTHONPATH": str(tmp_path / "own")},
    )
    assert done.returncode == 2 and f"Bearer {HIDDEN}" in done.stderr, done.stderr
    assert secrets_in(tmp_path) == []


@given(
    who=st.text(
        st.characters(exclude_categories=["Cs", "Cc", "Z"], exclude_characters="/?#@[]\\\"'<>"), min_size=8
    ),
    name=st.sampled_from(["api_key", "token", "X-Auth-Token", "password"]),
)
def test_options_are_the_same_without_any_secret(who: str, name: str) -> None:
    one = {
        "retriever": f"http://{who}@host:8000/x?{name}={quote(who)}",
        name: who,
        "topk": 3,
        "deep": [{name: [who]}],
    }
    hidden = without_secrets(one)
    assert hidden == {
        "retriever": f"http://{HIDDEN}@host:8000/x?{name}={HIDDEN}",
        name: HIDDEN,
        "topk": 3,
        "deep": [{name: [HIDDEN]}],
    }
    assert without_secrets(hidden) == hidden
    plain = {"state_key": "region", "token": 5, "data": "mini", "key": None}
    assert without_secrets(plain) == plain
    assert Config(env="hotpotqa", env_options=one).record()["env_options"] == hidden
