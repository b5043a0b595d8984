"""docs/README.md lists every page, and no page of results is long."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_index_lists_every_page_and_no_other() -> None:
    listed = set(re.findall(r"\]\(([^)#]+)\)", (DOCS / "README.md").read_text(encoding="utf-8")))
    pages = {
        file.relative_to(DOCS).as_posix()
        for kind in ("*.md", "*.html")
        for file in DOCS.rglob(kind)
        if file != DOCS / "README.md"
    }
    assert listed == pages


def test_no_page_of_results_has_more_than_120_lines() -> None:
    lengths = {
        file.name: len(file.read_text(encoding="utf-8").splitlines())
        for file in (DOCS / "results").glob("*.md")
    }
    assert lengths and not {name: lines for name, lines in lengths.items() if lines > 120}
