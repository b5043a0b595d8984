"""Forks: episodes played on from restored states of their group (docs/tstar.md)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from inspect import getattr_static
from typing import Any

from tstar_envs import (
    EnvironmentFailed,
    Episode,
    GroupEnv,
    InfrastructureError,
    Snapshot,
    StableRandom,
    TextEnv,
    UnknownOption,
    called,
    play_group,
    prompt_of,
)
from tstar_train.config import Config
from tstar_train.engines.base import Engine
from tstar_train.policy.codec import Codec, thought_length
from tstar_train.policy.kv import ContextTooLong
from tstar_train.rollout.collect import EnvSpec, begun_episode, snapshot_at, transcript_at
from tstar_train.rollout.kl import action_logprobs
from tstar_train.rollout.player import PolicyPlayer, Sampling, Transcript
from tstar_train.tree import StateGraph
from tstar_train.types import Fork, Group, IterationData, Trajectory, Turn, failed

MOST_A_ROUND = 3  # forks of a group between two looks at its graph
MOST_DRAWS = 8  # replies drawn to find an untried action


def require_listed(config: Config, env: str, actions: Sequence[str] | None) -> None:
    """Check that an environment lists its actions where the options of forks need it.

    Args:
        config: of the run.
        env: its id.
        actions: admissible actions in one of its states; None for an open set.

    Raises:
        UnknownOption: it does not.
    """
    needing = (
        ("--explore.where policy", config.explore.where == "policy", "reach or uniform"),
        ("--explore.credit graph", config.explore.credit == "graph", "rows"),
    )
    for option, on, instead in needing:
        if config.forks and on and actions is None:
            raise UnknownOption(f"{option} needs listed actions, which {env} does not list: use {instead}")


@dataclass
class Visit:
    """Earliest visit of a state, from which it can be restored.

    Attributes:
        trajectory: that visited it.
        turn: number of its own turns before the visit.
        depth: number of turns from the start.
        actions: admissible actions; None for an open set.
    """

    trajectory: Trajectory
    turn: int
    depth: int
    actions: Sequence[str] | None


@dataclass
class OpenGroup:
    """Group that still samples forks.

    Attributes:
        group: its trajectories so far.
        budget: number of turns that it may sample.
        used: number of turns that it sampled.
        horizon: of its task, in steps.
        chances: the policy's probabilities of listed actions, by state, as far as they were asked for.
    """

    group: Group
    budget: float
    used: int
    horizon: int
    chances: dict[str, dict[str, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.look()

    def look(self) -> None:
        """Take the states of its trajectories up: their graph, earliest visits and tried actions."""
        members = self.group.members
        self.graph = StateGraph(members, members[0].start_key)
        keys = self.graph.keys
        self.tried = {keys[state]: set(actions) for state, actions in self.graph.tried().items()}
        self.visits: dict[str, Visit] = {}
        for state, (i, t) in self.graph.first_visits().items():
            actions = members[i].turns[t - 1].next_actions if t else members[i].start_actions
            self.visits[keys[state]] = Visit(members[i], t, members[i].before + t, actions)

    @property
    def forks_now(self) -> int:
        """Number of forks of the next round: at most three, and a quarter of the remaining turns."""
        return min(MOST_A_ROUND, max(1, int((self.budget - self.used) // 4)))


@dataclass
class _Point:
    """A fork about to be played, and its first turn if that was drawn already."""

    open: OpenGroup
    state: str
    visit: Visit
    episode: Episode
    line: Transcript
    snapshot: Snapshot[Any]
    member: int
    known: frozenset[str]
    first: Turn | None = None


class Explorer:
    """Samples forks of an iteration's groups.

    Forks are played in rounds, all groups side by side. A round looks at the graph of each group's states, restores some of them
    (``explore.where``), and plays on until a state that was known before the round, the end, or the horizon. A group is done when it has
    sampled as many turns as ``rollout.group_size`` episodes would have taken, by the mean length of those from the start, or when all its
    forks of a round failed.

    Args:
        config: the run's options.
        spec: the environment as training plays it.
        engine: samples replies.
        codec: codec between turns and token ids.
        sampling: as for the episodes from the start, with snapshots.
        data: sampled turns and tokens are added to it.
    """

    def __init__(
        self,
        config: Config,
        spec: EnvSpec,
        engine: Engine,
        codec: Codec,
        sampling: Sampling,
        data: IterationData,
    ) -> None:
        self._config, self._options = config, config.explore
        self._spec, self._engine, self._codec = spec, engine, codec
        self._sampling = sampling
        self._data = data

    def explore(self, groups: Sequence[Group], seed: str, repeats: Mapping[int, int]) -> None:
        """Fill ``Group.forks``.

        Args:
            groups: with their episodes from the start; changed in place.
            seed: seed of the samples.
            repeats: earlier occurrences of a group's task in the same round, by the group's number.
        """
        if not groups:
            return
        pool = self._spec.group(
            [g.trajectories[0].episode.task for g in groups], MOST_A_ROUND, self._config.split
        )
        prompt = prompt_of(pool.envs[0])
        opened = self.opened(groups, pool)
        number = 0
        while waiting := [one for one in opened if one.used < one.budget]:
            points = [p for one in waiting for p in self._points(one, prompt, f"{seed}/{number}", repeats)]
            self._play(points, pool, f"{seed}/{number}", repeats)
            number += 1

    def opened(self, groups: Sequence[Group], pool: GroupEnv) -> list[OpenGroup]:
        """Take the groups' episodes from the start up, with the number of turns that they may sample.

        Args:
            groups: with their episodes; their ``horizon`` is set.
            pool: environments, at least one for each group.
        """
        opened = []
        for env, group in zip(pool.envs, groups, strict=False):
            called("the environment", EnvironmentFailed, env.restore, snapshot_at(group.trajectories[0], 0))
            lengths = [len(t.turns) for t in group.trajectories]
            budget = self._config.rollout.group_size * sum(lengths) / len(lengths)
            group.horizon = env.horizon
            opened.append(OpenGroup(group, budget, sum(lengths), env.horizon))
        return opened

    def _points(self, one: OpenGroup, prompt: str, seed: str, repeats: Mapping[int, int]) -> list[_Point]:
        """Choose the states that a group's next forks begin in; a group without any is done."""
        one.look()
        root, known = one.group.trajectories[0], frozenset(one.graph.keys)
        states = [key for key in one.graph.keys if one.visits[key].depth < one.horizon - 1]
        weights = dict(zip(states, self.weights(one, states, prompt), strict=True))
        random = StableRandom(f"{seed}/{root.episode.task}/{repeats[root.group]}/states")
        points: list[_Point] = []
        for _ in range(one.forks_now):
            left = [state for state in states if weights[state] > 0]
            if not left:
                break
            state = left[random.weighted([weights[s] for s in left])]
            weights[state] = 0.0
            visit = one.visits[state]
            line = transcript_at(visit.trajectory, visit.turn, self._codec, prompt, self._sampling)
            episode = begun_episode(visit.trajectory, visit.turn)
            snapshot = snapshot_at(visit.trajectory, visit.turn)
            member = len(one.group.members) + len(points)
            points.append(_Point(one, state, visit, episode, line, snapshot, member, known))
        if not points:
            one.used = math.ceil(one.budget)
        return points

    def weights(self, one: OpenGroup, states: Sequence[str], prompt: str) -> list[float]:
        """Weigh states by ``explore.where``, one number from 0 each.

        Args:
            one: the group.
            states: keys of states of its graph.
            prompt: the environment's rules.
        """
        if self._options.where == "uniform":
            return [1.0] * len(states)
        graph, reach = one.graph, one.graph.reach(one.horizon)
        place = {key: n for n, key in enumerate(graph.keys)}
        if self._options.where == "reach":
            return [float(reach[place[s]] / (graph.visits[place[s]] + 1)) for s in states]
        self._score(one, states, prompt)
        untried = [
            sum(chance for action, chance in one.chances[s].items() if action not in one.tried[s])
            for s in states
        ]
        return [float(reach[place[s]]) * share for s, share in zip(states, untried, strict=True)]

    def _score(self, one: OpenGroup, states: Sequence[str], prompt: str) -> None:
        """Compute the policy's probabilities of the admissible actions in states that have none yet."""
        contexts, actions, scored = [], [], []
        for state in states:
            visit = one.visits[state]
            if state in one.chances:
                continue
            require_listed(self._config, visit.trajectory.episode.env, visit.actions)
            if not visit.actions:  # nothing is left to try
                one.chances[state] = {}
                continue
            line = transcript_at(visit.trajectory, visit.turn, self._codec, prompt, self._sampling)
            try:
                contexts.append(line.context(self._engine.limit - self._sampling.max_tokens))
            except ContextTooLong:
                one.chances[state] = {}
                continue
            actions.append(list(visit.actions))
            scored.append(state)
        if scored:
            found = action_logprobs(self._engine, self._codec, contexts, actions)
            for state, logprobs in zip(scored, found, strict=True):
                one.chances[state] = {action: math.exp(p) for action, p in logprobs.items()}

    def _play(self, points: Sequence[_Point], pool: GroupEnv, seed: str, repeats: Mapping[int, int]) -> None:
        """Play a round's forks and add them to their groups."""
        if self._options.first == "untried":
            points = self._with_untried(points, pool, seed, repeats)
        if not points:
            return
        pool.restore([point.snapshot for point in points])
        trajectories = [
            Trajectory(
                point.visit.trajectory.group,
                point.member,
                point.episode,
                start_key=point.state,
                fork=Fork(
                    point.visit.trajectory.member,
                    point.visit.depth,
                    point.state,
                    _shaping(point.visit),
                    _progress(point.visit),
                    untried=point.first is not None,
                    replies=point.visit.trajectory.replies_until(point.visit.turn),
                ),
                snapshots=[point.snapshot],
                start_actions=None if point.visit.actions is None else list(point.visit.actions),
            )
            for point in points
        ]
        again = [repeats[t.group] for t in trajectories]
        lines = [point.line for point in points]
        player = ForkPlayer(
            pool,
            self._engine,
            self._codec,
            trajectories,
            lines,
            seed=seed,
            sampling=self._sampling,
            repeats=again,
            known=[point.known for point in points],
            first={row: p.first for row, p in enumerate(points) if p.first is not None},
        )
        play_group(pool, [t.episode for t in trajectories], player, player.at_once)
        going = {id(p.open) for p, t in zip(points, trajectories, strict=True) if not failed(t.episode)}
        for row, (point, trajectory) in enumerate(zip(points, trajectories, strict=True)):
            self._count(point.open, player.sampled[row], player.tokens[row])
            if not trajectory.turns:
                point.open.used += 1  # so that a round never leaves the group where it was
            if failed(trajectory.episode):
                self._data.forks_failed += 1
                self._data.fork_error = trajectory.episode.error
                if (
                    id(point.open) not in going
                ):  # the service is down: another round would wait for it as long
                    point.open.used = math.ceil(point.open.budget)
            elif trajectory.turns:
                trajectory.member = len(point.open.group.members)
                point.open.group.forks.append(trajectory)

    def _with_untried(
        self, points: Sequence[_Point], pool: GroupEnv, seed: str, repeats: Mapping[int, int]
    ) -> list[_Point]:
        """Draw the forks' first replies until each has an action that nobody tried; forks without one are dropped."""
        pending = list(points)
        for draw in range(MOST_DRAWS):
            contexts = {}
            for point in list(pending):
                try:
                    contexts[id(point)] = point.line.context(self._engine.limit - self._sampling.max_tokens)
                except ContextTooLong:
                    pending.remove(point)
                    point.open.used += 1  # see _play
            if not pending:
                break
            samples = self._engine.generate(
                [contexts[id(point)] for point in pending],
                [
                    f"{seed}/{p.episode.task}/{repeats[p.visit.trajectory.group]}/{p.member}/draw {draw}"
                    for p in pending
                ],
                max_tokens=self._sampling.max_tokens,
                temperature=self._sampling.temperature,
            )
            for point, sample in zip(pending, samples, strict=True):
                self._count(point.open, 1, len(sample.ids))
                if self._is_untried(point, pool.envs[0], self._codec.decode(sample.ids)):
                    length = thought_length(self._codec, sample.ids)
                    point.first = Turn(contexts[id(point)], sample.ids, sample.logprobs, length)
            pending = [point for point in pending if point.first is None]
        return [point for point in points if point.first is not None]

    def _is_untried(self, point: _Point, env: TextEnv[Any, Any], reply: str) -> bool:
        """Check whether a reply's action is valid and nobody tried it in this state; a search service is not asked."""
        tried = point.open.tried[point.state]
        own, base = (getattr_static(kind, "prepare_group_step") for kind in (type(env), TextEnv))
        try:
            called("the environment", EnvironmentFailed, env.restore, point.snapshot)
            if (
                point.visit.actions is None and own is not base
            ):  # it prepares steps, so a step may ask a service
                action = env.read_reply(reply).action
                valid = called("the environment", EnvironmentFailed, env.modifies_state, action)
                return bool(valid) and _folded(action) not in map(_folded, tried)
            info = called("the environment", EnvironmentFailed, env.step, reply)[4]
        except InfrastructureError:
            return False
        return bool(info["action_valid"]) and info["action"] not in tried

    def _count(self, one: OpenGroup, turns: int, tokens: int) -> None:
        one.used += turns
        self._data.turns += turns
        self._data.tokens += tokens


