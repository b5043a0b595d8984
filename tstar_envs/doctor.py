"""Doctor: check packages, data, and one expert episode of each environment."""

from __future__ import annotations

import os
import platform
import re
import time
import tomllib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import gymnasium as gym

import tstar_envs
from tstar_envs.agents.builtin import OracleAgent
from tstar_envs.core import TextEnv
from tstar_envs.data.locate import Published, data_home
from tstar_envs.errors import MissingExtra, TStarError, install
from tstar_envs.evalset import panel
from tstar_envs.evaluation.runner import play_episode
from tstar_envs.registry import EnvEntry, list_envs
from tstar_envs.utils import counted

OK, MISSING, BROKEN = "ok", "missing", "broken"


@dataclass(frozen=True)
class Finding:
    """Result of one check.

    Attributes:
        what: name of the thing checked.
        status: ``ok``; ``missing``, an optional part that is not installed; or ``broken``, a part that should work and does not.
        detail: versions, a path, or the reason.
        mend: command that fixes it, "" if there is nothing to do.
        seconds: duration of the check, if of interest.
    """

    what: str
    status: str
    detail: str = ""
    mend: str = ""
    seconds: float | None = None


def examine_data() -> Iterator[Finding]:
    """Check the data folder, and each set of public data once."""
    home = data_home()
    set_by = "$TSTAR_DATA" if "TSTAR_DATA" in os.environ else "the default, since $TSTAR_DATA is not set"
    if writable(home):
        yield Finding("data folder", OK, f"{home} ({set_by})")
    else:
        detail = f"{home} ({set_by}) cannot be written: WebShop's catalogue is then built by every process for itself"
        yield Finding("data folder", MISSING, detail, "set TSTAR_DATA to a folder that can be written")
    seen = set()
    for entry in list_envs():
        for published in entry.load_class().published(**entry.kwargs):
            if published.what in seen:
                continue
            seen.add(published.what)
            if published.found is not None:
                yield _look(published, published.found)
            else:
                looked = " or ".join(map(str, published.looked_in))
                yield Finding(
                    published.what, MISSING, f"not in {looked}", f"in a clone run: {published.fetch}"
                )


def _look(published: Published, found: Path) -> Finding:
    """Read a sample of public data: damaged files make every default use of them fail."""
    try:
        published.look(found)
    except TStarError as error:
        return Finding(
            published.what,
            BROKEN,
            f"in {found}, but cannot be used: {error}",
            f"move them away and run {published.fetch}, or play the shipped data with data='mini' (eval: --option data=mini)",
        )
    return Finding(published.what, OK, f"{found}")


def writable(folder: Path) -> bool:
    """Check whether files can be created in a folder, or the folder itself if it is missing."""
    there = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def examine_environments() -> Iterator[Finding]:
    """Check every environment, yielding one finding each."""
    for entry in list_envs():
        began = time.perf_counter()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                status, detail, mend = *_play(entry), ""
            except MissingExtra as error:
                status, detail, mend = MISSING, f"needs the package {error.package}", install(error.extra)
            except Exception as error:  # noqa: BLE001 - the finding reports any error of an environment
                status, detail, mend = BROKEN, f"{type(error).__name__}: {error}", ""
        detail += "".join(dict.fromkeys(f"; warning: {warning.message}" for warning in caught))
        yield Finding(
            entry.id,
            status,
            detail,
            mend or ("" if status != BROKEN else _ADVICE),
            round(time.perf_counter() - began, 3),
        )


_ADVICE = "install this project again; if that changes nothing, report this line"


def _play(entry: EnvEntry) -> tuple[str, str]:
    env = gym.make(entry.id, data="mini", disable_env_checker=True).unwrapped
    if not isinstance(env, TextEnv):
        return BROKEN, f"gym.make gives a {type(env).__name__}; another package has registered this id"
    fixed = panel("v1")
    fixed.check(env)
    task = fixed[entry.id].tasks[0]
    agent = OracleAgent()
    agent.bind(env)
    episode = play_episode(env, entry, agent, name="oracle", task=task)
    if episode.ended == "error":
        return BROKEN, f"the expert's episode of task {task!r} ended in an error: {episode.error}"
    if not episode.success:
        return (
            BROKEN,
            f"the expert does not solve task {task!r} in {counted(len(episode.steps), 'step')} (reward {episode.reward:g})",
        )
    return (
        OK,
        f"the expert solves task {task!r} in {counted(len(episode.steps), 'step')}; the panel's tasks match",
    )


PROJECT = "tstar"
OLDEST_PYTHON = (3, 11)
# Extras that only bundle other extras, for developers of the project: their members are listed one by one instead.
_SETS = ("all", "dev")
_REQUIREMENT = re.compile(r"([\w.-]+)\s*(?:\[([^\]]*)\])?\s*([^;]*)")
_OF_EXTRA = re.compile(r"""extra\s*==\s*['"]([\w.-]+)['"]""")
_BOUND = re.compile(r"(>=|<=|==|<|>)\s*([\d.]+)")


class Requirement(NamedTuple):
    """One required package.

    Attributes:
        name: name in the registry.
        extras: extras of that package.
        bounds: accepted versions, such as ``>=1.1,<2``.
    """

    name: str
    extras: tuple[str, ...]
    bounds: str


def read_requirement(text: str) -> Requirement:
    """Parse ``name[extras]bounds``; markers after a semicolon are ignored."""
    found = _REQUIREMENT.match(text.strip())
    if found is None:
        raise ValueError(f"not a requirement: {text!r}")
    extras = tuple(name.strip() for name in (found[2] or "").split(",") if name.strip())
    return Requirement(found[1], extras, found[3].strip(" ()").replace(" ", ""))


def requirements() -> dict[str, list[Requirement]] | None:
    """Read the requirements by extra, "" for the core, from this clone's pyproject.toml or else the installed distribution.

    Returns:
        None if neither exists (a copy of the folder alone).
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
    """List the packages of an extra, including those of the extras it contains."""
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
    """Check whether a version is within bounds; only leading numbers count (``2.13.0+cpu`` is 2.13.0)."""
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
    """Check Python, this project, its core, and each extra."""
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
        detail = "requirements unknown: there is no pyproject.toml beside this copy of the package"
        yield Finding("extras", MISSING, detail, install("all"))
        return
    yield _examine(asked, "", BROKEN)
    for extra in asked:
        if extra and extra not in _SETS:
            yield _examine(asked, extra, MISSING)


def _examine(asked: Mapping[str, list[Requirement]], extra: str, otherwise: str) -> Finding:
    """Check one extra, or the core: list missing or outdated packages, else its members."""
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
