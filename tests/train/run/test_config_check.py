"""Values that no run can have are refused before anything is computed or written."""

from __future__ import annotations

import dataclasses
import math

import pytest

from tstar_envs import UnknownOption, find_entry
from tstar_train.config import Config, range_of
from tstar_train.config_check import check, expected, flag, options
from tstar_train.presets import paper, tiny
from tstar_train.run import resume_run, train

OPTIONS = {name: hint for name, _, hint in options(Config(env="hotpotqa"))}
NUMBERS = {name for name, hint in OPTIONS.items() if "number" in expected(hint)}
RANGES = {name: valid for name, hint in OPTIONS.items() if (valid := range_of(hint)) is not None}


def changed(name, value):
    config = Config(env="hotpotqa")
    part, dot, rest = name.partition(".")
    if not dot:
        return dataclasses.replace(config, **{part: value})
    return dataclasses.replace(config, **{part: dataclasses.replace(getattr(config, part), **{rest: value})})


def test_every_number_has_a_range():
    assert {*RANGES, "seed"} == NUMBERS


def test_the_presets_pass():
    for config in (paper("hotpotqa"), tiny(find_entry("hotpotqa")), tiny(find_entry("sokoban-easy"))):
        check(config)


def test_a_multiple_of_the_optimum_and_a_number_of_steps_exclude_one_another():
    config = dataclasses.replace(tiny(find_entry("sokoban-medium")), env_options={"horizon": "optimal*2"})
    for steps in (1, 12):
        with pytest.raises(
            UnknownOption,
            match=rf"--rollout.horizon {steps} .*horizon=optimal\*2.*give --rollout.horizon None",
        ):
            check(dataclasses.replace(config, rollout=dataclasses.replace(config.rollout, horizon=steps)))
    check(dataclasses.replace(config, rollout=dataclasses.replace(config.rollout, horizon=None)))


@pytest.mark.parametrize("name", RANGES)
def test_a_number_outside_its_range_is_named_with_the_range(name):
    for value in (-1, math.nan):
        with pytest.raises(UnknownOption) as caught:
            check(changed(name, value))
        assert (
            flag(name) in str(caught.value)
            and str(value) in str(caught.value)
            and "must be" in str(caught.value)
        )


@pytest.mark.parametrize(
    ("name", "value", "valid"),
    [
        ("tree.gamma", 2.0, "above 0 and at most 1"),
        ("tree.gamma", 0.0, "above 0"),
        ("tree.kl_samples", 0, "1 or more"),
        ("rollout.tasks_per_iteration", 0, "1 or more"),
        ("rollout.group_size", 1, "2 or more"),
        ("rollout.max_tokens", 0, "1 or more"),
        ("rollout.temperature", 0.0, "above 0"),
        ("evaluation.samples", 0, "1 or more"),
        ("checkpoint_every", 0, "1 or more"),
        ("keep_checkpoints", 0, "1 or more"),
        ("processes", 0, "1 or more"),
        ("threads", 0, "from 1 to 1024"),
        ("threads", 100_000, "from 1 to 1024"),  # PyTorch would end the process
        ("optim.num_minibatches", 0, "1 or more"),
        ("optim.decay", 1.5, "from 0 to 1"),
        ("optim.learning_rate", math.inf, "finite"),
        ("graft.ref_ema_decay", 1.01, "from 0 to 1"),
        ("graft.dpo_beta", 0.0, "above 0"),
        ("graft.keep", 0, "1 or more or all or iteration"),
        ("graft.keep", "some", "one of all, iteration"),
        ("graft.keep", 2.5, "a whole number or one of all, iteration"),
        ("graft.keep", True, "a whole number or one of all, iteration"),
        ("graft.batch", 0, "1 or more"),
        ("optim.epochs", 0, "1 or more"),
        ("rollout.tasks_per_iteration", 2.5, "a whole number"),
        ("rollout.tasks_per_iteration", True, "a whole number"),
        ("minutes", "long", "a number or none"),
        ("tree.history", "states", "one of sequence, state"),
        ("tstar", "no", "true or false"),
        ("env_options", 3, "a mapping"),
        ("training_options", [], "a mapping"),
        ("device", "foo", "another torch device"),
        ("device", "cuda:99", "another torch device"),
        ("device", "meta", "another torch device"),
    ],
)
def test_edges(name, value, valid):
    with pytest.raises(UnknownOption) as caught:
        check(changed(name, value))
    assert flag(name) in str(caught.value) and str(value) in str(caught.value) and valid in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("graft.temperature", 0.0),
        ("optim.decay", 1.0),
        ("iterations", 0),
        ("tree.gamma", 1),
        ("graft.keep", 1),
        ("graft.keep", "iteration"),
    ],
)
def test_valid_edges(name, value):
    check(changed(name, value))


def test_a_run_checks_first_whether_new_or_resumed(tmp_path):
    bad = changed("tree.gamma", 2.0)
    with pytest.raises(UnknownOption, match=r"--tree\.gamma must be"):
        train(bad, tmp_path / "new", None)
    assert not (tmp_path / "new").exists()
    (tmp_path / "config.json").write_text(bad.to_json())
    with pytest.raises(UnknownOption, match=r"--tree\.gamma must be"):
        resume_run(tmp_path, None)
    assert [p.name for p in tmp_path.iterdir()] == ["config.json"]
