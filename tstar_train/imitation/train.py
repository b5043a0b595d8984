"""Imitation of experts and of recorded episodes: the episodes, the plan, the training, and the folder."""

from __future__ import annotations

import json
import math
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from torch import Tensor

from tstar_envs import (
    EnvironmentFailed,
    Episode,
    StableRandom,
    TextEnv,
    UnknownOption,
    called,
    find_entry,
    prompt_of,
    read_episodes,
    task_ids_of,
    write_whole,
)
from tstar_envs.redaction import without_secrets
from tstar_envs.utils import counted
from tstar_train.build import device_of, limit_of, make_env
from tstar_train.config import Config
from tstar_train.config_check import options
from tstar_train.distributed import SingleProcess
from tstar_train.engines.check import check_agreement
from tstar_train.engines.local import LocalEngine
from tstar_train.finite import NotFinite
from tstar_train.imitation.options import DEMONSTRATIONS, ImitationOptions
from tstar_train.learner.batch import Outputs, SequenceMicroBatch, Step, Totals, sequence_micro_batches
from tstar_train.learner.optimizers import OptimizerOptions
from tstar_train.learner.state import in_main_memory, write_tensors
from tstar_train.learner.terms import Reference
from tstar_train.learner.torch import TorchLearner
from tstar_train.learner.update import Batching, update
from tstar_train.loop import rate
from tstar_train.policy.codec import Codec
from tstar_train.policy.files import sha256_of
from tstar_train.policy.kv import ContextTooLong
from tstar_train.policy.lora import add_adapters
from tstar_train.policy.model import (
    Policy,
    by_file_names,
    load_policy,
    recompute_layers,
    save_description,
    set_threads,
)
from tstar_train.presets import with_options
from tstar_train.recipes.recipe import EnvRecipe, built_in_policy
from tstar_train.rollout.stream import Course, Estimates, Interleaving
from tstar_train.run_lock import lock_run_dir
from tstar_train.tracking import Ticker
from tstar_train.types import TokenSequence
from tstar_train.warmstart import Demonstration, Played, demonstrate, rows_of_demonstration

FEW_LINES = 20  # progress is printed about so many times


class Shown(NamedTuple):
    """An episode to imitate, with its task.

    Attributes:
        env: id of the environment.
        task: task id, unique among the episodes' environments of that id.
        episode: its text.
    """

    env: str
    task: str
    episode: Demonstration


@dataclass
class Gathered:
    """Episodes to imitate, and the others by reason.

    Attributes:
        shown: episodes to imitate.
        dropped: number of episodes left out, by reason.
        source: description for the plan.
    """

    shown: list[Shown] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    source: str = ""


def gather(config: Config, asked: ImitationOptions) -> Gathered:
    """Collect the episodes to imitate: the experts' or recorded ones.

    Args:
        config: of the run that would follow.
        asked: the options.

    Raises:
        UnknownOption: an environment has no expert, recorded episodes are of other splits, or none is left.
        MissingData, BadData: a file of episodes cannot be read.
    """
    found = _recorded(config, asked) if asked.episodes else _demonstrated(config, asked)
    for env in config.environments:
        if not any(shown.env == env for shown in found.shown):
            advice = (
                "lower --min-score, or give other --episodes" if asked.episodes else "choose other --tasks"
            )
            raise UnknownOption(
                f"no episode of {env} is left to imitate ({_reasons(found.dropped) or 'there is none'}): {advice}"
            )
    return found


def _demonstrated(config: Config, asked: ImitationOptions) -> Gathered:
    """Let the experts play, each environment as often as its weight says."""
    found = Gathered()
    wanted = asked.demonstrations or DEMONSTRATIONS
    sources = {}
    for env, count in _order(config).counts(wanted).items():
        made, sources[env] = 0, _tasks_of(config.of(env), asked)
        for place, (env_made, task, key) in enumerate(_tasks(config.of(env), asked, sources[env])):
            if made == count:
                break
            rng = random.Random(f"imitation/{asked.seed}/{env}/{place}")
            shown = called(
                "the environment",
                EnvironmentFailed,
                demonstrate,
                env_made,
                task,
                rng,
                asked.style,
                env_made.demonstrated,
            )
            if shown is None:
                found.dropped["not solved by the expert"] += 1
                if place > 10 * count + 100:  # practice has no end
                    break
                continue
            found.shown.append(Shown(env, key, shown))
            made += 1
    found.source = "the experts' demonstrations on " + ", ".join(
        f"{source} tasks of {find_entry(env).name}" for env, source in sources.items()
    )
    return found


