"""Plan of a run: device memory by purpose and seconds, computed before anything is loaded.

Checked against the measured peak of a model of 100M parameters (tests/train/run/test_plan.py).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

import torch
from rich.console import Console
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from tstar_envs import MissingData, find_entry
from tstar_envs.utils import counted
from tstar_train.algorithms import algorithm_class
from tstar_train.algorithms.base import Algorithm
from tstar_train.build import device_of, limit_of, measured_tasks, processes_of
from tstar_train.config import Config
from tstar_train.config_check import check
from tstar_train.engines.paged import paged_rows
from tstar_train.engines.vllm_serving import BY_DISK, server_line, transfer_of
from tstar_train.learner.batch import LOSS_BYTES, MOST_LOSS_BYTES
from tstar_train.learner.deepspeed import BUCKET
from tstar_train.learner.optimizers import layer_matrices
from tstar_train.learner.reference import average_on_device, device_bytes
from tstar_train.learner.torch import PARTS_BELOW
from tstar_train.policy.files import model_source
from tstar_train.policy.kv import activations_of, cache_bytes_per_token, intermediate_size, rows_that_fit
from tstar_train.policy.model import require_text_config
from tstar_train.recipes.recipe import built_in_policy
from tstar_train.rollout.collect import training_spec
from tstar_train.rollout.sample import units_of

# Activations that a layer keeps for its backward pass, in hidden sizes (norms, queries, keys, values, attention output, residuals) and
# in intermediate sizes (gate, up projection and their product).
_KEPT_HIDDEN, _KEPT_INTERMEDIATE = 10, 4
_GIB = 1 << 30


@dataclass
class Plan:
    """Memory plan of one process, in bytes.

    Attributes:
        parameters: number of the model's parameters.
        trained: number of trained parameters, with adapters.
        limit: maximum number of tokens of a context and its reply together.
        always: bytes held for the whole run, by purpose.
        sampling: additional bytes during sampling.
        update: additional bytes during the update.
        host: bytes in main memory, if the device has its own memory.
        side_by_side: True if sampling and update take their memory at the same time.
        sampled_tokens: sampled tokens of an iteration if all replies have maximum length.
        further: maximum number of additional sampled tokens, by purpose.
    """

    parameters: int
    trained: int
    limit: int
    always: dict[str, int] = field(default_factory=dict)
    sampling: dict[str, int] = field(default_factory=dict)
    update: dict[str, int] = field(default_factory=dict)
    host: dict[str, int] = field(default_factory=dict)
    side_by_side: bool = False
    sampled_tokens: int = 0
    further: dict[str, int] = field(default_factory=dict)

    @property
    def peak(self) -> int:
        """Peak memory in bytes."""
        phases = sum(self.sampling.values()), sum(self.update.values())
        return sum(self.always.values()) + (sum(phases) if self.side_by_side else max(phases))


def plan(config: Config, model_config: Any, processes: int) -> Plan:
    """Compute the memory of one process of a run.

    Args:
        config: the run's options.
        model_config: the model's configuration.
        processes: number of processes.

    Raises:
        UnknownOption: the maximum reply length leaves no room for a context.
    """
    with torch.device("meta"):  # shapes without values
        model = AutoModelForCausalLM.from_config(model_config, trust_remote_code=False)
    parameters = sum(p.numel() for p in model.parameters())
    output = model.get_output_embeddings()
    linear = [
        m.weight for m in model.modules() if isinstance(m, torch.nn.Linear | Conv1D) and m is not output
    ]
    rank = config.lora.rank
    trained = rank * sum(sum(weight.shape) for weight in linear) if rank else parameters
    item = 2 if config.optim.dtype == "bfloat16" else 4
    limit = limit_of(config, model_config)
    made = Plan(parameters, trained, limit, side_by_side=bool(config.rollout.ahead))
    zero = config.learner == "deepspeed"
    shared = processes if zero else 1

    made.always["weights"] = parameters * item + (4 * trained if rank else 0)
    if item == 2 and not rank:
        made.always["float32 master weights"] = 4 * trained // shared
    matrices = 0
    if config.optim.optimizer == "muon":  # adapters are matrices
        matrices = trained if rank else sum(p.numel() for p in layer_matrices(model))
    of_muon = " (two moments, one of Muon's matrices)" if matrices else " (two moments)"
    made.always[f"optimizer{of_muon}"] = (8 * trained - 4 * matrices) // shared
    if config.needs_reference:
        made.always["reference"] = 4 * trained if rank else parameters * item
        if item == 2 and not rank:
            if average_on_device(parameters, processes, device_bytes(device_of(config))):
                made.always["float32 reference"] = 4 * parameters // processes
            else:
                made.host["float32 reference"] = 4 * parameters
    if config.checkpoint_beside:
        of_optimizer = 8 * trained - 4 * matrices + (4 * trained if item == 2 and not rank else 0)
        of_reference = (4 * trained if rank else 4 * parameters) if config.needs_reference else 0
        made.host["copy for a checkpoint"] = (
            parameters * item + (4 * trained if rank else 0) + of_optimizer + of_reference
        )
    if config.rollout.ahead and config.engine != "vllm-server":
        made.always["sampling process: weights"] = parameters * item
    share = config.rollout.tasks_per_iteration // processes * config.rollout.group_size
    rows = units_at_once(config, processes) * config.rollout.group_size
    token = cache_bytes_per_token(model_config, item)
    fitting = rows_that_fit(model_config, item, limit, config.rollout.max_sequences, config.rollout.cache_gib)
    made.sampling["keys and values"] = min(rows, fitting) * limit * token
    if config.engine == "paged":  # all pages are there from the start; scoring has a cache of its own
        fitting, held = paged_rows(
            model_config, item, limit, config.rollout.max_sequences, config.rollout.cache_gib
        )
        made.sampling["keys and values"] = held * token
    size = int(model_config.vocab_size)
    made.sampling["logits"] = min(rows, fitting) * size * 16
    takes = activations_of(model.config, item, bool(rank))
    made.sampling["activations of contexts"] = takes.most(min(rows, fitting), limit)
    if config.engine == "vllm-server":
        cache = made.sampling.pop("keys and values")
        made.sampling.clear()  # the server's, on a GPU or a host of its own, unless it shares this one
        if config.server.url is None and config.server.devices is None:
            device = device_of(config)
            share = int(config.vllm.memory * device_bytes(device)) if device.startswith("cuda") else 0
            made.always["the sampling server"] = share or parameters * item + cache
        if transfer_of(config, device_of(config)) in BY_DISK:
            made.host["weights on their way to the disk"] = parameters * item
    if config.engine == "vllm":  # vLLM sleeps during the update and frees its weights
        made.sampling["vLLM's copy of the weights"] = parameters * item

    wide = intermediate_size(model_config)
    tokens = max(config.optim.micro_tokens, limit)  # a single row may be longer than a micro-batch
    layer = tokens * item * (_KEPT_HIDDEN * model_config.hidden_size + _KEPT_INTERMEDIATE * wide)
    layers = int(model_config.num_hidden_layers)
    made.update["activations"] = (
        layers * tokens * model_config.hidden_size * item + layer
        if config.optim.gradient_checkpointing
        else layers * layer
    )
    replies = max(1, tokens // max(limit // 8, config.rollout.max_tokens)) * config.rollout.max_tokens
    made.update["loss over the vocabulary"] = min(min(tokens, replies) * size * LOSS_BYTES, MOST_LOSS_BYTES)
    if not zero:  # the step begins when these are freed, and takes as much as the gradient
        freed = sum(made.update.values())
        if 4 * trained > freed:
            made.update["AdamW's step beyond these"] = 4 * trained - freed
    copies = 1 if trained > PARTS_BELOW else 3
    made.update["gradient"] = copies * 4 * trained // shared
    if zero and config.optim.zero_stage == 1:  # this process' own, whole, beside its part of the sum
        made.update["gradient"] += 4 * trained
    elif zero:  # the bucket, and a copy for the all-reduce
        made.update["DeepSpeed's bucket"] = 2 * 4 * min(BUCKET, trained)
    made.sampled_tokens = share * _turns(config) * config.rollout.max_tokens
    if _plays_again(config):
        made.further["further rounds of sampling"] = (config.dapo.rounds - 1) * made.sampled_tokens
    by_depth = config.tstar and config.tree.nodes == "depth"
    if by_depth and config.tree.kl_estimator == "mc":  # after each turn but the last, where contexts differ
        drawn = share * (_turns(config) - 1) * config.tree.kl_samples
        longest = config.tree.kl_tokens
        made.further["KL draws"] = drawn * (
            longest if isinstance(longest, int) else config.rollout.max_tokens
        )
    if config.tstar and config.makes_pairs and config.graft.fallback != "z_plus_only":
        parted = config.rollout.tasks_per_iteration // processes * (config.rollout.group_size - 1)
        made.further["grafts"] = parted * config.rollout.max_tokens
    return made


def _optimizer(config: Config) -> str:
    optim = config.optim
    name = "AdamW" if optim.optimizer == "adamw" else "Muon for matrices, AdamW for the rest"
    parts = [
        f"{name}, learning rate {optim.learning_rate:g}, betas {optim.adam_beta1:g} and {optim.adam_beta2:g}",
        f"weight decay {optim.weight_decay:g}" if optim.weight_decay else "no weight decay",
    ]
    parts += [f"linear rise over the first {optim.warmup:.0%} of the run"] if optim.warmup else []
    parts += [f"linear fall over its last {optim.decay:.0%}"] if optim.decay else []
    return ", ".join(parts)


def units_at_once(config: Config, processes: int) -> int:
    """Return the largest number of tasks that a process plays side by side."""
    return max(map(len, units_of(config, config.rollout.tasks_per_iteration, processes)))


def _turns(config: Config) -> int:
    """Return the maximum number of turns of a training episode, at most the environment's own."""
    found = []
    for env in config.environments:
        given = training_spec(config.of(env)).options.get("horizon")
        found.append(given if isinstance(given, int) else find_entry(env).horizon)
    return max(found)


