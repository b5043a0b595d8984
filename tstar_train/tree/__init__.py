"""The cognitive tree: equal decisions of a group's trajectories merged, valued, and searched for divergences.

```python
from tstar_train.tree import build_tree

tree = build_tree(group, kl, eps_kl=0.25, gamma=0.99)
advantages = tree.advantages()  # one array per trajectory, one number per step
for divergence in tree.divergences(delta=0.3):
    i, t = divergence.worst_step  # the thought that a graft should replace
```
"""

from tstar_train.tree.divergence import Divergence
from tstar_train.tree.export import tree_to_dict
from tstar_train.tree.merging import KL, BatchedKL, History, PairCounts, Symmetry, history_keys
from tstar_train.tree.node import ForkLike, Member, Node, StepLike, TrajectoryLike
from tstar_train.tree.states import Passage, StateGraph, Values, Way
from tstar_train.tree.tree import GAMMA, Baseline, Credit, Nodes, Tree, build_tree, build_trees

__all__ = [
    "GAMMA",
    "KL",
    "Baseline",
    "BatchedKL",
    "Credit",
    "Divergence",
    "ForkLike",
    "History",
    "Member",
    "Node",
    "Nodes",
    "PairCounts",
    "Passage",
    "StateGraph",
    "StepLike",
    "Symmetry",
    "TrajectoryLike",
    "Tree",
    "Values",
    "Way",
    "build_tree",
    "build_trees",
    "history_keys",
    "tree_to_dict",
]
