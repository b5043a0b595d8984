"""Environment options as they are typed: ``topk=1`` becomes ``{"topk": 1}``, checked and typed by the class."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tstar_envs.errors import UnknownOption
from tstar_envs.registry import EnvEntry

_BOOLS = {"true": True, "false": False}
_READERS: dict[str, Callable[[str], Any]] = {
    "bool": lambda text: _BOOLS[text.lower()], "int": int, "float": float, "str": str, "os.PathLike[str]": str
}  # fmt: skip


def parse_options(entry: EnvEntry, pairs: Iterable[str], elsewhere: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Read ``key=value`` pairs as options of an environment.

    Args:
        entry: whose options.
        pairs: as typed; of several for one key the last counts.
        elsewhere: options that the command has its own name for, for example ``{"split": "--split"}``.

    Raises:
        UnknownOption: not a pair, no such option (the valid ones are listed), or a value of another type.
    """
    elsewhere = elsewhere or {}
    types = {
        name: annotation.split(" | ")
        for name, annotation in entry.load_class().option_types().items()
        # Objects cannot be typed in, what makes the id is fixed, and render_mode belongs to the command.
        if set(annotation.split(" | ")) <= {*_READERS, "None"} and name not in {*entry.kwargs, *elsewhere, "render_mode"}
    }
    options: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UnknownOption(f"an option is written key=value, got {pair!r}; {entry.id} has: {', '.join(sorted(types))}")
        if name in elsewhere:
            raise UnknownOption(f"{name} is no option of its own here: use {elsewhere[name]} {value}")
        if name not in types:
            raise UnknownOption(f"{entry.id} has no option {name!r}; valid: {', '.join(sorted(types))}")
        options[name] = _read(name, value, types[name])
    return options


def _read(name: str, value: str, types: list[str]) -> Any:
    if value.lower() == "none" and "None" in types:
        return None
    for type_ in (t for t in _READERS if t in types):
        try:
            return _READERS[type_](value)
        except (ValueError, KeyError):
            continue
    raise UnknownOption(f"option {name} must be {' or '.join(types)}, got {value!r}")