def _plays_again(config: Config) -> bool:
    """Check whether dropped groups are replaced by sampling more tasks."""
    return algorithm_class(config.algo).filter_group is not Algorithm.filter_group and config.dapo.rounds > 1


def trained_episodes(config: Config) -> tuple[int, int]:
    """Compute the minimum and maximum number of training episodes, unless ``minutes`` end the run."""
    each = config.rollout.tasks_per_iteration * config.rollout.group_size
    most = each * (config.dapo.rounds if _plays_again(config) else 1)
    fewest, highest = config.iterations * each, config.iterations * most
    # An iteration starts while fewer than ``episodes`` or ``turns`` were sampled, and is always finished.
    if config.episodes is not None:
        unit = config.rollout.group_size if most > each else each
        least, last = max(each, ceil(config.episodes / unit) * unit), (config.episodes - 1) // unit * unit
        fewest, highest = min(fewest, least), min(highest, last + most)
    if config.turns is not None:  # an episode has one at least, the horizon's at most
        fewest = min(fewest, ceil(config.turns / (most * _turns(config))) * each)
        highest = min(highest, ceil(config.turns / each) * most)
    return fewest, highest


def measured_episodes(config: Config, held_out: int, validated: int) -> int:
    """Count the episodes of a run's measurements: before and after training, and validations.

    Args:
        config: the run's options.
        held_out: number of held-out tasks.
        validated: number of validation tasks.
    """
    each = config.evaluation.samples + config.evaluation.greedy
    every = config.evaluation.validate_every
    validations = len(range(0, config.iterations, every)) + 1 if every else 0
    return 2 * held_out * each + validations * validated * each


