"""Environment options as they are typed: ``topk=1`` becomes ``{"topk": 1}``, checked and typed by the class."""

from __future__ import annotations

import os
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Union, get_args, get_origin

from tstar_envs.errors import UnknownOption
from tstar_envs.registry import EnvEntry

_BOOLS = {"true": True, "false": False}
_READERS: dict[Any, Callable[[str], Any]] = {
    bool: lambda text: _BOOLS[text.lower()],
    int: int,
    float: float,
    str: str,
    os.PathLike[str]: str,
}


def parse_options(
    entry: EnvEntry, pairs: Iterable[str], elsewhere: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Read ``key=value`` pairs as options of an environment.

    Args:
        entry: whose options.
        pairs: as typed; of several for one key the last counts.
        elsewhere: options that the command has its own name for, for example ``{"split": "--split"}``.

    Raises:
        UnknownOption: not a pair, no such option (the valid ones are listed), or a value of another type.
    """
    elsewhere = elsewhere or {}
    typed = {
        name: _members(annotation)
        for name, annotation in entry.load_class().option_types().items()
        # Objects cannot be typed in, what makes the id is fixed, and render_mode belongs to the command.
        if set(_members(annotation)) <= {*_READERS, types.NoneType}
        and name not in {*entry.kwargs, *elsewhere, "render_mode"}
    }
    options: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UnknownOption(
                f"an option is written key=value, got {pair!r}; {entry.id} has: {', '.join(sorted(typed))}"
            )
        if name in elsewhere:
            raise UnknownOption(f"{name} is no option of its own here: use {elsewhere[name]} {value}")
        if name not in typed:
            raise UnknownOption(f"{entry.id} has no option {name!r}; valid: {', '.join(sorted(typed))}")
        options[name] = _read(name, value, typed[name])
    return options


def _members(annotation: Any) -> tuple[Any, ...]:
    """The types of a union, or the one type."""
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def _read(name: str, value: str, members: tuple[Any, ...]) -> Any:
    if value.lower() == "none" and types.NoneType in members:
        return None
    for type_ in (t for t in _READERS if t in members):
        try:
            return _READERS[type_](value)
        except (ValueError, KeyError):
            continue
    said = {
        types.NoneType: "none",
        os.PathLike[str]: "a path",
        bool: "true or false",
        int: "a whole number",
        float: "a number",
    }
    words = [said.get(type_) or type_.__name__ for type_ in members]
    raise UnknownOption(f"option {name} must be {' or '.join(words)}, got {value!r}")


def refuse_repeats(arguments: Sequence[str], names: Collection[str]) -> None:
    """Refuse an option that is given twice, of which the last value would count and the other be lost without a word.

    Args:
        arguments: of a command line.
        names: the options that are looked for, as ``--env``.

    Raises:
        UnknownOption: one is there twice; the message shows both values.
    """
    seen: dict[str, str] = {}
    for place, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        name = name.replace("_", "-")
        if name not in names:
            continue
        value = value if equals else " ".join(arguments[place + 1 : place + 2])
        if name in seen:
            raise UnknownOption(f"{name} is given twice, {seen[name]!r:.60} and {value!r:.60}: give it once")
        seen[name] = value
