"""Interface of base algorithms: group selection and advantages of turns and tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

# The formulas of this package are imported by the tree, which knows nothing of rollouts and runs.
if TYPE_CHECKING:
    from tstar_train.config import Config
    from tstar_train.distributed import Communicator
    from tstar_train.learner.terms import Term
    from tstar_train.types import Group, TokenSequence, Trajectory

# Per member of a group one number per turn, shape (turns,).
Advantages = list[NDArray[np.float64]]


class Algorithm(ABC):
    """One base algorithm; the class docstring of each says which rewards are compared with which.

    The credit of a turn is ``episode``, the term that T-STAR replaces by the tree's, plus ``step``, the term that stays. What single
    turns are penalised or credited with besides comes after these comparisons (``learner.rows``).

    Args:
        config: the run's options.
    """

    # Whether it needs a critic's values; a run then has one, and keeps it in its checkpoints.
    needs_values = False
    # Options that it sets, by their names on the command line; for one of your own, as those of the others are in ``ALGORITHMS``.
    default_options: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    # Whether T-STAR can stand on it: whether it has a term for whole episodes to replace.
    carries_tstar = True

    def __init__(self, config: Config) -> None:
        self.config = config

    @property
    def compares_batch(self) -> bool:
        """True if it compares groups with one another (``batch_advantages``)."""
        return type(self).batch_advantages is not Algorithm.batch_advantages

    def shape_rewards(self, trajectories: Sequence[Trajectory]) -> None:
        """Change what episodes are compared by (``Trajectory.penalty``), before anything is compared."""
        return

    def filter_group(self, group: Sequence[Trajectory]) -> bool:
        """Return True to train on a group; dropped groups are replaced by sampling more tasks."""
        return True

    def temperature(self, done: float) -> float:
        """Return the sampling temperature; all log-probabilities of sampled tokens use it too.

        Args:
            done: share of the training that is done, from 0 to 1.
        """
        return self.config.rollout.temperature

    @abstractmethod
    def episode_advantages(self, group: Sequence[Trajectory]) -> Advantages:
        """Compute each turn's advantage from the outcome of its episode; T-STAR replaces this term."""

    def step_advantages(self, group: Sequence[Trajectory]) -> Advantages | None:
        """Compute each turn's own advantage, added to the episode's; None if there is no such term."""
        return None

    def batch_advantages(self, groups: Sequence[Group], world: Communicator) -> None:
        """Change ``Group.advantages`` by comparing groups with one another, once all have theirs; by default nothing.

        All ranks call it. Each has only its own groups, maybe none: add sums and counts over the ranks with ``world.all_reduce``, never
        means, and call it equally often on every rank. With this method the same groups are always on the same rank, so that such sums are
        the same to the last digit; without it ranks take tasks as they get free.

        Args:
            groups: groups of this rank, with the tree's advantages where T-STAR is on; changed in place.
            world: communicator between the ranks.
        """
        return

    def token_advantages(
        self, episodes: Sequence[tuple[Trajectory, list[TokenSequence]]], world: Communicator
    ) -> None:
        """Change the advantages of single tokens; by default each has its turn's. All ranks call it.

        Args:
            episodes: every trajectory of this rank with its rows, which hold a critic's values if ``needs_values``; changed in place.
            world: communicator between the ranks.
        """
        return

    def terms(self) -> list[Term]:
        """Return the terms of the base loss."""
        from tstar_train.learner.terms import KLTerm, PolicyTerm

        optim = self.config.optim
        return [PolicyTerm(optim.clip_low, optim.clip_high), KLTerm(optim.kl_coefficient)]


def whole_episode(group: Sequence[Trajectory], credit: NDArray[np.float64]) -> Advantages:
    """Every turn of a member gets the same.

    Args:
        group: the members.
        credit: shape (members,).
    """
    return [np.full(len(t.turns), float(a)) for t, a in zip(group, credit, strict=True)]
