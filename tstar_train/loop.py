"""One training iteration, readable from top to bottom: play, build trees, value, graft, update."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from tstar_train.algorithms.advantages import grpo, relative_weight_change
from tstar_train.config import Config
from tstar_train.finite import checked_norm
from tstar_train.optim.update import UpdateStats
from tstar_train.policy.model import Policy
from tstar_train.rollout.failures import stop_if_most_failed
from tstar_train.rollout.share import GroupResult, Played
from tstar_train.rollout.team import Team
from tstar_train.tree import Divergence


@dataclass
class Learner:
    """All that an iteration changes.

    Attributes:
        policy: the model that is trained.
        reference: exponential moving average of the policy, None if nothing uses it.
        optimizer: over the policy's parameters.
        team: plays and gives gradients.
        grafted: (task, state key) of divergences that already produced a graft, for anchor reuse.
        whole: whether all of this is as a finished iteration left it; false from an iteration's first optimizer step until its figures
            are written. Only a whole state may be saved.
    """

    policy: Policy
    reference: PreTrainedModel | None
    optimizer: torch.optim.Optimizer
    team: Team
    grafted: set[tuple[str, str]] = field(default_factory=set)
    whole: bool = True


@dataclass
class IterationResult:
    """What an iteration did.

    Attributes:
        metrics: deterministic figures, by name.
        seconds: by phase.
        played: groups, trees and grafts.
    """

    metrics: dict[str, Any]
    seconds: dict[str, float]
    played: Played


def iterate(learner: Learner, config: Config, tasks: Sequence[str], number: int) -> IterationResult:
    """One iteration.

    Args:
        learner: changed in place.
        config: the run's options.
        tasks: ids of this iteration's tasks.
        number: of the iteration, from 0.

    Raises:
        InfrastructureError: most episodes failed; nothing has been learnt from the others.
        NotFinite: a loss, log-probability or gradient is no number; the weights are those of before this optimizer step.
    """
    played = learner.team.play(tasks, number)  # rollout, tree and valuation, grafting
    stop_if_most_failed(played.failed, len(tasks) * config.rollout.group)
    started = time.perf_counter()
    stats = improve(learner, config, number)
    if learner.reference is not None:
        learner.whole = False
        follow(learner.reference, learner.policy.model, config.graft.alpha)
    played.seconds["update"] = time.perf_counter() - started
    metrics = summarize(config, played, stats, learner.grafted)
    kept = {(g.group, g.worst_step) for g in played.grafts.kept}
    learner.whole = False
    learner.grafted |= {
        anchor(g, d) for g in played.groups for d in g.divergences if (g.trajectories[0].group, d.worst_step) in kept
    }
    return IterationResult(metrics, played.seconds, played)


def improve(learner: Learner, config: Config, number: int) -> UpdateStats:
    """The iteration's optimizer steps: L = L_base + lambda * L_surgical (eq:hybrid_objective).

    Raises:
        NotFinite: a loss, log-probability or gradient is no number; that step is not taken.
    """
    model, optimizer = learner.policy.model, learner.optimizer
    for group in optimizer.param_groups:
        group["lr"] = config.optim.learning_rate * rate(config, number)
    figures = []
    for step, (weight, grafts) in enumerate(learner.team.sizes()):
        gradient, stats = learner.team.gradient("base", step, weight or 1.0)
        stats.base_gradient_norm = checked_norm(gradient, "the base gradient of all processes together")
        if grafts:
            surgical, more = learner.team.gradient("surgical", step, grafts)
            more.surgical_gradient_norm = checked_norm(surgical, "the surgical gradient of all processes together")
            gradient, stats = gradient + surgical, UpdateStats.combined([stats, more])
        stats.gradient_norm = checked_norm(gradient, "the gradient of all processes and losses together")
        if stats.gradient_norm > config.optim.max_gradient_norm:
            gradient = gradient * (config.optim.max_gradient_norm / stats.gradient_norm)
        figures.append(stats)
        if stats.gradient_norm == 0.0:
            continue  # no group had different rewards: a step would only move along the optimizer's old momentum
        learner.whole = False
        torch.nn.utils.vector_to_parameters(gradient, _gradients(model))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return UpdateStats.mean(figures)


def _gradients(model: PreTrainedModel) -> list[torch.Tensor]:
    """Fresh gradient tensors of all trained parameters."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
    return [p.grad for p in model.parameters() if p.grad is not None]


def rate(config: Config, number: int) -> float:
    """Factor of the learning rate: 1, then falling linearly over the last ``decay`` share of the iterations."""
    if not config.optim.decay:
        return 1.0
    return min(1.0, (config.iterations - number) / (config.iterations * config.optim.decay))


@torch.no_grad()
def follow(reference: PreTrainedModel, model: PreTrainedModel, alpha: float) -> None:
    """theta_ref <- alpha * theta_ref + (1 - alpha) * theta."""
    for mine, theirs in zip(reference.parameters(), model.parameters(), strict=True):
        mine.lerp_(theirs, 1 - alpha)


def needs_reference(config: Config) -> bool:
    """Whether a run keeps the moving average of its policy: for the surgical loss or the KL penalty."""
    return (config.tstar and config.graft.enabled and config.graft.surgical) or config.optim.kl_coefficient > 0


