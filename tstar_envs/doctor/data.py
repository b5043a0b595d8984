"""Public data of the full tiers on this machine; only a little of each is read, since all would take minutes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from tstar_envs.data.locate import Published, data_home
from tstar_envs.doctor.finding import BROKEN, MISSING, OK, Finding
from tstar_envs.errors import TStarError
from tstar_envs.registry import list_envs


def examine_data() -> Iterator[Finding]:
    """The folder for data, and each set of public data, once."""
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
    """Read a little of public data: what is there but cannot be used ends whatever takes it by default."""
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
    """Whether files can be made in a folder, or the folder itself where it is not there yet."""
    there = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)
