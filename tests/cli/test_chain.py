"""The commands of docs/chain.md in their order: imitation, RL, best weights, evaluation, comparison, page."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym
import pytest

from tstar_envs import EpisodeLog, registry
from tstar_envs.cli import main as envs
from tstar_train.__main__ import main as train

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/chain.md").read_text(encoding="utf-8")


def commands(heading: str) -> list[list[str]]:
    """The words of each command below a heading of the page."""
    (part,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
    lines = "\n".join(re.findall(r"```bash\n(.*?)```", part, re.S)).replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True)) and words[0] == "python"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working folder, with examples/ on the path as the page says."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.syspath_prepend(ROOT / "scripts")
    yield tmp_path
    sys.modules.pop("own_environment", None)
    registry.OWN_ENTRIES.pop("mine/Guess", None)
    gym.registry.pop("mine/Guess", None)


def run(words: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """A command in this process: an import of torch takes longer than most of them."""
    if words[1] == "-m":
        return {"tstar_train": train, "tstar_envs": envs}[words[2]](words[3:])
    monkeypatch.setattr(sys, "argv", words[1:])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / words[1]), run_name="__main__")
    return int(ended.value.code or 0)


def kind(words: list[str]) -> str:
    """The step of the chain that a command is."""
    if words[1] != "-m":
        return "make"
    return words[3] if not words[3].startswith("-") else "rl"


def chain(heading: str, shorter: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run the commands below a heading, each with further options; the last of an option counts."""
    done = []
    for words in commands(heading):
        done.append(kind(words))
        assert run([*words, *shorter.get(done[-1], "").split()], monkeypatch) == 0, words
    return done


RL = (
    "--iterations 1 --rollout.tasks-per-iteration 2 --rollout.group-size 2 --processes 1 --evaluation.tasks 2 "
    "--evaluation.validate-every 1 --evaluation.validation-tasks 2 --evaluation.samples 1 --evaluation.no-greedy"
)
SHORT = {"rl": f"{RL} --env-option horizon=2", "eval": "--tasks 2 --samples 1 --option horizon=2"}


def check_results(runs: Path) -> None:
    """There are best weights chosen by validation, two records that can be compared, and a page."""
    assert json.loads((runs / "rl" / "summary.json").read_text())["chosen_iteration"] in (0, 1)
    assert (runs / "rl" / "best" / "model.safetensors").is_file()
    assert len(EpisodeLog.read(runs / "start.jsonl")) == len(EpisodeLog.read(runs / "best.jsonl")) > 0
    assert "<html" in (runs / "page.html").read_text(encoding="utf-8")[:1000].lower()


def test_the_chain_for_a_built_in_policy(folder, monkeypatch, capsys):
    (folder / "few.toml").write_text('extends = "sokoban"\n[tokenizer]\nrows = 100\n')
    shorter = {**SHORT, "warmstart": "--steps 2 --recipe few.toml"}
    done = chain("A built-in policy", shorter, monkeypatch)
    assert done == ["warmstart", "rl", "eval", "eval", "compare", "report"]
    check_results(folder / "runs" / "built-in")


@pytest.mark.slow
def test_the_chain_for_a_hugging_face_model_learns(folder, monkeypatch, capsys):
    """Imitation as the page has it, which takes a minute; the rest is shortened."""
    done = chain("A Hugging Face model", {"rl": RL, "eval": "--tasks 20"}, monkeypatch)
    assert done == ["make", "warmstart", "rl", "eval", "eval", "compare", "report"]
    check_results(folder / "runs" / "hf")
    assert EpisodeLog.read(folder / "runs" / "hf" / "start.jsonl").success > 0.2


def test_the_chain_for_a_hugging_face_model(folder, monkeypatch, capsys):
    shorter = {**SHORT, "warmstart": "--steps 2"}
    done = chain("A Hugging Face model", shorter, monkeypatch)
    assert done == ["make", "warmstart", "rl", "eval", "eval", "compare", "report"]
    check_results(folder / "runs" / "hf")