def anchor(result: GroupResult, divergence: Divergence) -> tuple[str, str]:
    """(task, state key) of the step before a divergence: which decision it is, across iterations."""
    worst, turn = divergence.worst_step
    trajectory = result.trajectories[worst]
    return trajectory.episode.task, trajectory.steps[turn - 1].state_key if turn else ""


def summarize(config: Config, played: Played, stats: UpdateStats, grafted: set[tuple[str, str]]) -> dict[str, Any]:
    """Every figure of an iteration, except times (docs/tstar.md); None where nothing was there to measure it on."""
    results, grafts, work = played.groups, played.grafts, played.work
    trajectories = [t for r in results for t in r.trajectories]
    steps = [s for t in trajectories for s in t.steps]
    replies = [len(turn.reply) for t in trajectories for turn in t.turns]
    lost = [t for t in trajectories if not t.episode.success]
    equal = [len({t.reward for t in r.trajectories}) == 1 for r in results]
    metrics: dict[str, Any] = {
        "reward": _mean([t.reward for t in trajectories]),
        "success": _mean([t.episode.success for t in trajectories]),
        "invalid_rate": _mean([not s.action_valid for s in steps]),
        "episode_length": _mean([len(t.steps) for t in trajectories]),
        "response_tokens": _mean(replies),
        "zero_variance_groups": _mean(equal),
        "failed_episodes": len(played.failed),
        "overlong_episodes": played.overlong,
        "entropy": stats.entropy,
    }
    if trajectories and "f1" in trajectories[0].episode.extra:
        metrics["f1"] = _mean([t.episode.extra.get("f1", 0.0) for t in trajectories])
    if config.tstar:
        metrics |= _tree_metrics(results, config.tree.statistics_everywhere)
        divergences = [(r, d) for r in results for d in r.divergences]
        repaired = {(g.group, g.worst_step[0]) for g in grafts.kept}
        metrics |= {
            "grafting_coverage": _mean([(t.group, t.member) in repaired for t in lost]),
            "anchor_reuse": _mean([anchor(r, d) in grafted for r, d in divergences]),
            "grafts": len(grafts.kept),
            "grafts_model": sum(g.source == "model" for g in grafts.kept),
            "grafts_z_plus": sum(g.source == "z_plus" for g in grafts.kept),
            "grafts_equal_to_z_plus": sum(g.thought == g.succeeded.thought for g in grafts.kept if g.source == "model"),
            "grafts_best_members": _mean([g.best_members for g in grafts.kept]),
            "grafts_worst_members": _mean([g.worst_members for g in grafts.kept]),
            "grafts_played_on": grafts.played_on,
            "grafts_verified": sum(g.verified is not None for g in grafts.kept),
            "grafts_dropped": dict(sorted(grafts.dropped.items())),
            "weight_change": _weight_change(results),
            "kl_asked": work.asked,
            "kl_identical": work.identical,
            "kl_contexts_sampled": work.sampled_contexts,
            "kl_scored": work.scored,
            "kl_scores_saved": work.unscored - work.scored,
            "kl_rejected_early": work.rejected_early,
        }
        for name in ("surgical_loss", "surgical_accuracy", "surgical_margin", "surgical_gradient_norm"):
            metrics[name] = getattr(stats, name) if stats.surgical_steps else None  # without grafts there is nothing to measure
    if needs_reference(config):
        metrics["kl_reference"] = stats.kl_reference
    return metrics | {
        "base_loss": stats.base_loss,
        "clip_fraction": stats.clip_fraction if stats.tokens else None,
        "base_gradient_norm": stats.base_gradient_norm,
        "gradient_norm": stats.gradient_norm,
        "logprob_difference_mean": stats.logprob_difference_mean,
        "logprob_difference_max": stats.logprob_difference_max if stats.tokens else None,
    }


def _tree_metrics(results: Sequence[GroupResult], everywhere: bool) -> dict[str, Any]:
    """Means over the trees of groups whose rewards differ, or over all; none where no tree was built.

    The spread of divergent nodes is a mean over the trees that have any.
    """
    trees = [r.tree.stats() for r in results if r.tree is not None and (everywhere or len({t.reward for t in r.trajectories}) > 1)]
    metrics = {f"tree_{key}": _mean([float(t[key]) for t in trees]) for key in (trees[0] if trees else {})}
    if trees:
        metrics["tree_mean_spread"] = _mean([t["mean_spread"] for t in trees if t["divergent_nodes"]])
    return metrics


def _weight_change(results: Sequence[GroupResult]) -> float | None:
    """How far the tree's gradient weights are from GRPO's, over steps with equal context and text; None where none has any weight."""
    ours: list[np.ndarray] = []
    theirs: list[np.ndarray] = []
    keys = []
    for result in results:
        base = grpo([t.reward for t in result.trajectories], [0] * len(result.trajectories))
        for trajectory, advantages, a in zip(result.trajectories, result.advantages, base, strict=True):
            ours.append(np.asarray(advantages))
            theirs.append(np.full(len(trajectory.turns), a))
            keys.append([(tuple(turn.context), tuple(turn.reply)) for turn in trajectory.turns])
    if not any(np.any(row) for row in (*ours, *theirs)):
        return None
    return float(relative_weight_change(ours, theirs, keys))


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if len(values) else None
