"""Playing a rectified thought on: the hand-counted "leads to success" of the paper as a measurement.

The environment is brought back to the divergence by playing the failed member's replies again, the rectified thought begins
the next reply, the policy writes its action and plays on to the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tstar_envs import play_group
from tstar_train.engines.base import Engine
from tstar_train.grafting.graft import Graft, Grafts, thought_text
from tstar_train.policy.codec import Codec
from tstar_train.rollout.collect import EnvSpec
from tstar_train.rollout.failures import failed
from tstar_train.rollout.player import PolicyPlayer, Sampling, transcript_of
from tstar_train.rollout.types import Trajectory


def verify(
    grafts: Grafts,
    lost: Sequence[Trajectory],
    spec: EnvSpec,
    engine: Engine,
    codec: Codec,
    *,
    split: str,
    seed: str,
    sampling: Sampling,
    fallback: str = "z_plus",
) -> None:
    """Play every kept graft on, write what it earned into it, and drop those that earned no more than the failed episode.

    A thought of the policy's own that does not help is first replaced by the successful branch's, which is played on likewise.
    One that infrastructure kept from being played on is dropped too: what it would have earned is not known.

    Args:
        grafts: changed in place.
        lost: for each kept graft, the trajectory that its rejected thought comes from.
        spec: the environment.
        engine: the policy.
        codec: turns to ids.
        split: where the tasks are.
        seed: of the samples.
        sampling: as in the rollouts.
        fallback: ``none`` replaces nothing.
    """

    def play(chosen: Sequence[int], name: str) -> None:
        cases = [(grafts.kept[n], lost[n]) for n in chosen]
        _play_on(cases, spec, engine, codec, split, f"{seed}/{name}", sampling)
        grafts.played_on += len(cases)

    def unknown() -> list[int]:
        return [n for n, g in enumerate(grafts.kept) if g.verified is None]

    def useless() -> list[int]:
        # What was earned on both sides: nothing is taken off what was played on (DAPO's penalty).
        return [n for n, (g, t) in enumerate(zip(grafts.kept, lost, strict=True)) if g.verified is not None and g.verified <= t.earned]

    play(range(len(lost)), "first")
    replaced = [n for n in useless() if grafts.kept[n].source == "model" and grafts.kept[n].successful and fallback != "none"]
    for n in replaced:
        graft = grafts.kept[n]
        graft.rectified, graft.source, graft.thought = graft.successful, "z_plus", thought_text(codec, graft.successful)
    grafts.dropped["earned no more when played on"] += len(useless())
    play(replaced, "second")
    if unknown():
        grafts.dropped["could not be played on"] += len(unknown())
    grafts.dropped["successful thought earned no more either"] += len(set(useless()) & set(replaced))
    dropped = {*useless(), *unknown()}
    grafts.kept = [g for n, g in enumerate(grafts.kept) if n not in dropped]


def _play_on(
    cases: Sequence[tuple[Graft, Trajectory]], spec: EnvSpec, engine: Engine, codec: Codec, split: str, seed: str, sampling: Sampling
) -> None:
    """Each graft's thought from its divergence to the end of the episode."""
    if not cases:
        return
    group = spec.group([t.episode.task for _, t in cases], 1, split)
    group.replay([[step.reply for step in t.steps[: g.worst_step[1]]] for g, t in cases], tolerant=True)
    prompt = group.envs[0].prompt()
    trajectories, lines = [], []
    for number, ((graft, lost), error) in enumerate(zip(cases, group.errors, strict=True)):
        turn = graft.worst_step[1]
        line = transcript_of(lost.episode, codec, prompt, sampling)
        for old, step in zip(lost.turns[:turn], lost.steps[:turn], strict=True):
            line.add(old.reply, step.observation)
        lines.append(line)
        episode = replace(lost.episode, steps=list(lost.steps[:turn]), extra={}, reward=0.0, success=False)
        if error is not None:
            episode.fail(error)
        trajectories.append(Trajectory(lost.group, number, episode, list(lost.turns[:turn])))
    begun = [graft.rectified for graft, _ in cases]
    player = PolicyPlayer(group, engine, codec, trajectories, lines, seed=seed, sampling=sampling, begun=begun)
    play_group(group, [t.episode for t in trajectories], player)
    for (graft, _), trajectory in zip(cases, trajectories, strict=True):
        graft.verified = None if failed(trajectory.episode) else trajectory.earned
