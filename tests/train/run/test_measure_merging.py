"""scripts/studies/measure_merging.py: parts of groups nest, and its counts are those of a search by hand."""

from __future__ import annotations

import sys
from itertools import combinations, pairwise

import pytest

from scripts.studies import measure_merging as script
from scripts.studies.played_groups import play
from tstar_envs import UnknownOption
from tstar_train.tree.merging import history_keys
from tstar_train.types import KLWork

SIZES = (4, 8, 16)


@pytest.fixture(scope="module")
def study():
    return play("hotpotqa", 2, size=SIZES[-1], everywhere=True)


@pytest.fixture(scope="module")
def sokoban():
    return play("sokoban-easy", 1, size=4, everywhere=True)


def test_parts_of_a_group_are_its_episodes_in_order_without_the_rest():
    group = list(range(11))
    assert script.parts(group, 4, 9) == [[0, 1, 2, 3], [4, 5, 6, 7]] and script.parts(group, 4, 1) == [
        [0, 1, 2, 3]
    ]
    assert script.parts(group, 12, 9) == []


def test_smaller_groups_nest_in_larger_ones(study):
    """Steps before merging add up over the parts, so they grow with M; so do the states that are met, with fewer new ones each time."""
    for group in study.groups:
        sums = []
        for size in SIZES:
            parts = script.parts(group.trajectories, size, 99)
            assert [t for part in parts for t in part] == group.trajectories
            trees = [script.measure(study, part, "state") for part in parts]
            sums.append((sum(t.before for t in trees), sum(t.after for t in trees)))
        assert len({before for before, _ in sums}) == 1
        assert all(more >= fewer for (_, more), (_, fewer) in pairwise(sums))
        first = [script.measure(study, group.trajectories[:size], "state") for size in SIZES]
        assert all(a.before < b.before and a.after <= b.after for a, b in pairwise(first))


def nodes_by_depth(group, kl, eps, history):
    """Components of the graph of equal turns, by a search over all pairs."""
    keys, total = history_keys(group, history), 0
    for t in range(max(len(trajectory.steps) for trajectory in group)):
        there = [i for i, trajectory in enumerate(group) if len(trajectory.steps) > t]
        ends = {i: len(group[i].steps) == t + 1 for i in there}
        joined = {
            (i, j)
            for i, j in combinations(there, 2)
            if keys[i][t] == keys[j][t]
            and ends[i] == ends[j]
            and (ends[i] or max(kl(t, i, j), kl(t, j, i)) < eps)
        }
        left = set(there)
        while left:
            total += 1
            reached, todo = set(), [left.pop()]
            while todo:
                i = todo.pop()
                reached.add(i)
                todo += [j for j in left - reached if (min(i, j), max(i, j)) in joined]
            left -= reached
    return total


@pytest.mark.parametrize("number", [0, 1])
def test_nodes_after_merging_are_those_of_a_search_over_all_pairs(number, study):
    group, options = study.groups[number].trajectories[:8], study.config.tree
    kl = study.tstar("depth").estimator(group, 0, KLWork())
    measured = script.measure(study, group, "depth")
    assert measured.before == sum(len(t.steps) for t in group)
    assert measured.after == nodes_by_depth(group, kl, options.eps_kl, options.history)
    assert measured.after < measured.before and measured.size == 8


@pytest.mark.parametrize("name", ["study", "sokoban"])
def test_nodes_by_state_are_the_states_that_were_left_and_an_end_for_each_episode(name, request):
    study = request.getfixturevalue(name)
    group = study.groups[0].trajectories[:8]
    left = {key for t in group for key in t.states_before} - {group[0].start_key}
    measured = script.measure(study, group, "state")
    assert measured.after == len(left) + len(group)
    assert measured.depth == max(len(t.steps) for t in group)
    assert measured.mixed == (len({t.reward for t in group}) > 1) and measured.seconds > 0


def test_both_tables_are_printed(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["x", "--env", "hotpotqa", "--tasks", "2", "--sizes", "4", "8"])
    script.main()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("| hotpotqa")
    ]
    *merging, statistics = rows
    assert [row[1:3] for row in merging] == [["4", "4"], ["8", "2"]]  # as many groups as fit
    assert [len(row) for row in rows] == [9, 9, 8] and statistics[-1] == "6.4, 28.3, 0.45, 3.6"
    smaller, larger = (float(row[4]) * int(row[2]) for row in merging)
    assert smaller == pytest.approx(larger, rel=0.1)  # the same steps in all; each mean is rounded
    for row in merging:
        assert all(0 < float(after) < float(row[4]) for after in row[5].split(" / "))


@pytest.mark.parametrize("sizes", [(8, 12), (16, 8), (8, 8), (1, 2), ()])
def test_sizes_that_do_not_nest_are_refused(sizes):
    with pytest.raises(UnknownOption, match="each a divisor of the next"):
        script.check_sizes(sizes)
