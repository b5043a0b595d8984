"""Playing episodes with an engine: all rows of all groups side by side, finished and failed rows leave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tstar_envs import (
    EnvironmentFailed,
    GroupEnv,
    UnknownOption,
    called,
    find_entry,
    make_group,
    new_episode,
    play_group,
    prompt_of,
)
from tstar_train.engines.base import Engine
from tstar_train.policy.codec import Codec
from tstar_train.rollout.failures import failed
from tstar_train.rollout.player import PolicyPlayer, Sampling, transcript_of
from tstar_train.rollout.types import Trajectory


@dataclass
class EnvSpec:
    """Which environment is played, with its options."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)

    def group(self, tasks: Sequence[str | int], size: int, split: str) -> GroupEnv:
        """Environments for ``size`` episodes of each task."""
        return make_group(self.name, tasks, size, split=split, **self.options)


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
    told: Callable[[int, int], None] | None = None,
) -> list[Trajectory]:
    """Play ``size`` episodes of each task.

    Args:
        spec: the environment.
        engine: samples replies.
        codec: turns to ids.
        tasks: ids.
        size: episodes per task.
        split: recorded, and where the tasks are.
        seed: the samples of a row depend on it, on the task, the member and the turn alone.
        sampling: temperature, lengths, context form.
        agent: name in the records.
        first_group: number of the first task, where the tasks are part of a larger batch.
        repeats: how often each task came before in that batch, so that it is not the same group again; none where not given.
        told: called before each turn with the number of episodes that have ended, and of the turn, from 1.

    Returns:
        Trajectories in order of task, then member; those whose infrastructure failed are marked so (``rollout.failures``).
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
        lines.append(transcript_of(episode, codec, prompt, sampling))
    again = [repeats[row // size] if repeats else 0 for row in range(len(trajectories))]
    player = PolicyPlayer(
        group, engine, codec, trajectories, lines, seed=seed, sampling=sampling, repeats=again, told=told
    )
    play_group(group, [t.episode for t in trajectories], player)
    if trajectories and not any(t.turns or failed(t.episode) for t in trajectories):
        tokens = len(lines[0].context())
        raise UnknownOption(
            f"no episode can begin: the rules and first observation of {tasks[0]} have {tokens} tokens, which with replies of "
            f"--rollout.max-tokens {sampling.max_tokens} is more than the limit of {engine.limit} tokens; name a model with more "
            f"positions, or shorter replies"
        )
    return trajectories
