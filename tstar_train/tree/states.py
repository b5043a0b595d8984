"""Graph of a group's states: values solved on it, how often the policy comes by, and the way to the best ending."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tstar_train.advantages import SAME_REWARD
from tstar_train.tree.node import Member, Node, TrajectoryLike

Values = Literal["mean", "bellman"]
_START = ""  # key of the start where none is given: no step has it, so nobody comes back


class Passage(NamedTuple):
    """Step of a trajectory, as an edge of the graph.

    Attributes:
        member: (trajectory, step).
        state: index of the state in which it was taken.
        action: what was done.
        next: index of the state that it led to, if somebody left that state; None if it is an end.
        reward: the trajectory's reward R at an end; 0 elsewhere.
        own: True if the policy drew it. False for the first step of a fork that was chosen because nobody had tried it: such a step is
            part of the graph, but counts in no average over the policy's steps.
    """

    member: Member
    state: int
    action: str
    next: int | None
    reward: float
    own: bool


class Way(NamedTuple):
    """Shortest path through the merged states of a group to its best ending, maybe stitched from several trajectories.

    Attributes:
        steps: one (trajectory, step) for each edge of the path, in order.
        reward: the highest R among the trajectories with that ending.
        ending: its terminal reward, the highest known in the group; R without shaping and penalties.
    """

    steps: tuple[Member, ...]
    reward: float
    ending: float


class Contrast(NamedTuple):
    """Step of a way beside a worse action that was tried in the same state.

    Attributes:
        best: the way's step.
        worst: step of the worse action, of the trajectory with the lowest reward.
        spread: difference of their Q.
        best_count: number of trajectories that took the way's action there.
        worst_count: number of trajectories that took the worse one.
    """

    best: Member
    worst: Member
    spread: float
    best_count: int
    worst_count: int


_DIGITS = 9  # of values that are compared


class StateGraph:
    """States of a group and the steps between them.

    States that somebody left are the graph's nodes. A step leads to the state after it; the last step of a trajectory is an end with the
    trajectory's reward, unless the horizon cut it off (``truncated``), or a fork stopped (``fork.stopped``), in a state that somebody left.

    Args:
        group: the trajectories. Forks (``fork`` is not None) begin in the state that they were restored to.
        start_key: key of the state that all others start from; None: nobody returns to the start.

    Attributes:
        keys: key of each state, in sorted order, so that the order of trajectories never shows.
        start: index of the start.
        passages: all steps, in order of member.

    Raises:
        ValueError: a step without a state key, a fork from an unknown state, or forks alone.
    """

    def __init__(self, group: Sequence[TrajectoryLike], start_key: str | None) -> None:
        start = _START if start_key is None else start_key
        self.lengths = [len(trajectory.steps) for trajectory in group]
        self._forks = [getattr(trajectory, "fork", None) for trajectory in group]
        before: list[list[str]] = []
        for i, (trajectory, fork) in enumerate(zip(group, self._forks, strict=True)):
            for t, step in enumerate(trajectory.steps):
                if not step.state_key:
                    raise ValueError(
                        f"step {t} of trajectory {i} has no state_key: give one or use nodes='depth'"
                    )
            before.append(
                [start if fork is None else fork.state, *(step.state_key for step in trajectory.steps[:-1])]
            )
        self.keys = sorted({key for row in before for key in row})
        index = {key: s for s, key in enumerate(self.keys)}
        if start not in index:
            raise ValueError("a graph needs a trajectory from the start, got forks alone")
        self.start = index[start]
        left_by_others = {
            key for row, fork in zip(before, self._forks, strict=True) if fork is None for key in row
        }
        left_by_others |= {key for row in before for key in row[1:]}
        for i, fork in enumerate(self._forks):
            if fork is not None and fork.state not in left_by_others:
                raise ValueError(
                    f"trajectory {i} is a fork from state {fork.state!r:.40}, which nobody else was in"
                )
        self.passages: list[Passage] = []
        for i, (trajectory, fork) in enumerate(zip(group, self._forks, strict=True)):
            stopped = fork is not None and fork.stopped
            for t, step in enumerate(trajectory.steps):
                last = t + 1 == len(trajectory.steps)
                open_end = stopped or getattr(trajectory, "truncated", False)
                into = index.get(step.state_key) if open_end or not last else None
                if last and stopped and into is None:
                    raise ValueError(f"fork {i} stopped in state {step.state_key!r:.40}, which nobody left")
                reward = float(trajectory.reward) if into is None else 0.0
                own = not (t == 0 and fork is not None and fork.untried)
                self.passages.append(Passage((i, t), index[before[i][t]], step.action, into, reward, own))
        self.rewards = [float(trajectory.reward) for trajectory in group]
        self._ended = [float(getattr(trajectory, "ending", trajectory.reward)) for trajectory in group]
        self._prepare()

    def _prepare(self) -> None:
        """Compute the policy's transition shares between states, [S, S], and its mean reward at ends, [S]."""
        count = len(self.keys)
        self.visits = np.zeros(count)
        counts = np.zeros((count, count))
        ended: defaultdict[int, list[float]] = defaultdict(list)
        for step in self.passages:
            if step.own:
                self.visits[step.state] += 1
                if step.next is None:
                    ended[step.state].append(step.reward)
                else:
                    counts[step.state, step.next] += 1
        visits = np.maximum(self.visits, 1)
        self._moves = counts / visits[:, None]
        self._ends = [
            np.array([math.fsum(r**power for r in ended[s]) for s in range(count)]) / visits
            for power in (1, 2)
        ]

    @property
    def forked(self) -> bool:
        """True if forks are among the trajectories."""
        return any(fork is not None for fork in self._forks)

    @property
    def endings(self) -> list[float]:
        """Known rewards: of all trajectories but forks that stopped in a known state."""
        return [
            reward
            for reward, fork in zip(self.rewards, self._forks, strict=True)
            if fork is None or not fork.stopped
        ]

    @property
    def compares(self) -> bool:
        """True if trajectories that the policy's own steps lead to from the start earned different rewards."""
        reached = _closure(self._moves > 0, np.arange(len(self.keys)) == self.start)
        last = {step.member[0]: step for step in self.passages}
        known = [
            reward
            for i, reward in enumerate(self.rewards)
            if not self.stopped(i) and last[i].own and reached[last[i].state]
        ]
        return bool(known) and max(known) - min(known) > SAME_REWARD

    def expected(self, rewards: Sequence[float]) -> tuple[float, ...]:
        """Replace the rewards of forks that stopped in a known state by that state's value, undiscounted."""
        if not self.forked:
            return tuple(rewards)
        values, last = self.values(1.0), {step.member[0]: step for step in self.passages}
        return tuple(
            self.worth(last[i], values) if self.stopped(i) else reward for i, reward in enumerate(rewards)
        )

    def stopped(self, i: int) -> bool:
        """Check whether a trajectory is a fork that stopped in a known state, and so has no reward of its own."""
        fork = self._forks[i]
        return fork is not None and bool(fork.stopped)

    def depth(self, member: Member) -> int:
        """Return the number of steps from the start to the state after a member, along its own trajectory."""
        fork = self._forks[member[0]]
        return member[1] + 1 + (0 if fork is None else int(fork.turn))

    def values(self, gamma: float, *, power: int = 1) -> NDArray[np.float64]:
        """Solve the Bellman equations on the graph; float64, shape (states,), in units of reward.

        V(s) = gamma / N(s) * sum over the policy's steps from s of R at an end, of V(next state) elsewhere. Solved as a linear system.
        With gamma 1 this is the least solution: a state from which no end is reached has value 0.

        Args:
            gamma: discount per step.
            power: 2 solves for the mean of R squared instead of R.
        """
        return _solved(self._moves, self._ends[power - 1], gamma)

    def worth(self, passage: Passage, values: NDArray[np.float64]) -> float:
        """Return the value of what a step led to."""
        return passage.reward if passage.next is None else float(values[passage.next])

    def action_values(self, values: NDArray[np.float64]) -> dict[tuple[int, str], float]:
        """Compute Q(s, a): the mean over the steps that took a in s of the value of what they led to."""
        led: defaultdict[tuple[int, str], list[float]] = defaultdict(list)
        for step in self.passages:
            led[step.state, step.action].append(self.worth(step, values))
        return {key: math.fsum(found) / len(found) for key, found in led.items()}

    def reach(self, horizon: int) -> NDArray[np.float64]:
        """Compute how often the policy comes by each state, in an episode on the graph; shape (states,).

        The sum over t from 0 to horizon - 2 of p_t(s): p_0 is the start, p_{t+1} = p_t times the policy's transition shares.
        """
        return _reached(self._moves, self.start, horizon)

    def tried(self) -> dict[int, list[str]]:
        """List the actions tried in each state, without replies that hold none."""
        found: defaultdict[int, set[str]] = defaultdict(set)
        for step in self.passages:
            if step.action:
                found[step.state].add(step.action)
        return {state: sorted(found[state]) for state in range(len(self.keys))}

    def first_visits(self) -> dict[int, Member]:
        """Return the step from each state that was taken at the earliest visit, then by the lowest trajectory."""
        order = sorted(self.passages, key=lambda step: (self.depth(step.member), step.member), reverse=True)
        return {step.state: step.member for step in order}

    def taker(self, state: int, action: str) -> Member:
        """Return the step that stands for an action: of the trajectory with the highest reward, then of the lowest index."""
        return min(
            (s.member for s in self.passages if s.state == state and s.action == action), key=self._preferred
        )

    def advantages_of_actions(
        self, chances: Mapping[int, Mapping[str, float]], gamma: float, horizon: int
    ) -> dict[tuple[int, str], float]:
        """Compute the expected gradient's weight of each tried action under given probabilities.

        reach(s) * p(a|s) * (Q(s, a) - sum over b of p(b|s) Q(s, b)) / (sqrt(p0 (1 - p0)) + .1), where p is renormalised over the actions
        tried in s, values and reach follow p (not the steps that were drawn), and p0 is the start's value at gamma 1.

        Args:
            chances: the policy's probabilities by state and action, as far as they are known. A state without any takes the shares of
                its own steps.
            gamma: discount per step.
            horizon: of the task, in steps.

        Returns:
            By (state, action), in the order of states. Only actions with a probability.

        Source: the policy gradient theorem on the graph (Sutton et al. 2000), docs/tstar.md.
        """
        taken: defaultdict[tuple[int, str], list[Passage]] = defaultdict(list)
        for step in self.passages:
            taken[step.state, step.action].append(step)
        count = len(self.keys)
        moves, ends = np.zeros((count, count)), np.zeros(count)
        share: dict[tuple[int, str], float] = {}
        for state in range(count):
            tried = {action: steps for (s, action), steps in taken.items() if s == state}
            drawn = {action: sum(step.own for step in steps) for action, steps in tried.items()}
            known = {a: chances.get(state, {})[a] for a in tried if a in chances.get(state, {})}
            total = math.fsum(known.values())
            if total > 0:
                own = {action: chance / total for action, chance in known.items()}
                share |= {(state, action): chance for action, chance in own.items()}
            else:
                own = {a: count / sum(drawn.values()) for a, count in drawn.items() if count}
            for action, chance in own.items():
                for step in tried[action]:
                    part = chance / len(tried[action])
                    if step.next is None:
                        ends[state] += part * step.reward
                    else:
                        moves[state, step.next] += part
        values, reach = _solved(moves, ends, gamma), _reached(moves, self.start, horizon)
        first = min(1.0, max(0.0, float(_solved(moves, ends, 1.0)[self.start])))
        spread = math.sqrt(first * (1 - first)) + 0.1
        quality = self.action_values(values)
        mean: defaultdict[int, float] = defaultdict(float)
        for (state, action), chance in share.items():
            mean[state] += chance * quality[state, action]
        return {
            (state, action): float(reach[state]) * chance * (quality[state, action] - mean[state]) / spread
            for (state, action), chance in sorted(share.items())
        }

    def moments(self) -> tuple[float, float]:
        """Compute mean and standard deviation of the reward of an episode on the graph (undiscounted)."""
        first, second = (float(self.values(1.0, power=power)[self.start]) for power in (1, 2))
        return first, math.sqrt(max(0.0, second - first**2))

    def way(self) -> Way | None:
        """Find the shortest path from the start to the highest known terminal reward; None if all are equal, or lead on.

        Shaping does not count: it is earned on the way of its own trajectory, and a lost one has some as well.

        Of several shortest edges at a state, the one with the most passages is taken, then the one with the lowest (trajectory, step); of
        the steps along an edge, that of the trajectory with the highest reward (a fork that stopped has none and comes last), then of the
        lowest index.
        """
        known = [ended for i, ended in enumerate(self._ended) if not self.stopped(i)]
        ends = [step for step in self.passages if step.next is None]
        best = max((self._ended[step.member[0]] for step in ends), default=None)
        if best is None or best - min(known) <= SAME_REWARD:
            return None
        ends = [step for step in ends if self._ended[step.member[0]] >= best - SAME_REWARD]
        along: defaultdict[int, defaultdict[int | None, list[Passage]]] = defaultdict(
            lambda: defaultdict(list)
        )
        backwards: defaultdict[int | None, set[int]] = defaultdict(set)
        for step in [*ends, *(step for step in self.passages if step.next is not None)]:
            along[step.state][step.next].append(step)
            backwards[step.next].add(step.state)
        distance: dict[int | None, int] = {None: 0}
        front: list[int | None] = [None]
        while front:
            wider = sorted({s for node in front for s in backwards[node]} - distance.keys(), key=int)
            distance |= dict.fromkeys(wider, distance[front[0]] + 1)
            front = list(wider)
        if self.start not in distance:
            return None
        steps: list[Member] = []
        state: int | None = self.start
        while state is not None:
            here = along[state]
            nearest = [n for n in here if n in distance and distance[n] == distance[state] - 1]
            state = min(nearest, key=lambda n: (-len(here[n]), min(step.member for step in here[n])))
            steps.append(min((step.member for step in here[state]), key=self._preferred))
        return Way(tuple(steps), max(step.reward for step in ends), best)

    def contrasts(self, way: Way, values: NDArray[np.float64], delta: float) -> list[Contrast]:
        """Find the steps of a way where another action was tried whose Q is lower by more than `delta`.

        Args:
            way: through this graph.
            values: of the states.
            delta: in units of reward.

        Returns:
            At most one for each step: with the action of the lowest Q, of equals the one taken more often, then of the lowest step.
        """
        quality = self.action_values(values)
        taken: defaultdict[tuple[int, str], list[Member]] = defaultdict(list)
        of_member = {step.member: step for step in self.passages}
        for step in self.passages:
            taken[step.state, step.action].append(step.member)
        found = []
        for member in way.steps:
            state, action = of_member[member].state, of_member[member].action
            best = round(quality[state, action], _DIGITS)
            others = [key for key in taken if key[0] == state and key[1] != action]
            lower = [key for key in others if round(best - round(quality[key], _DIGITS), _DIGITS) > delta]
            if lower:
                worst = min(lower, key=lambda k: (round(quality[k], _DIGITS), -len(taken[k]), min(taken[k])))
                loser = min(taken[worst], key=lambda m: (self.stopped(m[0]), self.rewards[m[0]], m))
                counts = len({i for i, _ in taken[state, action]}), len({i for i, _ in taken[worst]})
                found.append(Contrast(member, loser, best - quality[worst], *counts))
        return found

    def _preferred(self, member: Member) -> tuple[bool, float, Member]:
        return self.stopped(member[0]), -self.rewards[member[0]], member


