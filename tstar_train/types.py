"""Types: turns, trajectories, groups, grafts and what an iteration holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tstar_envs import Episode, Snapshot, Step
from tstar_train.tree import Divergence, Tree, Way


@dataclass(slots=True)
class Turn:
    """One call of the policy.

    Attributes:
        context: token ids that the policy was conditioned on.
        reply: sampled token ids, with the end token if there is one.
        logprobs: log-probability of each reply id under the sampling distribution, in nats.
        thought_length: number of leading reply ids that are the thought.
        next_actions: admissible actions after the turn; None for an open set.
        shaping: the environment's reward if the episode goes on; 0 unless an option such as Sokoban's ``reward="shaped"`` adds some.
        progress: ``env.progress()`` after the turn; 1 after success, 0 after another end. None if not recorded.
    """

    context: list[int]
    reply: list[int]
    logprobs: list[float]
    thought_length: int
    next_actions: list[str] | None = None
    shaping: float = 0.0
    progress: float | None = None


@dataclass(slots=True)
class Fork:
    """Beginning and end of a fork: an episode that was played on from a restored state (docs/tstar.md).

    Attributes:
        parent: member of the group whose state was restored.
        turn: number of turns before that state, from the start of the episode.
        state: key of the state.
        shaping: shaping that was earned before it.
        progress: progress that was made before it; None if not recorded.
        untried: True if its first action was chosen because nobody in the group had tried it in this state.
        stopped: True if it was stopped in a known state: it has no reward of its own.
        replies: token ids of the replies before it; empty once the iteration is over.
    """

    parent: int
    turn: int
    state: str
    shaping: float = 0.0
    progress: float | None = None
    untried: bool = False
    stopped: bool = False
    replies: list[list[int]] = field(default_factory=list)


@dataclass(slots=True)
class Trajectory:
    """One episode with the tokens behind it.

    Attributes:
        group: index of its task among the tasks of the iteration.
        member: index within the group.
        episode: the record, of a fork with the steps before it.
        turns: token ids of every turn, of a fork without those before it.
        start_key: state key of the state that it begins in.
        penalty: subtracted from the compared reward by an algorithm (DAPO, for overlong replies).
        fork: None for an episode from the start.
        snapshots: before each turn and after the last, if they were kept (``Sampling.snapshots``); empty once the iteration is over.
        start_actions: admissible actions at the start, kept with the snapshots; None for an open set.
    """

    group: int
    member: int
    episode: Episode
    turns: list[Turn] = field(default_factory=list)
    start_key: str = ""
    penalty: float = 0.0
    fork: Fork | None = None
    snapshots: list[Snapshot[Any]] = field(default_factory=list)
    start_actions: list[str] | None = None

    @property
    def earned(self) -> float:
        """Return of the environment: the terminal reward, in [0, 1], plus all shaping."""
        before = 0.0 if self.fork is None else self.fork.shaping
        return self.episode.reward + before + sum(turn.shaping for turn in self.turns)

    @property
    def reward(self) -> float:
        """Reward that the group's trajectories are compared by: ``earned`` minus ``penalty``."""
        return self.earned - self.penalty

    @property
    def ending(self) -> float:
        """Terminal reward of the environment, in [0, 1]: ``earned`` without shaping."""
        return self.episode.reward

    @property
    def truncated(self) -> bool:
        """True if the horizon cut it off; a full context (``overlong``) and a stopped fork are ends of another kind."""
        stopped = self.fork is not None and self.fork.stopped
        return self.episode.ended == "truncated" and not stopped and not overlong(self.episode)

    @property
    def before(self) -> int:
        """Number of turns before its first own one: 0 but for forks."""
        return 0 if self.fork is None else self.fork.turn

    def replies_until(self, turn: int) -> list[list[int]]:
        """Return the token ids of all replies of the episode before one of its own turns."""
        return [*([] if self.fork is None else self.fork.replies), *(t.reply for t in self.turns[:turn])]

    @property
    def states_before(self) -> list[str]:
        """The environment's key of the state in which each turn was taken."""
        return [self.start_key, *(step.state_key for step in self.steps)][: len(self.turns)]

    @property
    def steps(self) -> list[Step]:
        """The environment's record of each turn in ``turns``."""
        return self.episode.steps if self.fork is None else self.episode.steps[self.fork.turn :]


@dataclass(slots=True)
class Row:
    """One turn as training data.

    Attributes:
        task: task id.
        group: index of the task in the iteration.
        member: trajectory within the group.
        turn: index of the turn.
        ids: context and reply.
        response_mask: 1 for the policy's own tokens.
        logprobs: sampling log-probabilities, 0 where the mask is 0.
        advantage: of every token of the turn.
    """

    task: str
    group: int
    member: int
    turn: int
    ids: list[int]
    response_mask: list[int]
    logprobs: list[float]
    advantage: float


