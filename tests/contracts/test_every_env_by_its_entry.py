"""Horizon, rules version and metric of every registered environment are said once, by its entry, and all else follows it."""

import re
from dataclasses import replace

import pytest
from contract_walk import FOR_EVERY_ENV, make

from tstar_envs import EnvEntry, TextEnv, find_entry, registry
from tstar_envs.evaluation.report.paper import TABLES


@FOR_EVERY_ENV
def test_no_class_says_what_its_entry_says(entry: EnvEntry) -> None:
    mro = entry.load_class().__mro__
    for cls in mro[: mro.index(TextEnv)]:
        own = vars(cls).keys() & {"metadata", "default_horizon", "horizon", "rules_version", "metric"}
        assert not own, f"{cls.__name__} says {own} of its own: the registry's entry says it"


@FOR_EVERY_ENV
def test_an_environment_follows_its_entry(entry: EnvEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = entry.horizon + 1000
    changed = [
        replace(each, horizon=steps, rules_version="another") if each.id == entry.id else each
        for each in registry.ENTRIES
    ]
    monkeypatch.setattr(registry, "ENTRIES", tuple(changed))
    for name, own in registry.OWN_ENTRIES.items():
        monkeypatch.setitem(registry.OWN_ENTRIES, name, replace(own, horizon=steps, rules_version="another"))
    for env in (make(entry.id), entry.load_class()(**entry.kwargs)):
        assert (env.horizon, env.default_horizon, env.metadata["rules_version"]) == (steps, steps, "another")
        assert env.reset(seed=0)[1]["horizon"] == steps and str(steps) in env.prompt()
        assert env.metadata["render_modes"] == ["ansi"]
    assert make(entry.id, horizon=7).horizon == 7


@FOR_EVERY_ENV
def test_the_history_of_the_rules_ends_with_their_version(entry: EnvEntry) -> None:
    _, found, history = (entry.load_class().__doc__ or "").partition("## Rules version history")
    if found:
        numbers = re.findall(r"(?:^|\s)(\d+): ", history)
        assert numbers == [str(n) for n in range(1, len(numbers) + 1)] and numbers[-1] == entry.rules_version


def test_the_papers_columns_show_the_metric() -> None:
    """Each environment's first column, where it shows all of its tasks."""
    shown: dict[str, str] = {}
    for column in (column for table in TABLES for column in table.columns):
        if len(column.envs) == 1:
            shown.setdefault(column.envs[0], column.part)
    assert len(shown) == 14 and shown == {env: find_entry(env).metric for env in shown}
