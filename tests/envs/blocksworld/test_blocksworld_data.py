"""The shipped tasks: rebuilt byte for byte, sizes, lengths and shapes as promised, no two equal up to names; practice."""

import gzip
import hashlib
import json
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from tstar_envs import UnknownOption
from tstar_envs.envs.blocksworld.env import BlocksworldEnv
from tstar_envs.envs.blocksworld.generate import (
    LENGTHS,
    SEED,
    build_all,
    canonical_form,
    fresh_problems,
    held_out_forms,
    practice_set,
    quotas,
    write,
)
from tstar_envs.envs.blocksworld.language import COLOURS, read_problem, write_goal, write_towers
from tstar_envs.envs.blocksworld.problem import ON, ONTABLE, TABLE, Task, goal_towers, towers
from tstar_envs.envs.blocksworld.solver import optimal_plan
from tstar_envs.envs.blocksworld.tasks import DATA, VARIANTS, load_shipped

SIZES = {
    "train": 2000,
    "valid": 200,
    "test": 400,
}  # written out: 4,000 train and 800 test in all, whatever the generator says
Tasks = dict[tuple[str, str], list[Task]]


@pytest.fixture(scope="module")
def shipped() -> Tasks:
    return {
        (v, s): [t for t in load_shipped(v).tasks.values() if t.split == s] for v in VARIANTS for s in SIZES
    }


def lengths(tasks: list[Task]) -> Counter[tuple[int, int | None]]:
    return Counter((len(task.problem.names), task.optimal_length) for task in tasks)


@pytest.mark.slow
def test_rebuilding_gives_the_shipped_bytes(tmp_path: Path) -> None:
    files = build_all()
    write(tmp_path, files, SEED)
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in DATA.iterdir()}
    assert (tmp_path / "MANIFEST.json").read_bytes() == (DATA / "MANIFEST.json").read_bytes()
    manifest = json.loads((DATA / "MANIFEST.json").read_text(encoding="utf-8"))
    for name, data in files.items():
        # Unpacked: how well zlib packs is its own business.
        assert gzip.decompress((DATA / f"{name}.gz").read_bytes()) == data
        assert hashlib.sha256(data).hexdigest() == manifest["sha256_uncompressed"][name]
    assert build_all(seed=1) != files


def test_sizes(shipped: Tasks) -> None:
    assert {key: len(tasks) for key, tasks in shipped.items()} == {
        (v, s): SIZES[s] for v in VARIANTS for s in SIZES
    }
    for (variant, split), tasks in shipped.items():
        assert [task.id for task in tasks] == [
            f"blocksworld-{variant}-mini-{split}-{n:04d}" for n in range(SIZES[split])
        ]


def test_stored_lengths_are_optimal(shipped: Tasks) -> None:
    for tasks in shipped.values():
        for task in tasks:
            assert len(optimal_plan(task.problem.start, task.problem.goal)) == task.optimal_length


def test_both_variants_have_the_same_lengths_with_mean_14_2(shipped: Tasks) -> None:
    for split in SIZES:
        stack, unstack = (lengths(shipped[variant, split]) for variant in VARIANTS)
        assert stack == unstack
        assert {length for _, length in stack} == {10, 12, 14, 16, 18, 20}
        mean = sum((length or 0) * count for (_, length), count in stack.items()) / SIZES[split]
        assert mean == pytest.approx(14.2, abs=0.1), split
        sizes = Counter(blocks for blocks, _ in stack.elements())
        assert set(sizes) == {6, 7, 8} and max(sizes.values()) - min(sizes.values()) <= 3


def test_no_two_tasks_are_equal_up_to_names(shipped: Tasks) -> None:
    forms = [canonical_form(task.problem) for tasks in shipped.values() for task in tasks]
    assert len(set(forms)) == len(forms) == 5200


