"""Paired statistics against brute force, published examples, scipy and simulation."""

import itertools

import numpy as np
import pytest

from tstar_envs.evaluation.stats import (
    EXACT,
    Z95,
    cluster_bootstrap,
    compare,
    holm,
    interval,
    minimal_detectable_effect,
    paired_differences,
    sign_flip_p,
    tasks_to_decide,
)


def by_enumeration(differences: list[float]) -> float:
    observed = abs(sum(differences)) - 1e-9
    flips = list(itertools.product((-1, 1), repeat=len(differences)))
    return sum(
        abs(sum(s * d for s, d in zip(signs, differences, strict=True))) >= observed for signs in flips
    ) / len(flips)


def test_few_differences_are_flipped_in_every_way() -> None:
    generator = np.random.default_rng(0)
    for size in range(1, 11):
        for values in (
            generator.normal(0.3, 1, size),
            generator.integers(-1, 2, size),
            generator.integers(-2, 3, size) / 5,
        ):
            assert sign_flip_p(values.tolist()) == pytest.approx(by_enumeration(values.tolist()), abs=1e-12)
    assert sign_flip_p([0.0] * 30) == sign_flip_p([]) == 1.0
    assert sign_flip_p([1.0] * 5 + [0.0] * 40) == 2 / 32, (
        "tasks without a difference change nothing, and no draw is needed"
    )
    assert sign_flip_p([0.1, 0.2, -0.3]) == 1.0, "a sum that is 0 but for rounding is reached by every flip"


def test_sign_flips_agree_with_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    generator = np.random.default_rng(1)
    for size in (6, 9, 12):
        values = generator.normal(0.5, 1, size)
        wanted = stats.permutation_test(
            (values,), np.mean, permutation_type="samples", n_resamples=np.inf
        ).pvalue
        assert sign_flip_p(values.tolist()) == pytest.approx(wanted, abs=1e-12)
    wins, losses = 13, 4  # with differences of 1 and -1 it is the sign test
    wanted = stats.binomtest(losses, wins + losses).pvalue
    assert sign_flip_p([1.0] * wins + [-1.0] * losses) == pytest.approx(wanted, abs=0.01)


def test_many_differences_are_flipped_by_seeded_draws() -> None:
    values = np.random.default_rng(2).normal(0.35, 1, EXACT + 2)
    signs = 2 * ((np.arange(2 ** len(values))[:, None] >> np.arange(len(values))) & 1) - 1
    exact = np.mean(np.abs(signs @ values) >= abs(values.sum()) - 1e-9)
    drawn = sign_flip_p(values.tolist())
    assert 0.02 < exact < 0.5 and abs(drawn - exact) < 4 * (exact * (1 - exact) / 10_000) ** 0.5
    assert drawn == sign_flip_p(values.tolist()) != exact and drawn != sign_flip_p(values.tolist(), seed=1)
    assert sign_flip_p([1.0] * 40) == 1 / 10_001, "never 0"


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx(
        [0.03, 0.06, 0.06, 0.02]
    )  # 4 x .005, 3 x .01, 2 x .03, then the largest
    assert holm([0.6, 0.7]) == [1.0, 1.0] and holm([0.02]) == [0.02] and holm([]) == []


def test_holm_rejects_what_the_step_down_procedure_rejects() -> None:
    generator = np.random.default_rng(3)
    for _ in range(200):
        values = (generator.random(6) ** 3).tolist()
        rejected = set()
        for rank, index in enumerate(sorted(range(6), key=values.__getitem__)):
            if values[index] > 0.05 / (6 - rank):
                break
            rejected.add(index)
        assert {index for index, value in enumerate(holm(values)) if value <= 0.05} == rejected


def test_holm_agrees_with_statsmodels() -> None:
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    values = np.random.default_rng(4).random(9) ** 2
    assert holm(values.tolist()) == pytest.approx(multitest.multipletests(values, method="holm")[1])


def test_the_detectable_effect_is_found_in_four_of_five_simulated_comparisons() -> None:
    tasks, deviation = 100, 0.4
    effect = minimal_detectable_effect(deviation, tasks)
    assert effect == pytest.approx(2.8016 * 0.04, abs=1e-5)  # Bloom's multiplier
    values = np.random.default_rng(5).normal(effect, deviation, (5000, tasks))
    found = np.abs(values.mean(1)) > Z95 * values.std(1, ddof=1) / tasks**0.5
    assert found.mean() == pytest.approx(0.8, abs=0.02)
    assert (
        np.abs((values - effect).mean(1)) > Z95 * values.std(1, ddof=1) / tasks**0.5
    ).mean() == pytest.approx(0.05, abs=0.01)
    for wrong in ((0.4, 0), (-0.1, 5)):
        with pytest.raises(ValueError, match="tasks >= 1"):
            minimal_detectable_effect(*wrong)


