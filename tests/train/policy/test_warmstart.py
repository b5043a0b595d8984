"""Demonstrations, and the whole making of weights at a tiny number of steps."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import re

import pytest
import torch
from policies import HOTPOT, RECIPE, tokenizer
from rich.console import Console

from tstar_envs import UnknownOption, find_entry, parse_reply
from tstar_train import warmstart
from tstar_train.grafting import HEADER_FAILED, HEADER_SUCCEEDED
from tstar_train.policy.codec import PlainCodec
from tstar_train.policy.files import WEIGHTS
from tstar_train.policy.model import load_policy, load_tokenizer, new_tiny
from tstar_train.recipes.recipe import ImitationSchedule, load_recipe
from tstar_train.warmstart import (
    PracticeMix,
    Row,
    batches_of,
    build_weights,
    demonstrate,
    imitate,
    imitation_loss,
    pad_rows,
    practice_rows,
    shuffled,
)

CODEC = PlainCodec(tokenizer(), with_prompt=False)
STYLE, SEEN = RECIPE.warm_start.demonstrations, RECIPE.env
SOKOBAN = load_recipe("sokoban")


def rows(count, style, seed=0, seen=SEEN):
    return list(itertools.islice(practice_rows(PracticeMix(RECIPE, HOTPOT), CODEC, seed, style, seen), count))


def imitated(row, codec=CODEC):
    """The imitated stretches of a row, as text."""
    stretches, current = [], []
    for token, wanted in zip(row.ids, [*row.mask, 0], strict=False):
        if wanted:
            current.append(token)
        elif current:
            stretches.append(codec.decode(current))
            current = []
    return stretches + ([codec.decode(current)] if current else [])


def test_only_whole_replies_are_imitated():
    for row in rows(40, dataclasses.replace(STYLE, mistake=0.3)):
        stretches = imitated(row)
        assert stretches
        for text in stretches:
            assert parse_reply(text).action and text.startswith(("Thought:", "Action:"))


def test_mistakes_are_shown_and_not_imitated():
    shown = rows(60, dataclasses.replace(STYLE, mistake=0.5, contrast=0.0, no_thought=0.0))
    replies = sum(CODEC.decode(r.ids).count("\nAction:") for r in shown)
    assert sum(len(imitated(r)) for r in shown) < 0.8 * replies


def test_contrast_rows_imitate_one_reply_after_both_branches():
    chosen = [
        r for r in rows(60, dataclasses.replace(STYLE, contrast=1.0)) if HEADER_FAILED in CODEC.decode(r.ids)
    ]
    assert len(chosen) > 10
    for row in chosen:
        text = CODEC.decode(row.ids)
        assert text.index(HEADER_FAILED) < text.index(HEADER_SUCCEEDED) and len(imitated(row)) == 1


def test_some_turns_have_no_thought():
    stretches = [
        s for r in rows(80, dataclasses.replace(STYLE, no_thought=0.5, contrast=0.0)) for s in imitated(r)
    ]
    assert 0.3 < sum(s.startswith("Action:") for s in stretches) / len(stretches) < 0.7


def test_as_many_wordings_are_shown_as_the_style_says():
    """Sokoban's thoughts without places and directions are as many as its wordings, one for walking and one for pushing each."""
    codec = PlainCodec(load_tokenizer(WEIGHTS / "sokoban"), with_prompt=False)
    places = re.compile(r"\(\d, \d\)|\b(up|down|left|right)\b", re.IGNORECASE)
    for wordings in (1, 3):
        style = dataclasses.replace(
            SOKOBAN.warm_start.demonstrations, wordings=wordings, contrast=0.0, no_thought=0.0
        )
        shown = itertools.islice(
            practice_rows(PracticeMix(SOKOBAN, find_entry("sokoban-easy")), codec, 0, style, SOKOBAN.env), 150
        )
        thoughts = {
            places.sub("?", parse_reply(text).thought) for row in shown for text in imitated(row, codec)
        }
        assert len(thoughts) == 2 * wordings


@pytest.mark.slow
def test_a_share_of_the_rows_is_kept_and_shows_as_many_more_tasks():
    codec = PlainCodec(load_tokenizer(WEIGHTS / "sokoban"), with_prompt=False)
    practice = PracticeMix(SOKOBAN, find_entry("sokoban-easy"), only=True)

    def sets_played(kept):
        """How many practice sets 1,500 rows take."""
        seeds: list[str] = []
        style = dataclasses.replace(SOKOBAN.warm_start.demonstrations, kept=kept)
        shown = practice_rows(lambda seed: seeds.append(seed) or practice(seed), codec, 0, style, SOKOBAN.env)
        assert all(any(row.mask) for row in itertools.islice(shown, 1_500))
        return len(seeds)

    assert 3 <= sets_played(0.25) / sets_played(1.0) <= 5


