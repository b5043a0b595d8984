"""The built-in policies' recipes: each loads, no key is dead, and what is wrong is reported with file, key and what is valid."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import random
import shutil
import tomllib
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Literal, get_args, get_origin

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from tstar_envs import BadData, MissingData, TStarError, find_entry, list_envs
from tstar_train.config import Config, range_of
from tstar_train.config_check import options
from tstar_train.policy.codec import PlainCodec
from tstar_train.policy.files import WEIGHTS
from tstar_train.presets import tiny
from tstar_train.recipes.recipe import (
    FOLDER,
    DemonstrationStyle,
    EnvRecipe,
    ImitationSchedule,
    ModelRecipe,
    Recipe,
    TokenizerRecipe,
    WarmStartRecipe,
    load_recipe,
    policy_name,
    policy_names,
    read_recipe,
    recipe_of,
)
from tstar_train.warmstart import PracticeMix, new_policy, practice_rows, run_stage

FILES = {path.stem: tomllib.loads(path.read_text()) for path in sorted(FOLDER.glob("*.toml"))}


def keys(table, above=()):
    """Every key of a file with its tables, those of the stages by number."""
    for key, value in table.items():
        if isinstance(value, dict) and (*above, key) not in (
            ("env", "options"),
            ("warm_start", "mix"),
            ("train", "training_options"),
        ):
            yield from keys(value, (*above, key))
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for number, item in enumerate(value):
                yield from keys(item, (*above, key, number))
        else:
            yield (*above, key)


KEYS = [(name, key) for name, table in FILES.items() for key in keys(table)]


def inside(table, above):
    """The table that a key is in."""
    return functools.reduce(lambda t, part: t[part], above, table)


def toml(value) -> str:
    """Any value on one line; JSON's texts, numbers and lists are TOML's."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(item)}" for key, item in value.items()) + "}"
    return "[" + ", ".join(map(toml, value)) + "]" if isinstance(value, list) else json.dumps(value)


def write(folder: Path, name: str, table) -> Path:
    """A file of a folder that has the others as they are shipped."""
    for shipped in FILES if not any(folder.iterdir()) else ():
        shutil.copy(FOLDER / f"{shipped}.toml", folder)
    path = folder / f"{name}.toml"
    path.write_text("".join(f"{json.dumps(key)} = {toml(value)}\n" for key, value in table.items()))
    return path


def copy(name):
    return tomllib.loads((FOLDER / f"{name}.toml").read_text())


def test_every_environment_has_one_policy_with_a_recipe_and_weights():
    said = [env for table in FILES.values() for env in table.get("env", {}).get("plays", [])]
    assert sorted(said) == sorted(entry.name for entry in list_envs())
    assert sorted(policy_names(FOLDER)) == sorted(folder.name for folder in WEIGHTS.iterdir())
    for entry in list_envs():
        recipe = recipe_of(entry)
        assert entry.name in FILES[policy_name(entry)]["env"]["plays"] and recipe.name == policy_name(entry)
        assert {find_entry(env).family for env in (*recipe.env.plays, *recipe.warm_start.mix)} == {
            entry.family
        }


@pytest.mark.parametrize("policy", policy_names(FOLDER))
def test_the_shipped_weights_were_made_by_their_recipe(policy):
    """``training.json`` holds the stages as they were run; the last ones are the recipe's own."""
    recipe, stages = (
        load_recipe(policy),
        json.loads((WEIGHTS / policy / "training.json").read_text())["stages"],
    )
    own = stages[-len(recipe.warm_start.stages) :]
    known = {field.name for field in dataclasses.fields(ImitationSchedule)}
    for ran, schedule in zip(own, recipe.warm_start.stages, strict=True):
        assert (
            ran["schedule"].items() <= dataclasses.asdict(schedule).items()
            and ran["schedule"].keys() <= known
        )
        assert ran["style"].items() <= dataclasses.asdict(recipe.warm_start.demonstrations).items()
    config = json.loads((WEIGHTS / policy / "config.json").read_text())
    assert config["rope_parameters"]["rope_theta"] == recipe.model.rope_base
    assert config["vocab_size"] <= recipe.tokenizer.vocabulary + len(recipe.tokenizer.words)


