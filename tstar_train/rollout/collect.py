"""Collection of rollouts: groups of episodes, and episodes continued from snapshots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tstar_envs import (
    EnvironmentFailed,
    Episode,
    GroupEnv,
    Snapshot,
    UnknownOption,
    called,
    find_entry,
    make_group,
    new_episode,
    play_group,
    prompt_of,
)
from tstar_train.config import Config
from tstar_train.engines.base import Engine
from tstar_train.policy.codec import Codec
from tstar_train.progress import progress
from tstar_train.rollout.player import PolicyPlayer, Sampling, Transcript, snapshot_of, transcript_of
from tstar_train.types import Trajectory, failed


@dataclass
class EnvSpec:
    """Environment id with options."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)

    def group(self, tasks: Sequence[str | int], size: int, split: str) -> GroupEnv:
        """Make environments for ``size`` episodes of each task."""
        group = make_group(self.name, tasks, size, split=split, **self.options)
        group.on_row = progress.advance  # a group of slow environments may take longer than others wait
        return group


def collect(
    spec: EnvSpec,
    engine: Engine,
    codec: Codec,
    tasks: Sequence[str],
    *,
    size: int,
    split: str,
    seed: str,
    sampling: Sampling,
    agent: str = "policy",
    first_group: int = 0,
    repeats: Sequence[int] = (),
    on_turn: Callable[[int, int], None] | None = None,
) -> list[Trajectory]:
    """Play ``size`` episodes of each task.

    Args:
        spec: the environment.
        engine: engine that samples replies.
        codec: codec between turns and token ids.
        tasks: task ids.
        size: number of episodes per task.
        split: split of the tasks; it is recorded.
        seed: seed of the samples. A row's samples depend only on it, the task, the member and the turn.
        sampling: temperature, lengths and context form.
        agent: agent name in the records.
        first_group: number of the first task, if the tasks are part of a larger batch.
        repeats: for each task, its number of earlier occurrences in that batch, so that repeated groups differ; empty means 0.
        on_turn: called before each turn with the number of ended episodes and the number of the turn, from 1.

    Returns:
        Trajectories in order of task, then member; ``types.failed`` marks those whose infrastructure failed.
    """
    group = spec.group(tasks, size, split)
    observations, infos = group.reset()
    entry = find_entry(spec.name)
    prompt = prompt_of(group.envs[0]) if group.envs else ""
    trajectories, lines = [], []
    for row, (observation, info) in enumerate(zip(observations, infos, strict=True)):
        env = group.envs[row]
        episode = new_episode(env, entry, agent, info.get("task_id", ""), sample=row % size)
        episode.begin(observation, info)
        start_key = called("the environment", EnvironmentFailed, env.state_key)
        trajectories.append(Trajectory(first_group + row // size, row % size, episode, start_key=start_key))
        if sampling.snapshots:
            trajectories[-1].snapshots.append(snapshot_of(env))
            trajectories[-1].start_actions = info.get("admissible_actions")
        lines.append(transcript_of(episode, codec, prompt, sampling))
    again = [repeats[row // size] if repeats else 0 for row in range(len(trajectories))]
    player = PolicyPlayer(
        group,
        engine,
        codec,
        trajectories,
        lines,
        seed=seed,
        sampling=sampling,
        repeats=again,
        on_turn=on_turn,
    )
    play_group(group, [t.episode for t in trajectories], player, player.at_once)
    if trajectories and not any(t.turns or failed(t.episode) for t in trajectories):
        tokens = len(lines[0].context())
        raise UnknownOption(
            f"no episode can begin: the rules and first observation of {tasks[0]} have {tokens} tokens, which with replies of "
            f"--rollout.max-tokens {sampling.max_tokens} is more than the limit of {engine.limit} tokens; name a model with more "
            f"positions, or shorter replies"
        )
    return trajectories


def play_on(
    points: Sequence[tuple[Trajectory, int]],
    spec: EnvSpec | Mapping[str, EnvSpec],
    engine: Engine,
    codec: Codec,
    *,
    split: str,
    seed: str,
    sampling: Sampling,
    begun: Sequence[Sequence[int]] | None = None,
) -> list[Trajectory]:
    """Continue episodes from given turns; the environment is restored from their snapshots, nothing is replayed.

    Args:
        points: (trajectory, number of its turns to keep) for each new episode; a repeated point is continued with different samples.
        spec: the environment, or several by id.
        engine: engine that samples replies.
        codec: codec between turns and token ids.
        split: split of the tasks.
        seed: seed of the samples.
        sampling: sampling options of the rollouts.
        begun: for each point, ids that the first new reply starts with; None samples the whole reply.

    Returns:
        The episodes, in the order of the points; ``types.failed`` marks those whose infrastructure failed.

    Raises:
        ValueError: a trajectory was collected without snapshots.
    """
    if not points:
        return []
    if not isinstance(spec, EnvSpec):
        ended: dict[int, Trajectory] = {}
        for env, one in spec.items():
            places = [n for n, (t, _) in enumerate(points) if t.episode.env == env]
            own = None if begun is None else [begun[n] for n in places]
            of_env = [points[n] for n in places]
            ends = play_on(
                of_env, one, engine, codec, split=split, seed=f"{seed}/{env}", sampling=sampling, begun=own
            )
            ended |= dict(zip(places, ends, strict=True))
        return [ended[n] for n in range(len(points))]
    group = spec.group([t.episode.task for t, _ in points], 1, split)
    group.restore([snapshot_at(t, turn) for t, turn in points])
    prompt = prompt_of(group.envs[0])
    trajectories, lines = [], []
    for number, (old, turn) in enumerate(points):
        lines.append(transcript_at(old, turn, codec, prompt, sampling))
        episode = begun_episode(old, turn)
        trajectories.append(
            Trajectory(old.group, number, episode, list(old.turns[:turn]), old.start_key, fork=old.fork)
        )
    player = PolicyPlayer(
        group, engine, codec, trajectories, lines, seed=seed, sampling=sampling, begun=begun
    )
    play_group(group, [t.episode for t in trajectories], player, player.at_once)
    return trajectories


def snapshot_at(trajectory: Trajectory, turn: int) -> Snapshot[Any]:
    """Return the snapshot of a trajectory before one of its turns.

    Raises:
        ValueError: it was collected without snapshots.
    """
    if not trajectory.snapshots:
        raise ValueError("the episodes have no snapshots: collect them with Sampling(snapshots=True)")
    return trajectory.snapshots[turn]


def begun_episode(old: Trajectory, turn: int) -> Episode:
    """Return the record of a trajectory's episode up to one of its turns, to be continued."""
    steps = old.episode.steps[: old.before + turn]
    return replace(old.episode, steps=steps, extra={}, reward=0.0, success=False, ended="truncated")


def transcript_at(old: Trajectory, turn: int, codec: Codec, prompt: str, sampling: Sampling) -> Transcript:
    """Return the transcript of a trajectory before one of its turns."""
    line = transcript_of(old.episode, codec, prompt, sampling)
    for reply, step in zip(old.replies_until(turn), old.episode.steps[: old.before + turn], strict=True):
        line.add(reply, step.observation)
    return line


def training_spec(config: Config, grown: float = 1.0) -> EnvSpec:
    """Return the training environment: with training options and at most the environment's own horizon.

    Args:
        config: of a run, or of one of its environments (``Config.of``).
        grown: progress from ``--rollout.horizon-growth``, at 0, to the full horizon, at 1.
    """
    options = {**config.env_options, **config.training_options}
    own, wanted = options.get("horizon") or find_entry(config.env).horizon, config.rollout.horizon
    first = config.rollout.horizon_growth
    if first is not None:
        full = own if wanted is None else min(own, wanted)
        wanted = full if first >= full else int(first + (full - first) * grown)
    return EnvSpec(config.env, options if wanted is None else {**options, "horizon": min(own, wanted)})


def training_specs(config: Config, grown: float) -> EnvSpec | dict[str, EnvSpec]:
    """Return the training environment, of a run on several each by its id; see ``training_spec``."""
    if not config.mix:
        return training_spec(config, grown)
    return {env: training_spec(config.of(env), grown) for env in config.environments}


def sampling_of(config: Config, temperature: float) -> Sampling:
    """Return the sampling options of the rollout."""
    rollout = config.rollout
    return Sampling(rollout.max_tokens, temperature, rollout.context, rollout.history)
