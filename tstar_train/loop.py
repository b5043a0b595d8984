"""Training iteration, readable from top to bottom as the paper's Algorithm 1, and its metrics."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter

import numpy as np
import torch

from tstar_train.ahead import Ahead
from tstar_train.algorithms.base import Advantages, Algorithm
from tstar_train.algorithms.tstar import TStar
from tstar_train.config import Config
from tstar_train.distributed import Communicator, raise_on_any_rank
from tstar_train.engines.base import Engine
from tstar_train.engines.check import max_logprob_difference, sync_engine
from tstar_train.grafting import GraftDataset, kept_pair
from tstar_train.learner.base import Learner
from tstar_train.learner.batch import split_minibatches
from tstar_train.learner.rows import correct, costs_of, make_rows, moved, moved_episodes, places_of, weigh
from tstar_train.learner.terms import SurgicalTerm
from tstar_train.learner.update import Batching, UpdateStats, compute_old_logprobs_and_values, update
from tstar_train.metrics import IterationResult, gathered, mean, summarize
from tstar_train.policy.model import Policy
from tstar_train.rollout.collect import sampling_of, training_specs
from tstar_train.rollout.sample import sample_groups
from tstar_train.rollout.stream import Course, Estimates, Tasks, course_metrics
from tstar_train.types import Group, IterationData, KeptPair, Trajectory

_GIB = 1 << 30


class PhaseTimer:
    """Timer of an iteration's phases, which follow one another.

    A GPU computes asynchronously, so a phase ends once the device has synchronized.

    Args:
        now: clock that returns seconds.
        device: of the model.

    Attributes:
        seconds: by phase.
        memory: peak GiB of PyTorch's tensors on a GPU by phase (``torch.cuda.max_memory_allocated``), without the allocator's reserve
            and CUDA's own memory (about .5 GiB). Empty on other devices.
    """

    def __init__(self, now: Callable[[], float], device: torch.device) -> None:
        self.seconds: dict[str, float] = {}
        self.memory: dict[str, float] = {}
        self._now = now
        self._device = device if device.type == "cuda" else None
        if self._device is not None:
            torch.cuda.reset_peak_memory_stats(self._device)
        self._last = now()

    def phase(self, name: str) -> None:
        """End a phase, or a part of one: it lasted since the last call."""
        if self._device is not None:
            torch.cuda.synchronize(self._device)
            peak = torch.cuda.max_memory_allocated(self._device) / _GIB
            self.memory[name] = max(peak, self.memory.get(name, 0.0))
            torch.cuda.reset_peak_memory_stats(self._device)
        now = self._now()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = now


@dataclass
class Trainer:
    """State of a training on one rank: everything that an iteration reads and changes.

    Attributes:
        config: the run's options.
        world: communicator between the ranks.
        policy: model, tokenizer and codec.
        engine: samples from the policy.
        learner: updates its weights.
        algorithm: computes the base advantages.
        stream: the training tasks.
        estimates: success of the tasks so far, with ``--curriculum success``.
        cursor: number of tasks played.
        turns: number of sampled turns.
        grafted: (task, state key) of divergences that already produced a graft, for the metric of anchor reuse; on the first rank.
        dataset: grafting set; on the first rank.
        whole: False while an iteration is half applied. Checkpoints are only taken when True.
        sampler: this trainer as the sampling ahead sees it; None without it.
        ahead: what was sampled ahead.
        on_progress: called with progress texts of long measurements.
    """

    config: Config
    world: Communicator
    policy: Policy
    engine: Engine
    learner: Learner
    algorithm: Algorithm
    stream: Tasks | Course
    estimates: Estimates = field(default_factory=lambda: Estimates({}))
    cursor: int = 0
    turns: int = 0
    grafted: set[tuple[str, str]] = field(default_factory=set)
    dataset: GraftDataset = field(default_factory=GraftDataset)
    whole: bool = True
    sampler: Trainer | None = None
    ahead: Ahead = field(default_factory=Ahead)
    on_progress: Callable[[str], None] = lambda text: None

    def tstar(self, data: IterationData) -> TStar | None:
        """T-STAR as this iteration samples; None if it is off."""
        if not self.config.tstar:
            return None
        sampling = sampling_of(self.config, data.temperature)
        specs = training_specs(self.config, data.grown)
        return TStar(self.config, self.engine, self.policy.codec, specs, sampling)

    def batching(self, data: IterationData) -> Batching:
        """Return this iteration's batching options."""
        optim, model = self.config.optim, self.policy.model
        # Weights that have moved on differ from those that sampled; the probe has compared the engine with them (``sync_engine``).
        most = math.inf if data.lag else max_logprob_difference(self.policy, optim.max_logprob_difference)
        return Batching(
            optim.micro_tokens, data.temperature, self.policy.codec.pad, model.device, most, optim.max_loss
        )