def test_no_key_of_a_file_is_without_effect(tmp_path):
    """Without it the policy is another one, or cannot be read; a stage, which extends nothing, says its figures in full."""
    for name, (*above, key) in KEYS:
        if "stages" in above:
            continue
        table = copy(name)
        del inside(table, above)[key]
        path = write(tmp_path, name, table)
        policies = policy_names(FOLDER) if name == "_tiny" else [name]
        assert any(differs(path.with_name(f"{policy}.toml")) for policy in policies), (
            f"{path.name}: {key} changes nothing"
        )
        shutil.copy(FOLDER / path.name, path)


def differs(path):
    """Whether a recipe is another one than the shipped one, or none at all."""
    try:
        return read_recipe(path) != load_recipe(path.stem)
    except TStarError:
        return True


# For each field a value that no shipped recipe has, by the table.
OTHERWISE = {
    "env": {"options": {"observation": "natural"}, "context": "concat", "history": 1, "max_tokens": 3_970},
    "tokenizer": {
        "vocabulary": 300,
        "rows": 2,
        "symbols": "[a-z]",
        "units": ("[0-9a-z]",),
        "words": ("clear", "holding"),
    },
    "model": {"rope_base": 500.0, "look_back": ((3,),), "copying": True},
    "warm_start": {"mix": {"blocksworld-unstack": 1.0}},
    "warm_start.demonstrations": {
        "mistake": 0.3,
        "no_thought": 0.9,
        "contrast": 0.9,
        "wordings": 4,
        "kept": 0.5,
    },
}


def made(recipe: Recipe) -> list[object]:
    """What a warm start makes before it learns: tokenizer, weights, first rows as a short model would see them."""
    entry = find_entry("blocksworld-stack")
    tokenizer, model = new_policy(recipe, entry, 0)
    practice, codec = PracticeMix(recipe, entry), PlainCodec(tokenizer, with_prompt=False)
    rows = practice_rows(practice, codec, 0, recipe.warm_start.demonstrations, recipe.env, 4_096)
    weights = [value.sum().item() for value in model.parameters()]
    return [tokenizer.backend_tokenizer.to_str(), weights, [row.ids for row in itertools.islice(rows, 40)]]


@pytest.mark.slow
def test_every_field_is_used():
    """A warm start with another value of one field makes something else."""
    recipe = load_recipe("blocksworld")
    recipe = dataclasses.replace(recipe, tokenizer=dataclasses.replace(recipe.tokenizer, rows=20))
    recipe = dataclasses.replace(recipe, env=dataclasses.replace(recipe.env, context="step", history=2))
    plain = made(recipe)
    assert plain == made(recipe)
    types = {
        "env": EnvRecipe,
        "tokenizer": TokenizerRecipe,
        "model": ModelRecipe,
        "warm_start": WarmStartRecipe,
    }
    types["warm_start.demonstrations"] = DemonstrationStyle
    elsewhere = {"plays", "begins_with", "demonstrations", "stages"}  # what they do is tested by themselves
    for table, values in OTHERWISE.items():
        assert {f.name for f in dataclasses.fields(types[table])} - elsewhere == values.keys()
        for key, value in values.items():
            old = functools.reduce(getattr, table.split("."), recipe)
            new = dataclasses.replace(old, **{key: value})
            if table.startswith("warm_start."):
                new = dataclasses.replace(recipe.warm_start, demonstrations=new)
            assert made(dataclasses.replace(recipe, **{table.partition(".")[0]: new})) != plain, (
                f"{table}.{key} is not used"
            )


def test_a_preset_has_what_its_recipe_says():
    for entry in list_envs():
        recipe, found = recipe_of(entry), {name: value for name, value, _ in options(tiny(entry))}
        seen = {f"rollout.{name}": getattr(recipe.env, name) for name in ("context", "history", "max_tokens")}
        seen |= {"env": entry.id, "model": "tiny", "env_options": recipe.env.options}
        assert found == {name: value for name, value, _ in options(recipe.train)} | seen


