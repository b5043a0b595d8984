"""How a class finds the entry that tells its horizon and rules version."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tstar_envs import EnvEntry, TextEnv, registry
from tstar_envs.registry import registered

ROOT = Path(__file__).resolve().parents[2]


class Room(TextEnv):
    """Registered twice, under two options."""

    def __init__(self, *, level: str = "easy", **options):
        super().__init__(**options)


class Wing(Room):
    """Not registered."""


def entry_of(name: str, horizon: int, level: str | None = None, cls: str = "Room") -> EnvEntry:
    options = {} if level is None else {"level": level}
    return EnvEntry(f"mine/{name}", "own", f"rooms:{cls}", horizon, "6", "", "", options)


EASY, HARD = entry_of("Easy", 20, "easy"), entry_of("Hard", 60, "hard")


@pytest.fixture(autouse=True)
def table(monkeypatch: pytest.MonkeyPatch) -> dict[str, EnvEntry]:
    """A table of two entries; ``rooms`` shows a class that another module defines."""
    rooms = ModuleType("rooms")
    rooms.Room = Room  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "rooms", rooms)
    entries = {EASY.id: EASY, HARD.id: HARD}
    monkeypatch.setattr(registry, "OWN_ENTRIES", entries)
    return entries


def test_the_options_choose_among_the_entries_of_a_class() -> None:
    assert registered(Room, {"level": "hard", "split": "train"}) == HARD
    assert registered(Room, {"level": "easy"}) == EASY
    for options in ({}, {"level": "of one's own"}, {"split": "test"}):
        assert registered(Room, options) == EASY, "the first is the class's own"


def test_a_class_that_no_entry_names_is_played_as_the_one_it_extends(table: dict[str, EnvEntry]) -> None:
    assert registered(Wing, {"level": "hard"}) == HARD
    table["mine/Wing"] = entry_of("Wing", 90, cls="Wing")
    assert registered(Wing, {"level": "hard"}) == HARD, "rooms has no such class"
    sys.modules["rooms"].Wing = Wing  # type: ignore[attr-defined]
    assert registered(Wing, {"level": "hard"}) == table["mine/Wing"] and registered(Room, {}) == EASY
    assert registered(int, {}) is None


def test_horizon_and_rules_version_are_those_of_the_entry_unless_the_class_says_its_own() -> None:
    assert (Room(level="hard").horizon, Room().horizon, Room(horizon=5).horizon) == (60, 20, 5)
    assert Room(level="hard").metadata["rules_version"] == "6" and "rules_version" not in Room.metadata
    own = type("Own", (Room,), {"default_horizon": 7})
    assert (own(level="hard").horizon, own(level="hard").default_horizon) == (7, 7)


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
print({name}().horizon, {name}().metadata["rules_version"])
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