@dataclass(slots=True)
class TokenSequence:
    """Joined rows of one trajectory, so that each token is computed once.

    Attributes:
        ids: the longest row's ids.
        response_mask: 1 for the policy's own tokens of all joined turns.
        logprobs: sampling log-probabilities per position.
        advantages: per position.
        weight: of each of its tokens in the base loss, a weighted mean.
        values: the critic's values before each position; empty without a critic.
        returns: targets of the values, NaN at a token of the policy that has none; empty without a critic.
        old_logprobs: log-probabilities per position under the policy before the update, as the trainer computes them; empty where
            ``logprobs`` are those.
        correction: importance weight per position, by which the advantages are multiplied (``learner.rows.correct``); empty for 1.
    """

    ids: list[int]
    response_mask: list[int]
    logprobs: list[float]
    advantages: list[float]
    weight: float = 1.0
    values: list[float] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)
    old_logprobs: list[float] = field(default_factory=list)
    correction: list[float] = field(default_factory=list)

    @property
    def num_response_tokens(self) -> int:
        """Number of tokens that the policy wrote."""
        return sum(self.response_mask)


def rows_of(trajectory: Trajectory, advantages: Sequence[float]) -> list[Row]:
    """Make one row per turn.

    Args:
        trajectory: an episode.
        advantages: one per turn.
    """
    return [
        Row(
            task=trajectory.episode.task,
            group=trajectory.group,
            member=trajectory.member,
            turn=number,
            ids=[*turn.context, *turn.reply],
            response_mask=[0] * len(turn.context) + [1] * len(turn.reply),
            logprobs=[0.0] * len(turn.context) + turn.logprobs,
            advantage=float(advantage),
        )
        for number, (turn, advantage) in enumerate(zip(trajectory.turns, advantages, strict=True))
    ]


def join_rows(rows: Sequence[Row]) -> list[TokenSequence]:
    """Join consecutive rows of one trajectory wherever a row's ids begin the next one's context.

    The loss is a sum over masked tokens, each conditioned on all ids before it, so joined rows have the same loss.
    """
    joined: list[TokenSequence] = []
    owner: tuple[int, int] | None = None
    for row in rows:
        last = joined[-1] if joined and owner == (row.group, row.member) else None
        start = len(last.ids) if last is not None else 0
        if last is not None and row.ids[:start] == last.ids and not any(row.response_mask[:start]):
            last.ids = row.ids
            last.response_mask += row.response_mask[start:]
            last.logprobs += row.logprobs[start:]
            last.advantages += [row.advantage] * (len(row.ids) - start)
        else:
            joined.append(
                TokenSequence(
                    row.ids, list(row.response_mask), list(row.logprobs), [row.advantage] * len(row.ids)
                )
            )
        owner = (row.group, row.member)
    return joined


@dataclass
class Group:
    """Episodes of one task, with their tree, advantages and divergences.

    Attributes:
        trajectories: the episodes from the start, without those lost to infrastructure errors.
        forks: episodes that were played on from restored states.
        advantages: per member, one number per turn.
        tree: None if it was not built.
        divergences: of the tree, where thoughts are grafted.
        way: through the tree to the best ending, if the options ask for it.
        horizon: of the task, in steps, where forks were played; else 0.
    """

    trajectories: list[Trajectory]
    advantages: list[NDArray[np.float64]] = field(default_factory=list)
    tree: Tree | None = None
    divergences: list[Divergence] = field(default_factory=list)
    forks: list[Trajectory] = field(default_factory=list)
    way: Way | None = None
    horizon: int = 0

    @property
    def env(self) -> str:
        """Id of its environment."""
        return self.trajectories[0].episode.env

    @property
    def members(self) -> list[Trajectory]:
        """All trajectories: the episodes from the start, then the forks."""
        return [*self.trajectories, *self.forks]


class Outcome(NamedTuple):
    """Mean success of one group's episodes from the start, and its task's place in the iteration."""

    number: int
    env: str
    task: str
    success: float


def without_failed(group: Sequence[Trajectory]) -> list[Trajectory]:
    """Drop failed and empty episodes and renumber the rest: trees, grafts and the report use member indices."""
    ordered = sorted(group, key=lambda t: failed(t.episode) or not t.turns)
    for place, trajectory in enumerate(ordered):
        trajectory.member = trajectory.episode.sample = place
    return [t for t in ordered if t.turns and not failed(t.episode)]


class Branch(NamedTuple):
    """One way that was taken from a divergence: what was thought, done and seen there."""

    thought: str
    action: str
    observation: str


