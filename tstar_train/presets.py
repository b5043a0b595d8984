"""Presets: the paper's hyperparameters, or the recipe of a built-in policy.

A preset is a set of defaults: every option on the command line overrides it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple, cast

from tstar_envs import EnvEntry, UnknownOption, find_entry, list_envs, parse_options
from tstar_train.algorithms import options_set_by
from tstar_train.config import ENVIRONMENT_OPTIONS, Config, RolloutConfig
from tstar_train.config_check import check_effects, is_a
from tstar_train.config_check import options as all_options
from tstar_train.policy.files import has_tiny, imitated_form, is_tiny, recipe_of_policy, warmstart_advice
from tstar_train.recipes.recipe import Recipe, load_recipe, policy_name, read_recipe, shared_policy
from tstar_train.tree import GAMMA, Credit, Nodes, Values


def paper(env: str) -> Config:
    """Return the paper's hyperparameters (4 tasks x 8 episodes a batch, at most 20 training steps, 4,096 tokens)."""
    return Config(env=env, model="auto", rollout=RolloutConfig(horizon=20, context_tokens=4096))


class EnvShare(NamedTuple):
    """Environment of a run, and its share of the tasks as a weight."""

    entry: EnvEntry
    weight: float


def read_shares(given: Sequence[str]) -> list[EnvShare]:
    """Read environments with weights, ``ENV`` or ``ENV:WEIGHT``.

    Example:
        >>> from tstar_train.presets import read_shares
        >>> [(entry.id, weight) for entry, weight in read_shares(["hotpotqa", "nq:0.5"])]
        [('tstar/HotpotQA', 1.0), ('tstar/NQ', 0.5)]

    Raises:
        UnknownOption: no such environment, a weight that is not above 0, or an environment is given twice.
    """
    shares: dict[str, EnvShare] = {}
    for text in given:
        name, colon, weight = text.rpartition(":")
        try:
            value = float(weight) if colon else 1.0
        except ValueError:
            known = {word for entry in list_envs() for word in (entry.id, entry.cli_name)}
            if name in known and "/" not in weight:  # else MODULE:NAMESPACE/NAME
                raise UnknownOption(f"--env {text}: the weight must be a number, got {weight!r}") from None
            name, colon, value = text, "", 1.0  # the colon is that of module:namespace/Name
        entry = find_entry(name if colon else text)
        if not 0 < value < math.inf:
            raise UnknownOption(f"--env {text}: the weight must be a finite number above 0, got {weight}")
        if entry.id in shares:
            raise UnknownOption(f"--env: {entry.id} is given twice: give it once, with its weight ({name}:2)")
        shares[entry.id] = EnvShare(entry, value)
    return list(shares.values())


def option_for_each(
    entries: Sequence[EnvEntry], name: str, pairs: Sequence[str], elsewhere: Mapping[str, str] | None = None
) -> dict[str, dict[str, Any]]:
    """Parse environment options of a run: ``KEY=VALUE`` for all environments that have it, ``ENV:KEY=VALUE`` for one.

    Args:
        entries: environments of the run.
        name: of the option, for messages.
        pairs: as typed; of several for one key and environment the last one counts.
        elsewhere: see ``parse_options``.

    Returns:
        Options by the environment's id.

    Raises:
        UnknownOption: see ``parse_options``; or an environment is named that the run does not have.
    """
    if len(entries) == 1 and not any(":" in pair.partition("=")[0] for pair in pairs):
        return {entries[0].id: parse_options(entries[0], pairs, elsewhere)}
    found: dict[str, dict[str, Any]] = {entry.id: {} for entry in entries}
    for pair in pairs:
        env, colon, key = pair.partition("=")[0].rpartition(":")
        if colon:
            meant = [entry for entry in entries if entry == find_entry(env)]
            if not meant:
                raise UnknownOption(
                    f"{name} {pair.partition('=')[0]}: {env} is no environment of this run, which has "
                    f"{', '.join(entry.name for entry in entries)}"
                )
        else:
            meant = [entry for entry in entries if has_option(entry, key) or key in (elsewhere or {})]
            if not meant:
                meant = list(entries)  # the error names the options of the first
        for entry in meant:
            found[entry.id] |= parse_options(entry, [pair[len(env) + len(colon) :]], elsewhere)
    return found


def has_option(entry: EnvEntry, name: str) -> bool:
    """Check whether an environment has an option that its id does not set."""
    return name in entry.load_class().option_types() and name not in entry.kwargs