class ForkPlayer(PolicyPlayer):
    """Plays forks: a row is dropped, and marked as stopped, once it comes to a known state.

    Args:
        known: per row, keys of the states that stop it.

    Attributes:
        sampled: per row, number of turns that it sampled.
        tokens: per row, number of tokens in them.
    """

    def __init__(self, *args: Any, known: Sequence[frozenset[str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._known = known
        self.sampled, self.tokens = [0] * len(known), [0] * len(known)

    def replies(self, rows: Sequence[int]) -> dict[int, str]:
        """See ``PolicyPlayer``."""
        going = []
        for row in rows:
            trajectory = self._trajectories[row]
            if trajectory.turns and trajectory.steps[-1].state_key in self._known[row]:
                if trajectory.fork is not None:
                    trajectory.fork.stopped = True
            else:
                going.append(row)
        given = set(self._first)
        replies = super().replies(going) if going else {}
        for row in set(replies) - given:
            self.sampled[row] += 1
            self.tokens[row] += len(self._said[row].reply)
        return replies


def _folded(action: str) -> str:
    """Return an action without spaces and case, to compare where the environment cannot be asked for its own form."""
    return "".join(action.split()).casefold()


def _shaping(visit: Visit) -> float:
    """Return the shaping earned before a visit."""
    fork = visit.trajectory.fork
    own = sum(turn.shaping for turn in visit.trajectory.turns[: visit.turn])
    return own + (0.0 if fork is None else fork.shaping)


def _progress(visit: Visit) -> float | None:
    """Return the progress made before a visit; None if not recorded, or at the start."""
    if visit.turn:
        return visit.trajectory.turns[visit.turn - 1].progress
    return None if visit.trajectory.fork is None else visit.trajectory.fork.progress
