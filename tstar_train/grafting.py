"""Thought grafting: contrast prompts at divergences, rectified thoughts, their verification, and the grafting set."""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal

from tstar_envs import StableRandom, parse_json, render_reply, write_whole
from tstar_train.engines.base import Engine
from tstar_train.policy.codec import Codec, thought_length
from tstar_train.rollout.collect import EnvSpec, play_on
from tstar_train.rollout.player import Sampling
from tstar_train.tree import Divergence
from tstar_train.types import Branch, Graft, Grafts, KeptPair, Trajectory, failed

HEADER_FAILED = "An attempt that failed went on here like this:"
HEADER_SUCCEEDED = "An attempt that succeeded went on here like this:"
REQUEST = "Write the turn that should stand here instead."


def contrast_text(failed: Branch, succeeded: Branch) -> str:
    """Format the instruction that follows the plain context."""
    return f"{HEADER_FAILED}\n{_written_branch(failed)}\n{HEADER_SUCCEEDED}\n{_written_branch(succeeded)}\n{REQUEST}\n"


def contrast_context(codec: Codec, context: list[int], failed: Branch, succeeded: Branch) -> list[int]:
    """Build the context that asks for the rectified thought; it is never trained on."""
    return codec.asked(context, contrast_text(failed, succeeded))


def _written_branch(branch: Branch) -> str:
    thought = f"Thought: {branch.thought}\n" if branch.thought else ""
    return f"{thought}Action: {branch.action or '(none)'}\nObservation: {branch.observation}"


# Words that refer to the branches of the contrast prompt; sentences with one of them are removed.
_MENTIONS = re.compile(
    r"\b(attempt|branch|trajectory|failed|succeeded|successful|unsuccessful)\b", re.IGNORECASE
)


def graft(
    engine: Engine,
    codec: Codec,
    found: Sequence[tuple[Sequence[Trajectory], Divergence]],
    *,
    seed: str,
    max_tokens: int,
    temperature: float = 1.0,
    fallback: str = "z_plus",
    iteration: int = 0,
) -> Grafts:
    """Write one rectified thought per divergence, and at most one per step.

    If several divergences graft the same step, the one with the widest spread is used.

    Args:
        engine: engine that samples from the policy.
        codec: codec between turns and token ids.
        found: (group, divergence) pairs.
        seed: seed of the samples.
        max_tokens: maximum length of a written turn in tokens.
        temperature: sampling temperature; 0 is greedy.
        fallback: ``z_plus`` replaces an unusable thought by the successful one, ``none`` drops it, ``z_plus_only`` always uses the
            successful thought, without generation.
        iteration: number of the iteration; it is recorded.
    """
    result = Grafts()
    cases = []
    widest: dict[tuple[int, tuple[int, int]], Divergence] = {}
    for group, divergence in found:
        key = group[0].group, divergence.worst_step
        if key not in widest or divergence.spread > widest[key].spread:
            widest[key] = divergence
    for group, divergence in found:
        worst, turn = divergence.worst_step
        if widest[group[0].group, divergence.worst_step] is not divergence:
            result.dropped["another divergence grafts this step"] += 1
            continue
        best, best_turn = divergence.best_step
        rejected = group[worst].turns[turn]
        if rejected.thought_length == 0:
            result.dropped["failed turn has no thought"] += 1
            continue
        cases.append(
            (group, divergence, rejected, _branch(group, worst, turn), _branch(group, best, best_turn))
        )
    if not cases:
        return result
    if fallback == "z_plus_only":
        written: list[list[int] | None] = [[] for _ in cases]
    else:
        contexts = [contrast_context(codec, case[2].context, case[3], case[4]) for case in cases]
        seeds = [f"{seed}/{case[0][0].group}/{case[1].worst_step}" for case in cases]
        fit = [n for n, context in enumerate(contexts) if len(context) + max_tokens <= engine.limit]
        samples = (
            engine.generate(
                [contexts[n] for n in fit],
                [seeds[n] for n in fit],
                max_tokens=max_tokens,
                temperature=temperature,
            )
            if fit
            else []
        )
        replies = {n: sample.ids for n, sample in zip(fit, samples, strict=True)}
        result.turns += len(samples)
        result.tokens += sum(len(sample.ids) for sample in samples)
        written = [replies.get(n) for n in range(len(cases))]
    thought_ids: list[int]
    for (group, divergence, rejected, failed_branch, succeeded), ids in zip(cases, written, strict=True):
        if ids is None:
            thought_ids, problem = [], "contrast prompt is longer than the context"
        else:
            thought_ids, problem = _usable(codec, ids, failed_branch.thought)
        if not problem and len(rejected.context) + len(thought_ids) > engine.limit:
            problem = "thought is longer than the context"
        source = "model"
        best, best_turn = divergence.best_step
        plus = group[best].turns[best_turn]
        successful = (
            plus.reply[: plus.thought_length]
            if succeeded.thought.strip() != failed_branch.thought.strip()
            else []
        )
        if problem:
            if fallback != "z_plus_only":
                result.dropped[problem] += 1
            thought_ids, source = successful, "z_plus"
            if fallback == "none" or not thought_ids:
                if fallback != "none":
                    result.dropped["successful thought is no use either"] += 1
                continue
        made = Graft(
            group=group[0].group,
            context=rejected.context,
            rectified=list(thought_ids),
            rejected=rejected.reply[: rejected.thought_length],
            source=source,
            depth=divergence.node.depth,
            spread=divergence.spread,
            best_members=divergence.best_count,
            worst_members=divergence.worst_count,
            failed=failed_branch,
            succeeded=succeeded,
            thought=thought_text(codec, thought_ids),
            worst_step=divergence.worst_step,
            successful=list(successful),
            task=group[0].episode.task,
            iteration=iteration,
        )
        result.kept.append(made)
    return result