def dry_run(config: Config, console: Console) -> None:
    """Check the options of a run and print its plan; nothing is written.

    Raises:
        UnknownOption: an option is not valid, as in the run itself.
        MissingData, BadData: the model is missing, or cannot be trained.
    """
    check(config)
    held_out, validated = measured_tasks(config)
    device, processes = device_of(config), processes_of(config)
    for line in plan_lines(plan(config, load_model_config(config), processes), config, device, processes):
        console.print(line, highlight=False, soft_wrap=True)
    least, most = trained_episodes(config)
    binds = trained_episodes(replace(config, turns=None)) != (least, most)
    why = " and ".join(["--dapo.rounds"] * _plays_again(config) + [f"--turns {config.turns}"] * binds)
    played = f"{least:,}" if least == most else f"{least:,} to {most:,} ({why})"
    measured = measured_episodes(config, len(held_out), len(validated))
    console.print(
        f"the run: {played} episodes of training, and {measured:,} that measure the policy (--evaluation.tasks, --evaluation.samples)",
        highlight=False,
        soft_wrap=True,
    )


def load_model_config(config: Config) -> Any:
    """Load the configuration of a run's model, without its weights.

    Raises:
        MissingData: there is no such model.
        BadData: the model cannot be trained.
    """
    source = model_source(config.model, built_in_policy(config), weights=False)
    try:
        model_config = AutoConfig.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise MissingData(
            f"no model {config.model!r}: its configuration cannot be read ({' '.join(str(error).split()):.300})"
        ) from error
    require_text_config(model_config, config.model)
    return model_config


