"""A share of an iteration's work: play some of the tasks, value them, graft, and give gradients.

Groups never interact before the update, so shares run in separate processes (``team``) over one set of weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from tstar_envs import Episode, find_entry
from tstar_train.algorithms.advantages import grpo
from tstar_train.config import Config
from tstar_train.engines.local import LocalEngine
from tstar_train.finite import NotFinite, checked_norm
from tstar_train.grafting.graft import Grafts, graft
from tstar_train.grafting.verify import verify
from tstar_train.optim.update import UpdateStats, base_backward, deal, surgical_backward
from tstar_train.policy.model import Policy
from tstar_train.rollout.action_kl import ActionKL, ExactKL, KLWork
from tstar_train.rollout.collect import EnvSpec, Sampling, collect, overlong
from tstar_train.rollout.credit import progress_made
from tstar_train.rollout.failures import failed, stop_if_most_failed
from tstar_train.rollout.fines import fines
from tstar_train.rollout.types import TokenSequence, Trajectory, join_rows, rows_of
from tstar_train.tree import Divergence, Tree, build_tree


@dataclass
class GroupResult:
    """What was made of one group.

    Attributes:
        trajectories: its members, without those that failed for want of infrastructure.
        advantages: per member, one number per turn.
        tree: None if it was not built.
        divergences: where to graft.
    """

    trajectories: list[Trajectory]
    advantages: list[np.ndarray]
    tree: Tree | None
    divergences: list[Divergence]


@dataclass
class Played:
    """What a share's tasks gave.

    Attributes:
        groups: in order of task; one of which every episode failed is missing.
        failed: episodes that failed for want of infrastructure, which are in no group.
        overlong: episodes that ended because their context left no room for a reply; one that never began is in no group.
        grafts: kept and dropped.
        work: of the KL estimates.
        seconds: per phase.
    """

    groups: list[GroupResult] = field(default_factory=list)
    failed: list[Episode] = field(default_factory=list)
    overlong: int = 0
    grafts: Grafts = field(default_factory=Grafts)
    work: KLWork = field(default_factory=KLWork)
    seconds: dict[str, float] = field(default_factory=dict)


class Share:
    """One process's part.

    Args:
        policy: weights that somebody else updates in place.
        reference: for the surgical loss and the KL, None if neither is used.
        config: the run.
        spec: the environment.
    """

    def __init__(self, policy: Policy, reference: PreTrainedModel | None, config: Config, spec: EnvSpec) -> None:
        self._policy = policy
        self._reference = reference
        self._config = config
        self._spec = spec
        self._training_spec = _training_spec(spec, config)
        self._engine = LocalEngine(policy, config.rollout.batch, config.rollout.context_tokens)
        self._sequences: list[list[TokenSequence]] = [[] for _ in range(config.optim.updates)]  # per optimizer step
        self._grafts = Grafts()

    def play(self, tasks: Sequence[str], number: int, first: int) -> Played:
        """Play and value the tasks of iteration ``number``; ``first`` is the index of the first among all of them."""
        config, codec = self._config, self._policy.codec
        clock = _Clock()
        self._engine.sync({})  # the weights have changed in place since the caches were filled
        size = config.rollout.group
        trajectories = collect(
            self._training_spec, self._engine, codec, tasks, size=size, split=config.split, seed=f"{config.seed}/rollout/{number}",
            sampling=replace(sampling_of(config, config.rollout.temperature), progress=config.rollout.progress_credit > 0),
            first_group=first,
        )  # fmt: skip
        clock.phase("rollout")
        played = Played(failed=[t.episode for t in trajectories if failed(t.episode)], seconds=clock.seconds)
        played.overlong = sum(overlong(t.episode) for t in trajectories)
        groups = [g for i in range(len(tasks)) if (g := _without_failed(trajectories[i * size : (i + 1) * size]))]
        trees = [self._tree(group, number, played.work) for group in groups]
        clock.phase("tree")
        played.groups = [self._value(group, tree) for group, tree in zip(groups, trees, strict=True)]
        clock.phase("valuation")
        if config.tstar and config.graft.enabled:
            found = [(g.trajectories, d) for g in played.groups for d in g.divergences]
            played.grafts = graft(
                self._engine, codec, found, seed=f"{config.seed}/graft/{number}", max_tokens=config.rollout.max_tokens,
                temperature=config.graft.temperature, fallback=config.graft.fallback,
            )  # fmt: skip
            if config.graft.verify:
                by_task = {g.trajectories[0].group: g.trajectories for g in played.groups}
                lost = [by_task[g.group][g.worst_step[0]] for g in played.grafts.kept]
                verify(
                    played.grafts, lost, self._training_spec, self._engine, codec, split=config.split,
                    seed=f"{config.seed}/verify/{number}", sampling=sampling_of(config, config.rollout.temperature),
                    fallback=config.graft.fallback,
                )  # fmt: skip
        clock.phase("grafting")
        self._sequences = deal([s for g in played.groups for s in self._rows(g)], config.optim.updates)
        self._grafts = played.grafts
        return played

    def _tree(self, group: list[Trajectory], number: int, work: KLWork) -> Tree | None:
        """The cognitive tree of one group.

        A group whose rewards are all equal has advantage 0 everywhere, so its tree is built for statistics only.
        """
        config, options = self._config, self._config.tree
        if not config.tstar or (len({t.reward for t in group}) == 1 and not options.statistics_everywhere):
            return None
        kl: ActionKL | ExactKL
        if options.kl_estimator == "exact":
            kl = ExactKL(self._engine, self._policy.codec, group, work=work)
        else:
            kl = ActionKL(
                self._engine, self._policy.codec, group, samples=options.kl_samples, over=options.kl_over,
                threshold=options.eps_kl if options.kl_symmetry != "mean" else None, max_tokens=config.rollout.max_tokens,
                seed=f"{config.seed}/kl/{number}", work=work,
            )  # fmt: skip
        return build_tree(
            group, kl, eps_kl=options.eps_kl, gamma=options.gamma, same_parent=options.same_parent,
            kl_symmetry=options.kl_symmetry, history=options.history,
        )  # fmt: skip

    def _value(self, group: list[Trajectory], tree: Tree | None) -> GroupResult:
        """Advantages of one group's steps, and where it diverges."""
        config, options = self._config, self._config.tree
        base = grpo([t.reward for t in group], [0] * len(group))
        advantages = [np.full(len(t.turns), a) for t, a in zip(group, base, strict=True)]
        if tree is None:
            return GroupResult(group, advantages, None, [])
        if options.enabled:
            advantages = tree.advantages(baseline=options.baseline)
        return GroupResult(group, advantages, tree, tree.divergences(options.delta, shrink=config.graft.shrink))

    def _rows(self, group: GroupResult) -> list[TokenSequence]:
        sequences = []
        for trajectory, advantages in zip(group.trajectories, group.advantages, strict=True):
            earned = self._weighed(advantages) - fines(trajectory.steps, self._config.rollout)
            if self._config.rollout.progress_credit:
                earned += self._weighed(self._config.rollout.progress_credit * progress_made(trajectory.turns))
            episode = join_rows(rows_of(trajectory, earned.tolist()))
            if self._config.optim.aggregation == "episode-mean":
                own = sum(s.own_tokens for s in episode)
                for sequence in episode:
                    sequence.weight = 1 / own
            sequences += episode
        return sequences

    def _weighed(self, advantages: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.where(advantages < 0, self._config.optim.negative_weight * advantages, advantages)

    def sizes(self) -> list[tuple[float, int]]:
        """For each optimizer step: summed weights of own tokens, and grafts, of this share: the denominators' parts."""
        updates = self._config.optim.updates
        grafts = self._grafts.kept if self._config.graft.surgical else []
        return [
            (sum(s.weight * s.own_tokens for s in sequences), len(grafts[k::updates])) for k, sequences in enumerate(self._sequences)
        ]

    def base_gradient(self, step: int, weight: float) -> tuple[Tensor, UpdateStats]:
        """Gradient of the base loss over this share's rows of an optimizer step, divided by ``weight``, as one vector.

        Raises:
            NotFinite: a loss, log-probability or gradient is no number; it holds the rows.
        """
        stats = UpdateStats()
        sequences = self._sequences[step]

        def backward() -> None:
            base_backward(
                self._policy.model, self._reference, sequences, self._config.optim,
                self._config.rollout.temperature, self._policy.codec.pad, weight, stats,
            )  # fmt: skip

        return self._gradient("base", step, backward, [asdict(s) for s in sequences]), stats

    def surgical_gradient(self, step: int, grafts: int) -> tuple[Tensor, UpdateStats]:
        """Gradient of lambda times the surgical loss over this share's grafts, divided by ``grafts``.

        Raises:
            NotFinite: as ``base_gradient``; it holds the grafts.
        """
        stats = UpdateStats()
        mine = self._grafts.kept[step :: self._config.optim.updates]

        def backward() -> None:
            if mine and self._reference is not None:
                surgical_backward(
                    self._policy.model, self._reference, mine, self._config.graft, self._config.optim.micro_tokens,
                    self._policy.codec.pad, grafts, stats,
                )  # fmt: skip

        return self._gradient("surgical", step, backward, [asdict(g) for g in mine]), stats

    def evaluate(self, tasks: Sequence[str], split: str, samples: int, temperature: float, seed: str) -> list[Episode]:
        """Play tasks without learning; the seed does not name the weights, so before and after share their noise.

        Raises:
            InfrastructureError: most episodes of a batch failed.
        """
        self._engine.sync({})
        rows = max(1, self._config.rollout.batch // samples)
        episodes = []
        for start in range(0, len(tasks), rows):
            trajectories = collect(
                self._spec, self._engine, self._policy.codec, tasks[start : start + rows], size=samples, split=split, seed=seed,
                sampling=sampling_of(self._config, temperature),
            )  # fmt: skip
            self._engine.forget()
            batch = [t.episode for t in trajectories]
            stop_if_most_failed([e for e in batch if failed(e)], len(batch))  # early: every batch waits for what is down
            episodes += batch
        return episodes

    def _clear(self) -> None:
        for parameter in self._policy.model.parameters():
            parameter.grad = None

    def _gradient(self, loss: str, step: int, backward: Callable[[], None], rows: list[dict[str, Any]]) -> Tensor:
        """What a backward pass leaves, as one vector, once it is known to be finite."""
        batch = {"loss": loss, "optimizer_step": step, "rows": rows}
        self._clear()
        try:
            backward()
            parameters = [p for p in self._policy.model.parameters() if p.requires_grad]
            vector = torch.cat([torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in parameters])
            checked_norm(vector, f"the gradient of the {loss} loss")
        except NotFinite as error:
            raise NotFinite(f"{error} (optimizer step {step + 1} of the iteration)", batch) from error
        finally:
            self._clear()
        return vector


def _without_failed(group: Sequence[Trajectory]) -> list[Trajectory]:
    """The members that have a result and a turn, numbered anew: trees, grafts and the report count members by their place."""
    ordered = sorted(group, key=lambda t: failed(t.episode) or not t.turns)
    for place, trajectory in enumerate(ordered):
        trajectory.member = trajectory.episode.sample = place
    return [t for t in ordered if t.turns and not failed(t.episode)]


def _training_spec(spec: EnvSpec, config: Config) -> EnvSpec:
    """The environment as training plays it: with its further options, and episodes never longer than the environment's own."""
    options = {**spec.options, **config.training_options}
    own, wanted = options.get("horizon") or find_entry(spec.name).horizon, config.rollout.horizon
    return EnvSpec(spec.name, options if wanted is None else {**options, "horizon": min(own, wanted)})


def sampling_of(config: Config, temperature: float) -> Sampling:
    """The rollout options as the collector takes them."""
    rollout = config.rollout
    return Sampling(rollout.max_tokens, temperature, rollout.context, rollout.history)


class _Clock:
    """Seconds per phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def phase(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = now - self._last
        self._last = now