def iterate(
    trainer: Trainer, number: int, passed: float = 0.0, *, now: Callable[[], float] = time.perf_counter
) -> IterationResult:
    """Run one training iteration; all ranks call it.

    Args:
        trainer: changed in place.
        number: of the iteration, from 0.
        passed: fraction of the run's ``minutes`` used, by the first rank's clock.
        now: clock of the phases, in seconds.

    Raises:
        InfrastructureError: most episodes failed; nothing was trained.
        NotFinite: a loss, log-probability or gradient is NaN or infinite; weights are those before this optimizer step.
        EngineMismatch: sampler and trainer disagree about log-probabilities of sampled tokens; no step was taken.
        RankFailed: another process failed.
    """
    if trainer.sampler is None:
        data, timer = begin(trainer, number, passed), PhaseTimer(now, trainer.policy.model.device)
        sample(trainer, data, timer)
    else:
        timer = PhaseTimer(now, trainer.policy.model.device)
        data = sampled_ahead(trainer, trainer.sampler, number, passed, timer)

    # The update's pairs are drawn from the grafts of all iterations so far.
    draw_pairs(trainer, data)
    timer.phase("grafting")

    # Advantages of turns become advantages of tokens.
    make_sequences(trainer, data)

    # L = L_base + lambda * L_surgical, then the reference follows the policy.
    stats = update_policy(trainer, data)
    timer.phase("update")

    return finish(trainer, data, stats, timer)


def sample(trainer: Trainer, data: IterationData, timer: PhaseTimer) -> None:
    """Fill an iteration's data with all that belongs to the weights that sample."""

    def study(unit: IterationData) -> None:
        timer.phase("rollout")

        # Cognitive trees: turns that the policy cannot tell apart become one node.
        build_trees(trainer, unit)
        timer.phase("tree")

        # The algorithm's episode term, or the Q-tree's in its place; the step term is added in either case.
        compute_advantages(trainer, unit)
        timer.phase("valuation")

        # Thought grafting: at every divergence the policy writes what it should have thought.
        graft_thoughts(trainer, unit)
        timer.phase("grafting")

    # Sample groups of episodes and select those to train on (DAPO drops some and samples others instead). A rank takes a unit of tasks,
    # plays and studies it, and takes the next as long as there are any.
    collect_groups(trainer, data, study)
    timer.phase("rollout")

    # Comparisons over the whole batch (PPO), once all groups have their advantages.
    compare_groups(trainer, data)
    timer.phase("valuation")


def sampled_ahead(
    trainer: Trainer, sampler: Trainer, number: int, passed: float, timer: PhaseTimer
) -> IterationData:
    """Take an iteration's data that was sampled during the last update, and begin to sample the next; see ``ahead``.

    Args:
        trainer: of the update.
        sampler: the same run as its sampling sees it, with an engine and a communicator of its own.
        number: of the iteration.
        passed: see ``iterate``.
        timer: of the iteration; it gets the seconds of the sampling, and those that were waited for it.
    """
    config, ahead = trainer.config, trainer.ahead

    def start(number: int, lag: int) -> None:
        ahead.start(partial(begin, sampler, number, passed), partial(_sample_apart, sampler), lag)

    if not ahead.waiting:
        sampler.cursor, sampler.turns, sampler.estimates = trainer.cursor, trainer.turns, trainer.estimates
        start(number, 0)
    with raise_on_any_rank(trainer.world):
        data = ahead.take()
    tasks, turns = _sums(trainer.world, data)
    sampler.cursor, sampler.turns = trainer.cursor + tasks, trainer.turns + turns
    # A curriculum knows the iterations that have finished, and so not the one that is trained on now.
    sampler.estimates = trainer.estimates
    if (
        number + 1 < config.iterations
        and share_of_episodes(config, sampler.cursor) < 1
        and share_of_turns(config, sampler.turns) < 1
    ):
        start(number + 1, 1)
    timer.phase("waiting")
    timer.seconds |= data.seconds
    return data


