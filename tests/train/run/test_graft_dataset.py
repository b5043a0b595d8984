"""The grafting set that outlasts an iteration: what is drawn from it, how ranks share it, and how it is saved and resumed."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from collections import Counter
from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from policies import papers_preset, random_policy, trainer
from rich.console import Console

from tstar_envs import UnknownOption
from tstar_train.checkpoint import (
    GRAFTS,
    BadCheckpoint,
    Progress,
    check_same_options,
    load_state,
    read_state,
    save_checkpoint,
)
from tstar_train.config import Config, EvaluationConfig, GraftConfig, OptimConfig, RolloutConfig, TreeConfig
from tstar_train.distributed import launched
from tstar_train.finite import NotFinite
from tstar_train.grafting import GraftDataset, kept_pair
from tstar_train.loop import draw_pairs, iterate
from tstar_train.run import resume_run, train
from tstar_train.types import Branch, Graft, Grafts, IterationData, KeptPair

TASKS = [f"hotpotqa-mini-train-{n:04d}" for n in range(2)]
SMALL = Config(
    env="tstar/HotpotQA",
    iterations=4,
    env_options={"topk": 1, "horizon": 2},
    rollout=RolloutConfig(tasks_per_iteration=2, group_size=2, max_tokens=8),
    tree=TreeConfig(kl_samples=2),
    graft=GraftConfig(batch=5),
    optim=OptimConfig(learning_rate=1e-3, num_minibatches=2, epochs=2),
)


def pair(number: int, iteration: int = 0) -> KeptPair:
    """A pair that can be told from all others."""
    ids = list(range(10, 14 + number % 3))
    return KeptPair(ids, [20, 21 + number], [30, 31, 32 + number], "z_plus", f"task {number}", iteration)


def graft(number: int, iteration: int) -> Graft:
    """The graft that is kept as ``pair(number, iteration)``."""
    nothing, kept = Branch("", "", ""), pair(number, iteration)
    ids = list(kept.context), list(kept.rectified), list(kept.rejected)
    ends = [], None, kept.task, iteration
    return Graft(0, *ids, kept.source, 1, 1.0, 1, 1, nothing, nothing, "", (0, 0), *ends)


def tasks_of(pairs) -> list[str]:
    return [p.task for p in pairs]


def dataset(size: int, iteration: int = 0) -> GraftDataset:
    return GraftDataset().grown([kept_pair(graft(n, iteration)) for n in range(size)])


def small(config=SMALL, kept: int = 0, world=None):
    """A trainer whose episodes all lose alike, so that nothing is grafted and all that it learns is from the set."""
    one = trainer(config, random_policy(spread=0.02), TASKS, world)
    one.dataset = dataset(kept) if world is None or world.rank == 0 else GraftDataset()
    return one


def weights(one) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in one.policy.model.parameters()])


# The draw.


@given(st.integers(0, 40), st.integers(0, 50), st.integers(0, 10**6))
def test_a_draw_has_no_pair_twice_and_as_many_as_asked_or_all(size, count, seed):
    drawn = dataset(size).draw(count, f"{seed}")
    places = [int(p.task.split()[1]) for p in drawn]
    assert len(set(places)) == len(places) == min(count, size) and places == sorted(places)
    assert drawn == [pair(n) for n in places], "whole pairs, as they were made"


def test_a_draw_is_uniform_whatever_the_age():
    """Each pair, and each two pairs together, as often as all others: five standard deviations."""
    size, count, draws = 9, 4, 4_000
    whole = GraftDataset([pair(n, iteration=n) for n in range(size)])
    drawn = [tasks_of(whole.draw(count, f"0/pairs/{n}")) for n in range(draws)]
    for each, chance in ((1, count / size), (2, math.comb(count, 2) / math.comb(size, 2))):
        seen = Counter(found for tasks in drawn for found in combinations(tasks, each))
        assert len(seen) == math.comb(size, each)
        spread = 5 * math.sqrt(draws * chance * (1 - chance))
        assert all(abs(times - draws * chance) < spread for times in seen.values())


@given(st.lists(st.integers(0, 6), min_size=1, max_size=6), st.integers(1, 12))
def test_what_is_kept(made, keep):
    """All, the newest, or those of the iteration; a set that was grown is another one."""
    numbers = iter(range(100))
    iterations = [[pair(next(numbers), i) for _ in range(count)] for i, count in enumerate(made)]
    whole, newest, own = GraftDataset(), GraftDataset(), GraftDataset()
    for pairs in iterations:
        before = len(whole)
        whole, newest, own = whole.grown(pairs), newest.grown(pairs, keep), own.grown(pairs, "iteration")
        assert len(whole) == before + len(pairs)
    everything = [p for pairs in iterations for p in pairs]
    assert whole.draw(99, "") == everything
    assert newest.draw(99, "") == everything[-keep:]
    assert own.draw(99, "") == iterations[-1]


# Its use in an iteration.


def test_without_grafts_of_its_own_an_iteration_learns_from_the_set():
    one, empty = small(kept=7), small(kept=0)
    before = weights(one)
    figures = iterate(one, 3).metrics
    assert figures["grafts"] == 0 and figures["zero_variance_groups"] == 1.0
    assert figures["graft_dataset_size"] == 7 and figures["graft_dataset_age"] == 3.0
    assert figures["surgical_loss"] > 0 and figures["gradient_norm"] == figures["surgical_gradient_norm"] > 0
    assert not torch.equal(weights(one), before)
    figures = iterate(empty, 3).metrics
    assert (figures["graft_dataset_size"], figures["graft_dataset_age"]) == (0, 0.0)
    assert figures["surgical_loss"] is None and torch.equal(weights(empty), before)


def drawn_at(one, number: int, made: int) -> IterationData:
    data = IterationData(number, grafts=Grafts([graft(100 + n, number) for n in range(made)]))
    draw_pairs(one, data)
    return data


@pytest.mark.parametrize(("made", "wanted"), [(0, 5), (3, 5), (8, 8)])
def test_as_many_are_drawn_as_were_made_and_at_least_a_batch(made, wanted):
    one = small(kept=20)
    data = drawn_at(one, 4, made)
    assert len(data.pairs) == wanted
    assert data.pairs == one.dataset.grown([pair(100 + n, 4) for n in range(made)]).draw(wanted, "0/pairs/4")
    assert data.pairs_age == pytest.approx(sum(4 - p.iteration for p in data.pairs) / wanted)
    if made:
        own = [n for n in range(40) if any(p.iteration == n for p in drawn_at(one, n, made).pairs)]
        assert own, "an iteration's own are among the others"
        assert tasks_of(drawn_at(one, 5, made).pairs) != tasks_of(data.pairs), "each iteration draws anew"
    assert len(one.dataset) == 20, "it grows once the iteration is done"


def test_an_iteration_keeps_to_its_own_and_without_the_loss_nothing_is_drawn():
    def with_graft(**changes):
        return small(dataclasses.replace(SMALL, graft=dataclasses.replace(SMALL.graft, **changes)), kept=20)

    own = drawn_at(with_graft(keep="iteration"), 4, 8)
    assert own.pairs is own.grafts.kept and own.pairs_age == 0.0
    for without in ({"surgical": False}, {"surgical": False, "keep": "iteration"}):
        assert not drawn_at(with_graft(**without), 4, 8).pairs
    assert len(drawn_at(with_graft(keep=6), 4, 8).pairs) == 6, "all that is kept"


def test_an_iteration_that_fails_adds_nothing():
    one = small(dataclasses.replace(SMALL, optim=dataclasses.replace(SMALL.optim, max_loss=1e-9)), kept=7)
    before = one.dataset
    with pytest.raises(NotFinite, match="the surgical loss") as caught:
        iterate(one, 3)
    assert one.dataset is before and one.whole
    batch = caught.value.batch
    assert (batch["loss"], batch["optimizer_step"]) == ("surgical", 0)
    json.dumps(batch)
    rows = [KeptPair(**row) for row in batch["rows"]]
    assert rows == before.draw(5, "0/pairs/3")[::2], "the pairs of the first of two minibatches"


# Ranks split their shares into minibatches, so that only whole batches are the same.
ONE_BATCH = dataclasses.replace(SMALL, optim=OptimConfig(learning_rate=1e-4, epochs=2))


def second_rank(world):
    """The other rank of the test below, which does the same."""
    other = small(ONE_BATCH, world=world)
    world.gather(drawn_at(other, 4, 2).pairs)
    iterate(other, 3)


@pytest.mark.usefixtures("start_method")
def test_two_ranks_draw_and_learn_as_one_does():
    alone = small(ONE_BATCH, kept=11)
    figures = iterate(alone, 3).metrics
    with launched(2, second_rank, 5.0) as world:
        shared = small(ONE_BATCH, kept=11, world=world)
        first, second = world.gather(drawn_at(shared, 4, 2).pairs)
        every = shared.dataset.grown([pair(100 + n, 4) for _ in range(2) for n in range(2)])
        drawn = every.draw(5, "0/pairs/4")
        assert len(first) == 3 and len(second) == 2
        assert first == drawn[::2] and second == drawn[1::2]
        together = iterate(shared, 3).metrics
    for name in ("graft_dataset_size", "graft_dataset_age"):
        assert together[name] == figures[name]
    for name in ("surgical_loss", "surgical_gradient_norm", "surgical_margin"):
        assert together[name] == pytest.approx(figures[name], rel=1e-4, abs=1e-6)
    torch.testing.assert_close(weights(shared), weights(alone), atol=1e-5, rtol=0)
    assert (weights(shared) - weights(small(ONE_BATCH))).abs().max() > 1e-4


# The saved set.


def test_a_saved_set_is_read_again_and_its_bytes_are_the_same(tmp_path):
    whole = GraftDataset([pair(n, n // 2) for n in range(5)])
    whole.save(tmp_path / "one")
    again = GraftDataset.load(tmp_path / "one")
    again.save(tmp_path / "two")
    assert again.draw(9, "") == whole.draw(9, "") and len(again) == 5
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert json.loads((tmp_path / "one").read_text().splitlines()[4]) == dataclasses.asdict(pair(4, 2))
    GraftDataset().save(tmp_path / "none")
    assert len(GraftDataset.load(tmp_path / "none")) == 0


def test_a_resumed_trainer_goes_on_as_one_that_nothing_interrupted(tmp_path):
    one, other = small(kept=7), small(kept=0)
    first = save_checkpoint(tmp_path, one, Progress(1), keep=9)
    read_state(first)
    load_state(other, first)
    figures = [[iterate(each, number).metrics for number in (1, 2)] for each in (one, other)]
    assert figures[0] == figures[1] and figures[0][1]["surgical_loss"] > 0
    assert torch.equal(weights(one), weights(other))
    for each, out in ((one, tmp_path / "whole"), (other, tmp_path / "resumed")):
        save_checkpoint(out, each, Progress(3), keep=9)
    names = [f"{out}/checkpoints/000003/{GRAFTS}" for out in ("whole", "resumed")]
    assert (tmp_path / names[0]).read_bytes() == (tmp_path / names[1]).read_bytes() != b""


def test_a_damaged_or_missing_set_is_named(tmp_path):
    one = small(kept=3)
    path = save_checkpoint(tmp_path, one, Progress(1), keep=2)
    file = path / GRAFTS
    good = file.read_bytes()
    file.write_bytes(good.replace(b"20", b"21", 1))
    with pytest.raises(BadCheckpoint, match=rf"{GRAFTS} is damaged .*delete it to resume"):
        read_state(path)
    for text in (b"[1]\n", b'{"context": [1]}\n', b"{\n", good.replace(b"[20", b'["x"', 1)):
        file.write_bytes(text)
        with pytest.raises(BadCheckpoint, match="delete it to resume"):
            load_state(one, path)
    file.unlink()
    with pytest.raises(BadCheckpoint, match=rf"{GRAFTS} is missing"):
        read_state(path)
    with pytest.raises(BadCheckpoint, match=GRAFTS):
        load_state(one, path)


def test_only_runs_that_keep_grafts_write_them(tmp_path):
    for number, changes in enumerate(
        (
            {"graft": dataclasses.replace(SMALL.graft, keep="iteration")},
            {"graft": dataclasses.replace(SMALL.graft, enabled=False)},
            {"tstar": False},
        )
    ):
        one = small(dataclasses.replace(SMALL, **changes))
        path = save_checkpoint(tmp_path / str(number), one, Progress(1), keep=2)
        assert not (path / GRAFTS).exists()
        load_state(one, path)


def test_a_run_from_before_there_was_a_set_goes_on_without_one(tmp_path):
    """The default is the paper's, not what such a run did."""
    without = dataclasses.replace(SMALL, graft=GraftConfig(keep="iteration"), optim=OptimConfig())
    record = without.record()
    del record["graft"]["keep"], record["graft"]["batch"], record["optim"]["epochs"]
    (tmp_path / "config.json").write_text(json.dumps(record))
    read = Config.from_json(tmp_path / "config.json")
    assert read == without and Config(env="hotpotqa").graft.keep == "all"
    path = tmp_path / "checkpoints" / "000001"
    check_same_options(path, {"config": record}, read)
    kept = dataclasses.replace(read, graft=GraftConfig(keep="all"))
    with pytest.raises(UnknownOption, match=r"graft\.keep is 'all', the run was made with 'iteration'"):
        check_same_options(path, {"config": record}, kept)
    check_same_options(path, {"config": kept.record()}, kept)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_run_that_keeps_its_grafts_resumes_byte_for_byte(processes, tmp_path):
    preset = papers_preset("hotpotqa")
    config = dataclasses.replace(
        preset,
        iterations=4,
        processes=processes,
        checkpoint_every=1,
        keep_checkpoints=9,
        rollout=dataclasses.replace(preset.rollout, tasks_per_iteration=4, group_size=4),
        tree=dataclasses.replace(preset.tree, kl_samples=2),
        graft=dataclasses.replace(preset.graft, keep="all", batch=4),
        optim=dataclasses.replace(preset.optim, num_minibatches=2, epochs=2),
        evaluation=EvaluationConfig(tasks=1, samples=1, greedy=False),
    )
    out, quiet = tmp_path / "run", Console(quiet=True)
    train(config, out, quiet)
    names = ["metrics.jsonl", f"checkpoints/000004/{GRAFTS}", "checkpoints/000004/policy.safetensors"]
    whole = [(out / name).read_bytes() for name in names]
    metrics = [json.loads(line) for line in whole[0].splitlines()]
    sizes = [m["graft_dataset_size"] for m in metrics]
    assert sizes[-1] == sum(m["grafts"] for m in metrics) > sizes[1] > 0
    assert metrics[-1]["graft_dataset_age"] > 0
    (out / "summary.json").unlink()  # as if it had been killed after the second checkpoint
    for number in (3, 4):
        shutil.rmtree(out / "checkpoints" / f"{number:06d}")
    resume_run(out, quiet)
    assert [(out / name).read_bytes() for name in names] == whole
