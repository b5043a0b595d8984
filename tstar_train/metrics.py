"""Metrics of an iteration: figures of its groups, what ranks gather of them, and their summary."""

from __future__ import annotations

import hashlib
import math
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tstar_train.advantages import SAME_REWARD, grpo, relative_weight_change
from tstar_train.config import Config
from tstar_train.distributed import Communicator
from tstar_train.learner.update import UpdateStats
from tstar_train.tree import Divergence
from tstar_train.types import Graft, Group, GroupFigures, IterationData

SHOWN_GROUPS = 2  # groups of an iteration that files show; all would take tens of megabytes


@dataclass
class IterationResult:
    """Result of an iteration.

    Attributes:
        metrics: deterministic figures by name; on the first rank only.
        seconds: by phase.
        memory: peak GiB on a GPU by phase (see ``PhaseTimer``), of the rank with the largest.
        data: what was sampled. On the first rank the sums over all ranks, and of several ranks only the groups that files show, without
            the tokens of their contexts; on the others what this rank sampled.
    """

    metrics: dict[str, Any]
    seconds: dict[str, float]
    memory: dict[str, float]
    data: IterationData


def figures_of(config: Config, unit: IterationData) -> list[GroupFigures]:
    """Compute the figures of a unit's groups.

    Args:
        config: the run's options.
        unit: with its groups and grafts.
    """
    kept: dict[int, list[Graft]] = {}
    for graft in unit.grafts.kept:
        kept.setdefault(graft.group, []).append(graft)
    return [_figures(config, group, kept.get(group.trajectories[0].group, [])) for group in unit.groups]


def _figures(config: Config, group: Group, grafts: Sequence[Graft]) -> GroupFigures:
    roots, tree = group.trajectories, group.tree
    steps = [step for t in roots for step in t.steps]
    lost = [t for t in roots if not t.episode.success]
    repaired = {g.worst_step[0] for g in grafts}
    counts = Counter(
        episodes=len(roots),
        successes=sum(t.episode.success for t in roots),
        steps=len(steps),
        invalid=sum(not step.action_valid for step in steps),
        replies=sum(len(t.turns) for t in roots),
        reply_tokens=sum(len(turn.reply) for t in roots for turn in t.turns),
        equal=int(_equal(group)),
        lost=len(lost),
        lost_repaired=sum(t.member in repaired for t in lost),
        grafts=len(grafts),
        grafts_model=sum(g.source == "model" for g in grafts),
        grafts_z_plus=sum(g.source == "z_plus" for g in grafts),
        grafts_equal=sum(g.thought == g.succeeded.thought for g in grafts if g.source == "model"),
        best_members=sum(g.best_members for g in grafts),
        worst_members=sum(g.worst_members for g in grafts),
        grafts_verified=sum(g.verified is not None for g in grafts),
    )
    counts.update(_fork_counts(group))
    counts.update(_way_counts(group))
    counted = tree is not None and (config.tree.statistics_everywhere or not tree.zero_variance)
    grafted = {g.worst_step for g in grafts}
    return GroupFigures(
        group=roots[0].group,
        env=group.env,
        telling=telling(group),
        rewards=[t.reward for t in roots],
        earned=[t.earned for t in roots],
        f1=[t.episode.extra.get("f1") for t in roots],
        counts=counts,
        tree=tree.stats(config.tree.delta, config.graft.shrink) if tree is not None and counted else None,
        anchors=[anchor(group, d) for d in group.divergences],
        repaired=[anchor(group, d) for d in group.divergences if d.worst_step in grafted],
        credit=[np.asarray(a) for a in group.advantages[: len(roots)]] if config.tstar else [],
        texts=[[_digest(turn.context, turn.reply) for turn in t.turns] for t in roots]
        if config.tstar
        else [],
    )


def _equal(group: Group) -> bool:
    return len({t.reward for t in group.trajectories}) == 1


def _fork_counts(group: Group) -> dict[str, int]:
    """Count forks, how they ended, and whether the group had nothing to compare without them."""
    forks = [(t, t.fork) for t in group.forks if t.fork is not None]
    opened = _equal(group) and group.tree is not None and not group.tree.zero_variance
    return {
        "forks": len(forks),
        "forks_stopped": sum(fork.stopped for _, fork in forks),
        "fork_turns": sum(len(t.turns) for t, _ in forks),
        "forks_succeeded": sum(t.episode.success for t, fork in forks if not fork.stopped),
        "opened": int(opened),
    }