def _sample_apart(sampler: Trainer, data: IterationData) -> None:
    """Sample in a thread of its own; peak memory is the main thread's to measure."""
    timer = PhaseTimer(time.perf_counter, torch.device("cpu"))
    sample(sampler, data, timer)
    forget_beginnings(data.groups)
    data.seconds = timer.seconds


def begin(trainer: Trainer, number: int, passed: float) -> IterationData:
    """Compute the iteration's place in the schedules and sync the engine with the trainer's weights."""
    with raise_on_any_rank(trainer.world):
        sync_engine(trainer.policy, trainer.engine, trainer.learner.weights())
    config = trainer.config
    done = max(share_of_episodes(config, trainer.cursor), share_of_turns(config, trainer.turns), passed)
    temperature = trainer.algorithm.temperature(max(number / max(1, config.iterations - 1), done))
    grown = course_progress(config, number, trainer.cursor, trainer.turns)
    return IterationData(number, done, temperature, grown=grown)


def collect_groups(
    trainer: Trainer, data: IterationData, study: Callable[[IterationData], None] = lambda unit: None
) -> None:
    """Fill ``data.groups`` with trajectories, unit by unit; ``study`` adds to each what comes of it."""
    stream = trainer.stream
    sample_groups(
        trainer.config,
        trainer.algorithm,
        trainer.engine,
        trainer.policy.codec,
        stream.at(trainer.cursor, data.grown, trainer.estimates) if isinstance(stream, Course) else stream,
        trainer.cursor,
        trainer.world,
        data,
        study,
    )


def build_trees(trainer: Trainer, unit: IterationData) -> None:
    """Fill the groups' trees, if T-STAR is on."""
    if (tstar := trainer.tstar(unit)) is not None:
        trees = tstar.trees([g.members for g in unit.groups], unit.number, unit.work)
        for group, tree in zip(unit.groups, trees, strict=True):
            group.tree = tree


def compute_advantages(trainer: Trainer, unit: IterationData) -> None:
    """Fill the groups' advantages and divergences."""
    algorithm, tstar = trainer.algorithm, trainer.tstar(unit)
    chances = [None] * len(unit.groups) if tstar is None else tstar.chances(unit.groups)
    for group, known in zip(unit.groups, chances, strict=True):
        # Comparisons of whole episodes know those from the start alone: a fork has no turns before its first.
        credit = [*algorithm.episode_advantages(group.trajectories), *_none(group.forks)]
        steps = algorithm.step_advantages(group.trajectories)
        if tstar is not None:
            credit = tstar.value(group, credit, known)
            group.way = tstar.way(group.tree)
            group.divergences = tstar.divergences(group.tree, group.way)
        if steps is not None:
            credit = [whole + own for whole, own in zip(credit, [*steps, *_none(group.forks)], strict=True)]
        group.advantages = credit if tstar is None else tstar.imitate(group.tree, group.way, credit)


def _none(trajectories: Sequence[Trajectory]) -> Advantages:
    return [np.zeros(len(t.turns)) for t in trajectories]


def graft_thoughts(trainer: Trainer, unit: IterationData) -> None:
    """Fill ``unit.grafts``, if T-STAR is on."""
    if (tstar := trainer.tstar(unit)) is not None:
        unit.grafts = tstar.graft(unit.groups, unit.number)
        unit.turns += unit.grafts.turns
        unit.tokens += unit.grafts.tokens


def compare_groups(trainer: Trainer, data: IterationData) -> None:
    """Let the algorithm compare groups with one another, and free the engine's sampling memory for the update."""
    trainer.algorithm.batch_advantages(data.groups, trainer.world)
    with raise_on_any_rank(trainer.world):
        trainer.engine.release()


