"""Playing a rectified thought on: the hand-counted "leads to success" of the paper as a measurement.

The environment is brought back to the divergence by playing the failed member's replies again, the rectified thought begins
the next reply, the policy writes its action and plays on to the end.
"""

from __future__ import annotations

from collections.abc import Sequence

from tstar_train.engines.base import Engine
from tstar_train.grafting.graft import Grafts, thought_text
from tstar_train.policy.codec import Codec
from tstar_train.rollout.collect import EnvSpec
from tstar_train.rollout.failures import failed
from tstar_train.rollout.play_on import play_on
from tstar_train.rollout.player import Sampling
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
        points = [(lost[n], grafts.kept[n].worst_step[1]) for n in chosen]
        begun = [grafts.kept[n].rectified for n in chosen]
        ends = play_on(
            points, spec, engine, codec, split=split, seed=f"{seed}/{name}", sampling=sampling, begun=begun
        )
        for n, end in zip(chosen, ends, strict=True):
            grafts.kept[n].verified = None if failed(end.episode) else end.earned
        grafts.played_on += len(points)

    def unknown() -> list[int]:
        return [n for n, g in enumerate(grafts.kept) if g.verified is None]

    def useless() -> list[int]:
        # What was earned on both sides: nothing is taken off what was played on (DAPO's penalty).
        return [
            n
            for n, (g, t) in enumerate(zip(grafts.kept, lost, strict=True))
            if g.verified is not None and g.verified <= t.earned
        ]

    play(range(len(lost)), "first")
    replaced = [
        n
        for n in useless()
        if grafts.kept[n].source == "model" and grafts.kept[n].successful and fallback != "none"
    ]
    for n in replaced:
        graft = grafts.kept[n]
        graft.rectified, graft.source, graft.thought = (
            graft.successful,
            "z_plus",
            thought_text(codec, graft.successful),
        )
    grafts.dropped["earned no more when played on"] += len(useless())
    play(replaced, "second")
    if unknown():
        grafts.dropped["could not be played on"] += len(unknown())
    grafts.dropped["successful thought earned no more either"] += len(set(useless()) & set(replaced))
    dropped = {*useless(), *unknown()}
    grafts.kept = [g for n, g in enumerate(grafts.kept) if n not in dropped]
