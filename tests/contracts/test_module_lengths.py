"""One concept per module: none is long, and half of them are short."""

import statistics
from pathlib import Path

ROOT = Path(__file__).parents[2]
LENGTHS = {
    str(path.relative_to(ROOT)): len(path.read_text().splitlines())
    for package in ("tstar_envs", "tstar_train", "retriever")
    for path in (ROOT / package).rglob("*.py")
    if path.name != "__init__.py"
}


def test_no_module_has_more_than_400_lines() -> None:
    scripts = {path.name: len(path.read_text().splitlines()) for path in (ROOT / "scripts").glob("*.py")}
    assert len(scripts) > 30 and not {name: n for name, n in {**LENGTHS, **scripts}.items() if n > 400}


def test_the_median_module_has_fewer_than_120_lines() -> None:
    assert len(LENGTHS) > 400 and statistics.median(LENGTHS.values()) < 120