def _tasks_of(config: Config, asked: ImitationOptions) -> str:
    """Choose the tasks of one environment: ``train`` or ``practice``."""
    if asked.tasks != "auto":
        return asked.tasks
    cls = find_entry(config.env).load_class()
    generated = cls.practice.__func__ is not TextEnv.practice.__func__  # type: ignore[attr-defined]
    return "practice" if generated and make_env(config).tier == "mini" else "train"


def _tasks(
    config: Config, asked: ImitationOptions, source: str
) -> Iterator[tuple[TextEnv[Any, Any], str, str]]:
    """Yield (environment, task id, key of the task); practice is endless, the train split is shuffled and ends."""
    if source == "train":
        env = make_env(config)
        for task in StableRandom(f"{asked.seed}/imitation/{config.env}").shuffled(
            task_ids_of(env, config.split)
        ):
            yield env, task, task
        return
    entry, world = find_entry(config.env), 0
    while True:
        env = called(
            "making the environment",
            EnvironmentFailed,
            entry.load_class().practice,
            f"{asked.seed}/{world}",
            **{**entry.kwargs, **config.env_options},
        )
        tasks = task_ids_of(env, "train")
        if not tasks:
            return
        for task in tasks:
            yield env, task, f"{world}/{task}"
        world += 1


def _recorded(config: Config, asked: ImitationOptions) -> Gathered:
    """Read the recorded episodes, best first where there are too many of a task, and play their replies again."""
    found, kept = Gathered(), defaultdict(list)
    splits: Counter[str] = Counter()
    ids = {find_entry(env).id: env for env in config.environments}
    for path in asked.episodes:
        for episode in read_episodes(path):
            if episode.env not in ids:
                found.dropped["of another environment"] += 1
            elif episode.ended == "error":
                found.dropped["without a result (error)"] += 1
            elif episode.reward < asked.min_score:
                found.dropped[f"with a score below {asked.min_score:g}"] += 1
            else:
                splits[episode.split] += 1
                kept[ids[episode.env], episode.task].append(episode)
    if others := {split: count for split, count in splits.items() if split not in asked.splits}:
        named = ", ".join(
            f"{counted(count, 'episode')} of the split {split!r}" for split, count in others.items()
        )
        raise UnknownOption(
            f"--episodes holds {named}: a model that imitates them cannot be measured on them. Record episodes of the split train "
            f"(eval --split train), or say that you mean it: --splits {' '.join([*asked.splits, *others])}"
        )
    envs: dict[str, TextEnv[Any, Any]] = {}
    for (env, task), episodes in kept.items():
        if env not in envs:
            envs[env] = make_env(config.of(env))
        used = 0
        for episode in sorted(episodes, key=lambda episode: -episode.reward):
            if used == asked.max_per_task:
                reason = f"beyond --max-per-task {asked.max_per_task}"
            else:
                reason = called("the environment", EnvironmentFailed, _difference, envs[env], episode)
            if reason:
                found.dropped[reason] += 1
                continue
            used += 1
            found.shown.append(Shown(env, task, of_record(episode, prompt_of(envs[env]))))
    found.source = f"recorded episodes of {', '.join(map(str, asked.episodes))}"
    return found


def of_record(episode: Episode, prompt: str) -> Demonstration:
    """Return a recorded episode as a demonstration.

    Args:
        episode: the record.
        prompt: rules of its environment.
    """
    turns = [Played(step.reply, step.observation) for step in episode.steps]
    return Demonstration(prompt, episode.instruction, episode.first_observation, turns)


