"""The page that prints the loop prints the loop that runs, and names files that exist."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def test_the_page_prints_the_loop_that_runs():
    loop = (ROOT / "tstar_train" / "loop.py").read_text()
    printed = re.findall(r"```python\n(.*?)\n```", PAGE, flags=re.DOTALL)
    assert len(printed) == 2 and "timer.phase" in printed[0]
    assert all(textwrap.indent(part, "    ") in loop for part in printed)


def test_every_file_that_the_page_names_exists():
    named = re.findall(r"`((?:tstar_train/)?[a-z_*/]+(?:\.py|\.toml|/))`", PAGE)
    assert len(named) > 20
    rooms = [ROOT, ROOT / "tstar_train", ROOT / "tstar_envs", *(ROOT / "tstar_envs" / "envs").glob("*/")]
    for name in named:
        assert any(list(room.glob(name.removeprefix("tstar_train/").rstrip("/"))) for room in rooms), name
