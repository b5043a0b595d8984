"""Intervals against published values, and what a summary counts."""

import random

import numpy as np
import pytest

from tstar_envs import Episode, Step
from tstar_envs.evaluation.stats import Figures, cluster_bootstrap, figures_of, summarise, wilson


def episode(
    task: str, success: bool, ended: str = "terminated", valid: int = 1, invalid: int = 0, sample: int = 0
) -> Episode:
    steps = [Step("", "", "", "", number < valid, "", False, "", "") for number in range(valid + invalid)]
    made = Episode(
        "e",
        "mini",
        task,
        "test",
        "1",
        "a",
        "",
        "",
        float(success),
        success,
        ended,
        sample=sample,
        steps=steps,
    )
    if ended == "terminated":
        made.extra = {"f1": 0.5, "kind": "x", "flag": True}
    return made


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    # Newcombe, Statistics in Medicine 17 (1998), table I, method 3
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_as_published(successes: int, trials: int, low: float, high: float) -> None:
    assert wilson(successes, trials) == pytest.approx((low, high), abs=5e-5)
    assert wilson(trials - successes, trials) == pytest.approx((1 - high, 1 - low), abs=5e-5)


def test_wilson_at_the_ends() -> None:
    assert wilson(0, 7)[0] == 0.0 and wilson(7, 7)[1] == 1.0 and wilson(1, 1)[0] > 0
    for successes, trials in ((1, 0), (3, 2), (-1, 2)):
        with pytest.raises(ValueError, match="successes"):
            wilson(successes, trials)


def test_bootstrap_follows_the_clusters() -> None:
    draw = random.Random(0)
    alike = [[float(draw.random() < 0.5)] * 10 for _ in range(200)]
    single = [[cluster[0]] for cluster in alike]
    low, high = cluster_bootstrap(alike)
    assert (low, high) == pytest.approx(cluster_bootstrap(single), abs=1e-12), (
        "ten equal samples add no information"
    )
    assert high - low == pytest.approx(2 * 1.96 * (0.25 / 200) ** 0.5, rel=0.15)
    assert cluster_bootstrap(alike) == (low, high)
    assert low < sum(map(sum, alike)) / 2000 < high


@pytest.mark.parametrize("clusters", [1, 3, 500, 70_000])
def test_draws_in_blocks_are_those_one_at_a_time(clusters: int) -> None:
    draw = random.Random(clusters)
    values = [[draw.random() for _ in range(draw.randint(1, 3))] for _ in range(clusters)]
    sums, sizes = np.array([sum(v) for v in values]), np.array([float(len(v)) for v in values])
    generator = np.random.Generator(np.random.Philox(key=12345))
    means = []
    for _ in range(300 if clusters < 1000 else 3):
        chosen = generator.integers(0, clusters, clusters)
        means.append(sums[chosen].sum() / sizes[chosen].sum())
    assert cluster_bootstrap(values, draws=len(means)) == tuple(np.quantile(means, [0.025, 0.975]))


def test_the_bootstrap_covers_the_mean_as_often_as_it_says() -> None:
    generator = np.random.default_rng(0)
    intervals = [
        cluster_bootstrap([[v] for v in generator.normal(0.3, 1.0, 80).tolist()], draws=1000)
        for _ in range(60)
    ]
    assert 50 <= sum(low <= 0.3 <= high for low, high in intervals) <= 60
    assert cluster_bootstrap([]) == (0.0, 0.0)


def test_errors_enter_no_rate() -> None:
    good = [
        episode("a", True),
        episode("b", False, valid=2, invalid=1),
        episode("c", False, "truncated", valid=0, invalid=4),
    ]
    summary = summarise([*good, episode("d", False, "error"), episode("e", False, "error")])
    assert (summary.episodes, summary.errors, summary.tasks) == (3, 2, 3)
    assert summary.success == summary.score == pytest.approx(1 / 3) and summary.wilson == wilson(1, 3)
    assert summary.steps == pytest.approx(8 / 3) and summary.invalid == pytest.approx(5 / 8)
    assert summary.truncated == pytest.approx(1 / 3)
    assert summary.extra == {"f1": pytest.approx(1 / 3)}, (
        "an episode that never answered has f1 0; text and flags have no mean"
    )
    assert summary.clustered is None


def test_several_samples_give_a_clustered_interval() -> None:
    mixed = [episode(str(t), t % 2 == 0, sample=s) for t in range(20) for s in range(5)]
    summary = summarise(mixed)
    assert summary.wilson is not None and summary.clustered is not None
    assert summary.clustered[1] - summary.clustered[0] > 1.5 * (summary.wilson[1] - summary.wilson[0])
    assert summarise([e for e in mixed if e.success]).clustered == wilson(10, 10)


def test_nothing_but_errors() -> None:
    summary = summarise([episode("a", False, "error")])
    assert (summary.episodes, summary.errors, summary.success, summary.wilson) == (0, 1, None, None)


def test_figures_give_what_the_episodes_give() -> None:
    episodes = [episode(f"t{n % 4}", bool(n % 3), valid=n, invalid=n % 5) for n in range(12)]
    episodes.append(episode("t9", False, "error"))
    taken = [Figures.of(one) for one in episodes]
    assert summarise(taken) == summarise(episodes) == summarise(figures_of(taken))
    summary = summarise(taken)
    assert (summary.steps, summary.extra) == ((66 + 21) / 12, {"f1": 0.5}) and summary.errors == 1
    assert summary.invalid == 21 / 87
