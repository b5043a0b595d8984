"""The plan and the tables of ``scripts/studies/compare_algorithms.py``."""

import tomllib
from pathlib import Path

import numpy as np
import pytest
from episodes import episode_of

from scripts.studies import compare_algorithms as script
from scripts.studies import compared_curves as curves
from scripts.studies import compared_tables as tables
from scripts.studies.best_episode import BestEpisode
from tstar_envs import UnknownOption
from tstar_train.config import Config
from tstar_train.distributed import SingleProcess
from tstar_train.types import Group

ROOT = Path(__file__).resolve().parents[3]
PLAN = tomllib.loads((ROOT / "docs/results/algorithms.toml").read_text())


@pytest.mark.slow
def test_every_run_of_the_plan_is_a_run_that_can_be_made(tmp_path):
    runs = list(script.planned(PLAN, [group["name"] for group in PLAN["groups"]]))
    assert len({run.name for run in runs}) == len(runs)
    by_name = {run.name: script.config_of(run, tmp_path) for run in runs if not run.start}
    for run in runs:
        if (config := by_name.get(run.name)) is not None:
            assert (config.seed, config.evaluation.split, config.processes) == (run.seed, run.split, 1)
    assert by_name["hotpotqa-tstar-no-surgical-loss-0"].graft.surgical is False
    assert by_name["sokoban-tstar-state-2"].tree.gamma == 0.95 and not by_name["sokoban-grpo-2"].tstar
    assert by_name["sokoban-dapo-1"].episodes == 60 * 16 * 8
    assert "sokoban-dapo-paper-1" not in by_name  # one seed only


def test_what_counts_is_named_in_the_plan_and_is_on_test_tasks():
    groups = {group["name"]: group for group in PLAN["groups"]}
    for claim in PLAN["claims"]:
        group = groups[claim["group"]]
        assert group["split"] == "test" and {claim["first"], claim["second"]} <= group["methods"].keys()
    assert all(
        group["split"] == "valid" for name, group in groups.items() if "choices" in name or name == "gap"
    )


def test_an_unknown_group_is_refused_with_the_known_ones():
    with pytest.raises(UnknownOption, match="choices-blocksworld"):
        list(script.planned(PLAN, ["nothing"]))


def line(method, seed, sampled, greedy, group="g"):
    outcomes = {"sampled": sampled, "greedy": greedy}
    start = {"sampled": [0.0] * len(sampled), "greedy": [0.0] * len(greedy)}
    return {
        "group": group,
        "method": method,
        "seed": seed,
        "env": "e",
        "split": "test",
        "samples": 2,
        "episodes": 10,
        "cpu_seconds": 60,
        "seconds": dict.fromkeys(("rollout", "tree", "valuation", "grafting", "update"), 1.0),
        "statistics": {},
        "before": start,
        "after": outcomes,
    }


def test_tables_pair_by_task_and_by_seed():
    record = [
        line("grpo", 0, [2.0, 0.0], [1.0, 0.0]),
        line("grpo", 1, [0.0, 0.0], [0.0, 0.0]),
        line("other", 0, [2.0, 2.0], [1.0, 1.0]),
        line("other", 1, [1.0, 1.0], [1.0, 0.0]),
        line("other", 2, [0.0, 0.0], [0.0, 0.0]),  # a seed that the base has not: not in the difference
    ]
    methods = tables.methods_of(record, "g")
    assert np.allclose(tables.paired(methods["other"], methods["grpo"], "sampled"), [0.25, 0.75])
    text = tables.group_table(
        record, {"name": "g", "env": "e", "split": "test", "methods": {"grpo": "", "other": ""}}
    )
    assert (
        "| grpo | 2 | 10 | 0.250 | +0.250 (+0.000 to +0.500) |" in text
        and "| other | 3 | 10 | 0.500 | +0.500" in text
        and "| +0.500 (+0.250 to +0.750) | +0.500 +0.500 |" in text
        and "differences from grpo of 0.700 to 0.700" in text  # 2.80 standard errors of .25
    )
    wider = [
        *record,
        *(line("third", seed, [2.0, 0.0], [1.0, 1.0]) for seed in range(2)),
        line("one", 1, [2.0, 0.0], [1.0, 1.0]),
    ]
    group = {"name": "g", "env": "e", "split": "test", "methods": {"grpo": ""}}
    # The third's differences are .5 and 0; "one" has not all of the base's seeds.
    assert "differences from grpo of 0.700 to 0.700" in tables.group_table(wider, group)
    wider += [line("fourth", seed, [2.0, 2.0], [1.0, 1.0]) for seed in range(2)]
    assert "differences from grpo of 0.700 to 0.700" in tables.group_table(wider, group)
    wider += [line("fifth", seed, [0.0, 2.0], [1.0, 1.0]) for seed in range(2)]  # -.5 and 1: 2.80 times .75
    assert "differences from grpo of 0.700 to 2.101" in tables.group_table(wider, group)
    single = [line("grpo", 0, [2.0], [1.0]), line("other", 0, [2.0], [1.0])]
    assert "told apart" not in tables.group_table(single, group)
    claims = tables.claims_table(record, [{"group": "g", "first": "other", "second": "grpo"}])
    assert "g: other - grpo | 2 | +0.500" in claims
    assert "g: grpo - other: T=1 -0.500 (" in tables.comparison(record, "g", "grpo", "other")
    with pytest.raises(UnknownOption, match="it has: grpo, other"):
        tables.comparison(record, "g", "grpo", "another")


