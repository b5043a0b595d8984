"""Which packages this project and its extras ask for, and which of them are installed here."""

from __future__ import annotations

import platform
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import tstar_envs
from tstar_envs.doctor.finding import BROKEN, MISSING, OK, Finding
from tstar_envs.errors import install

PROJECT = "tstar"
OLDEST_PYTHON = (3, 11)
# Extras that only bundle other extras, for developers of the project: the members are listed one by one instead.
_SETS = ("all", "dev")
_REQUIREMENT = re.compile(r"([\w.-]+)\s*(?:\[([^\]]*)\])?\s*([^;]*)")
_OF_EXTRA = re.compile(r"""extra\s*==\s*['"]([\w.-]+)['"]""")
_BOUND = re.compile(r"(>=|<=|==|<|>)\s*([\d.]+)")


class Requirement(NamedTuple):
    """A package that is asked for.

    Attributes:
        name: as the registry knows it.
        extras: of that package.
        bounds: which versions do, for example ``>=1.1,<2``.
    """

    name: str
    extras: tuple[str, ...]
    bounds: str


def read_requirement(text: str) -> Requirement:
    """``name[extras]bounds``, without what follows a semicolon."""
    found = _REQUIREMENT.match(text.strip())
    if found is None:
        raise ValueError(f"not a requirement: {text!r}")
    extras = tuple(name.strip() for name in (found[2] or "").split(",") if name.strip())
    return Requirement(found[1], extras, found[3].strip(" ()").replace(" ", ""))


def requirements() -> dict[str, list[Requirement]] | None:
    """What is asked for, by extra, "" for the core: of the clone that this package lies in, else of the installed distribution.

    Returns:
        None where there is neither (a copy of the folder alone).
    """
    clone = Path(tstar_envs.__file__).parents[1] / "pyproject.toml"
    if clone.is_file():
        project = tomllib.loads(clone.read_text(encoding="utf-8")).get("project", {})
        if project.get("name") == PROJECT:
            asked: Mapping[str, Iterable[str]] = {
                "": project["dependencies"],
                **project.get("optional-dependencies", {}),
            }
            return {extra: list(map(read_requirement, of)) for extra, of in asked.items()}
    try:
        distribution = metadata.distribution(PROJECT)
    except metadata.PackageNotFoundError:
        return None
    by_extra: dict[str, list[Requirement]] = {"": []}
    for extra in distribution.metadata.get_all("Provides-Extra") or []:
        by_extra[extra] = []
    for text in distribution.requires or []:
        marker = _OF_EXTRA.search(text)
        by_extra.setdefault(marker[1] if marker else "", []).append(read_requirement(text))
    return by_extra


def expanded(asked: Mapping[str, list[Requirement]], extra: str) -> list[Requirement]:
    """The packages of an extra, those of the extras that it takes in included."""
    found: dict[str, Requirement] = {}
    for requirement in asked.get(extra, []):
        inner = (
            [r for other in requirement.extras for r in expanded(asked, other)]
            if requirement.name == PROJECT
            else [requirement]
        )
        found.update({r.name: r for r in inner})
    return list(found.values())


def does(version: str, bounds: str) -> bool:
    """Whether a version is within bounds; only the leading numbers count (``2.13.0+cpu`` is 2.13.0)."""
    have = _numbers(version)
    for operator, text in _BOUND.findall(bounds):
        limit = _numbers(text)
        ours, theirs = (part + (0,) * (max(len(have), len(limit)) - len(part)) for part in (have, limit))
        fits = {
            ">=": ours >= theirs,
            "<=": ours <= theirs,
            "==": ours == theirs,
            "<": ours < theirs,
            ">": ours > theirs,
        }
        if not fits[operator]:
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else (0,)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def examine_packages() -> Iterator[Finding]:
    """Python, this project, its core, and one line for each extra."""
    fits = tuple(map(int, platform.python_version_tuple()[:2])) >= OLDEST_PYTHON
    newer = "" if fits else f"use Python {'.'.join(map(str, OLDEST_PYTHON))} or newer"
    yield Finding(
        "python", OK if fits else BROKEN, f"{platform.python_version()}, {platform.platform()}", newer
    )
    asked = requirements()
    where = f"{tstar_envs.__version__} in {Path(tstar_envs.__file__).parent}"
    yield Finding(
        PROJECT,
        OK,
        where if _version(PROJECT) else f"{where}, found by its path: no package of this name is installed",
    )
    if asked is None:
        detail = "what they need is not known: pyproject.toml, which says so, is not beside this copy"
        yield Finding("extras", MISSING, detail, install("all"))
        return
    yield _examine(asked, "", BROKEN)
    for extra in asked:
        if extra and extra not in _SETS:
            yield _examine(asked, extra, MISSING)


def _examine(asked: Mapping[str, list[Requirement]], extra: str, otherwise: str) -> Finding:
    """One extra, or the core: what of it is not here as it should be, else what it consists of."""
    lacking = []
    for requirement in expanded(asked, extra):
        version = _version(requirement.name)
        if version is None:
            lacking.append(requirement.name)
        elif not does(version, requirement.bounds):
            lacking.append(f"{requirement.name} {requirement.bounds} (here is {version})")
    what, mend = (
        (f"extra {extra}", install(extra))
        if extra
        else ("core", "in a clone run: pip install -c constraints.txt -e .")
    )
    if lacking:
        return Finding(what, otherwise, f"lacks {', '.join(lacking)}", mend)
    inner = [
        f"extra {other}"
        for requirement in asked[extra]
        if requirement.name == PROJECT
        for other in requirement.extras
    ]
    own = [f"{r.name} {_version(r.name)}" for r in asked[extra] if r.name != PROJECT]
    return Finding(what, OK, ", ".join([*inner, *own]))