def draw_pairs(trainer: Trainer, data: IterationData) -> None:
    """Fill ``data.made``, and ``data.pairs``: this rank's share of what is drawn from the grafting set, or made where none is kept."""
    config, world = trainer.config, trainer.world
    if not (config.tstar and config.makes_pairs):
        return
    parts = world.gather([(g.group, kept_pair(g)) for g in data.grafts.kept])
    data.made = [pair for _, pair in sorted((made for part in parts for made in part), key=itemgetter(0))]
    if not config.graft.surgical:
        return
    if not config.keeps_grafts and world.size == 1:
        data.pairs = data.grafts.kept
        return
    drawn: list[KeptPair] = data.made
    if world.rank == 0 and config.keeps_grafts:
        # The set itself grows in ``finish``: an iteration that fails adds nothing.
        drawn = trainer.dataset.grown(data.made, config.graft.keep).draw(
            max(len(data.made), config.graft.batch), f"{config.seed}/pairs/{data.number}"
        )
        data.pairs_age = mean([data.number - pair.iteration for pair in drawn]) or 0.0
    data.pairs = world.exchange([drawn[rank :: world.size] for rank in range(world.size)])[0]


def make_sequences(trainer: Trainer, data: IterationData) -> None:
    """Fill ``data.episodes``: token sequences, with old log-probabilities, critic values and an importance correction if needed.

    They are dealt to the ranks by the tokens to compute, whoever sampled them.
    """
    algorithm, optim, exact = trainer.algorithm, trainer.config.optim, trainer.engine.shares_weights
    with raise_on_any_rank(trainer.world):
        data.episodes = make_rows(trainer.config, data.groups)
        costs = costs_of(
            data.episodes,
            algorithm.terms(),
            frozen=algorithm.needs_values or not exact,
            epochs=optim.epochs,
            share=trainer.learner.sharing is not None,
        )
    if trainer.world.size > 1:
        data.places = places_of(data.episodes, costs, trainer.world)
        data.episodes = moved_episodes(data.episodes, data.places, trainer.world)
    with raise_on_any_rank(trainer.world):
        compute_old_logprobs_and_values(
            trainer.learner,
            data.sequences,
            trainer.batching(data),
            values=algorithm.needs_values,
            old=not exact,
        )
        if not exact:
            most = trainer.batching(data).most_difference
            rows = [rows for _, rows in data.episodes]
            data.correction = weigh(rows, optim.correction, optim.correction_cap, most)
    algorithm.token_advantages(data.episodes, trainer.world)
    correct(data.sequences)


def update_policy(trainer: Trainer, data: IterationData) -> UpdateStats:
    """Take the iteration's optimizer steps."""

    def value_anew(number: int) -> None:
        """Solve the credit of actions for the weights that the steps before have made."""
        if not number:
            return
        with raise_on_any_rank(trainer.world):
            sync_engine(trainer.policy, trainer.engine, learner.weights())
            for unit in data.units:
                trainer.engine.clear_cache()
                compute_advantages(trainer, unit)
        compare_groups(trainer, data)
        fresh = make_rows(config, data.groups)
        keys = [(t.group, t.member) for t, _ in fresh]
        credit = moved(
            [[row.advantages for row in rows] for _, rows in fresh], keys, data.places, trainer.world
        )
        for (_, rows), advantages in zip(data.episodes, credit, strict=True):
            for row, own in zip(rows, advantages, strict=True):
                row.advantages = own
        trainer.algorithm.token_advantages(data.episodes, trainer.world)
        correct(data.sequences)
        with raise_on_any_rank(trainer.world):
            # The gradient is anew that of these weights, so each step begins with a ratio of 1.
            compute_old_logprobs_and_values(
                learner, data.sequences, trainer.batching(data), values=False, old=True
            )

    config, learner = trainer.config, trainer.learner
    before = learner.steps
    try:
        stats = update(
            learner,
            split_minibatches(data.sequences, data.pairs, config.optim.num_minibatches, config.optim.epochs),
            trainer.algorithm.terms(),
            SurgicalTerm(config.graft.surgical_weight, config.graft.dpo_beta),
            trainer.world,
            factor=rate(config, data.number, data.done),
            batching=trainer.batching(data),
            before_step=value_anew if config.forks and config.explore.credit == "graph" else None,
        )
    finally:
        trainer.whole = trainer.whole and learner.steps == before
    trainer.whole = False
    learner.end_iteration()
    return stats


