"""Without the package of its harness an adapter says which extra brings it."""

import importlib
import sys

import pytest

from tstar_envs.errors import MissingExtra, install


@pytest.mark.parametrize(("name", "extra"), [("inspect_ai", "inspect"), ("verifiers", "verifiers")])
def test_an_adapter_names_the_extra_that_it_lacks(name: str, extra: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"tstar_envs.adapters.{name}", raising=False)
    with pytest.raises(MissingExtra) as raised:
        importlib.import_module(f"tstar_envs.adapters.{name}")
    assert f"needs the package {name!r}" in str(raised.value).replace(f"{name}.v1", name)
    assert install(extra) in str(raised.value)