def test_shapes(shipped: Tasks) -> None:
    for (variant, _), tasks in shipped.items():
        for task in tasks:
            problem = task.problem
            assert len(set(problem.names)) == len(problem.names) and set(problem.names) <= set(COLOURS)
            heights = [len(tower) for tower in towers(problem.start)]
            goal = goal_towers(problem.goal)
            assert sum(heights) == len(problem.names) and len(problem.goal.facts) == len(problem.goal.places)
            if variant == "stack":
                assert max(heights) <= 3
                assert 1 <= len(goal) <= 2 and sum(map(len, goal)) == len(problem.names)
                assert all(fact.predicate == ON for fact in problem.goal.facts)
            else:
                assert 1 <= len(heights) <= 2 and min(heights) >= 2
                assert (
                    all(chain[0] == TABLE and len(chain) <= 3 for chain in goal) and max(map(len, goal)) == 3
                )
                assert 0 <= len(problem.names) - sum(len(chain) - 1 for chain in goal) <= 1
                assert {fact.predicate for fact in problem.goal.facts} == {ON, ONTABLE}


def test_names_tell_nothing(shipped: Tasks) -> None:
    """Every colour stands everywhere: at the bottom of the first tower about equally often."""
    first = Counter(task.problem.names[0] for tasks in shipped.values() for task in tasks)
    assert len(first) == len(COLOURS) and max(first.values()) < 1.25 * 5200 / len(COLOURS)


def test_notation_round_trip(shipped: Tasks) -> None:
    for tasks in shipped.values():
        for task in tasks[:100]:
            problem = task.problem
            assert (
                read_problem(
                    write_towers(towers(problem.start), problem.names),
                    write_goal(problem.goal, problem.names),
                )
                == problem
            )


def test_fresh_problems_are_drawn_alike_and_without_end() -> None:
    for variant in VARIANTS:
        drawn = list(islice(fresh_problems(5, variant), 300))
        assert drawn == list(islice(fresh_problems(5, variant), 300))
        assert drawn[:20] != list(islice(fresh_problems(6, variant), 20))
        cells = Counter((len(p.names), len(optimal_plan(p.start, p.goal))) for p in drawn)
        assert set(cells) <= {(blocks, length) for blocks, shares in LENGTHS.items() for length in shares}
        assert sum(length * count for (_, length), count in cells.items()) / 300 == pytest.approx(
            14.2, abs=0.6
        )
        avoided = frozenset(map(canonical_form, drawn))
        assert not avoided & set(map(canonical_form, islice(fresh_problems(5, variant, avoided), 100)))


def test_practice_avoids_held_out_tasks_under_any_names(shipped: Tasks) -> None:
    held_out = held_out_forms()
    assert len(held_out) == 1200
    for seed in range(3):
        tasks = practice_set(seed).tasks.values()
        assert len(tasks) == 160 and {task.split for task in tasks} == {"train"}
        assert not held_out & {canonical_form(task.problem) for task in tasks}
    both, stack = (
        BlocksworldEnv.practice(seed="x"),
        BlocksworldEnv.practice(seed="x", variant="stack", observation="compact"),
    )
    assert (
        len(both.task_ids()) == len(stack.task_ids()) == 160
        and both.split == "train"
        and both.tier == "practice"
    )
    goals = [stack.reset(options={"task": number})[1]["instruction"] for number in range(160)]
    assert not any("table" in goal for goal in goals)
    mixed = BlocksworldEnv.practice(seed="x", observation="compact")
    assert (
        sum("table" in mixed.reset(options={"task": number})[1]["instruction"] for number in range(160)) == 80
    )


def test_practice_of_one_variant_or_several() -> None:
    goals = {
        v: [write_goal(t.problem.goal, t.problem.names) for t in practice_set(7, v, 6).tasks.values()]
        for v in VARIANTS
    }
    assert all("table" in goal for goal in goals["unstack"]) and not any(
        "table" in goal for goal in goals["stack"]
    )
    assert practice_set(7, ["stack"], 6).tasks == practice_set(7, "stack", 6).tasks
    for wrong, said in (
        ("foo", "'stack', 'unstack', got 'foo'"),
        (["stack", "x"], "got 'x'"),
        ([], "no variant to practise"),
    ):
        with pytest.raises(UnknownOption, match=said):
            practice_set(7, wrong)


def test_quotas_fill_up() -> None:
    for size in (1, 7, 200, 400, 2000):
        assert sum(quotas(size).values()) == size
    assert quotas(3) == {**dict.fromkeys(quotas(3), 0), (6, 10): 1, (7, 14): 1, (8, 16): 1}
