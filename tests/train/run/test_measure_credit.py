"""scripts/studies/measure_credit.py: its true advantages, its figures, and credits from outside."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest

from scripts.studies import credit_figures as shown
from scripts.studies import measure_credit as script
from scripts.studies import solved_levels as solver
from tstar_envs import UnknownOption
from tstar_envs.envs.sokoban.level import Task as Level
from tstar_envs.envs.sokoban.level import is_solved, parse_level, transition
from tstar_envs.envs.sokoban.rules import ViewOptions, view_of

# The box can go right onto the target or be lost at the upper wall.
LEVEL = "######\n# @  #\n# $. #\n#    #\n######\n"
HORIZON = 5


def chances_of(state):
    """Some policy that depends on the state."""
    boxes, player = state
    weights = np.random.default_rng([boxes % 2**32, player]).random(4) + 0.1
    return weights / weights.sum()


def view(ends: bool):
    room, start = parse_level(LEVEL)
    task = Level(f"tiny/{ends}", "test", room, start)
    return view_of(task, ViewOptions("grid", False, False, False, False, ends, 1000, 10.0))


def enumerated(room, state, steps):
    """Probability of success within some steps: over all sequences of moves."""
    total = 0.0
    for moves in itertools.product(range(4), repeat=steps):
        probability, now = 1.0, state
        for move in moves:
            if is_solved(
                room, now
            ):  # over: what follows is any sequence, and all of them together have probability 1
                probability *= 0.25
                continue
            probability *= chances_of(now)[move]
            now, _ = transition(room, now, move)
        total += probability * is_solved(room, now)
    return total


def test_solved_values_are_those_of_all_sequences_of_moves():
    level = view(ends=False)
    solved = solver.solve_level(level, lambda states: np.stack([chances_of(s) for s in states]), HORIZON)
    room, start = parse_level(LEVEL)
    after, _ = transition(room, start, 2)
    for state, steps in ((start, HORIZON), (start, 3), (after, 4), (after, 0)):
        found = solved.values[steps, solved.rows[level.key(state)]]
        assert found == pytest.approx(enumerated(room, state, steps), abs=1e-12)
    assert 0.01 < solved.values[HORIZON, 0] < 0.9


def test_an_end_when_the_level_is_lost_changes_no_value():
    both = [
        solver.solve_level(view(ends), lambda s: np.stack([chances_of(one) for one in s]), 12)
        for ends in (True, False)
    ]
    states = [level.rows.keys() for level in both]
    assert len(states[0]) < len(states[1])  # what follows a lost push is left out
    start = [level.values[:, 0] for level in both]
    np.testing.assert_allclose(start[0], start[1], atol=1e-12)


def test_a_level_with_more_states_than_allowed_is_refused():
    with pytest.raises(UnknownOption, match=r"more than 10 states: measure it with --truth plays"):
        solver.solve_level(view(False), lambda s: np.full((len(s), 4), 0.25), 5, most=10)


@pytest.fixture(scope="module")
def measure():
    return script.make_measure(script.Options(truth="exact", tasks=1, groups=2, plays=96))


@pytest.fixture(scope="module")
def groups(measure):
    task = "sokoban-easy-mini-valid-0000"
    both = script.collect(
        measure.spec,
        measure.engine,
        measure.codec,
        [task, task],
        size=8,
        split="valid",
        seed="test",
        sampling=measure.sampling,
        repeats=[0, 1],
    )
    return [both[:8], both[8:]]


def test_playing_on_agrees_with_the_solved_values(measure, groups):
    points = {script.place(t, n): (t, n) for g in groups for t in g for n in range(len(t.turns))}
    exact = np.array([p for p, _ in script.worth_by_solving(measure, list(points.values()))])
    # Groups and solver ask the policy in the same contexts: nothing but the level's states was looked up.
    rows = solver.level_view(measure.spec.name, measure.spec.options, groups[0][0].episode.task)
    states = solver.solve_level(rows, lambda s: np.full((len(s), 4), 0.25), 1).rows
    assert len(measure.engine._known) == len(states)
    likely = [n for n, p in enumerate(exact) if 0.1 < p < 0.9]
    assert len(likely) >= 5
    chosen = [list(points.values())[n] for n in likely[:: max(1, len(likely) // 12)]]
    wanted = exact[likely[:: max(1, len(likely) // 12)]]
    played = script.worth_by_playing(measure, chosen, "test")
    scores = (np.array([p for p, _ in played]) - wanted) / np.sqrt(wanted * (1 - wanted) / 96)
    assert np.abs(scores).max() < 4 and 0.2 < np.mean(scores**2) < 3
    for (mean, square), p in zip(played, wanted, strict=True):
        assert square == pytest.approx(mean * (1 - mean) / 95) and 0.2 < square / (p * (1 - p) / 96) < 5


def test_bare_actions_follow_their_temperature(measure, groups):
    contexts = [groups[0][0].turns[0].context]
    policy, cold = (
        solver.ActionPolicy(measure.engine, measure.codec, solver.DIRECTIONS, t) for t in (1.0, 0.5)
    )
    one, half = policy.probabilities(contexts), cold.probabilities(contexts)
    assert half == pytest.approx(one**2 / (one**2).sum())
    seeds = [f"draw/{n}" for n in range(2000)]
    samples = cold.generate(contexts, seeds, max_tokens=48, temperature=0.5, copies=2000)
    replies = [measure.codec.decode(sample.ids) for sample in samples]
    shares = np.array([replies.count(f"Action: {action}") for action in solver.DIRECTIONS]) / 2000
    assert shares.sum() == 1 and np.abs(shares - half[0]).max() < 0.045
    with pytest.raises(ValueError, match=r"sampled at temperature 0.5 with room for \d+ tokens, got 1.0"):
        cold.generate(contexts, seeds[:1], max_tokens=48)


def test_true_advantages_are_what_a_step_gains_and_their_policy_mean_is_0(measure, groups):
    members = script.chosen_members(measure.options, groups, "task")
    truth, error = script.true_advantages(groups, members, lambda p: script.worth_by_solving(measure, p))
    assert not error.any() and len(truth) == sum(len(t.turns) for g in groups for t in g)
    by_member = dict(zip(members, truth, strict=True))
    for g, group in enumerate(groups):
        for i, t in enumerate(group):
            # Summed over an episode the gains are what it earned, less what was expected at the start.
            whole = sum(by_member[g, i, n] for n in range(len(t.turns)))
            [(start, _)] = script.worth_by_solving(measure, [(t, 0)])
            assert whole == pytest.approx(t.episode.reward - start)


def test_steps_can_be_drawn_and_equal_ones_are_drawn_together(measure, groups):
    options = script.replace(measure.options, steps=6)
    members = script.chosen_members(options, groups, "task")
    keys = {script.key_of(groups[g][i], n) for g, i, n in members}
    assert 1 <= len(keys) <= 6 <= len(members)
    everyone = script.chosen_members(measure.options, groups, "task")
    assert members == [m for m in everyone if script.key_of(groups[m[0]][m[1]], m[2]) in keys]
    assert members != script.chosen_members(script.replace(options, seed=1), groups, "task")


def test_built_in_credits_give_a_number_for_each_turn_and_none_to_equal_rewards(measure, groups):
    assert len(measure.credits) == 10
    group = max(groups, key=lambda g: len({t.reward for t in g}))
    alike = [t for t in group if t.reward == 0]
    for name, function in measure.credits.items():
        rows = script.credit_of(name, function, group)
        assert any(row.any() for row in rows) == (len({t.reward for t in group}) > 1), name
        assert not any(row.any() for row in script.credit_of(name, function, alike)), name


def synthetic(noise: float, seed: int = 0):
    """Steps of 60 tasks with 2 groups of 12 steps, equal steps in both."""
    rng = np.random.default_rng(seed)
    lines = []
    for task in range(60):
        truth = rng.normal(size=12) * 0.3
        measured = np.tile(truth + noise * rng.normal(size=12), 2)
        lines.append(
            {
                "task": str(task),
                "rewards": [[0.0, 1.0], [0.0, 1.0]],
                "group": [0] * 12 + [1] * 12,
                "key": [*range(12)] * 2,
                "truth": measured.tolist(),
                "error": [noise] * 24,
                "depth": [n * 3 // 12 for n in range(12)] * 2,
                "visits": [n % 3 for n in range(12)] * 2,
                "credit": {
                    "noisy": (np.tile(truth, 2) + 0.3 * rng.normal(size=24)).tolist(),
                    "truth itself": np.tile(truth, 2).tolist(),
                    "constant": [0.5] * 24,
                    "nothing": [0.0] * 24,
                },
            }
        )
    return shown.steps_of(lines)


def test_the_truth_itself_agrees_wholly_and_a_constant_has_no_correlation():
    found = shown.figures(synthetic(0.0), draws=200)
    for part in (found["differ"], found["all"], *found["slices"].values()):
        perfect = part["credit"]["truth itself"]
        assert [perfect[k]["value"] for k in ("pearson", "spearman", "sign")] == pytest.approx([1, 1, 1])
        assert perfect["pearson"]["low"] == pytest.approx(1)
        if part["steps"] > 1000:
            assert perfect["noise"]["value"] == pytest.approx(0, abs=1e-9)
        else:  # too few steps to say
            assert perfect["noise"]["value"] is None
        for name in ("constant", "nothing"):
            assert part["credit"][name]["pearson"] == {"value": None, "low": None, "high": None}
            assert part["credit"][name]["spearman"]["value"] is None
        assert part["credit"]["nothing"]["sign"]["value"] == 0.5
        assert part["reliability"]["value"] == 1
    text = shown.tables(found)
    assert "| constant | none | none |" in text and text.count("| truth itself |") == 4
    json.dumps(found, allow_nan=False)


def test_half_of_a_credit_is_noise_where_its_luck_is_as_large_as_the_truth():
    row = shown.figures(synthetic(0.0), draws=300)["differ"]["credit"]["noisy"]
    for name, wanted in (("noise", 0.5), ("pearson", math.sqrt(0.5)), ("pearson_without_noise", 1.0)):
        assert row[name]["value"] == pytest.approx(wanted, abs=0.07), name
        assert row[name]["low"] < row[name]["value"] < row[name]["high"], name


def test_noise_of_the_truth_is_taken_off():
    clean, noisy = (shown.figures(synthetic(e), draws=100)["differ"] for e in (0.0, 0.3))
    assert noisy["reliability"]["value"] == pytest.approx(0.5, abs=0.06)
    for name in ("noisy", "truth itself"):
        assert noisy["credit"][name]["pearson"]["value"] == pytest.approx(
            clean["credit"][name]["pearson"]["value"], abs=0.08
        )


def test_correlation_is_that_of_numpy_in_the_sample_and_in_a_draw():
    rng = np.random.default_rng(1)
    task, x, y = rng.integers(0, 7, 90), rng.normal(size=90), rng.normal(size=90)
    bootstrap = shown.Bootstrap(7, draws=3)
    found = shown.correlation(bootstrap, task, x, y, np.zeros(90))
    for value, weights in zip(found, bootstrap.weights, strict=True):
        again = np.repeat(np.arange(90), weights[task].astype(int))
        assert value == pytest.approx(np.corrcoef(x[again], y[again])[0, 1])


def test_ranks_share_ties():
    assert shown.ranks(np.array([3.0, 1.0, 1.0, 2.0])).tolist() == [4.0, 1.5, 1.5, 3.0]


def test_credit_is_scaled_to_the_size_of_the_truth_in_each_group():
    # Mean squares of the truth: 12.5 in the first group, less 3.5 of noise; 4 in the second.
    truth, group = np.array([3.0, 4.0, -2.0]), np.array([0, 0, 1])
    found = shown.matched(np.array([1.0, 1.0, 7.0]), truth, np.sqrt([3.5, 3.5, 0.0]), group)
    assert found == pytest.approx([3, 3, 2])
    assert shown.matched(np.zeros(3), truth, np.zeros(3), group).tolist() == [0, 0, 0]
    assert shown.matched(truth * [2, 2, 5], truth, np.zeros(3), group) == pytest.approx(truth)


MODULE = """
def halves(group):
    return [[0.5] * len(t.turns) for t in group]

