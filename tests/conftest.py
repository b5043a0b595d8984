"""The suite holds what a CPU does, much of it bit for bit, also on a machine with a GPU; ``scripts/check_gpu.py`` is for those."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

if "TSTAR_TEST_ON_GPU" not in os.environ:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the trainer's tests, whose files take longest, so that with two workers none is left to one of them at the end."""
    items.sort(key=lambda item: "train" not in item.path.parts)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Chromium for the tests of a module; modules without one are skipped (chromium.py)."""
    from chromium import start

    browser = start(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.quit()
