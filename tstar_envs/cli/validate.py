"""``validate``: grade environments by a set of checks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from tstar_envs.cli.console import say
from tstar_envs.data.files import write_whole
from tstar_envs.errors import UnknownOption
from tstar_envs.registry import find_entry, list_envs, parse_options
from tstar_envs.utils import counted
from tstar_envs.validation import CHECKS, Grade, openenv_report
from tstar_envs.validation.grade import Result, results_of, subject_of
from tstar_envs.validation.subject import ERROR, FAIL, PASS

_COLOURS = {PASS: "green", FAIL: "red", ERROR: "red"}


@dataclass(frozen=True)
class ValidateCommand:
    """Grade environments by a set of checks.

    Does the expert reach the maximum and blind play stay below it? Are tasks pinned, seeds honoured, and episodes deterministic, isolated
    and replayable?

    The checks are those of OpenEnv's validation that need no container, under its names. Name a custom environment with the module that
    registers it: --env my_module:mine/Guess. The exit status is 0 if every check passes, else 1.
    """

    env: tyro.conf.UseAppendAction[Annotated[tuple[str, ...], tyro.conf.arg(metavar="ID")]] = ()
    """Environment id or short name; may be repeated. Default: all environments."""
    split: str | None = None
    """Split that the tasks come from; default: test."""
    tasks: int = 8
    """Number of tasks to play, evenly spread over the split."""
    option: tyro.conf.UseAppendAction[Annotated[tuple[str, ...], tyro.conf.arg(metavar="KEY=VALUE")]] = ()
    """Option of the environment, for example topk=1; may be repeated."""
    openenv: Path | None = None
    """Folder to write one report per environment to, in the format of OpenEnv's validation."""
    json: bool = False
    """Print one JSON object instead of lines."""


def run(command: ValidateCommand, console: Console) -> int:
    """Grade the environments and print each check as it completes.

    Returns:
        0 if every check of every environment passed or was not applicable, else 1.

    Raises:
        UnknownOption: unknown environment, split or option, or a report folder that cannot be created.
        InfrastructureError: a service that an environment needs failed (search).
    """
    if command.openenv is not None:
        _make_folder(command.openenv)
    grades = []
    for name in command.env or [entry.id for entry in list_envs()]:
        entry = find_entry(name)
        options = parse_options(entry, command.option, {"split": "--split"})
        subject = subject_of(name, split=command.split, tasks=command.tasks, **options)
        if not command.json:
            say(
                console,
                f"{entry.id}: {counted(len(subject.tasks), 'task')} of {subject.split}, rules version {entry.rules_version}",
                "bold",
            )
        results = []
        for result in results_of(subject):
            results.append(result)
            if not command.json:
                _print(result, console)
        grade = Grade(subject, tuple(results))
        grades.append(grade)
        if command.openenv is not None:
            file = command.openenv / f"{entry.name}.json"
            write_whole(file, json.dumps(openenv_report(grade), indent=1) + "\n")
        if not command.json:
            _conclude(grade, console)
    if command.json:
        console.file.write(
            json.dumps({"format": 1, "environments": [_record(grade) for grade in grades]}, indent=1) + "\n"
        )
    return 1 if any(grade.verdict == "fail" for grade in grades) else 0


def _make_folder(folder: Path) -> None:
    """Create the report folder first, so that a long run does not fail at the end."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UnknownOption(
            f"--openenv: cannot make the folder {folder}: {error.strerror or error}; name another one"
        ) from error


def _print(result: Result, console: Console) -> None:
    found = result.finding
    figures = ", ".join(f"{name} {_short(value)}" for name, value in found.figures.items())
    say(
        console,
        f"  {found.status:<5}  {result.check.title}" + (f": {figures}" if figures else ""),
        _COLOURS.get(found.status, "yellow"),
    )
    for line in found.evidence:
        say(console, f"         {line}", "red")
    if found.mend and found.status != PASS:
        say(console, f"         To fix it, {found.mend}", "red")


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _conclude(grade: Grade, console: Console) -> None:
    passed = sum(result.finding.status == PASS for result in grade.results)
    say(
        console,
        f"  {grade.verdict}: {passed} of {len(CHECKS)} checks",
        "green" if grade.verdict == "pass" else "red",
    )


def _record(grade: Grade) -> dict[str, Any]:
    report = openenv_report(grade)
    results = [
        {**one, "title": result.check.title}
        for one, result in zip(report["results"], grade.results, strict=True)
    ]
    return {
        "env": grade.subject.entry.id,
        "split": grade.subject.split,
        "verdict": grade.verdict,
        "results": results,
    }
