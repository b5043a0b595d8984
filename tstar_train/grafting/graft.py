"""Preference pairs made from divergences (eq:grafting_dataset).

One generation per divergence: the policy reads the failed member's own context, the failed and the successful branch, and
writes a turn; only its thought is kept. The pair (rectified thought, failed thought) then stands under the plain context.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tstar_envs import render_reply
from tstar_train.engines.base import Engine
from tstar_train.grafting.prompt import HEADER_FAILED, HEADER_SUCCEEDED, REQUEST, Branch, contrast_context
from tstar_train.policy.codec import Codec, thought_length
from tstar_train.rollout.types import Trajectory
from tstar_train.tree import Divergence

# Phrases that only make sense with the branches in view; a sentence with one of them is stripped.
_MENTIONS = re.compile(
    r"\b(attempt|branch|trajectory|failed|succeeded|successful|unsuccessful)\b", re.IGNORECASE
)


@dataclass(slots=True)
class Graft:
    """One preference pair with where it comes from.

    Attributes:
        group: index of the task in the iteration.
        context: ids of the failed member's own context s.
        rectified: ids of the thought to prefer, as they follow s.
        rejected: ids of the failed thought.
        source: ``model`` or ``z_plus``.
        depth: of the divergent node.
        spread: its value spread.
        best_members: how many went from the divergent node to v+.
        worst_members: how many went to v-.
        failed: branch that failed.
        succeeded: branch that succeeded.
        thought: the rectified thought as text.
        worst_step: (trajectory, turn) of the failed thought.
        successful: ids of the successful branch's own thought, empty if it has none or the failed one's.
        verified: what the thought earned when it was played on, None if it was not.
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


@dataclass
class Grafts:
    """The grafts of an iteration, why others were dropped (reason -> count), and how many were played on."""

    kept: list[Graft] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    played_on: int = 0


def graft(
    engine: Engine,
    codec: Codec,
    found: Sequence[tuple[Sequence[Trajectory], Divergence]],
    *,
    seed: str,
    max_tokens: int,
    temperature: float = 1.0,
    fallback: str = "z_plus",
) -> Grafts:
    """Write one rectified thought per divergence, and at most one for a step: of several divergences the one of the widest spread.

    Args:
        engine: the policy.
        codec: turns to ids.
        found: (group, divergence) pairs.
        seed: of the samples.
        max_tokens: longest turn.
        temperature: at which it writes; 0 takes the likeliest thought.
        fallback: ``z_plus`` (the successful thought itself takes the place of an unusable one), ``none`` (dropped), or
            ``z_plus_only`` (no generation at all).
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
        written = [replies.get(n) for n in range(len(cases))]
    thought_ids: list[int]
    for (group, divergence, rejected, failed, succeeded), ids in zip(cases, written, strict=True):
        if ids is None:
            thought_ids, problem = [], "contrast prompt is longer than the context"
        else:
            thought_ids, problem = _usable(codec, ids, failed.thought)
        if not problem and len(rejected.context) + len(thought_ids) > engine.limit:
            problem = "thought is longer than the context"
        source = "model"
        best, best_turn = divergence.best_step
        plus = group[best].turns[best_turn]
        successful = (
            plus.reply[: plus.thought_length] if succeeded.thought.strip() != failed.thought.strip() else []
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
            failed=failed,
            succeeded=succeeded,
            thought=thought_text(codec, thought_ids),
            worst_step=divergence.worst_step,
            successful=list(successful),
        )
        result.kept.append(made)
    return result


def thought_text(codec: Codec, ids: Sequence[int]) -> str:
    """A thought span as plain text, without its cue."""
    return re.sub(r"^\s*Thought:\s*", "", codec.decode(ids)).strip()


def _branch(group: Sequence[Trajectory], i: int, t: int) -> Branch:
    step = group[i].steps[t]
    return Branch(step.thought, step.action, step.observation)


def _usable(codec: Codec, ids: list[int], failed_thought: str) -> tuple[list[int], str]:
    """The thought's ids, or why there is none: no thought, empty, only about the branches, or the failed one again."""
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
    if kept != text:  # stripped text is new text, so it is encoded anew, as a reply would be up to its action
        marked = codec.text(render_reply(kept, ""))
        span = marked[: thought_length(codec, marked)]
    return span, ""