def measured_speed(device: str, dtype: torch.dtype, size: int = 1024, seconds: float = 0.3) -> float:
    """Measure the device's speed of matrix products, in floating-point operations per second."""
    a = torch.randn(size, size, device=device).to(dtype)
    a @ a
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        a @ a
        count += 1
        if device.startswith("cuda"):
            torch.cuda.synchronize()
    return 2 * size**3 * count / (time.perf_counter() - began)


def operations(made: Plan, config: Config) -> int:
    """Compute the floating-point operations of an iteration of one process.

    Each sampled token is computed once in sampling, and three times (four with gradient checkpointing) in each epoch of the update.
    """
    update = config.optim.epochs * (3 + config.optim.gradient_checkpointing)
    return 2 * made.parameters * made.sampled_tokens * (1 + update)


def plan_lines(made: Plan, config: Config, device: str, processes: int) -> list[str]:
    """Format the plan as lines of text; the last says what does not fit and what would help."""

    def table(title: str, items: dict[str, int]) -> list[str]:
        rows = [f"  {name:<34}{_size(size):>12}" for name, size in items.items()]
        return [f"{title:<36}{_size(sum(items.values())):>12}", *rows] if items else []

    dtype = torch.bfloat16 if config.optim.dtype == "bfloat16" else torch.float32
    speed = measured_speed(device, dtype)
    has = device_bytes(device)
    share = 1 if device.startswith("cuda") else processes  # processes on a CPU share its memory
    lines = [
        f"{config.model}: {made.parameters / 1e6:,.1f}M parameters, {made.trained / 1e6:,.1f}M of them trained"
        + (" (adapters)" if config.lora.rank else ""),
        f"context and reply together: at most {made.limit:,} tokens, replies at most {config.rollout.max_tokens:,}; "
        f"{counted(config.rollout.tasks_per_iteration, 'task')} x {counted(config.rollout.group_size, 'episode')} "
        f"over {counted(processes, 'process', 'processes')}{_handed_out(config, processes)}",
        *([server_line(config, device)] if config.engine == "vllm-server" else []),
        *table("for the whole run", made.always),
        *table("plus during sampling", made.sampling),
        *table("plus during the update", made.update),
        *table("in main memory", made.host),
        f"peak of a process: {_size(made.peak)}, and {device} has {has / _GIB:.1f} GiB"
        + (f" for {share} processes" if share > 1 else ""),
        f"an iteration: at most {made.sampled_tokens:,} sampled tokens per process, some {operations(made, config) / speed:,.0f} s at the "
        f"{speed / 1e9:,.3g} GFLOP/s of a matrix product measured now (sampling is slower, contexts take more time, short replies less)",
        *(f"and at most {count:,} tokens of {name}" for name, count in made.further.items()),
        f"optimizer: {_optimizer(config)}",
        f"importance correction: {_correction(config)}",
        f"sampling and update: {_turns_taken(config)}",
        *_course(config),
    ]
    if made.peak * share + sum(made.host.values()) * (not device.startswith("cuda")) > has:
        helps = {
            "--optim.dtype bfloat16": config.optim.dtype == "float32",
            "--optim.gradient-checkpointing": not config.optim.gradient_checkpointing,
            "--lora.rank 32": not config.lora.rank,
            "--learner deepspeed with more processes": config.learner == "torch",
            "--optim.zero-stage 2": config.learner == "deepspeed" and config.optim.zero_stage == 1,
            "--optim.micro-tokens 2048": config.optim.micro_tokens > 2048,
            "--rollout.context-tokens 2048": made.limit > 2048,
        }
        lines.append(
            f"this does not fit; what would help: {', '.join(name for name, use in helps.items() if use)}"
        )
    else:
        lines.append("this fits")
    return lines


