"""The original engine: TextWorld under ALFWorld's wrappers, one game at a time, with everything it overwrites put back.

Its translator from PDDL replaces ``sys.argv`` for good and ``sys.stdout`` while it works, and importing ``alfworld`` makes a
folder and sets ``$ALFWORLD_DATA``. It is not safe to run in several threads at once; several games in one process may take turns.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tstar_envs.envs.alfworld.state import Answer
from tstar_envs.errors import MissingExtra

FEATURE = "backend='textworld'"


@contextmanager
def _kept_as_it_is() -> Iterator[None]:
    """Puts back what the engine overwrites."""
    argv, stdout, data = sys.argv, sys.stdout, os.environ.get("ALFWORLD_DATA")
    try:
        if data is None:  # otherwise the import makes a folder in the home folder
            os.environ["ALFWORLD_DATA"] = tempfile.gettempdir()
        yield
    finally:
        sys.argv, sys.stdout = argv, stdout
        if data is None:
            os.environ.pop("ALFWORLD_DATA", None)


def alfworld_file(name: str, feature: str) -> str:
    """A text file of the installed package ``alfworld`` (which is not imported for it), such as ``data/alfred.pddl``.

    Raises:
        MissingExtra: the package is not installed.
    """
    spec = find_spec("alfworld")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtra(feature, "alfworld", "alfworld")
    return (Path(next(iter(spec.submodule_search_locations))) / name).read_text(encoding="utf-8")


class TextWorldGame:
    """A game in the original engine.

    Args:
        data: contents of a ``game.tw-pddl`` file.

    Raises:
        MissingExtra: ``textworld`` or ``alfworld`` is not installed.
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        for package in ("textworld", "fast_downward", "alfworld"):
            if find_spec(package) is None:
                raise MissingExtra(FEATURE, package, "alfworld")
        with _kept_as_it_is(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # theirs, on import
            from alfworld.agents.environment.alfred_tw_env import AlfredDemangler, AlfredInfos
            from textworld.core import EnvInfos
            from textworld.envs.pddl import PddlEnv

            infos = EnvInfos(won=True, admissible_commands=True, extras=["gamefile"])
            self._env: Any = AlfredInfos(AlfredDemangler(PddlEnv(infos), shuffle=False))
            self._env.load(dict(data))

    def reset(self) -> Answer:
        """Start the game."""
        with _kept_as_it_is():
            return _answer(self._env.reset())

    def step(self, command: str) -> Answer:
        """Give a command; it may go on after the game is won."""
        state, _, _ = self._env.step(command)
        return _answer(state)


def _answer(state: Any) -> Answer:
    return Answer(str(state["feedback"]), tuple(map(str, state["admissible_commands"])), bool(state["won"]))