STAGE = ImitationSchedule(steps=4, batch=2, warmup=2, matrix_rate=0.01, other_rate=0.01)
OTHER_STAGE = {
    "steps": 3,
    "batch": 3,
    "matrix_rate": 0.02,
    "other_rate": 0.02,
    "decay": 0.1,
    "warmup": 50,
    "processes": 2,
    "rows": "quotes",
    "alike": "context",
    "held": 30,
    "seconds": 0.5,
}


@pytest.mark.slow
def test_every_field_of_a_stage_is_used(tmp_path):
    """A stage with another value of one field leaves other weights."""
    entry = find_entry("blocksworld-stack")

    def weights(schedule):
        out = tmp_path / str(len(list(tmp_path.iterdir())))
        shutil.copytree(WEIGHTS / "blocksworld", out)
        run_stage(entry, recipe_of(entry), out, 0, schedule, Console(quiet=True), {"stages": []})
        return (out / "model.safetensors").read_bytes()

    plain = weights(STAGE)
    assert plain == weights(STAGE)
    assert OTHER_STAGE.keys() == {f.name for f in dataclasses.fields(ImitationSchedule)}
    for key, value in OTHER_STAGE.items():
        assert weights(dataclasses.replace(STAGE, **{key: value})) != plain, f"{key} is not used"


def test_what_is_not_said_is_as_in_the_file_that_it_extends(tmp_path):
    write(
        tmp_path,
        "mine",
        {
            "extends": "sokoban_harder",
            "env": {"options": {"observation": "grid"}},
            "train": {"rollout": {"tasks_per_iteration": 3}},
        },
    )
    mine, base = read_recipe(tmp_path / "mine.toml"), load_recipe("sokoban_harder")
    assert mine.env == dataclasses.replace(base.env, options={"observation": "grid"}), (
        "options are replaced whole"
    )
    assert mine.train == dataclasses.replace(
        base.train, rollout=dataclasses.replace(base.train.rollout, tasks_per_iteration=3)
    )
    assert (mine.tokenizer, mine.model, mine.warm_start) == (base.tokenizer, base.model, base.warm_start)