def _way_counts(group: Group) -> dict[str, int]:
    """Measure the group's way: whether it is stitched from several episodes, or shorter than each that ended as well."""
    if (way := group.way) is None:
        return {}
    ended = [
        t.before + len(t.turns)
        for t in group.members
        if not (t.fork is not None and t.fork.stopped) and t.ending >= way.ending - SAME_REWARD
    ]
    return {
        "ways": 1,
        "way_steps": len(way.steps),
        "ways_stitched": int(len({i for i, _ in way.steps}) > 1),
        "ways_shorter": int(len(way.steps) < min(ended)),
    }


def _digest(context: Sequence[int], reply: Sequence[int]) -> bytes:
    ids = array("q", [len(context), *context, *reply])
    return hashlib.blake2b(ids.tobytes(), digest_size=16).digest()


def telling(group: Group) -> tuple[int, bool, bool, int]:
    """Rank a group by how much its tree tells, lowest first: most divergences, a way, a tree, the first task."""
    return -len(group.divergences), group.way is None, group.tree is None, group.trajectories[0].group


def anchor(result: Group, divergence: Divergence) -> tuple[str, str]:
    """(task, state key) of the step before a divergence: which decision it is, across iterations."""
    worst, turn = divergence.worst_step
    trajectory = result.members[worst]
    fork, start = trajectory.fork, result.trajectories[0].start_key
    begun = "" if fork is None or fork.state == start else fork.state
    return trajectory.episode.task, trajectory.steps[turn - 1].state_key if turn else begun


def gathered(config: Config, data: IterationData, world: Communicator) -> IterationData:
    """Gather on the first rank what metrics and files need of all ranks; all ranks call it.

    That is the figures of every group, failed episodes, and the groups that files show.

    Args:
        config: the run's options.
        data: of this rank; it gets its ``figures``.
        world: communicator between the ranks.

    Returns:
        On the first rank the data of all, its groups those that files show; on the others, and of a single process, its own.
    """
    figures = [figures_of(config, unit) for unit in data.units]
    data.figures = [found for of_unit in figures for found in of_unit]
    if world.size == 1:
        return data
    own = IterationData(data.number, data.done, data.temperature, first=-1, pairs_age=data.pairs_age)
    own.grown, own.lag, own.correction = data.grown, data.lag, data.correction
    own.seconds, own.memory = data.seconds, data.memory
    units = [
        replace(unit, groups=[], grafts=replace(unit.grafts, kept=[]), figures=found)
        for unit, found in zip(data.units, figures, strict=True)
    ]
    parts = world.gather([own, *units])
    whole = IterationData.merge([part for of_rank in parts for part in of_rank]) if parts else data
    shown = {found.group for found in sorted(whole.figures, key=lambda found: found.telling)[:SHOWN_GROUPS]}
    shown = world.broadcast(shown)
    groups = world.gather([_without_contexts(g) for g in data.groups if g.trajectories[0].group in shown])
    grafts = world.gather([_without_ids(g) for g in data.grafts.kept if g.group in shown])
    if not parts:
        return data
    whole.made = data.made
    whole.groups = sorted((g for part in groups for g in part), key=lambda g: g.trajectories[0].group)
    whole.grafts.kept = sorted((g for part in grafts for g in part), key=lambda graft: graft.group)
    return whole


def _without_contexts(group: Group) -> Group:
    roots, forks = (
        [
            replace(t, turns=[replace(turn, context=[], logprobs=[], next_actions=None) for turn in t.turns])
            for t in trajectories
        ]
        for trajectories in (group.trajectories, group.forks)
    )
    return replace(group, trajectories=roots, forks=forks)


def _without_ids(graft: Graft) -> Graft:
    return replace(graft, context=[], rectified=[], rejected=[], successful=[])