def finish(trainer: Trainer, data: IterationData, stats: UpdateStats, timer: PhaseTimer) -> IterationResult:
    """Gathers what all ranks did; the first rank measures it."""
    world = trainer.world
    data.seconds, data.memory = timer.seconds, timer.memory
    data.episodes, data.pairs = [], ()  # no other rank needs the tokens' figures
    forget_beginnings(data.groups)
    tasks, turns = _sums(world, data)
    if trainer.config.curriculum == "success":
        outcomes = world.broadcast([outcome for part in world.gather(data.outcomes) for outcome in part])
        trainer.estimates, data.outcomes = trainer.estimates.updated(outcomes), ()
    trainer.cursor += tasks
    trainer.turns += turns
    data = gathered(trainer.config, data, world)
    if world.rank:
        return IterationResult({}, data.seconds, data.memory, data)
    trainer.dataset = trainer.dataset.grown(data.made, trainer.config.graft.keep)
    metrics = summarize(trainer.config, data, stats, trainer.grafted, len(trainer.dataset))
    metrics |= course_metrics(trainer.config, data, trainer.estimates)
    trainer.grafted |= {anchor for figures in data.figures for anchor in figures.repaired}
    return IterationResult(metrics, data.seconds, data.memory, data)


def _sums(world: Communicator, data: IterationData) -> tuple[int, int]:
    """Sum the tasks and turns of all ranks."""
    tasks, turns = world.all_reduce(torch.tensor([data.tasks, data.turns])).tolist()
    return int(tasks), int(turns)


def forget_beginnings(groups: Sequence[Group]) -> None:
    """Drop what only serves to play episodes on: snapshots, and the replies before forks."""
    for trajectory in (t for group in groups for t in group.members):
        trajectory.snapshots, trajectory.start_actions = [], None
        if trajectory.fork is not None:
            trajectory.fork.replies = []


def share_of_episodes(config: Config, tasks: int) -> float:
    """Compute the fraction of ``episodes`` used after so many tasks; 0 if episodes are not limited."""
    return tasks * config.rollout.group_size / config.episodes if config.episodes is not None else 0.0


def share_of_turns(config: Config, turns: int) -> float:
    """Compute the fraction of ``turns`` used after so many sampled turns; 0 if turns are not limited."""
    return turns / config.turns if config.turns is not None else 0.0


def share_of_minutes(config: Config, seconds: float) -> float:
    """Compute the fraction of ``minutes`` used after so many seconds of training; 0 if time is not limited."""
    return seconds / (60 * config.minutes) if config.minutes is not None else 0.0


def course_progress(config: Config, number: int, tasks: int, turns: int) -> float:
    """Compute the progress of the curriculum and of the horizon's growth, from 0 to 1 at ``--curriculum-until``; no clock counts.

    Args:
        config: of the run.
        number: of the iteration, from 0.
        tasks: played before it.
        turns: sampled before it.
    """
    done = max(
        number / max(1, config.iterations), share_of_episodes(config, tasks), share_of_turns(config, turns)
    )
    return min(1.0, done / config.curriculum_until)


def rate(config: Config, number: int, done: float = 0.0) -> float:
    """Compute the learning-rate factor: a linear rise over the first ``warmup`` of the run, 1, a linear fall over the last ``decay``.

    Args:
        config: of the run.
        number: of the iteration, from 0.
        done: fraction of the run's episodes, turns or minutes used before it, if they are limited.
    """
    factor = 1.0
    if config.optim.warmup:
        begun = max(number, config.iterations * done) + 1
        factor = min(factor, begun / (config.iterations * config.optim.warmup))
    if config.optim.decay:
        left = min(config.iterations - number, config.iterations * max(0.0, 1 - done))
        factor = min(factor, left / (config.iterations * config.optim.decay))
    return factor