def _difference(env: TextEnv[Any, Any], episode: Episode) -> str:
    """Play a recorded episode's replies again; return why the model would see another text, "" if it would not."""
    if not episode.steps:
        return "without a turn"
    if episode.rules_version != find_entry(episode.env).rules_version:
        return "of another version of the rules"
    if episode.task not in set(task_ids_of(env, episode.split)):
        return "of tasks that are not in that split of these data"
    other = "that read otherwise with these environment options (--env-option)"
    observation, info = env.reset(options={"task": episode.task})
    if (observation, str(info["instruction"])) != (episode.first_observation, episode.instruction):
        return other
    over = False
    for step in episode.steps:
        if over:
            return other
        observation, _, terminated, truncated, info = env.step(step.reply)
        over = terminated or truncated
        if observation != step.observation:
            return other
    return ""


def _order(config: Config) -> Interleaving:
    return Interleaving(config.mix or dict.fromkeys(config.environments, 1.0))


def _reasons(dropped: Mapping[str, int]) -> str:
    return ", ".join(f"{counted(count, 'episode')} {reason}" for reason, count in sorted(dropped.items()))


class Sequences(NamedTuple):
    """Token sequences of an episode, with its environment and task."""

    env: str
    task: str
    rows: list[TokenSequence]


def encoded(found: Gathered, codec: Codec, config: Config, limit: int) -> list[Sequences]:
    """Encode the episodes as a run records them; those that no run could play are counted as dropped.

    Args:
        found: the episodes.
        codec: codec between turns and token ids.
        config: of the run.
        limit: maximum number of tokens of a context and its reply.

    Raises:
        UnknownOption: none of an environment is left.
    """
    rollout, made = config.rollout, []
    seen = EnvRecipe(context=rollout.context, history=rollout.history, max_tokens=rollout.max_tokens)
    for env, task, episode in found.shown:
        try:
            rows = rows_of_demonstration(episode, codec, seen, limit, rollout.max_tokens, join=True)
        except ContextTooLong as error:
            reason = "with a reply" if "reply" in str(error) else "with a context"
            found.dropped[f"{reason} that is too long"] += 1
            continue
        made.append(
            Sequences(
                env,
                task,
                [
                    TokenSequence(row.ids, row.mask, [0.0] * len(row.ids), [1.0] * len(row.ids))
                    for row in rows
                    if any(row.mask)
                ],
            )
        )
    for env in config.environments:
        if not any(sequences.env == env for sequences in made):
            raise UnknownOption(
                f"no episode of {env} is left to imitate ({_reasons(found.dropped)}): replies have at most --rollout.max-tokens "
                f"{rollout.max_tokens}, and contexts at most {limit - rollout.max_tokens} tokens"
            )
    return made


def split_held_out(
    made: Sequence[Sequences], share: float, seed: int
) -> tuple[list[Sequences], list[Sequences]]:
    """Split episodes by task into those to train on and those held out.

    Args:
        made: the episodes.
        share: of the tasks to hold out of each environment, at least one where there are two.
        seed: of the choice.
    """
    chosen = set()
    for env in dict.fromkeys(one.env for one in made):
        tasks = sorted({one.task for one in made if one.env == env})
        count = min(len(tasks) - 1, max(1, round(share * len(tasks)))) if share else 0
        chosen |= {(env, task) for task in StableRandom(f"{seed}/held-out/{env}").shuffled(tasks)[:count]}
    held = [one for one in made if (one.env, one.task) in chosen]
    return [one for one in made if (one.env, one.task) not in chosen], held


class ImitationTerm:
    """Negative log-likelihood of the imitated tokens, their mean over the batch."""

    def needs(self, sequence: TokenSequence) -> bool:
        """See ``learner.terms.Term``."""
        return True

    def __call__(
        self, outputs: Outputs, micro: SequenceMicroBatch, totals: Totals, reference: Reference | None
    ) -> tuple[Tensor | None, dict[str, float]]:
        """See ``learner.terms.Term``."""
        loss = -(outputs.logprobs[micro.which] * micro.weight).sum() / totals.weight
        return loss, {"base_loss": loss.item()}


def mean_loss(learner: TorchLearner, episodes: Sequence[Sequences], batching: Batching) -> float | None:
    """Compute the mean negative log-likelihood in nats per imitated token; None without episodes."""
    total, tokens = 0.0, 0
    rows = [row for one in episodes for row in one.rows]
    for micro in sequence_micro_batches(rows, *batching.rows, sharing=learner.sharing):
        logprobs = learner.frozen(micro).logprobs[micro.which]
        total, tokens = total - float(logprobs.sum()), tokens + len(logprobs)
    return total / tokens if tokens else None