def summarize(
    config: Config,
    played: IterationData,
    stats: UpdateStats,
    grafted: set[tuple[str, str]],
    dataset_size: int,
) -> dict[str, Any]:
    """Compute all metrics of an iteration except times (docs/tstar.md); None where nothing could be measured."""
    results, grafts, work = played.figures, played.grafts, played.work
    counts: Counter[str] = sum((found.counts for found in results), Counter())
    metrics: dict[str, Any] = {
        "reward": mean([earned for found in results for earned in found.earned]),
        "success": _ratio(counts["successes"], counts["episodes"]),
        "invalid_rate": _ratio(counts["invalid"], counts["steps"]),
        "episode_length": _ratio(counts["steps"], counts["episodes"]),
        "response_tokens": _ratio(counts["reply_tokens"], counts["replies"]),
        "zero_variance_groups": _ratio(counts["equal"], len(results)),
        "failed_episodes": len(played.failed),
        "overlong_episodes": played.overlong,
        "turns_sampled": played.turns,
        "tokens_sampled": played.tokens,
        "entropy": stats.entropy,
    }
    if results and results[0].f1[0] is not None:
        metrics["f1"] = mean([f1 or 0.0 for found in results for f1 in found.f1])
    if config.tstar:
        metrics |= _tree_metrics(results)
        metrics |= {
            "grafting_coverage": _ratio(counts["lost_repaired"], counts["lost"]),
            "anchor_reuse": mean([one in grafted for found in results for one in found.anchors]),
            "grafts": counts["grafts"],
            "grafts_model": counts["grafts_model"],
            "grafts_z_plus": counts["grafts_z_plus"],
            "grafts_equal_to_z_plus": counts["grafts_equal"],
            "grafts_best_members": _ratio(counts["best_members"], counts["grafts"]),
            "grafts_worst_members": _ratio(counts["worst_members"], counts["grafts"]),
            "grafts_played_on": grafts.played_on,
            "grafts_verified": counts["grafts_verified"],
            "graft_dataset_size": dataset_size,
            "graft_dataset_age": played.pairs_age,
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
    if config.forks:
        metrics |= {
            "forks": counts["forks"],
            "forks_failed": played.forks_failed,
            "forks_stopped": _ratio(counts["forks_stopped"], counts["forks"]),
            "fork_length": _ratio(counts["fork_turns"], counts["forks"]),
            "fork_success": _ratio(counts["forks_succeeded"], counts["forks"] - counts["forks_stopped"]),
            "groups_opened_by_forks": counts["opened"],
        }
    if config.tstar and config.graft.enabled and config.graft.source != "divergence":
        metrics |= {
            "ways": counts["ways"],
            "way_length": _ratio(counts["way_steps"], counts["ways"]),
            "ways_stitched": counts["ways_stitched"],
            "ways_shorter": counts["ways_shorter"],
        }
    if config.needs_reference:
        metrics["kl_reference"] = stats.kl_reference
    if config.algo.startswith("dapo"):
        metrics |= {"played_tasks": played.tasks, "dropped_groups": played.dropped_groups}
    if config.rollout.ahead:
        metrics["sampling_lag"] = played.lag
    if tokens := (correction := played.correction).tokens:
        metrics |= {
            "correction_masked": correction.masked / tokens,
            "correction_truncated": correction.truncated / tokens,
            "correction_weight": correction.weights / tokens,
        }
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


def _tree_metrics(results: Sequence[GroupFigures]) -> dict[str, Any]:
    """Average the statistics of the trees that count; empty without trees.

    The spread of divergent nodes is averaged over the trees that have any.
    """
    trees = [found.tree for found in results if found.tree is not None]
    metrics = {f"tree_{key}": mean([float(t[key]) for t in trees]) for key in (trees[0] if trees else {})}
    if trees:
        metrics["tree_mean_spread"] = mean([t["mean_spread"] for t in trees if t["divergent_nodes"]])
    return metrics


def _weight_change(results: Sequence[GroupFigures]) -> float | None:
    """Measure how far the tree's gradient weights are from GRPO's; None if all weights are 0."""
    ours = [advantages for found in results for advantages in found.credit]
    theirs = []
    for found in results:
        base = grpo(found.rewards, [0] * len(found.rewards))
        theirs += [np.full(len(texts), a) for texts, a in zip(found.texts, base, strict=True)]
    if not any(np.any(row) for row in (*ours, *theirs)):
        return None
    return float(relative_weight_change(ours, theirs, [texts for found in results for texts in found.texts]))


def _known(figure: float) -> float | None:
    """Replace NaN, which marks figures that the learner did not measure, by None."""
    return None if math.isnan(figure) else figure


def _ratio(total: int, count: int) -> float | None:
    return total / count if count else None


def mean(values: Sequence[float]) -> float | None:
    """Average numbers; None without any."""
    return float(np.mean(values)) if len(values) else None
