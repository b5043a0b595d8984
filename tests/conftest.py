"""The suite holds what a CPU does, much of it bit for bit, also on a machine with a GPU; ``scripts/check_gpu.py`` is for those."""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

import pytest

if find_spec("hypothesis"):  # the adapters' environments lack it
    from hypothesis import settings

    # No test is timed: on a busy machine any example may take its time.
    settings.register_profile("untimed", deadline=None)
    settings.load_profile("untimed")

if "TSTAR_TEST_ON_GPU" not in os.environ:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the trainer's tests, whose files take longest, so that with two workers none is left to one of them at the end."""
    items.sort(key=lambda item: "train" not in item.path.parts)


# Most objects live as long as the session: they are modules and tests. By default Python looks through them all again and again.
gc.set_threshold(50_000, 20, 20)


@pytest.fixture(params=["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def start_method(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How `launched` starts the other ranks: real processes either way; a spawned one imports torch, for some five seconds."""
    from torch import multiprocessing as torch_multiprocessing

    from tstar_train import distributed, warmstart

    context = multiprocessing.get_context(request.param)
    monkeypatch.setattr(distributed.multiprocessing, "get_context", lambda method: context)
    started = partial(torch_multiprocessing.start_processes, start_method=request.param)
    monkeypatch.setattr(warmstart, "spawn", started)
    return str(request.param)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Chromium for the tests of a module; modules without one are skipped (chromium.py)."""
    from chromium import start

    browser = start(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.quit()