def test_methods_without_a_common_seed_are_not_compared():
    record = [line("grpo", 0, [2.0, 0.0], [1.0, 0.0]), line("tstar-grpo", 1, [2.0, 0.0], [1.0, 0.0])]
    group = {"name": "g", "env": "e", "split": "test", "methods": {"grpo": ""}}
    assert (
        tables.group_table(record, group)
        .splitlines()[-1]
        .endswith("|  |  | 0.500 | +0.500 (+0.000 to +1.000) |  | 1.0 |")
    )
    claims = tables.claims_table(record, [{"group": "g", "first": "tstar-grpo", "second": "grpo"}])
    assert len(claims.splitlines()) == 2
    with pytest.raises(UnknownOption, match="no seed of both 'tstar-grpo' and 'grpo'"):
        tables.comparison(record, "g", "tstar-grpo", "grpo")


def test_tstar_on_an_algorithm_is_compared_with_that_algorithm_too():
    one, other, both = [0.0, 2.0], [2.0, 2.0], [1.0, 1.0]
    record = [line("grpo", 0, one, one), line("dapo", 0, other, other), line("tstar-dapo", 0, both, both)]
    grpo, dapo, tstar = tables.group_table(
        record, {"name": "g", "env": "e", "split": "test", "methods": {"grpo": ""}}
    ).splitlines()[-3:]
    assert dapo.endswith("| 1.0 | |") and grpo.endswith("| 1.0 | |")
    assert "| +0.000 (" in tstar and "| 1.0 | -0.500 (" in tstar
    alone = tables.group_table(
        record[:2], {"name": "g", "env": "e", "split": "test", "methods": {"grpo": ""}}
    )
    assert "algorithm alone" not in alone


def test_claims_are_corrected_for_all_that_the_plan_names_run_or_not():
    tasks = 12  # one sign for all of them: p = 2 / 2**12
    record = [line("grpo", 0, [0.0] * tasks, [0.0] * tasks), line("other", 0, [2.0] * tasks, [1.0] * tasks)]
    claims = [{"group": name, "first": "other", "second": "grpo"} for name in ("g", "not yet", "nor this")]
    alone, corrected = (tables.claims_table(record, claims[:many]).splitlines()[-1] for many in (1, 3))
    assert alone.endswith("| 0.0005 | 0.0005 |") and corrected.endswith("| 0.0005 | 0.0015 |")


def test_the_share_of_turns_to_reach_the_end_of_another():
    """A method that climbs twice as fast needs about half of the turns; one that never gets there has no number."""
    rng = np.random.default_rng(0)
    turns = np.arange(1, 61) * 100.0

    def curve(slope, noise=0.02):
        success = np.minimum(0.9, 0.3 + slope * turns / turns[-1]) + noise * rng.normal(size=len(turns))
        return list(zip(turns.tolist(), success.tolist(), strict=True))

    base, fast = [curve(0.3) for _ in range(3)], [curve(0.6) for _ in range(3)]
    share, low, high = curves.turns_ratio(fast, base, turns[-1])
    assert 0.4 < low <= share <= high < 0.6
    assert curves.turns_ratio([curve(0.1)], base, turns[-1])[0] == np.inf
    same, low, high = curves.turns_ratio(base, base, turns[-1])
    assert same == 1.0 and low < 1.0 <= high


def test_curves_are_drawn_and_told(tmp_path):
    record = []
    for method, slope in (("grpo", 0.2), ("other", 0.4)):
        for seed in range(2):
            of_run = line(method, seed, [1.0, 1.0], [1.0, 1.0])
            steps = [(100 * n, 0.3 + slope * n / 10) for n in range(1, 11)]
            record.append({**of_run, "turns": 1000, "tokens": 5000, "curve": steps})
    group = {"name": "g", "env": "e", "split": "test", "methods": {"grpo": "", "other": ""}}
    assert "| other | 0." in tables.ratios_table(
        record, group
    ) and "| g | seeds | turns |" in tables.group_table(record, group)
    assert tables.ratios_table([line("grpo", 0, [1.0], [1.0])], group) == ""
    pytest.importorskip("matplotlib")
    for path in (tmp_path / "one.svg", tmp_path / "two.svg"):
        tables.draw_curves(record, [group], path)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    assert (tmp_path / "one.svg").read_text().count(
        'id="FillBetweenPolyCollection'
    ) == 2  # a band each: two seeds


