"""Old spellings of options: the command line reads them with a note, and so are files of an older version."""

from __future__ import annotations

import dataclasses
import json

import pytest

from tstar_train.__main__ import main
from tstar_train.cli import with_present_options
from tstar_train.config import RENAMED_OPTIONS, RENAMED_VALUES, Config, with_present_names
from tstar_train.config_check import flag, options

PRESENT = {name: value for name, value, _ in options(Config(env="hotpotqa"))}
VALUES = {"optim.precision": ("half", "bfloat16"), "learner": ("deepspeed", "deepspeed")}


@pytest.mark.parametrize("old", RENAMED_OPTIONS)
def test_an_old_spelling_is_the_new_one_and_is_noted_once(old):
    new = RENAMED_OPTIONS[old]
    assert old not in PRESENT and new in PRESENT
    given, wanted = VALUES.get(old, ("3", "3"))
    for arguments, expected in (
        ([flag(old), given], [flag(new), wanted]),
        ([f"{flag(old)}={given}"], [f"{flag(new)}={wanted}"]),
        ([f"--{old}", given], [flag(new), wanted]),  # as Python writes it
        ([flag(old), given, flag(old), given], [flag(new), wanted, flag(new), wanted]),
    ):
        present, notes = with_present_options(["--env", "half", *arguments, "--seed", "single"])
        assert present == ["--env", "half", *expected, "--seed", "single"]
        assert notes == [f"{flag(old)} is now {flag(new)}; the old name works until the next release"]


def test_a_switch_is_turned_off_by_its_old_name():
    present, notes = with_present_options(["--optim.no-recompute", "--optim.recompute"])
    assert present == ["--optim.no-gradient-checkpointing", "--optim.gradient-checkpointing"]
    assert len(notes) == 2


def test_present_options_are_left_alone():
    arguments = [
        "--env",
        "hotpotqa",
        "--rollout.group-size",
        "4",
        "--graft.verify",
        "--env-option",
        "group=3",
    ]
    assert with_present_options(arguments) == (arguments, [])


def test_a_configuration_of_an_older_version_is_read(tmp_path):
    config = Config(env="tstar/HotpotQA", env_options={"optimizer": "mine"}, learner="deepspeed")
    config = dataclasses.replace(
        config,
        rollout=dataclasses.replace(config.rollout, tasks_per_iteration=6),
        optim=dataclasses.replace(config.optim, dtype="bfloat16"),
    )
    record = config.record()
    for old, new in RENAMED_OPTIONS.items():
        part, _, name = new.rpartition(".")
        table = record[part] if part else record
        value = table.pop(name)
        spelled = {present: once for once, present in RENAMED_VALUES.get(old, {}).items()}
        table[old.rpartition(".")[2]] = spelled.get(value, value)
    assert record["optim"]["precision"] == "half" and record["optimizer"] == "deepspeed"
    path = tmp_path / "config.json"
    path.write_text(json.dumps(record))
    assert Config.from_json(path) == config
    assert with_present_names(config.record()) == config.record()


def test_a_run_says_what_an_option_is_called_now(capsys):
    assert main(["--env", "hotpotqa", "--rollout.group", "6", "--dry-run"]) == 0
    note = "--rollout.group is now --rollout.group-size; the old name works until the next release"
    assert " ".join(capsys.readouterr().out.split()).startswith(note)
