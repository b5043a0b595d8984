"""What the registry's entries say of an environment's class, for the class to read.

The registry imports the classes' base, so a class cannot import the registry: the registry declares each entry here instead, and an
environment looks up its own. No value is written in this module but what holds of a class that no entry names.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple


class Declared(NamedTuple):
    """What is read of an entry; ``tstar_envs.EnvEntry`` says what each means."""

    entry_point: str
    kwargs: Mapping[str, Any]
    horizon: int
    rules_version: str


UNREGISTERED = Declared("", {}, horizon=20, rules_version="1")
DECLARED: dict[str, Declared] = {}  # by id, in the order of the registry


def declare(env_id: str, declared: Declared) -> None:
    """Make known what the entry of an id says."""
    DECLARED[env_id] = declared


def declared_of(cls: type, options: Mapping[str, Any]) -> Declared:
    """What holds of an environment, however it is made: by its id, or from its class.

    Args:
        cls: its class; one that no entry names is played as the class that it extends.
        options: that it is made with. Of several entries of a class that one counts whose ``kwargs`` are among them, else the first.
    """
    for base in cls.__mro__:
        those = [declared for declared in DECLARED.values() if _names(declared.entry_point, base)]
        for declared in those:
            if all(name in options and options[name] == value for name, value in declared.kwargs.items()):
                return declared
        if those:
            return those[0]
    return UNREGISTERED


def _names(entry_point: str, cls: type) -> bool:
    """Whether an entry point leads to a class, by whatever module; none is imported to find out."""
    module, _, name = entry_point.partition(":")
    if cls.__module__ == "__main__" and cls.__name__ == name:  # the module that registers it, run as a script
        script = getattr(sys.modules["__main__"], "__file__", None) or ""
        return Path(script).stem == module.rpartition(".")[2] or module == "__main__"
    return getattr(sys.modules.get(module), name, None) is cls


class _FromRegistry:
    """An attribute that is looked up in the registry each time: entries may come after the class. An assigned value hides it."""

    def __init__(self, read: Callable[[Declared], Any]) -> None:
        self._read = read

    def __get__(self, env: object | None, cls: type) -> Any:
        return self._read(declared_of(cls, getattr(env, "_made_with", {})))


def from_registry(read: Callable[[Declared], Any]) -> Any:
    """An attribute of an environment, and of its class, whose value is read from its entry.

    Args:
        read: the value, from what the entry says.
    """
    return _FromRegistry(read)
