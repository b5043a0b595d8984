"""How a class finds the entry that tells its horizon and rules version."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tstar_envs import declared
from tstar_envs.declared import UNREGISTERED, Declared, declare, declared_of, from_registry

ROOT = Path(__file__).resolve().parents[2]
EASY, HARD = (
    Declared("rooms:Room", {"level": "easy"}, 20, "6"),
    Declared("rooms:Room", {"level": "hard"}, 60, "6"),
)


class Room:
    default_horizon = from_registry(lambda entry: entry.horizon)

    def __init__(self, **options: object) -> None:
        self._made_with = options


class Wing(Room):
    """Not registered."""


@pytest.fixture(autouse=True)
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of two entries; ``rooms`` shows a class that another module defines."""
    rooms = ModuleType("rooms")
    rooms.Room = Room  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "rooms", rooms)
    monkeypatch.setattr(declared, "DECLARED", {})
    declare("mine/Easy", EASY)
    declare("mine/Hard", HARD)


def test_the_options_choose_among_the_entries_of_a_class() -> None:
    assert declared_of(Room, {"level": "hard", "split": "train"}) == HARD
    assert declared_of(Room, {"level": "easy"}) == EASY
    for options in ({}, {"level": "of one's own"}, {"split": "test"}):
        assert declared_of(Room, options) == EASY, "the first is the class's own"


def test_a_class_that_no_entry_names_is_played_as_the_one_it_extends() -> None:
    assert declared_of(Wing, {"level": "hard"}) == HARD
    declare("mine/Wing", Declared("rooms:Wing", {}, 90, "1"))
    assert declared_of(Wing, {"level": "hard"}) == HARD, "rooms has no such class"
    sys.modules["rooms"].Wing = Wing  # type: ignore[attr-defined]
    assert declared_of(Wing, {"level": "hard"}).horizon == 90 and declared_of(Room, {}) == EASY
    assert declared_of(int, {}) == UNREGISTERED


def test_attributes_are_those_of_the_entry_until_others_are_assigned() -> None:
    room = Room(level="hard")
    assert (Room.default_horizon, room.default_horizon) == (20, 60)
    declare("mine/Hard", HARD._replace(horizon=70))
    assert room.default_horizon == 70
    room.default_horizon = 5
    assert (room.default_horizon, Room(level="hard").default_horizon) == (5, 70)


# A class may be made before its module is registered under that name: when the module is run as a script.
SCRIPT = """
import {module}
from tstar_envs import EnvEntry, TextEnv, register

class {name}(TextEnv):
    def task_ids(self, split=None): return ["a"]
    def _load_task(self, task_id): return 0, "test"
    def _start(self, task): return 0, "begin"
    def _apply(self, task, state, action): raise NotImplementedError
    def _instruction(self, task): return "win"
    def _state_fingerprint(self, task, state): return ""
    def prompt(self, style=None): return f"{{self.horizon}} steps"

register(EnvEntry("mine/{name}", "own", "own_rooms:{name}", 31, "8", "", ""))
print({name}().horizon, {name}.metadata["rules_version"])
"""


@pytest.mark.parametrize("name", ["Room", "SokobanEnv"])
@pytest.mark.parametrize("started", [("own_rooms.py",), ("-c", "import own_rooms")], ids=["script", "module"])
def test_a_module_that_registers_its_own(started: tuple[str, ...], name: str, tmp_path: Path) -> None:
    text = SCRIPT.format(
        name=name, module="tstar_envs.envs.sokoban.env"
    )  # whose class may have the same name
    (tmp_path / "own_rooms.py").write_text(text)
    done = subprocess.run(
        [sys.executable, *started],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "31 8\n", done.stderr