@dataclass(slots=True)
class Graft:
    """Preference pair of a graft, with its origin.

    Attributes:
        group: index of the task in the iteration.
        context: ids of the failed member's own context s.
        rectified: ids of the thought to prefer, as they follow s.
        rejected: ids of the failed thought.
        source: ``model`` or ``z_plus``.
        depth: of the divergent node.
        spread: its value spread.
        best_members: number of trajectories from the divergent node to v+.
        worst_members: number of trajectories to v-.
        failed: branch that failed.
        succeeded: branch that succeeded.
        thought: the rectified thought as text.
        worst_step: (trajectory, turn) of the failed thought.
        successful: ids of the successful branch's thought; empty if it has none, or the same as the failed one.
        verified: reward of playing on from the thought; None if not verified.
        task: task id.
        iteration: number of the iteration that made it, from 0.
    """

    group: int
    context: list[int]
    rectified: list[int]
    rejected: list[int]
    source: str
    depth: int
    spread: float
    best_members: int
    worst_members: int
    failed: Branch
    succeeded: Branch
    thought: str
    worst_step: tuple[int, int]
    successful: list[int] = field(default_factory=list)
    verified: float | None = None
    task: str = ""
    iteration: int = 0


@dataclass(slots=True)
class KeptPair:
    """Preference pair of the grafting set: the part of a graft that training needs later.

    Attributes:
        context: ids of the failed member's own context s.
        rectified: ids of the thought to prefer, as they follow s.
        rejected: ids of the failed thought.
        source: see ``Graft``.
        task: task id.
        iteration: number of the iteration that made it, from 0.
    """

    context: Sequence[int]
    rectified: Sequence[int]
    rejected: Sequence[int]
    source: str
    task: str
    iteration: int


@dataclass
class Grafts:
    """Grafts of an iteration, counts of dropped ones by reason, and the number verified by playing on.

    ``turns`` and ``tokens`` count what was sampled to write and to verify them; the iteration's own counts include them.
    """

    kept: list[Graft] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    played_on: int = 0
    turns: int = 0
    tokens: int = 0


@dataclass
class KLWork:
    """Cost of the KL estimates.

    Attributes:
        asked: single directions asked for.
        identical: answered 0 because the contexts are equal.
        sampled_contexts: contexts whose K samples were needed.
        scored: continuations scored.
        unscored: continuations that would have been scored without multiplicity, caching and early rejection.
        rejected_early: directions given up before all their samples were scored.
    """

    asked: int = 0
    identical: int = 0
    sampled_contexts: int = 0
    scored: int = 0
    unscored: int = 0
    rejected_early: int = 0


@dataclass(slots=True)
class GroupFigures:
    """Figures of one group, from which metrics are computed without its texts and tokens.

    Attributes:
        group: index of the task in the iteration.
        env: id of its environment.
        telling: how much its tree tells, the lowest first (``metrics.telling``).
        rewards: that the episodes from the start are compared by.
        earned: return of each of them.
        f1: F1 of the answer of each, None where the environment has none.
        counts: sums of whole numbers, by name.
        tree: statistics of the tree; None without one that counts.
        anchors: (task, state key) of each divergence.
        repaired: those of them with a graft.
        credit: advantages of the turns of the episodes from the start, if weights are compared.
        texts: digests of context and reply of the same turns.
    """

    group: int
    env: str
    telling: tuple[int, bool, bool, int]
    rewards: list[float]
    earned: list[float]
    f1: list[float | None]
    counts: Counter[str]
    tree: dict[str, float] | None
    anchors: list[tuple[str, str]]
    repaired: list[tuple[str, str]]
    credit: list[NDArray[np.float64]]
    texts: list[list[bytes]]


@dataclass
class CorrectionWork:
    """Counts of the importance correction.

    Attributes:
        tokens: sampled tokens that have a weight.
        masked: those of weight 0.
        truncated: those whose weight is cut to the cap.
        weights: sum of the weights.
    """

    tokens: int = 0
    masked: int = 0
    truncated: int = 0
    weights: float = 0.0


def overlong(episode: Episode) -> bool:
    """Check whether an episode ended because its context left no room for a reply."""
    return bool(episode.extra.get("overlong", False))


def failed(episode: Episode) -> bool:
    """Check whether an episode failed, so that its reward means nothing."""
    return episode.ended == "error"


