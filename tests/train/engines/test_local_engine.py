"""The local engine against the plain Hugging Face forward pass over the same weights."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from policies import EndingCodec, contexts, held, plain_logprobs, random_policy

from tstar_train.engines import local, trie
from tstar_train.engines.base import uniform_noise
from tstar_train.engines.local import LocalEngine
from tstar_train.policy import kv
from tstar_train.policy.kv import RaggedCache, cache_bytes_per_token
from tstar_train.policy.model import load_policy, save_tiny


@pytest.fixture(scope="module")
def policy():
    return random_policy()


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_the_plain_forward(policy, temperature):
    given = contexts(policy, [3, 40, 17, 1])
    samples = LocalEngine(policy).generate(given, list("abcd"), max_tokens=20, temperature=temperature)
    for context, sample in zip(given, samples, strict=True):
        np.testing.assert_allclose(
            sample.logprobs, plain_logprobs(policy, context, sample.ids, temperature), atol=2e-5
        )


def test_greedy_takes_the_likeliest_token(policy):
    (context,) = contexts(policy, [12])
    (sample,) = LocalEngine(policy).generate([context], ["x"], max_tokens=8, temperature=0.0)
    for position, token in enumerate(sample.ids):
        with torch.no_grad():
            logits = policy.model(torch.tensor([context + sample.ids[:position]])).logits[0, -1]
        assert int(logits.argmax()) == token


def test_a_row_does_not_depend_on_its_batch(policy):
    given = contexts(policy, [5, 30, 9, 22, 14])
    seeds = [f"s{i}" for i in range(5)]
    together = LocalEngine(policy).generate(given, seeds, max_tokens=12)
    alone = [
        LocalEngine(policy).generate([c], [s], max_tokens=12)[0] for c, s in zip(given, seeds, strict=True)
    ]
    assert [s.ids for s in together] == [s.ids for s in alone]
    in_parts = LocalEngine(policy, batch=2).generate(given, seeds, max_tokens=12)
    assert [s.ids for s in in_parts] == [s.ids for s in alone]


def test_kept_cache_gives_what_a_fresh_one_gives(policy):
    engine = LocalEngine(policy)
    lines = contexts(policy, [6, 25, 11])
    seeds = ["a", "b", "c"]
    first = engine.generate(lines, seeds, max_tokens=7, keys=[0, 1, 2])
    # Row 1 leaves; the others go on with what they wrote and something new.
    rest = [
        lines[r] + first[r].ids + extra
        for r, extra in zip((0, 2), contexts(policy, [4, 9], seed=5), strict=True)
    ]
    kept = engine.generate(rest, ["d", "e"], max_tokens=7, keys=[0, 2])
    fresh = LocalEngine(policy).generate(rest, ["d", "e"], max_tokens=7)
    assert [s.ids for s in kept] == [s.ids for s in fresh]
    np.testing.assert_allclose(
        [p for s in kept for p in s.logprobs], [p for s in fresh for p in s.logprobs], atol=2e-5
    )


def test_rows_that_end_early_leave_the_others_as_they_are():
    """Half of the rows end, the rest go on in a smaller cache, and all are taken up again afterwards."""
    policy = random_policy(spread=0.4)
    lines = contexts(policy, [6, 25, 11, 3, 8, 40, 17, 9])
    lines += lines[:2]  # twice the same context, as the members of a group have it
    seeds = [f"row {n}" for n in range(10)]
    probe = LocalEngine(policy).generate(lines, seeds, max_tokens=60, temperature=0.5)
    counted = Counter(token for sample in probe for token in set(sample.ids[2:-2]))
    ending = replace(policy, codec=EndingCodec(policy.codec, counted.most_common(1)[0][0]))
    engine = LocalEngine(ending)
    first = engine.generate(lines, seeds, max_tokens=60, temperature=0.5, keys=list(range(10)))
    lengths = [len(sample.ids) for sample in first]
    assert len(set(lengths)) >= 3 and sum(length < 60 for length in lengths) >= 5, lengths
    rows = [0, 3, 4, 7, 9]
    rest = [
        lines[r] + first[r].ids + extra
        for r, extra in zip(rows, contexts(policy, [4, 9, 2, 5, 3], seed=5), strict=True)
    ]
    kept = engine.generate(rest, seeds[:5], max_tokens=12, keys=rows)
    # Against the plain forward pass: over so many tokens rounding alone can part two samples.
    for context, sample in zip([*lines, *rest], [*first, *kept], strict=True):
        plain = plain_logprobs(policy, context, sample.ids, 0.5 if context in lines else 1.0)
        np.testing.assert_allclose(sample.logprobs, plain, atol=1e-4)


def test_a_rewritten_history_is_not_taken_for_the_kept_one(policy):
    engine = LocalEngine(policy)
    (line,) = contexts(policy, [10])
    engine.generate([line], ["a"], max_tokens=5, keys=[0])
    changed = [*line[:-1], line[-1] ^ 1, 7, 8, 9, 10, 11, 12, 13]
    kept = engine.generate([changed], ["b"], max_tokens=5, keys=[0])
    fresh = LocalEngine(policy).generate([changed], ["b"], max_tokens=5)
    assert kept[0].ids == fresh[0].ids


def test_copies_are_separate_draws_with_their_own_seeds(policy):
    given = contexts(policy, [8, 19])
    seeds = [f"{i}" for i in range(6)]
    copies = LocalEngine(policy).generate(given, seeds, max_tokens=6, copies=3)
    singles = [LocalEngine(policy).generate([given[i // 3]], [seeds[i]], max_tokens=6)[0] for i in range(6)]
    assert [s.ids for s in copies] == [s.ids for s in singles]
    assert len({tuple(s.ids) for s in copies[:3]}) > 1


def test_score_sums_the_plain_logprobs(policy):
    given = contexts(policy, [8, 19, 3])
    continuations = [contexts(policy, [1, 5, 2], seed=1), [], contexts(policy, [4], seed=2)]
    for batch in (256, 2):
        scores = LocalEngine(policy, batch=batch).logprobs(given, continuations)
        for context, group, got in zip(given, continuations, scores, strict=True):
            np.testing.assert_allclose(
                got, [sum(plain_logprobs(policy, context, c)) for c in group], atol=1e-4
            )


def test_samples_follow_the_distribution(policy):
    (context,), count = contexts(policy, [9]), 2000
    with torch.no_grad():
        wanted = torch.softmax(policy.model(torch.tensor([context])).logits[0, -1].double(), -1).numpy()
    draws = LocalEngine(policy).generate(
        [context], [f"{i}" for i in range(count)], max_tokens=1, copies=count
    )
    counts = np.bincount([s.ids[0] for s in draws], minlength=len(wanted))
    likely = np.argsort(wanted)[-5:]
    assert np.all(np.abs(counts[likely] / count - wanted[likely]) < 4 * np.sqrt(wanted[likely] / count))
    # Eighths of the probability, from the likeliest tokens to the least likely: another temperature moves draws between them.
    order = np.argsort(-wanted)
    eighth = np.minimum(8 * np.cumsum(wanted[order]), 7).astype(int)
    drawn, expected = (np.bincount(eighth, share[order]) for share in (counts / count, wanted))
    assert np.all(np.abs(drawn - expected) < 4 * np.sqrt(expected / count))


def test_ends_at_the_end_token(policy):
    (context,) = contexts(policy, [9])
    many = LocalEngine(policy).generate([context], [f"{i}" for i in range(200)], max_tokens=40, copies=200)
    end = policy.codec.end
    assert all(end not in s.ids[:-1] and len(s.ids) == len(s.logprobs) <= 40 for s in many)


def test_noise_is_the_same_on_every_machine():
    assert uniform_noise("seed", 3).tolist() == [0.7954209031505829, 0.7819344953948358, 0.35811556370963693]
    assert uniform_noise("seed", 3).tolist() == uniform_noise("seed", 5)[:3].tolist()


def test_keys_and_values_take_no_more_than_they_may_and_are_given_back(policy, monkeypatch):
    row = cache_bytes_per_token(policy.model.config, 4) * 300
    engine, free = LocalEngine(policy, limit=300, gib=4 * row / (1 << 30)), LocalEngine(policy, limit=300)
    rows, made = [], RaggedCache.__init__

    def watched(self, model, count, capacity):
        made(self, model, count, capacity)
        rows.append(count)

    monkeypatch.setattr(RaggedCache, "__init__", watched)
    given, seeds = contexts(policy, [200, 190, 180, 170, 160, 150]), list("abcdef")
    before = held()
    samples = engine.generate(given, seeds, max_tokens=9)
    scores = engine.logprobs(given, [[s.ids] for s in samples])
    assert max(rows) <= 4 and held() - before <= 1.25 * 4 * row
    assert engine.trie.slots <= 300, "a quarter of it for contexts that are remembered"
    assert [s.ids for s in samples] == [s.ids for s in free.generate(given, seeds, max_tokens=9)] and max(
        rows
    ) == 6
    np.testing.assert_allclose(scores, free.logprobs(given, [[s.ids] for s in samples]), atol=1e-4)
    free.release(), engine.release()
    del samples, scores
    assert held() <= before, "the update has the memory to itself"


def test_seed_count_is_checked(policy):
    with pytest.raises(ValueError, match="2 seeds"):
        LocalEngine(policy).generate([[3]], ["a"], max_tokens=2, copies=2)


def test_a_saved_tiny_model_comes_back_with_its_own_tokenizer(policy, tmp_path):
    save_tiny(policy.model, policy.tokenizer, tmp_path)
    loaded = load_policy(str(tmp_path), "search_qa")
    text = "Question: When was Velbar Press founded?\nAction: search[Velbar Press 1901]\nObservation: Doc 1 (Title: x) 1899, twice\n"
    assert loaded.codec.text(text) == policy.codec.text(text)
    assert len(loaded.tokenizer) == len(policy.tokenizer)
    assert loaded.codec.start("rules", "Question: who?") == policy.codec.start(
        "", "Question: who?"
    )  # trained without the rules
    for name, tensor in policy.model.state_dict().items():
        torch.testing.assert_close(loaded.model.state_dict()[name], tensor, atol=1e-3, rtol=1e-3)


def fed(monkeypatch):
    """Record the number of tokens of each forward pass, padding included."""
    counts = []
    run = kv.hidden_states

    def watched(model, ids, *rest):
        counts.append(ids.numel())
        return run(model, ids, *rest)

    for module in (trie, local):
        monkeypatch.setattr(module, "hidden_states", watched)
    return counts


@hypothesis.settings(max_examples=25)
@hypothesis.given(data=st.data())
def test_rows_keep_the_beginning_that_they_share(policy, data):
    """Rows that go on, drop their oldest turn, begin anew, repeat or fork: all as a fresh engine has it."""
    engine, number = LocalEngine(policy, keep_rows=data.draw(st.booleans())), 0
    rows = dict(enumerate(contexts(policy, [20, 24, 31])))
    for turn in range(4):
        # A small length, so that the comparison by tokens is not decided by rounding.
        samples = engine.generate(
            list(rows.values()), [f"{turn}/{n}" for n in rows], max_tokens=4, keys=[("roll", n) for n in rows]
        )
        for (n, line), sample in zip(rows.items(), samples, strict=True):
            plain = plain_logprobs(policy, line, sample.ids)
            np.testing.assert_allclose(sample.logprobs, plain, atol=5e-5)
            rows[n] = line + sample.ids
        for n in list(rows):
            number += 1
            longer = rows[n] + contexts(policy, [data.draw(st.integers(1, 40))], seed=number)[0]
            kind = data.draw(st.sampled_from(["go on", "go on", "drop", "leave", "fork", "anew"]))
            if kind == "go on":
                rows[n] = longer
            elif kind == "drop":  # the rules stay, the oldest turn goes
                rows[n] = longer[:9] + longer[15:]
            elif kind == "leave" and len(rows) > 1:
                del rows[n]
            elif kind == "fork":
                rows[100 + number] = longer[: data.draw(st.integers(1, len(longer)))]
                rows[n] = longer
            else:
                rows[n] = contexts(policy, [12], seed=1000 + number)[0]


def test_a_turn_that_is_interrupted_leaves_no_rows_of_others(policy, monkeypatch):
    """Its rows had moved before it ended, in a notebook whose user goes on with the same engine."""
    engine, lines = LocalEngine(policy), [[5, 6, 7, 8], [9] * 6, [11, 12, 13]]
    first = engine.generate(lines, list("abc"), max_tokens=4, keys=[0, 1, 2])
    lines = [line + sample.ids + [20, 21] for line, sample in zip(lines, first, strict=True)]
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("tstar_train.engines.local.feed", lambda *_: interrupted())
        engine.generate([lines[2], lines[0]], list("fd"), max_tokens=4, keys=[2, 0])
    again = engine.generate(lines, list("def"), max_tokens=4, keys=[0, 1, 2])
    assert again == LocalEngine(policy).generate(lines, list("def"), max_tokens=4)


def interrupted():
    raise KeyboardInterrupt


def test_one_row_that_drops_its_oldest_turn_costs_its_own_tokens(policy, monkeypatch):
    engine, lines = LocalEngine(policy), contexts(policy, [200, 190, 195, 180])
    first = engine.generate(lines, list("abcd"), max_tokens=3, keys=[0, 1, 2, 3])
    new = [line + sample.ids + [5, 6, 7] for line, sample in zip(lines, first, strict=True)]
    new[2] = new[2][:50] + new[2][80:]
    counts = fed(monkeypatch)
    engine.generate(new, list("efgh"), max_tokens=1, keys=[0, 1, 2, 3])
    # Their own new tokens (the last sampled one is not in the cache), and what follows the shared beginning of the third row.
    assert sorted(counts) == [3 * 4, len(new[2]) - 50]


def test_forks_compute_only_what_follows_the_shared_beginning(policy, monkeypatch):
    engine, lines = LocalEngine(policy, keep_rows=True), contexts(policy, [60, 70])
    first = engine.generate(lines, list("ab"), max_tokens=3, keys=["a", "b"])
    engine.generate([lines[0] + first[0].ids + [9] * 5], ["c"], max_tokens=2, keys=["a"])
    counts = fed(monkeypatch)
    forks = [[*lines[0][:40], 3, 4], lines[1] + [8], [*lines[1][:69], 1, 2, 3]]
    samples = engine.generate(forks, list("xyz"), max_tokens=1, keys=[0, 1, 2])
    assert sum(counts) <= 2 * 3 + 3
    for context, sample in zip(forks, samples, strict=True):
        np.testing.assert_allclose(sample.logprobs, plain_logprobs(policy, context, sample.ids), atol=5e-5)


def test_looking_rarely_changes_no_sample(policy):
    """A GPU looks every few tokens at which rows have ended: their excess is dropped."""
    end = LocalEngine(policy).generate(contexts(policy, [9]), ["e"], max_tokens=40)[0].ids[20]
    ending = replace(policy, codec=EndingCodec(policy.codec, end))
    often, rarely = LocalEngine(ending), LocalEngine(ending)
    rarely.steps_between_looks = 7
    lines, seeds = contexts(policy, [8, 19, 33, 5, 6, 50]), [f"r{n}" for n in range(6)]
    for turn in range(3):
        one, other = (
            engine.generate(lines, seeds, max_tokens=40, temperature=0.3, keys=list(range(6)))
            for engine in (often, rarely)
        )
        assert [s.ids for s in one] == [s.ids for s in other]
        lines = [line + sample.ids + [4, turn] for line, sample in zip(lines, one, strict=True)]


def test_nothing_is_read_off_the_device_between_looks(policy):
    """Each of these operations would make a GPU wait: a number read, or a mask turned into indices."""

    def waits(tokens):
        engine = LocalEngine(policy)
        engine.steps_between_looks = 1000
        lines = contexts(policy, [8, 19, 33])
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            engine.generate(lines, list("abc"), max_tokens=tokens, keys=[0, 1, 2])
        names = {"aten::_local_scalar_dense", "aten::nonzero"}
        return sum(event.count for event in profile.key_averages() if event.key in names)

    assert waits(40) == waits(20)