def _course(config: Config) -> list[str]:
    """Say in words which tasks are played, and with which horizon, where an option changes it."""
    lines = []
    if config.mix:
        whole = sum(config.mix.values())
        shares = ", ".join(
            f"{find_entry(env).name} {weight / whole:.1%}" for env, weight in config.mix.items()
        )
        lines.append(
            f"environments: {shares} of the tasks (--env); above, the longest of their horizons counts"
        )
    if config.train_tasks is not None:
        lines.append(f"tasks: the same {config.train_tasks} of the split (--train-tasks)")
    until = f"{config.curriculum_until:.0%} of the run (--curriculum-until)"
    if config.curriculum == "success":
        lines.append("tasks: more often those that are solved about half of the time (--curriculum success)")
    if config.curriculum == "optimum":
        lines.append(f"tasks: from the shortest optimal solution to all after {until} (--curriculum optimum)")
    if (first := config.rollout.horizon_growth) is not None:
        lines.append(
            f"horizon: from {counted(first, 'step')} to the full one after {until} (--rollout.horizon-growth)"
        )
    return lines


def _handed_out(config: Config, processes: int) -> str:
    """Say in words how processes share the tasks; nothing where one has them all."""
    units = units_of(config, config.rollout.tasks_per_iteration, processes)
    if processes == 1 and len(units) == 1:
        return ""
    taken = counted(max(map(len, units)), "task")
    return (
        f", taken at most {taken} at a time, {counted(len(units), 'time')} in all (--rollout.tasks-at-once)"
    )


def _turns_taken(config: Config) -> str:
    """Say in words whether sampling waits for the update."""
    if not config.rollout.ahead:
        return "in turn (--rollout.ahead 0)"
    where = "the server" if config.engine == "vllm-server" else "a process of its own beside each"
    return f"side by side, the episodes one update old (--rollout.ahead {config.rollout.ahead}), sampled by {where}"


def _correction(config: Config) -> str:
    """Say in words what corrects for the sampler's own probabilities."""
    optim = config.optim
    if config.engine in ("local", "paged"):
        return f"none, since the {config.engine} engine samples with the trainer's own weights"
    if optim.correction == "none":
        return "none (--optim.correction)"
    return (
        f"{optim.correction} with ratios up to {optim.correction_cap:g} (--optim.correction, --optim.correction-cap), "
        "if the engine has a copy of the weights"
    )


def _size(count: int) -> str:
    return f"{count / _GIB:,.2f} GiB" if count >= _GIB / 10 else f"{count / (1 << 20):,.1f} MiB"