def test_curves_of_a_plan_have_a_panel_an_algorithm(tmp_path):
    steps = [(100 * n, 0.3 + n / 100) for n in range(1, 11)]
    runs = [(method, seed) for method in ("grpo", "tstar-grpo", "dapo", "own") for seed in range(2)]
    record = [{**line(*run, [1.0], [1.0]), "turns": 1000, "curve": steps} for run in runs[:-1]]
    groups = [{"name": "g"}, {"name": "none"}]
    with pytest.raises(UnknownOption, match="make their runs first"):
        tables.draw_plan_curves(record, groups[1:], tmp_path / "none.svg")
    pytest.importorskip("matplotlib")
    tables.draw_plan_curves(record, groups, tmp_path / "one.svg")
    page = (tmp_path / "one.svg").read_text()
    assert page.count("<!-- g, ") == 2 and page.count('id="FillBetweenPolyCollection') == 3
    assert page.count("<!-- alone -->") == 2 and page.count("<!-- T-STAR -->") == 1 and "own" not in page


def test_dynamics_are_of_runs_with_grafts_and_are_drawn(tmp_path):
    steps = [{"turns_sampled": 100, "tokens_sampled": 5, "success": 0.1 * n} for n in range(1, 6)]
    assert "dynamics" not in script._turns_of(steps)
    grafted = [{**step, "grafting_coverage": 0.5, "anchor_reuse": 0.1 * n} for n, step in enumerate(steps)]
    spread = [{**step, "tree_mean_spread": 0.3 if n % 2 else None} for n, step in enumerate(grafted)]
    found = script._turns_of(spread)
    assert found["dynamics"]["anchor_reuse"][2] == (300, 0.2)
    assert found["dynamics"]["tree_mean_spread"] == [(200, 0.3), (400, 0.3)]
    record = [{**line("tstar-grpo", seed, [1.0], [1.0]), **found} for seed in range(2)]
    with pytest.raises(UnknownOption, match="no recorded run of tstar-paper has figures"):
        tables.draw_dynamics_of(record, ["tstar-paper"], tmp_path / "none.svg")
    pytest.importorskip("matplotlib")
    tables.draw_dynamics_of(record, ["other", "tstar-grpo"], tmp_path / "one.svg")
    page = (tmp_path / "one.svg").read_text()
    assert page.count('id="axes_') == 4 and "PolyCollection" in page  # a panel each, with bands
    # Quarters of 5 iterations are 2; the spread has 2 figures, so 1. The second seed is the first, higher by .2 in success.
    record[1] = {**record[1], "curve": [(turns, value + 0.2) for turns, value in record[1]["curve"]]}
    last = tables.dynamics_table(record, ["tstar-grpo"]).splitlines()[-1]
    assert last == "| g | 2 | 0.250, 0.550 | 0.500, 0.500 | 0.050, 0.350 | 0.300, 0.300 |"


RECORD = script.read(ROOT / "docs/results/algorithms.jsonl")
KNOWN = {group["name"]: group for group in PLAN["groups"]}


def test_the_record_is_of_groups_of_the_plan():
    assert RECORD and all(entry["group"] in KNOWN for entry in RECORD)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if n else [])
        for n, name in enumerate(sorted({entry["group"] for entry in RECORD}))
    ],
)
def test_the_record_that_is_there_gives_tables(name):
    assert "| 0." in tables.group_table(RECORD, KNOWN[name])


def test_runs_of_the_record_are_named_and_not_made_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        "sys.argv", ["compare_algorithms.py", "--groups", "hotpotqa", "--runs", str(tmp_path / "runs")]
    )
    script.main()
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("21 runs of 21 not made: in the record") and "--record FILE" in said
    assert not (tmp_path / "runs").exists()


def test_the_best_episode_is_the_shortest_of_the_best():
    members = [episode_of("aa", 0.0), episode_of("abc", 1.0), episode_of("ab", 1.0), episode_of("ba", 1.0)]
    group = Group(members, [np.zeros(len(t.turns)) for t in members])
    BestEpisode(Config(env="sokoban-easy")).batch_advantages([group], SingleProcess())
    assert [row.tolist() for row in group.advantages] == [[0, 0], [0, 0, 0], [0.25, 0.25], [0, 0]]
