"""T-STAR: cognitive trees, their advantages, and grafts at divergences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from tstar_train.algorithms.base import Advantages
from tstar_train.config import Config
from tstar_train.engines.base import Engine
from tstar_train.grafting import graft, verify
from tstar_train.policy.codec import Codec
from tstar_train.rollout.collect import EnvSpec
from tstar_train.rollout.explore import require_listed
from tstar_train.rollout.kl import ActionKL, ExactKL, action_logprobs, prefetch_together
from tstar_train.rollout.player import Sampling
from tstar_train.tree import Divergence, StateGraph, Tree, Way, build_trees
from tstar_train.types import Grafts, Group, KLWork, Trajectory


class TStar:
    """T-STAR on top of a base algorithm (docs/tstar.md).

    Turns that the policy cannot tell apart share a node of the cognitive tree. A turn's advantage is its node's value minus the group's
    mean reward. Beyond the paper, nodes can be states, and a turn can be credited with its gain over the state it was taken in.

    Args:
        config: the run's options.
        engine: samples actions (for the KL divergence) and rectified thoughts.
        codec: turns to ids.
        spec: the environment as training plays it, or several by id.
        sampling: as in the rollouts.
    """

    def __init__(
        self,
        config: Config,
        engine: Engine,
        codec: Codec,
        spec: EnvSpec | Mapping[str, EnvSpec],
        sampling: Sampling,
    ) -> None:
        self._config = config
        self._engine = engine
        self._codec = codec
        self._spec = spec
        self._sampling = sampling

    def trees(self, groups: Sequence[Sequence[Trajectory]], number: int, work: KLWork) -> list[Tree | None]:
        """Build the cognitive tree of each group; None for groups that give no learning signal.

        A group whose rewards are all equal has advantage 0 everywhere, so its tree is built for statistics only.

        Args:
            groups: of the iteration; they ask the policy together.
            number: of the iteration.
            work: of the KL estimates; added to.
        """
        options = self._config.tree
        chosen = [
            n
            for n, group in enumerate(groups)
            if options.statistics_everywhere or len({t.reward for t in group if not _stopped(t)}) > 1
        ]
        built = [groups[n] for n in chosen]
        monte_carlo = options.nodes == "depth" and options.kl_estimator == "mc"
        made = build_trees(
            built,
            [self.estimator(group, number, work) for group in built],
            eps_kl=options.eps_kl,
            gamma=options.gamma,
            same_parent=options.same_parent,
            kl_symmetry=options.kl_symmetry,
            history=options.history,
            nodes=options.nodes,
            values=options.values,
            start_keys=[group[0].start_key for group in built],
            prefetch=prefetch_together if monte_carlo else None,
        )
        trees: list[Tree | None] = [None] * len(groups)
        for n, tree in zip(chosen, made, strict=True):
            trees[n] = tree
        return trees

    def estimator(self, group: Sequence[Trajectory], number: int, work: KLWork) -> ActionKL | ExactKL | None:
        """Make the KL estimator of a group; None if nodes are states, which need none."""
        config, options = self._config, self._config.tree
        if options.nodes == "state":
            return None  # equal states are equal by the environment's word
        if options.kl_estimator == "exact":
            return ExactKL(self._engine, self._codec, group, work=work)
        return ActionKL(
            self._engine,
            self._codec,
            group,
            samples=options.kl_samples,
            over=options.kl_over,
            threshold=options.eps_kl if options.kl_symmetry != "mean" else None,
            max_tokens=options.kl_tokens if isinstance(options.kl_tokens, int) else config.rollout.max_tokens,
            as_listed=options.kl_tokens == "action" and options.kl_over == "action",
            seed=f"{config.seed}/kl/{number}",
            ahead=options.kl_symmetry != "forward",
            work=work,
        )

    def value(
        self, group: Group, base: Advantages, chances: Mapping[int, Mapping[str, float]] | None = None
    ) -> Advantages:
        """Compute the tree's advantages; the base algorithm's if ``tree.enabled`` is off.

        A group without a tree has equal rewards, for which the tree's advantages are 0 too: no group keeps credit on another scale.

        Args:
            group: with its tree.
            base: the base algorithm's advantages, one array per member.
            chances: see ``chances``.
        """
        options, tree = self._config.tree, group.tree
        if not options.enabled:
            return base
        if tree is None or tree.zero_variance:  # a tree for statistics only
            return [np.zeros_like(row) for row in base]
        if chances is not None:
            return self._of_actions(tree, chances, group.horizon)
        credit = tree.advantages(baseline=options.baseline, credit=options.credit)
        if self._config.forks and self._config.explore.weights == "reach" and tree.graph is not None:
            self._weigh(tree.graph, credit, group.horizon)
        return credit

    def chances(self, groups: Sequence[Group]) -> list[dict[int, dict[str, float]] | None]:
        """Compute the policy's probabilities of the actions tried in each state, if the credit is that of the graph.

        Args:
            groups: of the iteration, with their trees; they ask the policy together.

        Returns:
            Per group by state and action; None without a tree, or with ``explore.credit`` rows.
        """
        found: list[dict[int, dict[str, float]] | None] = [None] * len(groups)
        if not self._config.forks or self._config.explore.credit != "graph":
            return found
        contexts, actions, places = [], [], []
        for n, group in enumerate(groups):
            if group.tree is None or group.tree.graph is None:
                continue
            of_group: dict[int, dict[str, float]] = {}
            found[n] = of_group
            require_listed(
                self._config, group.trajectories[0].episode.env, group.trajectories[0].start_actions
            )
            if group.tree.zero_variance:
                continue
            members, tried, first = group.members, group.tree.graph.tried(), group.tree.graph.first_visits()
            for state, listed in tried.items():
                i, t = first[state]
                context = members[i].turns[t].context
                if listed and len(context) + self._config.rollout.max_tokens <= self._engine.limit:
                    contexts.append(context)
                    actions.append(listed)
                    places.append((of_group, state))
        if contexts:
            scored = action_logprobs(self._engine, self._codec, contexts, actions)
            for (of_group, state), logprobs in zip(places, scored, strict=True):
                of_group[state] = {action: math.exp(p) for action, p in logprobs.items()}
        return found

    def _of_actions(self, tree: Tree, chances: Mapping[int, Mapping[str, float]], horizon: int) -> Advantages:
        """Give each tried action's weight to one of its turns, and nothing to the others."""
        if tree.graph is None:
            raise ValueError("credit of actions needs a graph of states")
        credit = [np.zeros(length) for length in tree.graph.lengths]
        weights = tree.graph.advantages_of_actions(chances, tree.gamma, horizon)
        for (state, action), weight in weights.items():
            i, t = tree.graph.taker(state, action)
            credit[i][t] = self._config.rollout.group_size * weight
        return credit

    def _weigh(self, graph: StateGraph, credit: Advantages, horizon: int) -> None:
        """Multiply each turn's credit by how often the policy comes by its state, over the visits in the group."""
        weights = self._config.rollout.group_size * graph.reach(horizon) / np.maximum(graph.visits, 1)
        for step in graph.passages:
            credit[step.member[0]][step.member[1]] *= weights[step.state]

    def divergences(self, tree: Tree | None, way: Way | None = None) -> list[Divergence]:
        """Find where thoughts are grafted: nodes where better and worse branches part, or steps of the way beside worse ones."""
        options = self._config.graft
        if tree is None:
            return []
        found = []
        if options.source != "way":
            found += tree.divergences(self._config.tree.delta, shrink=options.shrink)
        if way is not None and options.loss == "surgical":
            found += tree.contrasts(way, self._config.tree.delta)
        return found

    def way(self, tree: Tree | None) -> Way | None:
        """Find the way to a group's best ending, if ways are grafted; None without one."""
        options = self._config.graft
        return None if tree is None or not options.enabled or options.source == "divergence" else tree.way()

    def imitate(self, tree: Tree | None, way: Way | None, credit: Advantages) -> Advantages:
        """Add the advantage of the way's turns to the credit, if ways are imitated.

        Args:
            tree: of the group.
            way: through it; None if there is none.
            credit: per member, one number per turn.
        """
        options = self._config.graft
        if not self._config.imitates_ways:
            return credit
        if options.way_only:
            credit = [np.zeros_like(row) for row in credit]
        if tree is None or way is None:
            return credit
        added = tree.way_advantages(way, options.way_weight)
        return [row + extra for row, extra in zip(credit, added, strict=True)]

    def graft(self, groups: Sequence[Group], number: int) -> Grafts:
        """Rectified thoughts at the divergences, verified if the options say so.

        Args:
            groups: with their divergences.
            number: of the iteration.
        """
        config = self._config
        if not config.makes_pairs:
            return Grafts()
        found = [(g.members, d) for g in groups for d in g.divergences]
        grafts = graft(
            self._engine,
            self._codec,
            found,
            seed=f"{config.seed}/graft/{number}",
            max_tokens=config.rollout.max_tokens,
            temperature=config.graft.temperature,
            fallback=config.graft.fallback,
            iteration=number,
        )
        if config.graft.verify:
            by_task = {g.trajectories[0].group: g for g in groups}
            failed = [(by_task[g.group], g.worst_step[0]) for g in grafts.kept]
            lost = [group.members[i] for group, i in failed]
            verify(
                grafts,
                lost,
                self._spec,
                self._engine,
                self._codec,
                split=config.split,
                seed=f"{config.seed}/verify/{number}",
                sampling=self._sampling,
                fallback=config.graft.fallback,
                earned=[_earned(group, i) for group, i in failed],
            )
        return grafts


def _earned(group: Group, i: int) -> float:
    """Return what a member earned; of a fork that stopped in a known state, what is expected from there."""
    member = group.members[i]
    return member.earned if group.tree is None or not _stopped(member) else group.tree.rewards[i]


def _stopped(trajectory: Trajectory) -> bool:
    return trajectory.fork is not None and trajectory.fork.stopped