def thought_text(codec: Codec, ids: Sequence[int]) -> str:
    """Return a thought span as plain text, without its cue."""
    return re.sub(r"^\s*Thought:\s*", "", codec.decode(ids)).strip()


def _branch(group: Sequence[Trajectory], i: int, t: int) -> Branch:
    step = group[i].steps[t]
    return Branch(step.thought, step.action, step.observation)


def _usable(codec: Codec, ids: list[int], failed_thought: str) -> tuple[list[int], str]:
    """Return the thought's ids, or the reason to drop it: missing, empty, about the branches, unchanged."""
    span = ids[: thought_length(codec, ids)]
    if not span:
        return [], "no thought"
    text = thought_text(codec, span)
    if any(header in text for header in (HEADER_FAILED, HEADER_SUCCEEDED, REQUEST)):
        return [], "repeats the prompt"
    kept = " ".join(s for s in re.split(r"(?<=[.!?])\s+", text) if not _MENTIONS.search(s))
    if not kept:
        return [], "empty"
    if kept == failed_thought.strip():
        return [], "equals the failed thought"
    if kept != text:  # the text changed, so encode it again, as a reply up to its action
        marked = codec.text(render_reply(kept, ""))
        span = marked[: thought_length(codec, marked)]
    return span, ""


def verify(
    grafts: Grafts,
    lost: Sequence[Trajectory],
    spec: EnvSpec | Mapping[str, EnvSpec],
    engine: Engine,
    codec: Codec,
    *,
    split: str,
    seed: str,
    sampling: Sampling,
    fallback: str = "z_plus",
    earned: Sequence[float] | None = None,
) -> None:
    """Verify grafts: continue the episode from each, record its reward, and drop grafts that earn no more than the failed episode.

    A thought written by the policy that does not help is first replaced by the successful branch's thought, which is verified too. Grafts
    whose continuation failed by an infrastructure error are dropped, because their reward is unknown.

    Args:
        grafts: changed in place.
        lost: for each kept graft, the trajectory of its rejected thought.
        spec: the environment, or several by id.
        engine: engine that samples from the policy.
        codec: codec between turns and token ids.
        split: split of the tasks.
        seed: seed of the samples.
        sampling: sampling options of the rollouts.
        fallback: fallback of ``graft``; ``none`` replaces no thoughts.
        earned: for each of ``lost``, the reward to beat; None: ``Trajectory.earned``, which a fork that stopped in a known state lacks.
    """
    # Earned rewards on both sides: continued episodes have no DAPO length penalty subtracted.
    to_beat = [t.earned for t in lost] if earned is None else earned

    def play(chosen: Sequence[int], name: str) -> None:
        points = [(lost[n], grafts.kept[n].worst_step[1]) for n in chosen]
        begun = [grafts.kept[n].rectified for n in chosen]
        ends = play_on(
            points, spec, engine, codec, split=split, seed=f"{seed}/{name}", sampling=sampling, begun=begun
        )
        for n, end, (_, turn), thought in zip(chosen, ends, points, begun, strict=True):
            grafts.kept[n].verified = None if failed(end.episode) else end.earned
            sampled = end.turns[turn:]
            grafts.turns += len(sampled)
            grafts.tokens += sum(len(t.reply) for t in sampled) - (len(thought) if sampled else 0)
        grafts.played_on += len(points)

    def unknown() -> list[int]:
        return [n for n, g in enumerate(grafts.kept) if g.verified is None]

    def useless() -> list[int]:
        return [
            n
            for n, (g, least) in enumerate(zip(grafts.kept, to_beat, strict=True))
            if g.verified is not None and g.verified <= least
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


class GraftDataset:
    """Grafting set (D_graft in the paper): preference pairs of all ranks, kept over iterations.

    The first rank holds it. A set is never changed: an iteration that fails leaves the one that it began with.

    Args:
        pairs: in the order in which they were made.
    """

    def __init__(self, pairs: Sequence[KeptPair] = ()) -> None:
        self._pairs = tuple(pairs)

    def __len__(self) -> int:
        return len(self._pairs)

    def grown(
        self, made: Sequence[KeptPair], keep: Literal["all", "iteration"] | int = "all"
    ) -> GraftDataset:
        """Return the set with an iteration's pairs added.

        Args:
            made: of all ranks, in order of rank, then as made.
            keep: ``all``; a number, the newest so many; ``iteration``, only those of this iteration.
        """
        if keep == "iteration":
            return GraftDataset(made)
        whole = (*self._pairs, *made)
        return GraftDataset(whole if keep == "all" else whole[-keep:])

    def draw(self, count: int, seed: str) -> list[KeptPair]:
        """Draw pairs uniformly without repetition; all of them if the set has at most ``count``.

        Args:
            count: number of pairs.
            seed: seed of the draw.

        Returns:
            The pairs in the set's order, so that minibatches by stride mix old and new ones.
        """
        places = StableRandom(seed).shuffled(range(len(self)))[:count]
        return [_with_ids(self._pairs[n], list) for n in sorted(places)]

    def save(self, path: Path) -> None:
        """Write one line of JSON per pair."""
        lines = (json.dumps(asdict(_with_ids(pair, list)), separators=(",", ":")) for pair in self._pairs)
        write_whole(path, "".join(f"{line}\n" for line in lines))

    @classmethod
    def load(cls, path: Path) -> GraftDataset:
        """Read what ``save`` wrote.

        Raises:
            OSError, BadData, TypeError: the file is missing or damaged.
        """
        with open(path, encoding="utf-8") as lines:
            records = [parse_json(line, f"{path}, line {number}") for number, line in enumerate(lines, 1)]
        return cls([_with_ids(KeptPair(**record), _packed) for record in records])


def kept_pair(graft: Graft) -> KeptPair:
    """Return the part of a graft that the grafting set keeps."""
    whole = KeptPair(
        graft.context, graft.rectified, graft.rejected, graft.source, graft.task, graft.iteration
    )
    return _with_ids(whole, _packed)


def _packed(ids: Sequence[int]) -> Sequence[int]:
    """Pack token ids: a list takes nine times the memory, and a run may keep thousands of long contexts."""
    return array("I", ids)


def _with_ids(pair: KeptPair, form: Callable[[Sequence[int]], Sequence[int]]) -> KeptPair:
    """Return a copy of a pair with its ids in another form."""
    return replace(
        pair, context=form(pair.context), rectified=form(pair.rectified), rejected=form(pair.rejected)
    )
