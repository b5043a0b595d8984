"""Where public data lie on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple


def data_home() -> Path:
    """``$TSTAR_DATA``, or ``~/.cache/tstar`` where it is not set."""
    return Path(os.environ.get("TSTAR_DATA", "~/.cache/tstar")).expanduser()


class Published(NamedTuple):
    """Public data that a full tier needs.

    Attributes:
        what: in words.
        found: where they are, None where they are not.
        looked_in: where they would be found.
        fetch: the command that fetches them.
    """

    what: str
    found: Path | None
    looked_in: tuple[Path, ...]
    fetch: str