WRONG = [
    (
        {"train": {"iteration": 3}},
        r"train has no key 'iteration': did you mean iterations\? valid: algo, tstar, engine, learner, seed, ",
    ),
    (
        {"train": {"rollout": {"group_siz": 3}}},
        r"train\.rollout has no key 'group_siz': did you mean group_size\?",
    ),
    (
        {"trian": {}},
        r"has no key 'trian': did you mean train\? valid: env, tokenizer, model, warm_start, train",
    ),
    ({"name": "x"}, "has no key 'name'"),
    (
        {"env": {"mix": {}}},
        "env has no key 'mix': .*valid: plays, options, context, history, max_tokens, plays_beside$",
    ),
    (
        {"train": {"rollout": {"max_tokens": 9}}},
        r"train\.rollout\.max_tokens is not allowed here: write max_tokens in \[env\]",
    ),
    ({"train": {"model": "tiny"}}, r"train\.model is not allowed here: the user names it \(--model\)"),
    (
        {"train": {"optim": {"learning_rate": "high"}}},
        r"train\.optim\.learning_rate must be a number, got 'high'",
    ),
    (
        {"train": {"optim": {"decay": 1.5}}},
        r"train is not valid: --optim\.decay must be from 0 to 1, got 1\.5",
    ),
    ({"train": {"iterations": True}}, "train.iterations must be a whole number, got True"),
    ({"train": 3}, "train must be a table, got 3"),
    ({"env": {"context": "whole"}}, "env.context must be one of concat, step, got 'whole'"),
    ({"env": {"plays": "nq"}}, "env.plays must be a list, got 'nq'"),
    (
        {"env": {"plays": ["hotpot"]}},
        r"env\.plays names no environment: unknown environment 'hotpot'; did you mean hotpotqa\?",
    ),
    ({"env": {"history": -1}}, "env.history must be 0 or more, got -1"),
    ({"tokenizer": {"vocabulary": 10}}, "tokenizer.vocabulary must be 258 or more, got 10"),
    ({"tokenizer": {"words": [1]}}, "tokenizer.words must be text, got 1"),
    ({"model": {"look_back": [1]}}, "model.look_back must be a list, got 1"),
    ({"model": {"look_back": [[0]]}}, "model.look_back must be 1 or more, got 0"),
    (
        {"warm_start": {"mix": {"sokoban-esay": 1.0}}},
        r"warm_start\.mix names no environment: .*did you mean sokoban-easy\?",
    ),
    (
        {"warm_start": {"mix": {"sokoban-easy": "often"}}},
        "warm_start.mix.sokoban-easy must be a number, got 'often'",
    ),
    ({"warm_start": {"mix": {"sokoban-easy": 0.0}}}, "warm_start.mix.sokoban-easy must be above 0, got 0"),
    (
        {"warm_start": {"begins_with": "sokobann"}},
        r"warm_start\.begins_with names no policy: did you mean sokoban\? valid: alfworld",
    ),
    (
        {"warm_start": {"demonstrations": {"kept": 25.0}}},
        r"demonstrations\.kept must be above 0 and at most 1, got 25",
    ),
    ({"warm_start": {"stages": []}}, r"warm_start\.stages is empty"),
    (
        {"warm_start": {"stages": [{"step": 3}]}},
        r"warm_start\.stages has no key 'step': did you mean steps\?",
    ),
    ({"warm_start": {"stages": [{"held": -1}]}}, r"warm_start\.stages is not valid: held=-1"),
    ({"warm_start": {"stages": [{"warmup": 0}]}}, r"warm_start\.stages\.warmup must be 1 or more, got 0"),
    (
        {"extends": "tiny"},
        r"extends names no other recipe in its folder or the package: did you mean _tiny\?",
    ),
    ({"extends": "mine"}, "extends names no other recipe"),
    ({"extends": 3}, "extends names no other recipe"),
]


@pytest.mark.parametrize(("change", "message"), WRONG, ids=[toml(change) for change, _ in WRONG])
def test_what_is_wrong_is_reported_with_file_and_key(tmp_path, change, message):
    path = write(tmp_path, "mine", {"extends": "sokoban"} | change)
    with pytest.raises(BadData, match=message) as error:
        read_recipe(path)
    assert str(error.value).startswith(f"{path}: ") and "\n" not in str(error.value)


@pytest.mark.parametrize("table", ["tokenizer", "model", "warm_start", "train", "env"])
def test_a_missing_table_is_reported(tmp_path, table):
    whole = {
        key: value
        for key, value in (copy("_tiny") | copy("search_qa")).items()
        if key not in ("extends", table)
    }
    with pytest.raises(BadData, match=f"mine.toml: .*has no (table|key) '{table}|is required"):
        read_recipe(write(tmp_path, "mine", whole))


@pytest.mark.parametrize("text", [b"[env", b"env = ", b"\xff\xfe", b"[env]\n[env]\n", b"a = 1\na = 2\n"])
def test_what_is_no_toml_is_reported(tmp_path, text):
    (tmp_path / "mine.toml").write_bytes(text)
    with pytest.raises(BadData, match=r"mine\.toml: is not (TOML|UTF-8)"):
        read_recipe(tmp_path / "mine.toml")


def test_a_recipe_that_is_not_there_and_ones_that_extend_one_another(tmp_path):
    with pytest.raises(
        MissingData,
        match=r"no recipe .*sokobann\.toml: did you mean sokoban\? valid: alfworld, blocksworld, ",
    ):
        load_recipe("sokobann")
    write(tmp_path, "one", {"extends": "two"})
    write(tmp_path, "two", {"extends": "one"})
    with pytest.raises(BadData, match="is circular: one extends two extends one"):
        read_recipe(tmp_path / "one.toml")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(KEYS), st.randoms(use_true_random=False))