def test_same_seed_same_rows():
    assert rows(5, STYLE, seed=3) == rows(5, STYLE, seed=3) != rows(5, STYLE, seed=4)


def test_loss_is_the_plain_cross_entropy_of_the_masked_tokens():
    model = new_tiny(tokenizer(), 0, RECIPE.model)
    chosen = rows(3, STYLE)
    ids, mask = pad_rows([*chosen, Row([5, 6], [0, 0])], CODEC.pad)
    total, count = 0.0, 0
    with torch.no_grad():
        for row in chosen:
            logprobs = torch.log_softmax(model(torch.tensor([row.ids])).logits[0], -1)
            for position, wanted in enumerate(row.mask):
                if wanted:
                    total -= float(logprobs[position - 1, row.ids[position]])
                    count += 1
        assert abs(float(imitation_loss(model, ids, mask)) - total / count) < 1e-4


def test_batches_alike_in_context_mix_turns_with_and_without_thought():
    codec = PlainCodec(load_tokenizer(WEIGHTS / "sokoban"), with_prompt=False)
    style = dataclasses.replace(SOKOBAN.warm_start.demonstrations, no_thought=0.12)
    pool = list(
        itertools.islice(
            practice_rows(PracticeMix(SOKOBAN, find_entry("sokoban-easy")), codec, 0, style, SOKOBAN.env), 192
        )
    )

    def most_without(batches):
        return max(
            sum(imitated(row, codec)[0].startswith("Action:") for row in batch) / len(batch)
            for batch in batches
        )

    def padded(batches):
        return sum(len(batch) * max(len(row.ids) for row in batch) for batch in batches)

    rows_alike, contexts_alike = (
        batches_of(pool, ImitationSchedule(batch=24, alike=alike)) for alike in ("row", "context")
    )
    for batches in (rows_alike, contexts_alike):
        assert len(batches) == 8 and sorted(map(id, pool)) == sorted(
            id(row) for batch in batches for row in batch
        )
        assert padded(batches) < 0.9 * padded([pool[i : i + 24] for i in range(0, 192, 24)])
    assert most_without(contexts_alike) < 0.5 < 0.8 < most_without(rows_alike)


@pytest.mark.parametrize("held", [0, 1, 40])
def test_a_pool_passes_every_row_on_once(held):
    source = [Row([number], [1]) for number in range(500)]
    passed = list(shuffled(iter(source), held, 7))
    numbers = [row.ids[0] for row in passed]
    assert len(set(numbers)) == len(numbers) == 500 - held
    assert numbers == sorted(numbers) if held < 2 else numbers != sorted(numbers)
    assert all(
        number <= place + held for place, number in enumerate(numbers)
    )  # none comes before it could be in the pool
    assert numbers == [row.ids[0] for row in shuffled(iter(source), held, 7)]


def test_a_pool_parts_the_turns_of_a_level():
    codec = PlainCodec(load_tokenizer(WEIGHTS / "sokoban"), with_prompt=False)
    style = dataclasses.replace(SOKOBAN.warm_start.demonstrations, kept=1.0)

    def most_of_a_level(held):
        fresh = practice_rows(PracticeMix(SOKOBAN, find_entry("sokoban-easy")), codec, 0, style, SOKOBAN.env)
        batch = list(itertools.islice(shuffled(fresh, held, 0), 24))
        walls = [
            codec.decode(row.ids).split("Targets")[0].translate(str.maketrans("PSX√O", "_____"))
            for row in batch
        ]
        return max(walls.count(room) for room in walls)

    assert most_of_a_level(0) >= 5 and most_of_a_level(400) <= 4  # a level has some eight turns


def test_rates_rise_and_fall():
    schedule = ImitationSchedule(steps=1000, decay=0.5, warmup=10)
    assert (
        schedule.rate(0) == 0.1
        and schedule.rate(100) == schedule.rate(500) == 1.0
        and 0 < schedule.rate(999) < 0.01
    )
    assert schedule.rate(1000) == 0.0


def test_a_schedule_of_seconds_ends_where_they_do(monkeypatch):
    schedule = ImitationSchedule(seconds=1.0, decay=1.0, warmup=10, batch=2)
    assert schedule.rate(0) == 0.1 and schedule.rate(50_000) == 1.0  # steps do not count, but for the warmup
    assert schedule.rate(500, 0.5) == 0.5 and schedule.rate(30, 1.0) == 0.0
    model = new_tiny(tokenizer(), 0, RECIPE.model)
    # A clock of the test: a second is four looks at it, one before each update.
    looks = itertools.count()
    monkeypatch.setattr(warmstart.time, "process_time", lambda: next(looks) / 4)
    made = imitate(
        model,
        practice_rows(PracticeMix(RECIPE, HOTPOT), CODEC, 0, STYLE, SEEN),
        schedule,
        CODEC.pad,
        lambda *_: None,
    )
    # Looks: the start, four of which the last ends it, and one for the report.
    assert made == 3 and next(looks) == 6
    assert imitate(model, iter(()), ImitationSchedule(steps=0), CODEC.pad, lambda *_: None) == 0