def _solved(moves: NDArray[np.float64], ends: NDArray[np.float64], gamma: float) -> NDArray[np.float64]:
    """Solve V = gamma (moves V + ends), with gamma 1 for the least solution.

    Args:
        moves: shares of the steps between states, shape (states, states).
        ends: mean reward at ends over all steps from a state, shape (states,).
        gamma: discount per step.
    """
    # States from which some end can be reached.
    known = _closure(moves.T > 0, moves.sum(axis=1) < 1 - 1e-12)
    solved = np.zeros(len(ends))
    if known.any():
        inside = moves[np.ix_(known, known)]
        solved[known] = np.linalg.solve(np.eye(len(inside)) - gamma * inside, gamma * ends[known])
    return solved


def _closure(edges: NDArray[np.bool_], found: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Add all states that edges lead to from the found ones; edges are of shape (from, to)."""
    while not np.array_equal(wider := found | edges[found].any(axis=0), found):
        found = wider
    return found


def _reached(moves: NDArray[np.float64], start: int, horizon: int) -> NDArray[np.float64]:
    """Sum the probabilities of each state over the steps 0 to horizon - 2 of a walk from the start."""
    now, total = np.zeros(len(moves)), np.zeros(len(moves))
    now[start] = 1.0
    for _ in range(horizon - 1):
        total += now
        now = now @ moves
    return total


def state_nodes(
    graph: StateGraph, gamma: float, values: Values
) -> tuple[tuple[Node, ...], dict[Member, Node]]:
    """Make the nodes of a graph of states; return them and where each step leads.

    Args:
        graph: the group's states.
        gamma: discount per step.
        values: "mean": V(s) is the mean over all visits of s of gamma^(steps left) R; "bellman": solved on the graph.

    Returns:
        The nodes, the root first, then by earliest visit, lowest trajectory and step; and the node of each member (i, t), which is the
        state after step t, (i, -1) for the state that trajectory i begins in. An end has a node of its own, a leaf with the trajectory's
        reward; by "bellman" a step that was cut off in a state that somebody left leads to that state.
    """
    visits: defaultdict[int, list[Member]] = defaultdict(list)
    worth: defaultdict[int, list[float]] = defaultdict(list)
    for step in graph.passages:
        i, t = step.member
        visits[step.state].append((i, t - 1))
        worth[step.state].append(gamma ** (graph.lengths[i] - t) * graph.rewards[i])
    solved = graph.values(gamma) if values == "bellman" else None
    children: dict[Node, dict[Node, frozenset[int]]] = {}
    arrived: defaultdict[int | None, list[Member]] = defaultdict(list)
    for step in graph.passages:
        if (
            solved is not None
            and step.next is not None
            and step.member[1] + 1 == graph.lengths[step.member[0]]
        ):
            arrived[step.next].append(step.member)

    def add(members: Sequence[Member], also: Sequence[Member], value: float, ending: bool) -> None:
        into: dict[Node, frozenset[int]] = {}
        depth = min(graph.depth(member) for member in members)
        children[Node(depth, frozenset([*members, *also]), into, value, ending)] = into

    for state, members in visits.items():
        value = math.fsum(worth[state]) / len(members) if solved is None else float(solved[state])
        add(members, arrived[state], value, ending=False)
    elsewhere = {member for members in arrived.values() for member in members}
    for i, length in enumerate(graph.lengths):
        if (i, length - 1) not in elsewhere:
            add([(i, length - 1)], [], graph.rewards[i], ending=True)
    nodes = tuple(sorted(children, key=lambda node: (node.depth, node.first)))
    node_of = {member: node for node in nodes for member in node.members}
    for node in nodes:  # only now, since a cycle's nodes are each other's children
        children[node].update(_children(node, node_of))
    return nodes, node_of


def _children(node: Node, node_of: dict[Member, Node]) -> dict[Node, frozenset[int]]:
    """List the successor states of a node, itself excluded, with the trajectories that reached each."""
    through: defaultdict[Node, set[int]] = defaultdict(set)
    for i, t in node.members:
        child = node_of.get((i, t + 1))
        if child is not None and child is not node:
            through[child].add(i)
    ordered = sorted(through, key=lambda child: (child.depth, child.first))
    return {child: frozenset(through[child]) for child in ordered}
