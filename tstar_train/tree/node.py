"""Nodes of a cognitive tree, and the trajectories that it reads.

Step t (0-based) of trajectory i is the member `(i, t)`, at depth t + 1. Depth 0 is the root, the task prompt,
whose members are `(i, -1)`: the moment before each trajectory's first step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

Member = tuple[int, int]


class StepLike(Protocol):
    """Step of an episode, as the tree reads it (any object with these attributes)."""

    @property
    def thought(self) -> str: ...
    @property
    def action(self) -> str: ...
    @property
    def observation(self) -> str: ...
    @property
    def modifies_state(self) -> bool:
        """True if this action, as executed, changed the state."""

    @property
    def effect_key(self) -> str:
        """The environment's canonical key of that change."""

    @property
    def state_key(self) -> str:
        """Key of the state after the step; read with `history="state"` only."""


class ForkLike(Protocol):
    """Beginning and end of a fork: a trajectory that was played on from a restored state (docs/tstar.md)."""

    @property
    def parent(self) -> int:
        """Trajectory of the group whose state was restored."""

    @property
    def state(self) -> str:
        """Key of the state that it begins in."""

    @property
    def turn(self) -> int:
        """Number of steps before that state, counted from the start."""

    @property
    def untried(self) -> bool:
        """True if its first step was chosen because nobody had tried it, not drawn by the policy alone."""

    @property
    def stopped(self) -> bool:
        """True if it was stopped in a state that others had left, and so has no reward of its own."""


class TrajectoryLike(Protocol):
    """One episode: its terminal reward and its steps.

    By state three more attributes are read where a trajectory has them: `truncated`, True if the horizon cut its last step off; `fork`, a
    `ForkLike`, or None for an episode from the start; and `ending`, the terminal reward, where `reward` has shaping or penalties beside
    it. The steps of a fork are those after its state.
    """

    @property
    def reward(self) -> float: ...
    @property
    def steps(self) -> Sequence[StepLike]: ...


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """A set of steps that count as one: functionally equivalent, and compatible in their histories.

    Nodes compare and hash by identity, so that they can be keys of `children`.

    Attributes:
        depth: 0 for the root, t + 1 for step t; of a state the earliest visit's.
        members: the steps merged here, `(trajectory, step)`.
        children: the next nodes, each with the trajectories that go there from here, T(v -> v').
        value: Q(v), of a state V(s), in units of reward.
        ending: whether its members are the last steps of their trajectories; such a node is a leaf.
    """

    depth: int
    members: frozenset[Member]
    children: Mapping[Node, frozenset[int]] = field(repr=False)
    value: float
    ending: bool

    @property
    def trajectories(self) -> frozenset[int]:
        """T(v): the trajectories that pass through this node."""
        return frozenset(i for i, _ in self.members)

    @property
    def first(self) -> Member:
        """The member of the lowest trajectory: what stands for the node wherever one step must."""
        return min(self.members)

    def weight(self, child: Node) -> float:
        """w(v -> v') = |T(v -> v')| / |T(v)|, the share of the trajectories here that go on to `child`."""
        return len(self.children[child]) / len(self.trajectories)
