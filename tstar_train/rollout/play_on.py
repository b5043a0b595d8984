"""Playing on from the middle of an episode: what would have come of it, had the policy gone on from there again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tstar_envs import play_group, prompt_of
from tstar_train.engines.base import Engine
from tstar_train.policy.codec import Codec
from tstar_train.rollout.collect import EnvSpec
from tstar_train.rollout.player import PolicyPlayer, Sampling, transcript_of
from tstar_train.rollout.types import Trajectory


def play_on(
    points: Sequence[tuple[Trajectory, int]],
    spec: EnvSpec,
    engine: Engine,
    codec: Codec,
    *,
    split: str,
    seed: str,
    sampling: Sampling,
    begun: Sequence[Sequence[int]] | None = None,
) -> list[Trajectory]:
    """New ends of episodes; the environment is brought to where they part by playing the replies before it again.

    Args:
        points: (trajectory, number of its turns that stand), one for each new episode; one that is given several times is
            played on several times, with other samples.
        spec: the environment.
        engine: the policy.
        codec: turns to ids.
        split: where the tasks are.
        seed: of the samples.
        sampling: as in the rollouts.
        begun: for each point, ids that the first new reply begins with; None: it is the policy's from its beginning.

    Returns:
        The episodes, in the order of the points; those whose infrastructure failed are marked so (``rollout.failures``).
    """
    if not points:
        return []
    group = spec.group([t.episode.task for t, _ in points], 1, split)
    group.replay([[step.reply for step in t.steps[:turn]] for t, turn in points], tolerant=True)
    prompt = prompt_of(group.envs[0])
    trajectories, lines = [], []
    for number, ((old, turn), error) in enumerate(zip(points, group.errors, strict=True)):
        line = transcript_of(old.episode, codec, prompt, sampling)
        for said, step in zip(old.turns[:turn], old.steps[:turn], strict=True):
            line.add(said.reply, step.observation)
        lines.append(line)
        episode = replace(old.episode, steps=list(old.steps[:turn]), extra={}, reward=0.0, success=False)
        if error is not None:
            episode.fail(error)
        trajectories.append(Trajectory(old.group, number, episode, list(old.turns[:turn])))
    player = PolicyPlayer(
        group, engine, codec, trajectories, lines, seed=seed, sampling=sampling, begun=begun
    )
    play_group(group, [t.episode for t in trajectories], player)
    return trajectories
