"""Recipes from TOML: what is wrong with a file is one error that names the file, the key and what is valid."""

from __future__ import annotations

import dataclasses
import difflib
import math
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

from tstar_envs import BadData, MissingData, UnknownOption, find_entry
from tstar_train.config_check import check, expected, is_a
from tstar_train.ranges import range_of
from tstar_train.recipes.recipe import Recipe

# Options of a run that [train] does not take, and who says them.
_ELSEWHERE = {
    "train.env": "plays in [env] names the environments",
    "train.model": "the user names it (--model)",
    "train.env_options": "write options in [env], by which warm start and agent go too",
    "train.rollout.context": "write context in [env], by which warm start and agent go too",
    "train.rollout.history": "write history in [env], by which warm start and agent go too",
    "train.rollout.max_tokens": "write max_tokens in [env], by which warm start and agent go too",
}


class _Place(NamedTuple):
    """Where in a file a value stands: the dotted name of its key."""

    path: Path
    name: str = ""

    def at(self, key: str) -> _Place:
        return _Place(self.path, f"{self.name}.{key}" if self.name else key)

    def wrong(self, what: str) -> BadData:
        return BadData(f"{self.path}: {self.name}{' ' if self.name else ''}{what}")


def policy_names(folder: Path) -> list[str]:
    """The policies that a folder has recipes of, in alphabetical order."""
    return sorted(path.stem for path in folder.glob("*.toml") if not path.name.startswith("_"))


def read_recipe(path: Path) -> Recipe:
    """Read a recipe, with what it extends.

    Raises:
        MissingData: no such file.
        BadData: it cannot be used, or what it extends cannot.
    """
    place = _Place(path)
    values = {"name": path.stem, **_values_of(path, ())}
    if "train" in values:
        values["train"]["env"] = ""  # the user says it
    recipe: Recipe = _built(Recipe, values, place)
    start = recipe.warm_start.begins_with
    if start and start not in policy_names(path.parent):
        raise place.at("warm_start.begins_with").wrong(
            f"names no policy: {_guess(start, policy_names(path.parent))}"
        )
    if not recipe.warm_start.stages:
        raise place.at("warm_start.stages").wrong("is empty: give one [[warm_start.stages]] or more")
    for name, environments in (("env.plays", recipe.env.plays), ("warm_start.mix", recipe.warm_start.mix)):
        for env in environments:
            try:
                find_entry(env)
            except UnknownOption as error:
                raise place.at(name).wrong(f"names no environment: {error}") from error
    try:
        check(recipe.train)
    except UnknownOption as error:
        raise place.at("train").wrong(f"is not valid: {error}") from error
    return recipe


def _values_of(path: Path, above: tuple[Path, ...]) -> dict[str, Any]:
    """Checked values of a file on top of those that it extends, tables as mappings."""
    table = _toml(path)
    base = table.pop("extends", None)
    own = _checked(Recipe, table, _Place(path))
    if base is None:
        return own
    place, names = (
        _Place(path, "extends"),
        sorted(file.stem for file in path.parent.glob("*.toml") if file != path),
    )
    if base not in names:
        raise place.wrong(f"names no other recipe in its folder: {_guess(base, names)}")
    below = path.with_name(f"{base}.toml")
    if below in above:
        raise place.wrong(
            f"goes round in a circle: {' extends '.join(p.stem for p in (*above, path, below))}"
        )
    return _merged(Recipe, _values_of(below, (*above, path)), own)


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise MissingData(f"no recipe {path}: {_guess(path.stem, policy_names(path.parent))}") from error
    except UnicodeDecodeError as error:
        raise BadData(f"{path}: is not UTF-8 ({error}): write it in that encoding") from error
    except tomllib.TOMLDecodeError as error:
        raise BadData(f"{path}: is not TOML: {error}") from error


def _checked(table_type: Any, given: Any, place: _Place) -> dict[str, Any]:
    """The values of a table by key, those of the tables in it by table."""
    if not isinstance(given, dict):
        raise place.wrong(f"must be a table, got {given!r:.100}")
    hints = get_type_hints(table_type, include_extras=True)  # ranges
    if table_type is Recipe:
        del hints["name"]  # the file's
    valid = [key for key in hints if place.at(key).name not in _ELSEWHERE]
    for key in given:
        if key not in hints:
            raise place.wrong(f"has no key {key!r}: {_guess(key, valid)}")
        if key not in valid:
            raise place.at(key).wrong(
                f"is not said here: {_ELSEWHERE[place.at(key).name]}; valid: {', '.join(valid)}"
            )
    return {key: _value(hints[key], value, place.at(key)) for key, value in given.items()}


def _value(hint: Any, given: Any, place: _Place) -> Any:
    if dataclasses.is_dataclass(hint):
        return _checked(hint, given, place)
    if get_origin(hint) is tuple:
        return _sequence(get_args(hint)[0], given, place)
    if not is_a(given, hint):
        raise place.wrong(f"must be {expected(hint)}, got {given!r:.100}")
    if get_origin(hint) is dict and get_args(hint)[1] is not Any:
        return {key: _value(get_args(hint)[1], value, place.at(key)) for key, value in given.items()}
    if not place.name.startswith("train."):  # whose numbers ``config_check`` knows
        valid = range_of(hint)
        if valid is not None and given not in valid:
            raise place.wrong(f"must be {valid}, got {given}")
        if isinstance(given, float) and not math.isfinite(given):
            raise place.wrong(f"must be a finite number, got {given}")
    plain = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    return float(given) if plain is float else given


def _sequence(hint: Any, given: Any, place: _Place) -> tuple[Any, ...]:
    if not isinstance(given, list):
        raise place.wrong(f"must be a list, got {given!r:.100}")
    if dataclasses.is_dataclass(hint):
        return tuple(_built(hint, _checked(hint, item, place), place) for item in given)
    return tuple(_value(hint, item, place) for item in given)


def _merged(table_type: Any, base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Tables of fixed keys are joined key by key; a list, or a mapping whose keys are free, takes the place of the other whole."""
    hints = get_type_hints(table_type)
    inner = {key for key in own if key in base and dataclasses.is_dataclass(hints[key])}
    return {**base, **own, **{key: _merged(hints[key], base[key], own[key]) for key in inner}}


def _built(table_type: Any, values: Mapping[str, Any], place: _Place) -> Any:
    """The dataclass of checked values."""
    hints, arguments = get_type_hints(table_type), dict(values)
    for field in dataclasses.fields(table_type):
        table = dataclasses.is_dataclass(hints[field.name])
        if field.name in values and table:
            arguments[field.name] = _built(hints[field.name], values[field.name], place.at(field.name))
        if field.name not in values and field.default is field.default_factory is dataclasses.MISSING:
            raise place.wrong(f"has no {'table' if table else 'key'} {field.name!r}, which it needs")
    try:
        return table_type(**arguments)
    except ValueError as error:
        raise place.wrong(f"is not valid: {error}") from error


def _guess(given: object, names: Collection[str]) -> str:
    """The name that was meant, if one is near, and all valid ones."""
    near = difflib.get_close_matches(str(given), names, n=1)
    return f"{f'did you mean {near[0]}? ' if near else ''}valid: {', '.join(names) or 'none'}"
