"""Building the cognitive trees of groups of trajectories."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import get_args

from tstar_train.algorithms.advantages import reward_moments
from tstar_train.tree.backup import node_value
from tstar_train.tree.equivalence import KL, PairCounts, Prefetch, Symmetry, equivalence_classes
from tstar_train.tree.history import History
from tstar_train.tree.node import Member, Node, TrajectoryLike
from tstar_train.tree.states import state_nodes
from tstar_train.tree.tree import Nodes, Tree

GAMMA = {"depth": 0.99, "state": 0.95}  # where none is given


def build_tree(
    group: Sequence[TrajectoryLike],
    kl: KL | None,
    eps_kl: float = 0.25,
    gamma: float | None = None,
    same_parent: bool = False,
    kl_symmetry: Symmetry = "max",
    history: History = "sequence",
    nodes: Nodes = "depth",
    start_key: str | None = None,
) -> Tree:
    """Merge the equal decisions of a group's trajectories and value the result (docs/tstar.md).

    By state no model is asked: equal states are equal by the environment's word.

    Every group is built, and `kl` is asked about every compatible pair that is not connected yet: skipping
    groups without variance and knowing which contexts are identical belong to the caller and to `kl`.

    Args:
        group: M trajectories of one task from one start state.
        kl: `kl(t, i, j)`, the divergence in nats between the policies of trajectories i and j after step t.
            An object that also has `prefetch` (see `BatchedKL`) receives each batch of calls before they
            are made. By state it is never asked, and may be None; `eps_kl`, `same_parent`, `kl_symmetry` and
            `history` are then not used.
        eps_kl: two steps with compatible histories merge below this divergence.
        gamma: discount per step; 1 makes Lemma 1 exact in a strict tree. None is .99 by depth and .95 by state.
        same_parent: intersect every component with its parent's, which gives a strict tree.
        kl_symmetry: "max", "mean" or "forward"; see `equivalence.equivalence_classes`.
        history: "sequence" or "state"; see `history.history_keys`.
        nodes: "depth", the paper's, or "state": a node is a state, at whatever depth (see `states.state_nodes`).
        start_key: key of the state that all start from; by state, a trajectory that comes back to it visits the
            root again.

    Returns:
        The tree; it keeps no reference to the steps.

    Raises:
        ValueError: an option out of its range, no trajectories, one without steps, or a reward that is not
            finite.
    """
    start_keys = [start_key]
    return build_trees(
        [group], [kl], eps_kl, gamma, same_parent, kl_symmetry, history, nodes, start_keys=start_keys
    )[0]


def build_trees(
    groups: Sequence[Sequence[TrajectoryLike]],
    kls: Sequence[KL | None],
    eps_kl: float = 0.25,
    gamma: float | None = None,
    same_parent: bool = False,
    kl_symmetry: Symmetry = "max",
    history: History = "sequence",
    nodes: Nodes = "depth",
    *,
    start_keys: Sequence[str | None],
    prefetch: Prefetch | None = None,
) -> list[Tree]:
    """`build_tree` of several groups, which ask in the same rounds.

    Args:
        groups: see `group` of `build_tree`; so are those that follow.
        kls: one for each group.
        eps_kl: as there.
        gamma: as there.
        same_parent: as there.
        kl_symmetry: as there.
        history: as there.
        nodes: as there.
        start_keys: one for each group.
        prefetch: receives the calls of all groups in a round, instead of each `kl` receiving its own.

    Returns:
        One for each group.

    Raises:
        ValueError: see `build_tree`.
    """
    if not eps_kl >= 0:
        raise ValueError(f"eps_kl is {eps_kl}: it must be 0 or more")
    choices = (("kl_symmetry", kl_symmetry, Symmetry), ("history", history, History), ("nodes", nodes, Nodes))
    for name, value, valid in choices:
        if value not in get_args(valid):
            raise ValueError(f"{name} is {value!r}: choose one of {', '.join(get_args(valid))}")
    gamma = GAMMA[nodes] if gamma is None else gamma
    if not 0 < gamma <= 1:
        raise ValueError(f"gamma is {gamma}: it must lie in (0, 1]")
    rewards = [_rewards(group) for group in groups]
    lengths = [tuple(len(trajectory.steps) for trajectory in group) for group in groups]
    if nodes == "state":
        trees = []
        for group, earned, length, start_key in zip(groups, rewards, lengths, start_keys, strict=True):
            found, node_of = state_nodes(group, earned, gamma, start_key)
            trees.append(Tree(found, earned, gamma, PairCounts(), node_of, length, "state"))
        return trees
    asked = [kl for kl in kls if kl is not None]
    if len(asked) < len(groups):
        raise ValueError(
            "by depth a tree needs `kl`, the divergence between two steps' policies; nodes='state' needs none"
        )
    trees = []
    classes_of_groups = equivalence_classes(groups, asked, eps_kl, kl_symmetry, history, prefetch)
    for (classes, pairs), earned, length in zip(classes_of_groups, rewards, lengths, strict=True):
        trees.append(
            _assemble(_split_by_parent(classes) if same_parent else classes, earned, length, gamma, pairs)
        )
    return trees


def _rewards(group: Sequence[TrajectoryLike]) -> tuple[float, ...]:
    """What a group's trajectories earned.

    Raises:
        ValueError: no trajectories, one without steps, or a reward that is not finite; before any model call is spent.
    """
    if not group:
        raise ValueError("a tree needs at least one trajectory, got an empty group")
    for i, trajectory in enumerate(group):
        if not trajectory.steps:
            raise ValueError(
                f"trajectory {i} has no steps: leave episodes that never started out of the group"
            )
    rewards = tuple(float(trajectory.reward) for trajectory in group)
    reward_moments(rewards)
    return rewards


def _split_by_parent(classes: list[list[list[int]]]) -> list[list[list[int]]]:
    """Refine each depth's classes by those above, so that every class has one parent."""
    refined: list[list[list[int]]] = []
    parent: dict[int, int] = defaultdict(int)
    for at_depth in classes:
        parts: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for index, members in enumerate(at_depth):
            for i in members:
                parts[parent[i], index].append(i)
        refined.append(sorted(parts.values()))
        parent = {i: index for index, members in enumerate(refined[-1]) for i in members}
    return refined


def _assemble(
    classes: list[list[list[int]]],
    rewards: tuple[float, ...],
    lengths: tuple[int, ...],
    gamma: float,
    pairs: PairCounts,
) -> Tree:
    """Make the nodes from the deepest layer up, since a node's value needs its children's."""
    node_of: dict[Member, Node] = {}
    layers: list[list[Node]] = []
    everyone = list(range(len(rewards)))
    for t in range(len(classes) - 1, -2, -1):
        layer = []
        for members in classes[t] if t >= 0 else [everyone]:
            through: defaultdict[Node, set[int]] = defaultdict(set)
            for i in members:
                if t + 1 < lengths[i]:
                    through[node_of[i, t + 1]].add(i)
            children = {child: frozenset(trajectories) for child, trajectories in through.items()}
            value = node_value([rewards[i] for i in members], children, gamma)
            steps = frozenset((i, t) for i in members)
            layer.append(Node(t + 1, steps, children, value, ending=not children))
            node_of.update((step, layer[-1]) for step in steps)
        layers.append(layer)
    nodes = tuple(node for layer in reversed(layers) for node in layer)
    return Tree(nodes, rewards, gamma, pairs, node_of, lengths)
