"""docs/adding_an_engine.md, followed; and what is no engine."""

import importlib
import re
import sys
from pathlib import Path

import pytest

from tstar_envs import UnknownOption
from tstar_train.__main__ import main
from tstar_train.engines import engine_class

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "adding_an_engine.md").read_text()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The page's module in a folder of its own."""
    (tmp_path / "logged.py").write_text(re.search(r"```python\n(.*?)```", PAGE, re.S)[1] + "\nnumber = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "logged", raising=False)
    monkeypatch.chdir(tmp_path)
    importlib.invalidate_caches()
    return tmp_path


def test_the_page_is_read_in_one_sitting():
    assert len(PAGE.splitlines()) <= 60


def test_the_command_of_the_page_samples_with_its_engine(folder):
    (command,) = re.findall(r"^python -m tstar_train (.*?)$", PAGE, re.M)
    small = "--rollout.tasks-per-iteration 1 --rollout.group-size 2 --evaluation.tasks 1 --evaluation.samples 1 --no-tstar"
    assert main(f"{command} {small} --out run --processes 1".split()) == 0
    assert (folder / "run" / "summary.json").is_file()
    replies = (folder / "replies.0.txt").read_text().splitlines()
    assert replies and any("Thought" in line for line in replies)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vlm", "one of local, paged, vllm, vllm-server, or module:Class.*got 'vlm'"),
        ("no_such_module:Logged", "PYTHONPATH"),
        ("logged:Other", "has no attribute 'Other'"),
        ("logged:number", "is a int"),
        ("pathlib:Path", "lacks generate, logprobs, sync, clear_cache, release"),
    ],
)
def test_what_is_no_engine_is_refused_in_a_sentence(folder, name, message):
    with pytest.raises(UnknownOption, match=message):
        engine_class(name)
