"""No module of the project imports itself by way of others, late imports and those for type checking included."""

from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest


def circle(*packages: str) -> list[str]:
    """The modules of a circle of imports, the first of them at the end again; empty if there is none."""
    graph = grimp.build_graph(*packages, cache_dir=None)
    sorter = TopologicalSorter(
        {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    )
    try:
        sorter.prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert circle("tstar_envs", "tstar_train", "retriever") == []


@pytest.mark.parametrize(
    "back",
    [
        "from circled.one import ONE\n",
        "def later() -> int:\n    from circled.one import ONE\n\n    return ONE\n",
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from circled.one import ONE\n",
    ],
    ids=["plain", "late", "for type checking"],
)
def test_a_circle_is_found(back: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "circled"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "one.py").write_text("from circled.two import later\n\nONE = 1\n")
    (package / "two.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert circle("circled") == []
    (package / "two.py").write_text(back)
    assert set(circle("circled")) == {"circled.one", "circled.two"}