def imitate_model(
    config: Config, asked: ImitationOptions, out: Path, console: Console, command: str = ""
) -> dict[str, Any]:
    """Train a causal LM by imitation, and write it as an ordinary Hugging Face folder.

    Args:
        config: of the run that would follow, from ``imitation.options.run_of``.
        asked: options of the imitation.
        out: new or empty folder.
        console: console for plan and progress.
        command: the command line, for the record.

    Returns:
        The record, as in ``training.json``.

    Raises:
        UnknownOption: the folder is not empty, no episode is left, or an option does not fit the model.
        InUse: another process writes to the folder.
        MissingData, BadData: the model or a file of episodes cannot be read.
        NotFinite: a loss or gradient is NaN or infinite; ``broken_batch.json`` has the batch.
    """
    with lock_run_dir(out, used="what it holds would be lost: choose another --out"):
        try:
            return _imitate(config, asked, out, console, command)
        except NotFinite as error:
            write_whole(out / "broken_batch.json", json.dumps(error.batch))
            raise NotFinite(f"{error}. The batch is in {out / 'broken_batch.json'}", error.batch) from error


def _imitate(
    config: Config, asked: ImitationOptions, out: Path, console: Console, command: str
) -> dict[str, Any]:
    started = time.monotonic()
    device = device_of(config)
    if asked.optim.dtype == "auto":
        config = with_options(config, {"optim.dtype": "float32" if device == "cpu" else "bfloat16"})
    found = gather(config, asked)
    policy = _loaded(config, device)
    limit = limit_of(config, policy.model.config)
    train, held = split_held_out(encoded(found, policy.codec, config, limit), asked.held_out, asked.seed)
    rows = sum(len(one.rows) for one in train)
    steps = asked.steps or math.ceil(asked.epochs * rows / asked.batch)
    config = replace(config, iterations=steps)
    learner = TorchLearner(
        policy.model,
        None,
        SingleProcess(),
        learning_rate=config.optim.learning_rate,
        max_norm=config.optim.max_gradient_norm,
        recompute=config.optim.gradient_checkpointing,
        optimizer=OptimizerOptions.of(config.optim),
    )
    _print_plan(console, config, asked, policy, found, train, held, limit)
    batching = Batching(config.optim.micro_tokens, 1.0, policy.codec.pad, policy.model.device)
    before = mean_loss(learner, held, batching)
    if before is not None:
        console.print(f"held-out loss before: {before:.4f} nats a token", highlight=False)
    losses = _train(learner, config, asked, train, batching, console)
    after = mean_loss(learner, held, batching)
    _save(policy, learner, out)
    record = {
        "made_by": command,
        "model": config.model,
        "seen": {name: getattr(config.rollout, name) for name in ("context", "history", "max_tokens")},
        "env_options": {env: without_secrets(config.of(env).env_options) for env in config.environments},
        "weights": config.mix or dict.fromkeys(config.environments, 1.0),
        "rules_versions": {env: find_entry(env).rules_version for env in config.environments},
        "options": {name: _plain(value) for name, value, _ in options(asked)},
        "learning_rate": config.optim.learning_rate,
        "dtype": config.optim.dtype,
        "episodes": {"used": len(train), "held_out": len(held), "dropped": dict(found.dropped)},
        "steps": steps,
        "losses": losses,
        "held_out_loss": {"before": before, "after": after},
        "seconds": round(time.monotonic() - started, 1),
        "torch": torch.__version__,
        "sha256": {
            path.name: sha256_of(path)
            for path in sorted(out.iterdir())
            if path.suffix in (".json", ".safetensors")
        },
    }
    write_whole(out / "training.json", json.dumps(record, indent=1) + "\n")
    if before is not None and after is not None:
        console.print(f"held-out loss: {before:.4f} before, {after:.4f} after", highlight=False)
    console.print(
        f"written to {out}; train it with: python -m tstar_train --env ENV --model {out}", highlight=False
    )
    return record


