"""Everything that a run computes with, built from its options: the same on every rank."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from tstar_envs import (
    EnvironmentFailed,
    StableRandom,
    TextEnv,
    UnknownOption,
    called,
    find_entry,
    task_ids_of,
)
from tstar_train.algorithms import algorithm_class
from tstar_train.config import Config
from tstar_train.distributed import Communicator, raise_on_any_rank
from tstar_train.engines import close_engine, make_engine
from tstar_train.engines.base import Engine
from tstar_train.engines.check import check_agreement, require_following
from tstar_train.engines.local import LocalEngine
from tstar_train.engines.process import EngineProcess
from tstar_train.learner.deepspeed import DeepSpeedLearner
from tstar_train.learner.optimizers import OptimizerOptions
from tstar_train.learner.reference import AdapterReference, CopiedReference, Reference
from tstar_train.learner.torch import TorchLearner
from tstar_train.loop import Trainer
from tstar_train.policy.critic import Critic
from tstar_train.policy.files import is_tiny
from tstar_train.policy.kv import context_limit
from tstar_train.policy.lora import add_adapters, has_adapters
from tstar_train.policy.model import (
    Policy,
    has_few_parameters,
    load_policy,
    recompute_layers,
    set_threads,
)
from tstar_train.presets import require_train_split
from tstar_train.recipes.recipe import built_in_policy
from tstar_train.rollout.explore import require_listed
from tstar_train.rollout.stream import Course, Interleaving, Slot, Tasks, TaskStream

VALIDATION = "valid"  # the split that weights are chosen by


def build(
    config: Config, world: Communicator, console: Console | None = None, out: Path | None = None
) -> Trainer:
    """Make the trainer of one rank: policy, engine, learner and algorithm.

    It sets torch's threads in this process, see ``policy.model.set_threads``.

    Args:
        config: of the run.
        world: communicator of the ranks.
        console: for what the user should know.
        out: folder of the run, see ``engines.make_engine``.

    Raises:
        UnknownOption: replies may be so long that no context fits before them, or the options do not fit the environment.
    """
    config.keep_secrets()
    dtype = torch.bfloat16 if config.optim.dtype == "bfloat16" else torch.float32
    policy = load_policy(config.model, built_in_policy(config), device_of(config), dtype)
    if config.lora.rank:
        add_adapters(policy.model, config.lora.rank, config.lora.alpha)
    limit = limit_of(config, policy.model.config)
    if console is not None and not is_tiny(config.model):
        console.print(f"context and reply have at most {limit} tokens together", highlight=False)
    if config.engine in ("local", "paged"):  # both score as the local engine does
        check_agreement(policy, LocalEngine(policy))
    set_threads(policy, config.threads)
    trainer = trainer_of(config, policy, world, out)
    engine = trainer.engine if trainer.sampler is None else trainer.sampler.engine
    if not engine.shares_weights:
        try:
            with raise_on_any_rank(world):
                require_following(policy, engine, trainer.learner.weights)
        except BaseException:
            close_engine(engine)
            raise
    return trainer


def limit_of(config: Config, model_config: Any) -> int:
    """Compute the maximum number of tokens of a context and its reply together.

    Args:
        config: of the run.
        model_config: the model's configuration.

    Raises:
        UnknownOption: the maximum reply length leaves no room for a context.
    """
    limit = context_limit(model_config, config.rollout.context_tokens)
    if config.rollout.max_tokens >= limit:
        raise UnknownOption(
            f"--rollout.max-tokens {config.rollout.max_tokens} leaves no room for a context: with {config.model} both together have at "
            f"most {limit} tokens; try --rollout.max-tokens {max(1, limit // 4)}"
        )
    return limit


def trainer_of(config: Config, policy: Policy, world: Communicator, out: Path | None = None) -> Trainer:
    """Make a trainer as ``build`` does, around an existing policy.

    Raises:
        UnknownOption: the number of ranks does not divide the number of tasks.
    """
    if config.rollout.tasks_per_iteration % world.size:  # a rest would never be played
        raise UnknownOption(
            f"--rollout.tasks-per-iteration {config.rollout.tasks_per_iteration} does not divide by the {world.size} processes of this run"
        )
    reference: Reference | None = None
    if config.needs_reference:
        reference = (
            AdapterReference(policy.model)
            if has_adapters(policy.model)
            else CopiedReference(policy.model, world=world)
        )
    if config.optim.gradient_checkpointing:
        recompute_layers(policy.model)
    algorithm = algorithm_class(config.algo)(config)
    critic = Critic(policy.model, config.ppo.critic == "separate") if algorithm.needs_values else None
    learner = (DeepSpeedLearner if config.learner == "deepspeed" else TorchLearner)(
        policy.model,
        reference,
        world,
        learning_rate=config.optim.learning_rate,
        max_norm=config.optim.max_gradient_norm,
        alpha=config.graft.ref_ema_decay,
        critic=critic,
        critic_rate=config.ppo.critic_learning_rate,
        recompute=config.optim.gradient_checkpointing,
        optimizer=OptimizerOptions.of(config.optim),
    )
    engine = make_engine(config, policy, world, out)
    trainer = Trainer(config, world, policy, engine, learner, algorithm, stream_of(config))
    if config.rollout.ahead:
        # An engine that computes with the weights of the update gets a copy, in a process that has a core of its own.
        apart: Engine = EngineProcess(config, policy) if engine.shares_weights else engine
        trainer.sampler = replace(trainer, world=world.second(), engine=apart)
    return trainer


def stream_of(config: Config) -> Tasks | Course:
    """Make the stream of a run's training tasks.

    Raises:
        UnknownOption: there are too few, or the optimum of one is not known and the curriculum needs it.
    """
    size = config.rollout.tasks_per_iteration
    if not config.mix and config.curriculum == "none":
        return TaskStream(training_tasks(make_env(config), config), size, config.seed)
    tasks: dict[str, list[str]] = {}
    for env in config.environments:
        made = make_env(config.of(env))
        tasks[env] = training_tasks(made, config.of(env))
        if config.curriculum == "optimum":
            tasks[env] = from_the_shortest(made, tasks[env], env)
    return Course(
        tasks, Interleaving(config.mix or dict.fromkeys(tasks, 1.0)), config.curriculum, size, config.seed
    )


def from_the_shortest(env: TextEnv[Any, Any], tasks: Sequence[str], name: str) -> list[str]:
    """Sort tasks by the length of their optimal solution; equal ones stay in order.

    Raises:
        UnknownOption: the optimum of a task is not known.
    """
    lengths = {}
    for task in tasks:
        info = called("the environment", EnvironmentFailed, env.reset, options={"task": task})[1]
        lengths[task] = info.get("optimal_length")
        if not isinstance(lengths[task], int | float):
            raise UnknownOption(
                f"--curriculum optimum orders tasks by the length of their optimal solution, which {name} does not give for {task}: use "
                f"--curriculum success or none"
            )
    return sorted(tasks, key=lengths.__getitem__)


def device_of(config: Config) -> str:
    """Choose this rank's device; ``auto`` takes the GPU that ``torchrun`` assigned, else the first GPU.

    Raises:
        UnknownOption: ``torchrun`` started more processes on this machine than it has GPUs.
    """
    if config.device != "auto":
        return config.device
    cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not cards:
        return "cpu"
    own = int(os.environ.get("LOCAL_RANK", 0))
    here = max(own + 1, int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
    if here > cards:
        raise UnknownOption(
            f"{here} processes of this run are on a machine with {cards} GPU{'s' * (cards > 1)}, and each takes one of its own: start as "
            f"many as there are GPUs (torchrun --nproc-per-node {cards}), or let all compute on the first one with --device cuda:0"
        )
    return f"cuda:{own}"


def processes_of(config: Config) -> int:
    """Choose the number of processes: as requested, else one per core for a small model on a CPU.

    Reduced to a number that divides the tasks of an iteration.
    """
    if config.processes is not None:
        return config.processes
    if (
        device_of(config) != "cpu"
        or config.engine != "local"
        or not has_few_parameters(config.model, built_in_policy(config))
    ):
        return 1
    # With sampling ahead each has a process beside it.
    cores = (os.cpu_count() or 1) // (1 + config.rollout.ahead)
    most = max(1, min(cores, config.rollout.tasks_per_iteration, 8))
    return max(n for n in range(1, most + 1) if config.rollout.tasks_per_iteration % n == 0)


def make_env(config: Config) -> TextEnv[Any, Any]:
    """Make one environment of the run, which checks its options.

    Raises:
        UnknownOption: the environment lacks an option, the run itself sets it, or there are no training tasks.
    """
    entry = find_entry(config.env)
    for options in (config.env_options, config.training_options):
        if "split" in options:  # it would be in force in play, but not in the choice of tasks
            raise UnknownOption(f"split is no option of its own here: use --split {options['split']}")
    require_train_split(entry)
    cls = entry.load_class()

    def made(options: dict[str, Any]) -> TextEnv[Any, Any]:
        whole = {**entry.kwargs, **options, "split": config.split}
        env: TextEnv[Any, Any] = called("making the environment", EnvironmentFailed, cls, **whole)
        return env

    if config.training_options:  # refused here rather than by a helper process after the first measurement
        made({**config.env_options, **config.training_options})
    return made(config.env_options)


def training_tasks(env: TextEnv[Any, Any], config: Config) -> list[str]:
    """Return the ids of the training tasks: the split's, or those of them that ``--train-tasks`` keeps.

    Raises:
        UnknownOption: there are too few, or forks need listed actions and the environment has none.
    """
    tasks = task_ids_of(env, config.split)
    if len(tasks) < config.rollout.tasks_per_iteration:
        raise UnknownOption(
            f"split {config.split!r} of {config.env} has {len(tasks)} tasks, fewer than "
            f"--rollout.tasks-per-iteration {config.rollout.tasks_per_iteration}; {env.lacking(config.split)}"
        )
    if config.train_tasks is not None:
        if not config.rollout.tasks_per_iteration <= config.train_tasks <= len(tasks):
            raise UnknownOption(
                f"--train-tasks {config.train_tasks} must be from {config.rollout.tasks_per_iteration} (--rollout.tasks-per-iteration) to "
                f"{len(tasks)}, the tasks of split {config.split!r} of {config.env}"
            )
        tasks = StableRandom(f"{config.env}/train-tasks").shuffled(tasks)[: config.train_tasks]
    if config.forks:  # refused here rather than after the first measurement
        info = called("the environment", EnvironmentFailed, env.reset, options={"task": tasks[0]})[1]
        require_listed(config, config.env, info["admissible_actions"])
    return tasks


def measured_tasks(config: Config) -> tuple[list[str | Slot], list[str | Slot]]:
    """List what the run is measured on and validated on, as slots if it has several environments.

    Raises:
        UnknownOption: see ``make_env``, ``stream_of`` and ``validation_tasks``.
    """
    if config.curriculum == "optimum":
        stream_of(config)
    held_out: list[str | Slot] = []
    validated: list[str | Slot] = []
    for name in config.environments:
        alone = config.of(name)
        env = make_env(alone)
        training_tasks(env, alone)  # refused here rather than by a process of its own
        for tasks, found in (
            (held_out, held_out_tasks(env, alone)),
            (validated, validation_tasks(env, alone)),
        ):
            tasks += [Slot(name, task) for task in found] if config.mix else found
    return held_out, validated


def held_out_tasks(env: TextEnv[Any, Any], config: Config) -> list[str]:
    """Ids that the run is measured on."""
    return task_ids_of(env, config.evaluation.split)[: config.evaluation.tasks]


def validation_tasks(env: TextEnv[Any, Any], config: Config) -> list[str]:
    """List the ids of the validation tasks (split ``valid``); empty without validation.

    Raises:
        UnknownOption: there are none, or the run trains on tasks of that split or is measured on them. Splits are compared by their tasks,
            since one may have several names.
    """
    if not config.evaluation.validate_every:
        return []
    without = "--evaluation.validate-every 0 (no validation)"
    found = task_ids_of(env, VALIDATION)
    if not found:
        raise UnknownOption(
            f"--evaluation.validate-every: the split {VALIDATION!r} of {config.env} has no tasks here; give {without}"
        )
    others = (
        ("--evaluation.split", config.evaluation.split, "test", "measures"),
        ("--split", config.split, "train", "trains on"),
    )
    for option, split, instead, does in others:
        if not set(found).isdisjoint(task_ids_of(env, split)):
            raise UnknownOption(
                f"--evaluation.validate-every chooses weights by tasks of the split {VALIDATION!r}, which {option} {split} {does}: "
                f"give {option} {instead}, or {without}"
            )
    return found[: config.evaluation.validation_tasks]