def test_any_misspelt_key_is_reported_with_the_right_one(tmp_path, at, chance: random.Random):
    name, (*above, key) = at
    place = chance.randrange(len(key))
    wrong = key[:place] + chance.choice("xq_") + key[place + chance.randrange(2) :]
    table = copy(name)
    within = inside(table, above)
    if wrong in within or wrong == key:
        return
    within[wrong] = within.pop(key)
    if key == "extends":
        return  # then tables are missing as well
    path = write(tmp_path, name, table)
    with pytest.raises(BadData) as error:
        read_recipe(path)
    message = str(error.value)
    assert (
        message.startswith(f"{path}: ")
        and f"has no key {wrong!r}: " in message
        and key in message.partition("valid: ")[2].split(", ")
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(KEYS), st.sampled_from([[[[]]], {"a": {"b": 1}}, [{}]]))
def test_any_value_of_another_type_is_reported_with_its_key(tmp_path, at, value):
    name, (*above, key) = at
    if key in ("options", "training_options", "extends"):
        return
    table = copy(name)
    inside(table, above)[key] = value
    path = write(tmp_path, name, table)
    with pytest.raises(BadData) as error:
        read_recipe(path)
    dotted = ".".join(part for part in (*above, key) if isinstance(part, str))
    assert str(error.value).startswith(f"{path}: {dotted}")


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(sorted(FILES)),
    st.integers(0, 2_000),
    st.integers(0, 30),
    st.text("=[]{}\"'.#a1\n", max_size=4),
)
def test_a_damaged_file_is_read_or_refused_and_nothing_else(tmp_path, name, start, length, put):
    text = (FOLDER / f"{name}.toml").read_text()
    path = write(tmp_path, name, {})
    path.write_text(text[:start] + put + text[start + length :])
    try:
        assert isinstance(read_recipe(path), Recipe)
    except TStarError as error:
        assert str(tmp_path) in str(error)


def other_value(name, value, hint):
    """A valid value of an option that is not the one it has, where there are two."""
    fixed = {"algo": "grpo", "device": "cpu", "processes": 2}  # the tasks of an iteration divide by the last
    fixed |= {"server.url": "http://host:8000", "server.devices": "0", "server.tensor_parallel": 1}
    if name in fixed:
        return fixed[name]
    valid = range_of(hint)
    if get_origin(hint) is Annotated:  # with a range
        hint = get_args(hint)[0]
    if get_origin(hint) is Literal:
        return next(v for v in get_args(hint) if v != value)
    kinds = get_args(hint) or (hint,)
    if bool in kinds or not {int, float} & {*kinds}:
        return not value if bool in kinds else "valid"
    return next(v for v in ((3, 1) if int in kinds else (0.5, 1.5)) if valid is None or v in valid)


def test_every_option_of_a_run_may_be_said(tmp_path):
    """All but those that [env] or the user says."""
    elsewhere = (
        "env",
        "model",
        "env_options",
        "training_options",
        "mix",
        "mix_options",
        "rollout.context",
        "rollout.history",
        "rollout.max_tokens",
    )
    # An option that stands only on others: those are said too.
    graph = {"tree": {"nodes": "state", "values": "bellman"}}
    beside = {
        "tree.values": {"tree": {"nodes": "state"}},
        "graft.source": graph,
        "graft.way_only": {**graph, "graft": {"source": "way"}},
        "explore.share": graph,
    }
    for name, value, hint in options(Config(env="")):
        if name not in elsewhere:
            said = other_value(name, value, hint)
            train = deepcopy(beside.get(name, {}))
            if name.startswith("server."):
                train["engine"] = "vllm-server"
            part, _, last = name.rpartition(".")
            (train.setdefault(part, {}) if part else train)[last] = said
            recipe = read_recipe(write(tmp_path, "mine", {"extends": "sokoban", "train": train}))
            assert {n: v for n, v, _ in options(recipe.train)}[name] == said, name
