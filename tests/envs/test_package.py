"""The package itself: light to import, its table, its spaces and its errors."""

import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import gymnasium as gym
import pytest

from tstar_envs import (
    MissingExtra,
    TStarError,
    Unicode,
    UnknownOption,
    UnknownTask,
    find_entry,
    list_envs,
    register_all,
)

ROOT = Path(__file__).resolve().parents[2]
HEAVY = (
    "torch",
    "faiss",
    "transformers",
    "aiohttp",
    "openai",
    "requests",
    "bm25s",
    "retriever",
    "tstar_train",
)


@pytest.mark.parametrize("statement", ["import tstar_envs", "import tstar_envs.__main__"])
def test_imports_nothing_heavy(statement: str) -> None:
    code = f"import sys; {statement}; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_find_entry() -> None:
    for entry in list_envs():
        for name in (entry.id, entry.name, entry.name.upper(), f"tstar_envs:{entry.id}", entry.id.lower()):
            assert find_entry(name) == entry
    with pytest.raises(UnknownOption, match="hotpotqa"):
        find_entry("tstar/HotpotQ")


def test_registering_twice_is_silent() -> None:
    before = dict(gym.registry)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        register_all()
    assert gym.registry == before
    assert all(gym.spec(entry.id).to_json() for entry in list_envs())


def test_space() -> None:
    space = Unicode(5, min_length=1, seed=0)
    assert "\ud800\n" in space and "" not in space and "123456" not in space and 3 not in space
    assert all(space.sample() in space for _ in range(200))
    assert Unicode(5, 1) == space == pickle.loads(pickle.dumps(space)) != Unicode(6, 1)
    assert "max_length=5" in repr(space)
    assert Unicode(100, min_length=50, seed=1).sample() in Unicode(100, min_length=50)
    with pytest.raises(ValueError, match="min_length"):
        Unicode(3, min_length=4)


def test_errors_travel_between_processes() -> None:
    for error in (MissingExtra("a part", "torch", "train"), UnknownTask("no task 'x'"), UnknownOption("bad")):
        twin = pickle.loads(pickle.dumps(error))
        assert type(twin) is type(error) and str(twin) == str(error) and isinstance(twin, TStarError)
    assert "pip install -c constraints.txt -e '.[train]'" in str(MissingExtra("a part", "torch", "train"))
    assert str(UnknownTask("no task 'x'")) == "no task 'x'"