@pytest.mark.parametrize("wrong", [{"seconds": 0.0}, {"seconds": -3.0}, {"seconds": 60.0, "processes": 2}])
def test_seconds_that_cannot_be_kept_are_refused(wrong):
    with pytest.raises(ValueError, match="seconds="):
        ImitationSchedule(**wrong)
    with pytest.raises(ValueError, match="held=-1"):
        ImitationSchedule(held=-1)


@pytest.mark.usefixtures("start_method")
def test_weights_are_made_and_recorded(tmp_path, monkeypatch):
    # A tokenizer of the shipped size from fewer demonstrations: these take longer than the steps.
    fewer = dataclasses.replace(RECIPE, tokenizer=dataclasses.replace(RECIPE.tokenizer, rows=1_500))
    monkeypatch.setattr(warmstart, "recipe_of", lambda entry: fewer)
    build_weights(HOTPOT, tmp_path, seed=0, steps=3, console=Console(quiet=True))
    record = json.loads((tmp_path / "training.json").read_text())
    assert [s["schedule"]["steps"] for s in record["stages"]] == [3, 3]
    policy = load_policy(str(tmp_path), "search_qa")
    assert len(policy.tokenizer) == RECIPE.tokenizer.vocabulary
    assert (
        policy.parameters < 5_000_000 and policy.model.config.tstar_policy == record["policy"] == "search_qa"
    )
    assert sum(p.stat().st_size for p in tmp_path.iterdir()) < 12e6 / 5 + 2e5  # five families share 12 MB


def test_a_warm_start_goes_on_from_the_policy_that_it_begins_with(tmp_path, monkeypatch):
    # In this process alone: two are had above.
    hard = load_recipe("sokoban_hard")
    alone = tuple(dataclasses.replace(stage, processes=1) for stage in hard.warm_start.stages)
    changed = dataclasses.replace(hard, warm_start=dataclasses.replace(hard.warm_start, stages=alone))
    monkeypatch.setattr(warmstart, "recipe_of", lambda entry: changed)
    hard, before = find_entry("sokoban-hard"), load_policy("tiny", "sokoban_harder")
    build_weights(hard, tmp_path, seed=0, steps=0, console=Console(quiet=True))
    policy, record = (
        load_policy(str(tmp_path), "sokoban_hard"),
        json.loads((tmp_path / "training.json").read_text()),
    )
    for one, other in zip(policy.model.parameters(), before.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert (
        policy.model.config.tstar_policy == "sokoban_hard"
        and policy.tokenizer.get_vocab() == before.tokenizer.get_vocab()
    )
    assert [(s["seed"], s["schedule"]["steps"]) for s in record["stages"]] == [
        (0, 40_000),
        (1000, 27_000),
        (2000, 0),
    ]


def test_the_oracle_that_a_stage_names_plays():
    entry, recipe = find_entry("alfworld"), load_recipe("alfworld")
    style = dataclasses.replace(
        recipe.warm_start.demonstrations, mistake=0.0, no_thought=0.0, contrast=0.0, wordings=1
    )
    env, lengths = PracticeMix(recipe, entry)("0"), {}
    for kind in ("expert", "search"):
        shown = [demonstrate(env, task, random.Random(0), style, kind) for task in env.task_ids("train")[:8]]
        lengths[kind] = [len(one.turns) for one in shown if one is not None]
        env.reset(options={"task": env.task_ids("train")[0]})
        for turn in shown[0].turns:
            assert turn.reply == env.oracle(kind=kind)
            env.step(turn.reply)
    assert sum(lengths["search"]) > 1.3 * sum(lengths["expert"])
    codec = PlainCodec(tokenizer(), with_prompt=False)
    one, other = (
        next(practice_rows(PracticeMix(recipe, entry), codec, 0, style, recipe.env, kind=kind))
        for kind in lengths
    )
    assert len(other.ids) > len(one.ids)
    with pytest.raises(UnknownOption, match="kind"):  # only ALFWorld has one that searches
        next(practice_rows(PracticeMix(RECIPE, HOTPOT), codec, 0, STYLE, SEEN, kind="search"))


def test_step_contexts_give_a_row_per_turn_with_what_the_policy_will_see():
    seen = dataclasses.replace(SEEN, context="step", history=1)
    style = dataclasses.replace(STYLE, mistake=0.3, contrast=0.0)
    whole, turns = rows(12, style), rows(60, style, seen=seen)
    assert [s for r in turns for s in imitated(r)][:20] == [s for r in whole for s in imitated(r)][:20]
    for row in turns:
        first = row.mask.index(1)
        assert (
            len(imitated(row)) == 1
            and all(row.mask[first:])
            and CODEC.decode(row.ids[:first]).count("\nObservation:") <= 1
        )
