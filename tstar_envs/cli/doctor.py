"""``doctor``: check packages, data, and that every environment can be played."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console

from tstar_envs.cli.console import say
from tstar_envs.doctor import (
    BROKEN,
    MISSING,
    OK,
    Finding,
    examine_data,
    examine_environments,
    examine_packages,
)

FORMAT = 1  # of --json
SECTIONS = {
    "packages": ("What is installed", examine_packages),
    "data": ("Public data (optional: every environment ships its own data)", examine_data),
    "environments": ("An episode of the expert in each environment", examine_environments),
}
_COLOURS = {OK: "green", MISSING: "yellow", BROKEN: "red"}


@dataclass(frozen=True)
class DoctorCommand:
    """Check the installation: packages, optional extras, public data, and whether each environment works. Takes some seconds.

    Each line says ok, missing or broken, the reason, and the command that repairs it. Missing extras and public data are no fault.
    Nothing is sent or fetched. The exit status is 1 if something is broken, else 0.
    """

    json: bool = False
    """Print one JSON object instead of lines."""


def run(command: DoctorCommand, console: Console) -> int:
    """Run all checks and print each finding as it is known.

    Returns:
        0, or 1 if something is broken.
    """
    found: dict[str, list[Finding]] = {}
    for name, (title, examine) in SECTIONS.items():
        if not command.json:
            say(console, title, "bold")
        found[name] = list(_printed(examine(), command, console))
    broken = [finding for of in found.values() for finding in of if finding.status == BROKEN]
    if command.json:
        sections: dict[str, Any] = {name: [asdict(finding) for finding in of] for name, of in found.items()}
        console.file.write(json.dumps({"format": FORMAT, "ok": not broken, **sections}, indent=1) + "\n")
    else:
        _conclude(console, found["environments"], broken)
    return 1 if broken else 0


def _printed(findings: Iterator[Finding], command: DoctorCommand, console: Console) -> Iterator[Finding]:
    for finding in findings:
        if not command.json:
            took = f" ({finding.seconds:.1f} s)" if finding.seconds is not None else ""
            mend = f". To fix it, {finding.mend}" if finding.mend else ""
            say(
                console,
                f"  {finding.status:<7}  {finding.what}: {finding.detail}{took}{mend}",
                _COLOURS[finding.status],
            )
        yield finding


def _conclude(console: Console, played: list[Finding], broken: list[Finding]) -> None:
    works = sum(finding.status == OK for finding in played)
    message = f"{works} of {len(played)} environments can be played here"
    if broken:
        say(
            console,
            f"{message}; {len(broken)} broken: {', '.join(finding.what for finding in broken)}",
            "red",
        )
    else:
        lacking = f"; {len(played) - works} need an extra (see above)" if works < len(played) else ""
        say(console, f"{message}{lacking}; nothing is broken", "green")