def test_tasks_to_decide_is_the_first_number_that_would() -> None:
    for difference, deviation in ((0.1, 0.5), (-0.03, 0.4), (0.5, 0.5), (0.3, 0.1)):
        needed = tasks_to_decide(difference, deviation)
        first = next(n for n in range(6, 5000) if abs(difference) > Z95 * deviation / n**0.5)
        assert needed == first
    # by the very interval and test of compare, where all tasks differ alike
    for alike in (1.0, -1.0, 0.5, 0.2):
        first = next(
            n for n in range(1, 100) if (i := interval([alike] * n))[0] * i[1] > 0 and 2.0 ** (1 - n) < 0.05
        )
        assert tasks_to_decide(alike, 0.0) == first
    assert tasks_to_decide(0.0, 0.5) is None
    more = tasks_to_decide(0.1, 0.5, power=0.8)
    assert more is not None and minimal_detectable_effect(0.5, more) < 0.1 < minimal_detectable_effect(
        0.5, more - 1
    )


def test_the_interval_covers_and_p_is_not_too_small_in_simulated_evaluations() -> None:
    """40 tasks of unequal difficulty, 3 samples each; both agents are equally good on average, not on each task."""
    generator = np.random.default_rng(6)
    covered, found, runs = 0, 0, 200
    for _ in range(runs):
        difficulty, talent = generator.uniform(0.2, 0.8, 40), generator.uniform(-0.2, 0.2, 40)
        first = {str(t): generator.binomial(1, difficulty[t] + talent[t], 3).tolist() for t in range(40)}
        second = {str(t): generator.binomial(1, difficulty[t], 3).tolist() for t in range(40)}
        differences = paired_differences(first, second)
        low, high = interval(differences, draws=400)
        covered += low <= 0 <= high
        found += sign_flip_p(differences, draws=400) < 0.05
    assert 0.90 <= covered / runs <= 0.99
    assert 0.01 <= found / runs <= 0.09


def test_a_task_counts_once_however_often_it_was_played() -> None:
    generator = np.random.default_rng(7)
    first = {str(t): generator.integers(0, 2, 2).tolist() for t in range(30)}
    second = {str(t): generator.integers(0, 2, 3).tolist() for t in range(30)}
    (one,) = compare({"a": first, "b": second})
    (ten,) = compare({"a": {t: v * 10 for t, v in first.items()}, "b": second})
    assert ten == one and one.tasks == 30
    wanted = [np.mean(first[t]) - np.mean(second[t]) for t in sorted(first)]
    assert one.difference == pytest.approx(np.mean(wanted)) and one.deviation == pytest.approx(
        np.std(wanted, ddof=1)
    )
    assert (one.low, one.high) == pytest.approx(
        cluster_bootstrap([[d] for d in wanted])
    ) and one.p == pytest.approx(sign_flip_p(wanted))
    assert one.detectable == pytest.approx(minimal_detectable_effect(float(np.std(wanted, ddof=1)), 30))
    (back,) = compare({"b": second, "a": first})
    assert back.difference == pytest.approx(-one.difference) and back.p == one.p
    with pytest.raises(ValueError, match="same tasks"):
        compare({"a": first, "b": {"0": [1.0]}})
    with pytest.raises(ValueError, match="two agents"):
        compare({"a": first})


def agents(*rates: float, tasks: int) -> dict[str, dict[str, list[float]]]:
    return {
        f"a{place}": {f"{t:03}": [float(t < rate * tasks)] for t in range(tasks)}
        for place, rate in enumerate(rates)
    }


def test_few_tasks_that_all_differ_alike_are_no_certainty() -> None:
    decided = {n: compare(agents(1, 0, tasks=n))[0] for n in range(1, 12)}
    assert [n for n, c in decided.items() if c.decided] == [6, 7, 8, 9, 10, 11], (
        "2 / 2^5 is above .05, 2 / 2^6 below"
    )
    assert [decided[n].more for n in (1, 2, 5, 6)] == [None, 4, 1, None] and decided[1].deviation is None
    assert decided[10].high == 1.0 and decided[10].low == pytest.approx(1 - 2 * (1 - 10 / (10 + Z95**2)))
    (same,) = compare(agents(0.5, 0.5, tasks=10))
    assert same.low == pytest.approx(-same.high) == pytest.approx(10 / (10 + Z95**2) - 1) and not same.decided
    assert (same.p, same.more, same.detectable) == (1.0, None, None)


def test_several_agents_are_corrected_and_the_missing_tasks_are_counted() -> None:
    compared = compare(agents(0.75, 0.45, 0.35, tasks=20))
    assert [(c.first, c.second) for c in compared] == [("a0", "a1"), ("a0", "a2"), ("a1", "a2")]
    assert [c.p_holm for c in compared] == holm([c.p for c in compared])
    assert [c.p for c in compared] == [2 / 2**6, 2 / 2**8, 2 / 2**2]
    first, second, third = compared
    assert first.low > 0 and first.p < 0.05 < first.p_holm and not first.decided, (
        "decided alone, not among three"
    )
    assert second.decided and second.more is None
    alone = compare(agents(0.45, 0.35, tasks=20))[0]
    assert third.more and third.more_surely and alone.more and alone.more < third.more < third.more_surely
    assert alone.more == tasks_to_decide(alone.difference, alone.deviation or 0) - 20  # type: ignore[operator]