@dataclass
class IterationData:
    """Data of one iteration: of one unit of tasks, of one rank, or of all; each step of ``loop.iterate`` fills its part.

    Attributes:
        number: of the iteration, from 0.
        done: share of the run's episodes or minutes that were used up before it, where they are limited.
        temperature: of sampling.
        groups: in order of task, without groups whose episodes all failed and groups that were dropped.
        episodes: every trajectory of this rank with its token sequences; empty once the policy was updated.
        failed: episodes lost to infrastructure errors; they are in no group.
        overlong: number of episodes whose context left no room for a reply; one that never began is in no group.
        tasks: number of tasks played.
        turns: number of sampled turns, of dropped groups, failed episodes and verified grafts too.
        tokens: number of sampled tokens in them.
        forks_failed: number of forks lost to infrastructure errors; they are in no group.
        fork_error: error of the last of them.
        dropped_groups: number of groups that dynamic sampling dropped.
        grafts: kept and dropped.
        pairs: preference pairs that this rank trains on; empty once the policy was updated.
        pairs_age: mean age in iterations of the pairs that were drawn from the grafting set; on the first rank.
        work: of the KL estimates.
        correction: of the importance correction; without tokens where the sampler is exact.
        grown: progress of the curriculum and of the horizon before it, from 0 to 1.
        outcomes: success of this iteration's groups, dropped ones too, for ``--curriculum success``; empty once it is over.
        lag: number of updates between the weights that sampled and those that train on it (``--rollout.ahead``).
        first: index of the unit's first task in the iteration; units are in its order.
        units: the units of tasks that this rank played, of which it is the sum; empty in a unit.
        places: rank that trains on each of this rank's trajectories, in order; None if all stay.
        made: preference pairs of this iteration's grafts, of all ranks; on the first rank.
        figures: of the groups, in order of task.
        seconds: per phase; after merging, of the slowest rank.
        memory: peak GiB on a GPU per phase; after merging, of the rank with the largest.
    """

    number: int = 0
    done: float = 0.0
    temperature: float = 1.0
    groups: list[Group] = field(default_factory=list)
    episodes: list[tuple[Trajectory, list[TokenSequence]]] = field(default_factory=list)
    failed: list[Episode] = field(default_factory=list)
    overlong: int = 0
    tasks: int = 0
    turns: int = 0
    tokens: int = 0
    forks_failed: int = 0
    fork_error: str = ""
    dropped_groups: int = 0
    grafts: Grafts = field(default_factory=Grafts)
    pairs: Sequence[Graft | KeptPair] = ()
    pairs_age: float = 0.0
    work: KLWork = field(default_factory=KLWork)
    correction: CorrectionWork = field(default_factory=CorrectionWork)
    grown: float = 1.0
    outcomes: Sequence[Outcome] = ()
    lag: int = 0
    first: int = 0
    units: list[IterationData] = field(default_factory=list)
    places: list[int] | None = None
    made: list[KeptPair] = field(default_factory=list)
    figures: list[GroupFigures] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)

    @property
    def sequences(self) -> list[TokenSequence]:
        """All token sequences of this rank."""
        return [sequence for _, sequences in self.episodes for sequence in sequences]

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Read what was pickled, by a version without some of the fields too."""
        vars(self).update(vars(IterationData()) | state)

    def begun_unit(self, first: int) -> IterationData:
        """Make the empty data of a unit of tasks.

        Args:
            first: index of its first task in the iteration.
        """
        return IterationData(
            self.number, self.done, self.temperature, grown=self.grown, lag=self.lag, first=first
        )

    def add(self, part: IterationData) -> None:
        """Add what a part has: its groups come last, counts are summed, times are those of the slowest."""
        self.groups += part.groups
        self.figures += part.figures
        self.failed += part.failed
        self.overlong += part.overlong
        self.tasks += part.tasks
        self.turns += part.turns
        self.tokens += part.tokens
        self.forks_failed += part.forks_failed
        self.fork_error = part.fork_error or self.fork_error
        self.dropped_groups += part.dropped_groups
        self.outcomes = [*self.outcomes, *part.outcomes]
        self.grafts.kept += part.grafts.kept
        self.grafts.dropped += part.grafts.dropped
        self.grafts.played_on += part.grafts.played_on
        self.grafts.turns += part.grafts.turns
        self.grafts.tokens += part.grafts.tokens
        for counted in ("work", "correction"):
            sums = getattr(self, counted)
            for name, value in vars(getattr(part, counted)).items():
                setattr(sums, name, getattr(sums, name) + value)
        for mine, theirs in ((self.seconds, part.seconds), (self.memory, part.memory)):
            for phase, value in theirs.items():
                mine[phase] = max(mine.get(phase, 0.0), value)

    @classmethod
    def merge(cls, parts: Sequence[IterationData]) -> IterationData:
        """Join data of the same iteration, in order of task, whoever played it."""
        first = parts[0]
        whole = cls(first.number, first.done, first.temperature, pairs_age=first.pairs_age, lag=first.lag)
        whole.grown = first.grown
        for part in sorted(parts, key=lambda part: part.first):
            whole.add(part)
        return whole
