"""Every test of this folder that asks for ``entry`` runs once per registered environment, under its id."""

import pytest

from tstar_envs import list_envs


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "entry" in metafunc.fixturenames:
        entries = list_envs()
        metafunc.parametrize("entry", entries, ids=[entry.id for entry in entries])