def _plain(value: Any) -> Any:
    return [str(one) for one in value] if isinstance(value, tuple) else value


def _loaded(config: Config, device: str) -> Policy:
    """Load the model with what the options put on it, and check that a run can sample from it."""
    dtype = torch.bfloat16 if config.optim.dtype == "bfloat16" else torch.float32
    policy = load_policy(config.model, built_in_policy(config), device, dtype)
    if config.lora.rank:
        add_adapters(policy.model, config.lora.rank, config.lora.alpha)
    check_agreement(policy, LocalEngine(policy))
    if config.optim.gradient_checkpointing:
        recompute_layers(policy.model)
    set_threads(policy, config.threads)
    return policy


def _print_plan(
    console: Console,
    config: Config,
    asked: ImitationOptions,
    policy: Policy,
    found: Gathered,
    train: Sequence[Sequences],
    held: Sequence[Sequences],
    limit: int,
) -> None:
    trained = sum(p.numel() for p in policy.model.parameters() if p.requires_grad)
    adapters = f", adapters of rank {config.lora.rank}" if config.lora.rank else ""
    rows = [row for one in train for row in one.rows]
    tokens, own = sum(len(row.ids) for row in rows), sum(row.num_response_tokens for row in rows)
    optim, rollout = config.optim, config.rollout
    form = rollout.context + (f", history {rollout.history}" if rollout.context == "step" else "")
    lines = [
        f"model: {config.model}, {policy.parameters:,} parameters, {trained:,} trained{adapters}, {optim.dtype} on {policy.model.device}",
        f"episodes: {found.source}: {len(train)} to train on, {len(held)} held out"
        + (f"; left out: {_reasons(found.dropped)}" if found.dropped else ""),
        f"form: context {form}; replies of at most {rollout.max_tokens}, with their context at most {limit} tokens",
        f"tokens: {tokens:,} in {counted(len(rows), 'row')}, of which {own:,} are imitated",
        f"plan: {counted(config.iterations, 'step')} of {counted(asked.batch, 'row')}, "
        f"{config.iterations * asked.batch / len(rows):.3g} passes; {optim.optimizer}, peak learning rate {optim.learning_rate:g}, "
        f"warmup {optim.warmup:g}, decay {optim.decay:g}, weight decay {optim.weight_decay:g}",
    ]
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)


def _train(
    learner: TorchLearner,
    config: Config,
    asked: ImitationOptions,
    train: Sequence[Sequences],
    batching: Batching,
    console: Console,
) -> list[tuple[int, float]]:
    """Take the steps; return (step, mean loss since the last entry)."""
    rows = [(one.env, row) for one in train for row in one.rows]
    places = {env: [str(n) for n, (own, _) in enumerate(rows) if own == env] for env in config.environments}
    stream = Course(places, _order(config), "none", 1, asked.seed).at(0, 1.0, Estimates({}))
    ticker = Ticker(partial(print, file=sys.stderr, flush=True))
    steps, losses, summed, since = config.iterations, [], 0.0, 0
    every = max(1, steps // FEW_LINES)
    for number in range(steps):
        batch = [rows[int(slot.task)][1] for slot in stream.take(number * asked.batch, asked.batch)]
        try:
            stats = update(
                learner,
                [Step(batch)],
                [ImitationTerm()],
                None,
                SingleProcess(),
                factor=rate(config, number),
                batching=batching,
            )
        except NotFinite as error:
            raise NotFinite(f"step {number + 1} of the imitation: {error}", error.batch) from error
        summed, since = summed + stats.base_loss, since + 1
        ticker(f"step {number + 1}/{steps}")
        if (number + 1) % every == 0 or number + 1 == steps:
            losses.append((number + 1, summed / since))
            console.print(f"step {number + 1}/{steps}  loss {summed / since:.4f}", highlight=False)
            summed, since = 0.0, 0
    return losses


def _save(policy: Policy, learner: TorchLearner, out: Path) -> None:
    """Write the weights, with adapters merged, and all that describes them."""
    save_description(out, policy.model, policy.tokenizer, policy.published)
    weights = by_file_names(policy.model, learner.weights())
    write_tensors(out / "model.safetensors", in_main_memory(dict(weights), False))
