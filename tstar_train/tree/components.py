"""Connected components from few questions: which pairs to ask about next, and what the answers join.

Only components matter, so a pair that other pairs have connected need not be asked about. Questions come in
rounds. A round is a forest over the components found so far: whatever its answers, none makes another
superfluous, so that a round can be batched without one wasted question. Rounds go on until no open pair is
left, which gives the components of asking about every pair.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import combinations


class Components:
    """Disjoint sets of trajectories (union-find with path halving)."""

    def __init__(self, parent: dict[int, int]) -> None:
        self.parent = parent

    def find(self, i: int) -> int:
        while self.parent[i] != i:
            self.parent[i] = self.parent[self.parent[i]]
            i = self.parent[i]
        return i

    def unite(self, i: int, j: int) -> None:
        self.parent[self.find(j)] = self.find(i)

    def connected(self, i: int, j: int) -> bool:
        return self.find(i) == self.find(j)

    def classes(self) -> list[list[int]]:
        found: defaultdict[int, list[int]] = defaultdict(list)
        for i in sorted(self.parent):
            found[self.find(i)].append(i)
        return list(found.values())


@dataclass
class Bucket:
    """Continuing steps at one depth with one history.

    Attributes:
        t: the step.
        members: the trajectories.
        components: what has been joined so far.
        open: pairs not asked about yet.
        skipped: pairs that others had connected before their turn came.
    """

    t: int
    members: list[int]
    components: Components = field(init=False)
    open: list[tuple[int, int]] = field(init=False)
    skipped: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.components = Components({i: i for i in self.members})
        self.open = list(combinations(sorted(self.members), 2))

    def propose(self) -> list[tuple[int, int]]:
        """The next pairs to ask about, none of which any answers to the others could settle."""
        if_all_pass = Components(dict(self.components.parent))
        proposed: list[tuple[int, int]] = []
        later: list[tuple[int, int]] = []
        for i, j in self.open:
            if self.components.connected(i, j):
                self.skipped += 1
            elif if_all_pass.connected(i, j):
                later.append((i, j))
            else:
                if_all_pass.unite(i, j)
                proposed.append((i, j))
        self.open = later
        return proposed
