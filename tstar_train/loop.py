"""One training iteration, readable from top to bottom as the paper's Algorithm 1.

Every process of a run is a rank and does this on its own tasks; groups never interact before the update.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tstar_train.algorithms.base import Algorithm
from tstar_train.algorithms.tstar import TStar
from tstar_train.config import Config
from tstar_train.distributed import World, together
from tstar_train.engines.base import Engine
from tstar_train.engines.check import hand_over, most_nats
from tstar_train.learner.base import Learner
from tstar_train.learner.batch import dealt_steps
from tstar_train.learner.rows import make_rows
from tstar_train.learner.terms import SurgicalTerm
from tstar_train.learner.update import Batching, annotate, update
from tstar_train.metrics import Clock, anchor, summarize
from tstar_train.policy.model import Policy
from tstar_train.rollout.collect import TaskStream, sample_groups, sampling_of, training_spec
from tstar_train.types import GroupResult, Played


@dataclass
class Trainer:
    """All that an iteration reads and changes, on one rank.

    Attributes:
        config: the run's options.
        world: the ranks.
        policy: model, tokenizer and codec.
        engine: samples from the policy.
        learner: changes its weights.
        algorithm: whose episodes and turns are compared with which.
        stream: the training tasks.
        cursor: how many of them were played.
        grafted: (task, state key) of divergences that already produced a graft, for anchor reuse; the first rank's.
        whole: whether all of this is as a finished iteration left it; false from an iteration's first optimizer step until its figures
            are written. Only a whole state may be saved.
        told: called with a text about how far a long measurement is.
    """

    config: Config
    world: World
    policy: Policy
    engine: Engine
    learner: Learner
    algorithm: Algorithm
    stream: TaskStream
    cursor: int = 0
    grafted: set[tuple[str, str]] = field(default_factory=set)
    whole: bool = True
    told: Callable[[str], None] = lambda text: None


@dataclass
class IterationResult:
    """What an iteration did.

    Attributes:
        metrics: deterministic figures, by name; on the first rank alone.
        seconds: by phase.
        memory: on a GPU, by phase, the most GiB that tensors took at once (see ``Clock``); of the rank that took most.
        played: groups, trees and grafts of all ranks, on the first rank; on the others of their own.
    """

    metrics: dict[str, Any]
    seconds: dict[str, float]
    memory: dict[str, float]
    played: Played


def iterate(
    trainer: Trainer, number: int, passed: float = 0.0, *, now: Callable[[], float] = time.perf_counter
) -> IterationResult:
    """One iteration; all ranks call it.

    Args:
        trainer: changed in place.
        number: of the iteration, from 0.
        passed: share of the run's ``minutes`` that have passed; it is the first rank's clock that counts.
        now: what the phases' seconds are read from.

    Raises:
        InfrastructureError: most episodes failed; nothing has been learnt from the others.
        NotFinite: a loss, log-probability or gradient is no number; the weights are those of before this optimizer step.
        EngineMismatch: sampler and trainer disagree about the probability of what was sampled; no step was taken.
        RankFailed: another process failed.
    """
    config, algorithm, learner, world, codec = (
        trainer.config,
        trainer.algorithm,
        trainer.learner,
        trainer.world,
        trainer.policy.codec,
    )
    played, clock = Played(), Clock(now, trainer.policy.model.device)
    with together(world):
        hand_over(trainer.policy, trainer.engine, learner.weights())
    done = max(share_of_episodes(config, trainer.cursor), passed)
    temperature = algorithm.temperature(max(number / max(1, config.iterations - 1), done))

    # Collect, and select the groups that are learnt from (DAPO drops some, and plays others in their place).
    groups = sample_groups(
        config,
        algorithm,
        trainer.engine,
        codec,
        trainer.stream,
        trainer.cursor,
        number,
        temperature,
        world,
        played,
    )
    clock.phase("rollout")
    with together(world):
        # Build trees: turns that the policy cannot tell apart become one node.
        tstar = (
            TStar(config, trainer.engine, codec, training_spec(config), sampling_of(config, temperature))
            if config.tstar
            else None
        )
        trees = [None] * len(groups) if tstar is None else tstar.trees(groups, number, played.work)
        clock.phase("tree")

        # Value: the algorithm's episode term, or the Q-tree's in its place; the step term is added in either case.
        for group, tree in zip(groups, trees, strict=True):
            credit = (
                algorithm.episode(group) if tstar is None else tstar.value(tree, algorithm.episode(group))
            )
            steps = algorithm.step(group)
            if steps is not None:
                credit = [whole + own for whole, own in zip(credit, steps, strict=True)]
            played.groups.append(
                GroupResult(group, credit, tree, [] if tstar is None else tstar.divergences(tree))
            )
        clock.phase("valuation")

        # Graft: at every divergence the policy writes what it should have thought.
        if tstar is not None:
            played.grafts = tstar.graft(played.groups, number)
        trainer.engine.release()  # what it needs for sampling is memory that the update needs
        clock.phase("grafting")

        # Make rows: credited turns become credited tokens.
        episodes = make_rows(config, played.groups)
        most = most_nats(trainer.policy, config.optim.max_logprob_difference)
        batching = Batching(
            config.optim.micro_tokens,
            temperature,
            codec.pad,
            trainer.policy.model.device,
            most,
            config.optim.max_loss,
        )
        sequences = [s for _, rows in episodes for s in rows]
        annotate(learner, sequences, batching, values=algorithm.needs_values, old=not trainer.engine.exact)
    algorithm.tokens(episodes, world)
    pairs = played.grafts.kept if config.graft.surgical else []
    batch = dealt_steps(sequences, pairs, config.optim.updates)

    # Update: L = L_base + lambda * L_surgical, then the reference follows the policy.
    before = learner.steps
    try:
        surgical = SurgicalTerm(config.graft.weight, config.graft.beta)
        stats = update(
            learner,
            batch,
            algorithm.terms(),
            surgical,
            world,
            factor=rate(config, number, done),
            batching=batching,
        )
    finally:
        trainer.whole = trainer.whole and learner.steps == before
    trainer.whole = False
    learner.end_iteration()
    clock.phase("update")

    played.seconds, played.memory = clock.seconds, clock.memory
    parts = world.gather(played)
    played = Played.together(parts) if parts else played
    trainer.cursor += world.first(played.tasks)
    if world.rank:
        return IterationResult({}, played.seconds, played.memory, played)
    metrics = summarize(config, played, stats, trainer.grafted)
    kept = {(g.group, g.worst_step) for g in played.grafts.kept}
    trainer.grafted |= {
        anchor(g, d)
        for g in played.groups
        for d in g.divergences
        if (g.trajectories[0].group, d.worst_step) in kept
    }
    return IterationResult(metrics, played.seconds, played.memory, played)


def share_of_episodes(config: Config, tasks: int) -> float:
    """How much of ``episodes`` was sampled when so many tasks have been played; 0 where only iterations are counted."""
    return tasks * config.rollout.group / config.episodes if config.episodes is not None else 0.0


def share_of_minutes(config: Config, seconds: float) -> float:
    """How much of ``minutes`` has passed after so many seconds of training; 0 where time is not limited."""
    return seconds / (60 * config.minutes) if config.minutes is not None else 0.0


def rate(config: Config, number: int, done: float = 0.0) -> float:
    """Factor of the learning rate: 1, then falling linearly over the last ``decay`` share of the run.

    Args:
        config: of the run.
        number: of the iteration, from 0.
        done: share of the run's episodes or minutes that are used up before it, where they are limited.
    """
    if not config.optim.decay:
        return 1.0
    left = min(config.iterations - number, config.iterations * max(0.0, 1 - done))
    return min(1.0, left / (config.iterations * config.optim.decay))
