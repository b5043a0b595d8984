"""Demonstrations for imitation: oracle episodes in endless practice environments, as token rows.

Thoughts come in several wordings and sometimes not at all (so that an action can be asked for without a thought, as the
tree's KL estimate does), some steps are mistakes that the expert then recovers from (never imitated themselves), and
some rows are contrast prompts (so that the policy can graft).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tstar_envs import TextEnv, parse_reply, render_reply
from tstar_train.grafting.prompt import Branch, contrast_context
from tstar_train.policy.codec import Codec
from tstar_train.policy.limit import ContextTooLong
from tstar_train.recipes.recipe import EnvRecipe
from tstar_train.recipes.warm_start import DemonstrationStyle
from tstar_train.rollout.transcript import Transcript


@dataclass
class Row:
    """Token ids with a mask that is 1 where the loss counts (the expert's own tokens)."""

    ids: list[int]
    mask: list[int]


def practice_rows(
    practice: Callable[[str], TextEnv[object, object]],
    codec: Codec,
    seed: int,
    style: DemonstrationStyle,
    seen: EnvRecipe,
    limit: int | None = None,
) -> Iterator[Row]:
    """Yield practice rows without end.

    Args:
        practice: gives a fresh practice environment for a seed.
        codec: turns to ids.
        seed: same seed, same rows.
        style: how varied.
        seen: how the policy sees the environment. ``concat`` gives a row per episode, ``step`` one per imitated turn.
        limit: most tokens of a row, None for any number. Contexts are shortened as in play; an episode that cannot go on is left out.
    """
    world = 0
    while True:
        env = practice(f"{seed}/{world}")
        rng = random.Random(f"demonstrations/{seed}/{world}")
        for task_id in env.task_ids("train"):
            rows = _episode_rows(env, task_id, codec, rng, style, seen, limit)
            yield from (row for row in rows if style.kept == 1.0 or rng.random() < style.kept)
        world += 1


def shuffled(rows: Iterator[Row], held: int, seed: int) -> Iterator[Row]:
    """Yield the same rows in another order: each is drawn at random from a pool of ``held``, whose place the next one takes.

    Args:
        rows: without end, or those in the pool at the end are left out.
        held: size of the pool; 0 changes nothing.
        seed: same seed, same order.
    """
    if not held:
        yield from rows
        return
    rng = random.Random(f"shuffled/{seed}")
    pool = list(itertools.islice(rows, held))
    for row in rows:
        drawn = rng.randrange(held)
        yield pool[drawn]
        pool[drawn] = row


def _episode_rows(
    env: TextEnv[object, object],
    task_id: str,
    codec: Codec,
    rng: random.Random,
    style: DemonstrationStyle,
    seen: EnvRecipe,
    limit: int | None,
) -> list[Row]:
    observation, info = env.reset(options={"task": task_id})
    transcript = Transcript(
        codec, env.prompt(), str(info["instruction"]), observation, seen.context, seen.history
    )
    turns: list[Row] = []
    extra: list[Row] = []
    over = False
    while not over:
        expert = env.oracle(wording=rng.randrange(style.wordings))
        if expert is None:  # unsolvable: an unproved practice task, or lost to a mistake
            return []
        try:
            context = transcript.context(None if limit is None else limit - seen.max_tokens)
        except ContextTooLong:
            return []
        if rng.random() < style.contrast:
            extra.append(_contrast_row(env, context, expert, codec, rng))
        imitate = rng.random() >= style.mistake
        reply = expert if imitate else env.mistake(str(rng.random()))
        if rng.random() < style.no_thought:
            reply = render_reply("", parse_reply(reply).action)
        observation, _, terminated, truncated, info = env.step(reply)
        over = terminated or truncated
        ids = codec.reply(reply)
        turns.append(Row([*context, *ids], [0] * len(context) + [int(imitate)] * len(ids)))
        if not over:
            transcript.add(ids, observation)
    if not info["success"]:
        return []
    rows = [*(_whole(turns) if seen.context == "concat" else (t for t in turns if any(t.mask))), *extra]
    return [row for row in rows if limit is None or len(row.ids) <= limit]


def _whole(turns: list[Row]) -> list[Row]:
    """The turns of an episode as one row, since each begins with the one before; a new one where a context was shortened."""
    rows = [Row(list(turns[0].ids), list(turns[0].mask))]
    for turn in turns[1:]:
        row = rows[-1]
        if turn.ids[: len(row.ids)] != row.ids:
            rows.append(Row(list(turn.ids), list(turn.mask)))
            continue
        row.mask += turn.mask[len(row.ids) :]
        row.ids += turn.ids[len(row.ids) :]
    return rows


def _contrast_row(
    env: TextEnv[object, object], context: list[int], expert: str, codec: Codec, rng: random.Random
) -> Row:
    """The expert's reply after the context, a failed branch and a successful one (the expert's, in another wording)."""
    here = env.snapshot()
    branches = []
    for reply in (env.mistake(str(rng.random())), env.oracle(wording=rng.randrange(4)) or expert):
        observation, *_ = env.step(reply)
        env.restore(here)
        parsed = parse_reply(reply)
        branches.append(Branch(parsed.thought, parsed.action, observation))
    prompt = contrast_context(codec, context, *branches)
    target = codec.reply(expert)
    return Row([*prompt, *target], [0] * len(prompt) + [1] * len(target))