def too_few(group):
    return halves(group)[1:]

def too_long(group):
    return [row + [0.0] for row in halves(group)]

def infinite(group):
    return [[float("inf")] * len(t.turns) for t in group]

def words(group):
    return ["much"] * len(group)
"""


@pytest.fixture
def foreign(tmp_path, monkeypatch):
    (tmp_path / "own_credits.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_a_credit_of_ones_own_stands_beside_the_others_and_a_run_goes_on(foreign, tmp_path, capsys):
    out = tmp_path / "credit.json"
    arguments = ["--truth", "exact", "--groups", "2", "--credit", "own_credits:halves", "--out", str(out)]
    arguments += ["--draws", "20"]
    script.main([*arguments, "--tasks", "1"])
    first = capsys.readouterr()
    assert "| own_credits:halves | none |" in first.out and "1 of 1 tasks" in first.err
    script.main([*arguments, "--tasks", "2"])
    again = capsys.readouterr()
    assert "2 of 2 tasks" in again.err and "1 of 2 tasks" not in again.err
    record = json.loads(out.read_text())
    assert record["options"]["credit"] == ["own_credits:halves"] and len(record["tasks"]) == 2
    assert list(record["figures"]["all"]["credit"])[-1] == "own_credits:halves"
    with pytest.raises(SystemExit, match="measured with another --groups: give another --out, or delete it"):
        script.main([*arguments, "--groups", "3"])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("too_few", r"a number per turn, here of shapes \(\d+,\), .*, got \(\d+,\)"),
        ("too_long", r"a number per turn, here of shapes \(\d+,\), .*, got \(\d+,\)"),
        ("infinite", "it must be finite, got"),
        ("words", "a number per turn, here of shapes .*, got .*much"),
    ],
)
def test_a_credit_of_another_form_is_refused_in_a_sentence(foreign, groups, name, said):
    function = script.import_named("--credit", f"own_credits:{name}")
    with pytest.raises(UnknownOption, match=f"--credit own_credits:{name}: .*{said}"):
        script.credit_of(f"own_credits:{name}", function, groups[0])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--truth", "exact", "--env", "blocksworld-stack"],
            "solves plain Sokoban levels, and not tstar/Blocksworld",
        ),
        (
            ["--truth", "exact", "--env", "hotpotqa"],
            "--truth exact needs a policy that sees the present state",
        ),
        (["--temperature", "0"], "--temperature must be above 0 and finite, got 0.0"),
        (["--plays", "1"], "--plays must be 2 or more, got 1"),
        (["--credit", "no_such_module:f"], "--credit no_such_module:f: No module named"),
    ],
)
def test_options_that_do_not_fit_are_refused_in_a_sentence(arguments, said):
    with pytest.raises(SystemExit, match=f"error: .*{said}"):
        script.main([*arguments, "--tasks", "1"])
