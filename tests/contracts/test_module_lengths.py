"""Modules that are read in one sitting: none is too long, and few are pieces that only one neighbour uses."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("tstar_envs", "tstar_train", "retriever")
MOST_LINES = 700
FILES = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def importers() -> dict[Path, set[Path]]:
    """The files that import each module, at any depth of their code."""
    by_name, found = {module_of(path): path for path in FILES}, defaultdict(set)
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    target = by_name.get(f"{node.module}.{alias.name}") or by_name.get(node.module)
                    if target not in (None, path):
                        found[target].add(path)
    return found


def test_no_module_has_more_than_700_lines() -> None:
    others = [*(ROOT / "scripts").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in [*FILES, *others]}
    assert len(FILES) > 150 and not {name: lines for name, lines in lengths.items() if lines > MOST_LINES}


def test_few_modules_have_a_single_importer_in_their_folder() -> None:
    """A file is split when a second importer needs half of it: at most one in ten is a piece of its neighbour."""
    found = importers()
    modules = [path for path in FILES if path.name not in ("__init__.py", "__main__.py")]
    pieces = [
        str(path.relative_to(ROOT))
        for path in modules
        if len(found[path]) == 1
        and (neighbour := next(iter(found[path]))).parent == path.parent
        and neighbour.name != "__init__.py"
    ]
    assert len(pieces) <= len(modules) / 10, pieces


def test_docstrings_begin_with_a_name_or_a_verb():
    """Not with a clause in place of a name: CONTRIBUTING.md has the rule."""
    clauses = re.compile(r"(What|Whether|How|Who|Whose|Where|That|Those|Which|Why)\b")
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for package in ("tstar_envs", "tstar_train", "retriever")
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        and clauses.match(node.value.value)
    ]
    assert not found, found