def make_config(
    env: str | Sequence[str],
    *,
    model: str | None = None,
    preset: str | None = None,
    recipe: str | os.PathLike[str] | None = None,
    env_options: Mapping[str, Any] | None = None,
    training_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Config:
    """Make the configuration of a run: a preset, then the algorithm's defaults, then your options, as on the command line.

    Example:
        >>> from tstar_train import make_config
        >>> config = make_config("hotpotqa", algo="dapo", iterations=20, rollout={"group_size": 4})
        >>> config.optim.clip_high, config.rollout.group_size
        (0.28, 4)

    Args:
        env: environment id or short name; several, also with weights: ``["hotpotqa", "nq:0.5"]``.
        model: ``tiny``, or the name or path of a Hugging Face causal LM; None for the built-in policy.
        preset: name of a preset of the paper's hyperparameters (``qwen2.5-3b``, ``phi-4-mini``); None for that of environment and model.
        recipe: file of a recipe (docs/recipes.md), whose settings replace the preset.
        env_options: options of the environment; of several, of each that has them.
        training_options: options of the environment in training only.
        options: fields of ``Config``; of its parts by a mapping (``rollout={"group_size": 4}``) or a dotted name
            (``**{"rollout.group_size": 4}``).

    Raises:
        UnknownOption: no such environment, preset or option.
    """
    shares = read_shares([env] if isinstance(env, str) else env)
    config, _ = chosen_for(shares, model, preset, None if recipe is None else Path(recipe))
    given: dict[str, Any] = {}
    for name, value in options.items():
        part = f"{name}." if isinstance(value, Mapping) else ""
        given |= {f"{part}{key}": v for key, v in value.items()} if part else {name: value}
    config = with_options(with_choices(config, given), given)
    entries = [share.entry for share in shares]
    own = [
        {
            entry.id: {k: v for k, v in (options or {}).items() if len(entries) == 1 or has_option(entry, k)}
            for entry in entries
        }
        for options in (env_options, training_options)
    ]
    for name in {**(env_options or {}), **(training_options or {})}:
        if len(entries) > 1 and not any(has_option(entry, name) for entry in entries):
            raise UnknownOption(f"none of {', '.join(entry.id for entry in entries)} has the option {name!r}")
    return with_environment_options(config, *own)


def with_environment_options(
    config: Config, own: Mapping[str, Mapping[str, Any]], further: Mapping[str, Mapping[str, Any]]
) -> Config:
    """Add environment options to a run.

    Args:
        config: of the run.
        own: ``env_options`` by the environment's id.
        further: ``training_options``, in the same way.
    """
    first = config.environments[0]
    return replace(
        config,
        env_options={**config.env_options, **own.get(first, {})},
        training_options={**config.training_options, **further.get(first, {})},
        mix_options={
            env: {
                "env_options": {**options["env_options"], **own.get(env, {})},
                "training_options": {**options["training_options"], **further.get(env, {})},
            }
            for env, options in config.mix_options.items()
        },
    )


def chosen_for(
    shares: Sequence[EnvShare], model: str | None, preset: str | None, recipe: Path | None = None
) -> tuple[Config, str]:
    """Choose the preset of a run on one or several environments; return it with a sentence on why.

    It is that of the first environment; of the others come the options of the environments themselves. A built-in policy must play all.

    Args:
        shares: the environments.
        model: see ``choose``.
        preset: see ``chosen``.
        recipe: see ``chosen``.

    Raises:
        UnknownOption: see ``chosen``; or no built-in policy plays all of the environments.
        MissingData, BadData: see ``chosen``.
    """
    entries = [share.entry for share in shares]
    if len(entries) == 1:
        config, reason = chosen(entries[0], model, preset, recipe)
        return replace(config, env=entries[0].id), reason
    built_in = preset is None and (model or "auto") in ("auto", "tiny")
    if built_in:
        for entry in entries:
            require_train_split(entry)
        policy = shared_policy(entries)
        if policy is None or not has_tiny(policy):
            raise UnknownOption(
                f"no built-in policy plays all of {', '.join(entry.name for entry in entries)}: name a model "
                f"(--model PATH or a Hugging Face name), or train on one of them"
            )
        settings = load_recipe(policy) if recipe is None else read_recipe(recipe)
        each = [tiny(entry, "tiny", settings) for entry in entries]
        reason = f"model: tiny (the built-in policy {policy}, which plays all of the environments)"
    else:
        found = [chosen(entry, model, preset, recipe) for entry in entries]
        each, reason = [config for config, _ in found], f"{found[0][1]}, those of the first environment"
    options = {
        entry.id: {
            name: {k: v for k, v in getattr(config, name).items() if has_option(entry, k)}
            for name in ENVIRONMENT_OPTIONS
        }
        for entry, config in zip(entries, each, strict=True)
    }
    first = options.pop(entries[0].id)
    mix = {entry.id: weight for entry, weight in shares}
    config = replace(each[0], env=entries[0].id, mix=mix, mix_options=options)
    return replace(
        config, env_options=first["env_options"], training_options=first["training_options"]
    ), reason


def with_options(config: Config, given: Mapping[str, Any]) -> Config:
    """Set options by their dotted names.

    Raises:
        UnknownOption: no such option, or a part of the options; the message has the nearest name.
    """
    changed: dict[str, Any] = {}
    for option, value in given.items():
        if is_dataclass(getattr(config, option, None)):
            raise UnknownOption(f"no option {option!r}; give its fields: {option}={{'name': value}}")
        part, _, field = option.rpartition(".")
        whole = changed.get(part, getattr(config, part, None)) if part else config
        if not is_dataclass(whole) or isinstance(whole, type) or field not in {f.name for f in fields(whole)}:
            names = [name for name, _, _ in all_options(config)]
            near = get_close_matches(option, names, n=1)
            guess = f"did you mean {near[0]!r}?" if near else f"valid: {', '.join(names)}"
            raise UnknownOption(f"no option {option!r}; {guess}")
        if part:
            changed[part] = replace(whole, **{field: value})
        else:
            changed[field] = value
    return replace(config, **changed)


# The discount by depth of the built-in policies' presets (recipes/_tiny.toml).
TINY_GAMMA = 1.0
# The models of the paper by the names of their presets. Both are trained in half precision with recomputed layers.
LARGE = {"qwen2.5-3b": "Qwen/Qwen2.5-3B-Instruct", "phi-4-mini": "microsoft/Phi-4-mini-instruct"}


def large(env: str, name: str, model: str | None) -> Config:
    """Return the paper's hyperparameters for one of its models.

    Args:
        env: environment.
        name: of ``LARGE``.
        model: path or name to use instead.
    """
    config = paper(env)
    return replace(
        config,
        model=model or LARGE[name],
        optim=replace(config.optim, dtype="bfloat16", gradient_checkpointing=True),
    )


def chosen(
    entry: EnvEntry, model: str | None, preset: str | None, recipe: Path | None = None
) -> tuple[Config, str]:
    """Choose the requested preset, or the one for this environment and model; return it with a sentence on why.

    Args:
        entry: environment.
        model: see ``choose``.
        preset: name of ``LARGE``.
        recipe: file of a recipe (docs/recipes.md), whose [env] and [train] are then the preset.

    Raises:
        UnknownOption: see ``choose``; or a preset and a recipe are given.
        MissingData, BadData: the recipe does not exist, or is not valid.
    """
    if recipe is not None:
        if preset is not None:
            raise UnknownOption(
                f"--preset {preset} and --recipe {recipe} are both sets of defaults: give one"
            )
        require_train_split(entry)
        name = choose(entry, model or "auto")[0].model
        return tiny(entry, name, read_recipe(recipe)), f"model: {name}, with the settings of {recipe}"
    if preset is None:
        return choose(entry, model or "auto")
    require_train_split(entry)
    config = large(entry.id, preset, model)
    reason = f"model: {config.model}, with the paper's hyperparameters for {preset} (half precision, recomputed layers)"
    return _as_imitated(config, entry, reason)


def tiny(entry: EnvEntry, model: str = "tiny", recipe: Recipe | None = None) -> Config:
    """Return the preset of a built-in policy's recipe, chosen on validation tasks for two CPU cores.

    Args:
        entry: the environment.
        model: ``tiny``, or the path of a policy of that kind, which names its recipe.
        recipe: recipe to use instead.
    """
    recipe = recipe or recipe_of_policy(model, entry)
    seen, said = recipe.env, recipe.train
    rollout = replace(said.rollout, context=seen.context, history=seen.history, max_tokens=seen.max_tokens)
    training_options = dict(said.training_options)
    return replace(
        said,
        env=entry.id,
        model=model,
        env_options=dict(seen.options),
        training_options=training_options,
        rollout=rollout,
    )


def require_train_split(entry: EnvEntry) -> None:
    """Refuse to train on an environment that is for evaluation only.

    Raises:
        UnknownOption: it has no train split; the set to train on is named.
    """
    if "train" not in entry.splits:
        other = find_entry(entry.train_on).name
        raise UnknownOption(
            f"{entry.id} is for evaluation only (its splits: {', '.join(entry.splits)}): train with --env {other}, "
            f"then evaluate with: python -m tstar_envs eval --env {entry.name} --agent tiny:RUN/checkpoints/NUMBER"
        )


def with_algorithm(config: Config, name: str) -> Config:
    """Apply a base algorithm and its default options, which override the preset's."""
    return with_options(config, {"algo": name, **options_set_by(name)})


def with_nodes(config: Config, nodes: str) -> Config:
    """Apply a node kind and its default options.

    By state that is transition credit, the discount of states, and no grafts at divergences: credit by state is small, so that at the
    weight chosen for the paper's credit the surgical loss outweighed it on Blocksworld (docs/results/algorithms.md). By depth it is the
    paper's reading, grafts and all, with the discount of the preset's kind, and neither solved values, ways nor forks, which need states.
    """
    if nodes not in GAMMA or nodes == config.tree.nodes:
        return config
    credit: Credit = "value" if nodes == "depth" else "transition"
    gamma = TINY_GAMMA if nodes == "depth" and is_tiny(config.model) else GAMMA[nodes]
    values: Values = "mean" if nodes == "depth" else config.tree.values
    tree = replace(config.tree, nodes=cast("Nodes", nodes), credit=credit, gamma=gamma, values=values)
    graft = replace(config.graft, enabled=nodes == "depth", source="divergence", way_only=False)
    return replace(config, tree=tree, graft=graft, explore=replace(config.explore, share=0.0))


def with_choices(config: Config, given: Mapping[str, Any], refuse: bool = True) -> Config:
    """Apply the default options of the choices that the user made: algorithm, nodes, ways and forks.

    Options of the preset that do not fit a choice are turned off; what the user asked for stays.

    Args:
        config: the preset.
        given: values of options by dotted name, as far as the user gave them.
        refuse: True to refuse options that would be ignored.

    Raises:
        UnknownOption: an option that was given would be ignored.
    """
    algo = given.get("algo")
    config = with_algorithm(config, algo if isinstance(algo, str) else config.algo)
    ways = given.get("graft.source", "divergence") != "divergence"
    share = given.get("explore.share")
    forks = isinstance(share, int | float) and share > 0
    graph = "state" if ways or forks or given.get("tree.values") == "bellman" else config.tree.nodes
    config = with_nodes(config, given.get("tree.nodes", graph))
    chosen: dict[str, Any] = {}
    if ways:
        chosen["graft.enabled"] = True
    if forks:
        chosen["tree.values"] = "bellman"
    asked = with_options(config, {**chosen, **given})
    valid = {
        name for name, value, hint in all_options(asked) if is_a(value, hint)
    }  # others are reported later
    asked = with_options(
        config, {name: value for name, value in {**chosen, **given}.items() if name in valid}
    )
    plays_forks = asked.forks and asked.tree.enabled and asked.tree.values == "bellman"
    if not plays_forks or asked.first_episodes >= asked.rollout.group_size:
        chosen["explore.share"] = 0.0
    if not asked.imitates_ways:
        chosen["graft.way_only"] = False
    config = with_options(config, {name: value for name, value in chosen.items() if name not in given})
    known = {name: value for name, value in given.items() if name in valid}
    if refuse:
        check_effects(with_options(config, known), known)
    return config


def choose(entry: EnvEntry, model: str) -> tuple[Config, str]:
    """Choose the preset for an environment and a model; return it with a sentence on why.

    Raises:
        UnknownOption: the environment has no training tasks, or ``auto`` has no weights for it.
    """
    require_train_split(entry)
    if model == "auto":
        if not has_tiny(policy_name(entry)):
            raise UnknownOption(
                f"no built-in model for {entry.id} yet: name one (--model PATH or a Hugging Face name), "
                f"or make one with: {warmstart_advice(entry.cli_name)}"
            )
        return (
            tiny(entry),
            f"model: tiny (the built-in policy {policy_name(entry)}; --model auto takes one where there is one)",
        )
    if model == "tiny":
        return tiny(entry), "model: tiny (built in), with the tiny preset"
    if is_tiny(model):
        made_as = recipe_of_policy(model, entry).name
        return tiny(
            entry, model
        ), f"model: {model}, a policy of the tiny kind, with the tiny preset (settings of {made_as})"
    config = replace(paper(entry.id), model=model)
    return _as_imitated(config, entry, f"model: {model}, with the paper's hyperparameters")


def _as_imitated(config: Config, entry: EnvEntry, reason: str) -> tuple[Config, str]:
    """Give a preset the contexts and environment options that its model imitated, if ``warmstart --model`` made it."""
    form = imitated_form(config.model, entry)
    if form is None:
        return config, reason
    shown = {f"rollout.{name}": getattr(form, name) for name in ("context", "history", "max_tokens")}
    config = replace(with_options(config, shown), env_options=dict(form.options))
    return config, f"{reason}, and the contexts and environment options that it imitated"
