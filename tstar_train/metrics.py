"""Metrics of an iteration, and timers of its phases."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from tstar_train.advantages import grpo, relative_weight_change
from tstar_train.config import Config
from tstar_train.learner.update import UpdateStats
from tstar_train.tree import Divergence
from tstar_train.types import GroupResult, Played

_GIB = 1 << 30


class Clock:
    """Measures one phase after another, from its making on.

    A GPU computes behind the program's back, so a phase ends when the device is done, too.

    Args:
        now: what seconds are read from.
        device: where the model is.

    Attributes:
        seconds: by phase.
        memory: on a GPU, by phase, the most GiB that PyTorch's tensors took at once (``torch.cuda.max_memory_allocated``); what the
            allocator keeps in reserve and CUDA's own part (about .5 GiB) come on top. Empty on other devices.
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
        """What was done since the last call was this phase."""
        if self._device is not None:
            torch.cuda.synchronize(self._device)
            self.memory[name] = torch.cuda.max_memory_allocated(self._device) / _GIB
            torch.cuda.reset_peak_memory_stats(self._device)
        now = self._now()
        self.seconds[name] = now - self._last
        self._last = now


def anchor(result: GroupResult, divergence: Divergence) -> tuple[str, str]:
    """(task, state key) of the step before a divergence: which decision it is, across iterations."""
    worst, turn = divergence.worst_step
    trajectory = result.trajectories[worst]
    return trajectory.episode.task, trajectory.steps[turn - 1].state_key if turn else ""


def summarize(
    config: Config, played: Played, stats: UpdateStats, grafted: set[tuple[str, str]]
) -> dict[str, Any]:
    """Every figure of an iteration, except times (docs/tstar.md); None where nothing was there to measure it on."""
    results, grafts, work = played.groups, played.grafts, played.work
    trajectories = [t for r in results for t in r.trajectories]
    steps = [s for t in trajectories for s in t.steps]
    replies = [len(turn.reply) for t in trajectories for turn in t.turns]
    lost = [t for t in trajectories if not t.episode.success]
    equal = [len({t.reward for t in r.trajectories}) == 1 for r in results]
    metrics: dict[str, Any] = {
        "reward": _mean([t.earned for t in trajectories]),
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
            "grafts_equal_to_z_plus": sum(
                g.thought == g.succeeded.thought for g in grafts.kept if g.source == "model"
            ),
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
            # Without grafts there is nothing to measure.
            metrics[name] = _known(getattr(stats, name)) if stats.surgical_steps else None
    if config.needs_reference:
        metrics["kl_reference"] = stats.kl_reference
    if config.algo.startswith("dapo"):
        metrics |= {"played_tasks": played.tasks, "dropped_groups": played.dropped_groups}
    if config.algo == "ppo":
        metrics |= {"value_loss": stats.value_loss, "value_clip_fraction": stats.value_clip_fraction}
    return metrics | {
        "base_loss": stats.base_loss,
        "clip_fraction": stats.clip_fraction if stats.tokens else None,
        "base_gradient_norm": _known(stats.base_gradient_norm),
        "gradient_norm": stats.gradient_norm,
        "logprob_difference_mean": stats.logprob_difference_mean,
        "logprob_difference_max": stats.logprob_difference_max if stats.tokens else None,
    }


def _tree_metrics(results: Sequence[GroupResult], everywhere: bool) -> dict[str, Any]:
    """Means over the trees of groups whose rewards differ, or over all; none where no tree was built.

    The spread of divergent nodes is a mean over the trees that have any.
    """
    trees = [
        r.tree.stats()
        for r in results
        if r.tree is not None and (everywhere or len({t.reward for t in r.trajectories}) > 1)
    ]
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


def _known(figure: float) -> float | None:
    """The value, or None for a NaN, which stands for what the learner did not measure."""
    return None if math.isnan(figure) else figure


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if len(values) else None
