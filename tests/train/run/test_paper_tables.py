"""The paper's comparison: its plan, its layout and its tables (``scripts/reproduce.py tables``)."""

import dataclasses
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import tyro
from transformers import Qwen2Config

from scripts.studies import compare_algorithms, paper_tables
from tstar_envs import UnknownOption, find_entry
from tstar_train import make_config
from tstar_train.plan import Plan

ROOT = Path(__file__).resolve().parents[3]
PLAN = tomllib.loads((ROOT / "docs/results/evidence.toml").read_text())
PAPER = tomllib.loads((ROOT / "docs/results/paper.toml").read_text())


def line(group, method, seed, sampled, **further):
    outcomes = {"sampled": sampled, "greedy": sampled} | further
    before = outcomes | {"sampled": [0.0] * len(sampled)}
    return {"group": group, "method": method, "seed": seed, "samples": 2, "before": before, "after": outcomes}


def test_every_column_of_the_paper_is_a_group_and_every_row_a_method():
    groups = {group["name"] for group in [*PLAN["groups"], *PLAN["recorded"]]}
    shown = {column["group"] for table in PAPER["tables"] for column in table["columns"]}
    known = {name for group in PLAN["groups"] if group["name"] in shown for name in group["methods"]}
    assert set(PAPER["methods"]) == known
    for table in PAPER["tables"]:
        assert {column["group"] for column in table["columns"]} <= groups
        for rows in table["paper"].values():
            assert rows.keys() <= known and {len(row) for row in rows.values()} == {len(table["columns"])}
    also = {env for group in PLAN["groups"] for env in group.get("also", {})}
    assert also == {c["also"] for t in PAPER["tables"] for c in t["columns"] if "also" in c}


def test_the_plan_keeps_its_budget_and_claims_on_test_tasks():
    options, made = paper_tables.Options(record=Path("nothing.jsonl")), PLAN
    *_, last = paper_tables.forecast(made, options)
    assert float(last.split(", ")[1].split()[0]) <= 30
    groups = {group["name"]: group for group in made["groups"]}
    for claim in made["claims"]:
        group = groups[claim["group"]]
        assert group["split"] == "test" and len(group["seeds"]) == 3
        assert {claim["first"], claim["second"]} <= group["methods"].keys()


def test_a_cell_is_a_mean_over_tasks_and_seeds_of_what_its_column_names():
    kinds = ["pick", "look", "pick"]
    record = [
        line("a", "grpo", 0, [2.0, 0.0, 1.0], kinds=kinds, solved=[0.0, 0.0, 1.0]),
        line("a", "grpo", 1, [2.0, 1.0, 0.0], kinds=kinds, solved=[0.0, 0.0, 0.0]),
    ]
    record[0]["also"] = record[1]["also"] = {"b": {"before": {"sampled": [0.0]}, "after": {"sampled": [1.0]}}}
    of = lambda method="grpo", **column: paper_tables.percent(record, {"group": "a", **column}, method)  # noqa: E731
    assert (of(), of(kind="pick"), of(kind="look")) == ("50.0", "62.5", "25.0")
    assert (of(figure="solved"), of(also="b"), of(None)) == ("8.3", "50.0", "0.0")
    (elsewhere, _) = paper_tables.measured_on(record, "a", "b")
    assert (elsewhere["group"], elsewhere["after"]) == ("b", {"sampled": [1.0]})
    assert not paper_tables.measured_on(record, "a", "c")
    assert of("dapo") == "" and paper_tables.percent(record, {"group": "c"}, None) == ""


def test_rows_stand_above_the_papers_and_short_ones_are_refused():
    table = {
        "name": "t",
        "title": "T",
        "columns": [{"name": "A", "group": "a"}],
        "paper": {"3B": {"grpo": [81.1]}},
    }
    record = [line("a", "grpo", 0, [2.0, 1.0])]
    assert "| **GRPO** | 75.0* |" in paper_tables.paper_table(record, table, {"grpo": "GRPO"})
    record.append(line("a", "grpo", 1, [2.0, 0.0]))
    text = paper_tables.paper_table(record, table, {"grpo": "GRPO"})
    assert text.splitlines()[4:] == [
        "| start policy | 0.0 |",
        "| **GRPO** | 62.5 |",
        "| GRPO, the paper's 3B | 81.1 |",
    ]
    with pytest.raises(UnknownOption, match="2 figures for 1 columns"):
        paper_tables.paper_table([], {**table, "paper": {"3B": {"grpo": [1.0, 2.0]}}}, {"grpo": "GRPO"})


def test_what_is_recorded_is_not_missing(tmp_path):
    options = paper_tables.Options(groups=("sokoban-easy",), record=tmp_path / "record.jsonl")
    methods = ["graph-grpo", "graph-dapo", "graph-gigpo"]
    assert [run.method for run in paper_tables.missing(PLAN, options)] == methods
    options.record.write_text(json.dumps(line("sokoban-easy", "graph-dapo", 0, [1.0])) + "\n")
    assert [run.method for run in paper_tables.missing(PLAN, options)] == ["graph-grpo", "graph-gigpo"]


def test_a_group_has_the_runs_of_earlier_rounds_and_no_run_of_theirs_again():
    for earlier in PLAN["recorded"]:
        group = next(group for group in PLAN["groups"] if group["name"] == earlier["name"])
        options = paper_tables.Options(groups=(earlier["name"],), record=Path("nothing.jsonl"))
        made = {run.method for run in paper_tables.missing(PLAN, options)}
        assert not made & earlier["methods"].keys()
        assert set(PAPER["methods"]) == made | earlier["methods"].keys() == group["methods"].keys()
        whole = dataclasses.replace(options, model="org/model")
        assert {run.method for run in paper_tables.missing(PLAN, whole)} == group["methods"].keys()
        of_both = paper_tables.lines_of(PLAN, [line(earlier["name"], "ppo", 0, [1.0])])
        tasks = {len(found["after"]["sampled"]) for found in of_both if found["group"] == earlier["name"]}
        assert tasks == {1, group["tasks"]}


def test_hours_and_memory_are_of_runs_that_can_be_made(tmp_path):
    folder = tmp_path / "model"
    Qwen2Config(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1
    ).save_pretrained(folder)
    options = paper_tables.Options(
        record=tmp_path / "own.jsonl",
        groups=("alfworld",),
        model=str(folder),
        options="--processes 4",
        tflops=0.001,
    )
    first, last = paper_tables.forecast(PLAN, options)
    assert (
        first.startswith("alfworld: 30 runs (")
        and " GiB a device, some " in first
        and first.endswith(" on 4 devices")
    )
    hours = float(last.split(", ")[1].split()[0])
    assert hours > 1 and last.endswith("hours at 0.001 TFLOP/s in all")
    thrice = dataclasses.replace(options, options="--processes 4 --optim.epochs 3")
    *_, last = paper_tables.forecast(PLAN, thrice)
    more = float(last.split(", ")[1].split()[0]) / hours
    assert 2 < more < 3  # the update's share
    with pytest.raises(UnknownOption, match="4 does not divide by --processes 8"):
        list(paper_tables.forecast(PLAN, dataclasses.replace(options, options="--processes 8")))


def test_hours_count_the_measurements_of_a_run():
    """Those of further environments too (PopQA after NQ)."""
    run = next(run for run in paper_tables.planned(PLAN, ["nq"]) if run.also)
    config, needs = make_config("sokoban-easy"), Plan(5, trained=5, limit=9, sampled_tokens=700)
    per_episode = 700 / (config.rollout.tasks_per_iteration * config.rollout.group_size)
    played = 3 * (1_000 + 400)  # two samples and a greedy one
    assert paper_tables.measuring(needs, config, run) == pytest.approx(2 * 5 * per_episode * played)


@pytest.mark.parametrize("words", [["--groups", "nosuch", "--dry-run"], ["--model", "no/such", "--dry-run"]])
def test_an_error_ends_the_command_without_a_traceback(words, tmp_path):
    with pytest.raises(SystemExit, match="error: .*no(such|/such)"):
        paper_tables.main([*words, "--record", str(tmp_path / "own.jsonl")])


def test_another_model_has_a_record_of_its_own(tmp_path):
    """Neither its runs nor its tables are mixed with those of the built-in policies."""
    record = tmp_path / "record.jsonl"
    of_model = {**line("hotpotqa", "ppo", 0, [1.0]), "options": "--model org/a --iterations 160"}
    record.write_text(json.dumps(of_model) + "\n")
    assert paper_tables.lines_of(PLAN, [of_model]) == [of_model]
    options = paper_tables.Options(groups=("hotpotqa",), record=record, model="org/a")
    assert len(paper_tables.missing(PLAN, options)) == len(PAPER["methods"]) - 1
    for other, path in (("org/b", record), (None, record), ("org/a", ROOT / "docs/results/evidence.jsonl")):
        with pytest.raises(UnknownOption, match="of another model than .*: name a record of its own"):
            paper_tables.missing(PLAN, dataclasses.replace(options, model=other, record=path))
    assert paper_tables.lines_of(PLAN, [], "org/a") == []
    assert {
        str(paper_tables.folder_of(dataclasses.replace(options, model=m))) for m in (None, "org/a", "org/a b")
    } == {
        "runs/evidence",
        "runs/evidence-org-a",
        "runs/evidence-org-a-b",
    }


def test_public_data_are_named_as_for_the_trainer(tmp_path):
    words = "--processes 4 --env-option levels=levels/folder --preset qwen2.5-3b --optim.epochs 3"
    options = paper_tables.Options(
        record=tmp_path / "own.jsonl", groups=("sokoban-hard",), model="org/a", options=words
    )
    made = compare_algorithms.config_of(next(paper_tables.planned_runs(PLAN, options)), tmp_path)
    assert made.env_options["levels"] == "levels/folder" and (made.model, made.optim.epochs) == ("org/a", 3)
    wrong = dataclasses.replace(options, options="--env-option tiers=public")
    with pytest.raises(UnknownOption, match="tiers"):
        list(paper_tables.forecast(PLAN, wrong))


@pytest.mark.parametrize("words", ["--preset qwen2.5-3b", "--preset=phi-4-mini", "--seed 1 --model org/a"])
def test_a_model_among_further_options_is_refused(words, tmp_path):
    """Its runs would be recorded as those of the built-in policies."""
    options = paper_tables.Options(record=tmp_path / "own.jsonl", options=words)
    with pytest.raises(
        UnknownOption, match="--options has --(preset|model).*: name it before, --model MODEL"
    ):
        paper_tables.missing(PLAN, options)


def test_a_model_is_spared_what_is_about_the_built_in_policies_settings(tmp_path):
    """Its options are the paper's, so that such a group would repeat another."""
    options = paper_tables.Options(record=tmp_path / "own.jsonl", model="org/a")
    of_model = {run.group for run in paper_tables.planned_runs(PLAN, options)}
    of_built_in = {
        run.group for run in paper_tables.planned_runs(PLAN, dataclasses.replace(options, model=None))
    }
    assert of_built_in - of_model == {"alfworld-32", "webshop-16-goals", "sokoban-medium-64-levels"}


def test_a_folder_with_runs_of_another_model_is_refused(tmp_path):
    run = next(compare_algorithms.planned(PLAN, ["nq"]))
    (tmp_path / run.name).mkdir()
    (tmp_path / run.name / "config.json").write_text('{"model": "org/other"}')
    with pytest.raises(UnknownOption, match="is a run of the model org/other, not of .*--runs FOLDER"):
        compare_algorithms.result(run, tmp_path)


def test_all_tables_are_of_the_groups_and_of_what_their_runs_measured_elsewhere():
    record = [
        {
            **line("nq", method, 0, [2.0, 1.0]),
            "seconds": {},
            "statistics": {"tree_p_div": 0.25},
            "episodes": 8,
            "cpu_seconds": 60,
        }
        for method in ("grpo", "graph-grpo")
    ]
    for one in record:
        one["seconds"] = dict.fromkeys(("rollout", "tree", "valuation", "grafting", "update"), 2.0)
        one["also"] = {
            "popqa": {
                "before": {"sampled": [0.0], "greedy": [1.0]},
                "after": {"sampled": [2.0], "greedy": [1.0]},
            }
        }
    text = paper_tables.all_tables(PLAN, record)
    assert (
        "nq, 2 tasks of test x 2: start 0.000" in text
        and "popqa, 1 tasks of test x 2: start 0.000 (greedy 1.000)" in text
    )
    assert "| nq: graph-grpo - grpo | 1 | +0.000" in text and "bamboogle: no run is complete" in text
    assert "| grpo | 2.00 | 2.00 | 2.00 | 2.00 | 2.00 |" in text and "| 0.25 |" in text


def test_the_full_scale_is_the_same_grid_with_the_papers_preset(tmp_path):
    options = paper_tables.Options(
        record=tmp_path / "own.jsonl",
        groups=("alfworld",),
        model="org/a model",
        options="--optim.dtype bfloat16 --processes 4",
    )
    cut = {"ppo": [0], "graph-gigpo": [1, 2]}  # fewer seeds for the built-in policies alone
    plan = PLAN | {
        "groups": [group | {"only": cut} for group in PLAN["groups"] if group["name"] == "alfworld"]
    }
    runs = list(paper_tables.planned_runs(plan, options))
    assert len(runs) == 30 and all("--turns" not in run.options for run in runs)
    built_in = dataclasses.replace(options, model=None, options="")
    fewer = {(run.method, run.seed) for run in paper_tables.planned_runs(plan, built_in)}
    assert len(fewer) == 27 and {seed for method, seed in fewer if method == "ppo"} == {0}
    made = compare_algorithms.config_of(runs[1], tmp_path)
    assert (made.model, made.iterations, made.optim.dtype) == ("org/a model", 160, "bfloat16")
    assert made.processes == 4, "one only where nothing else is said"
    assert (made.tree.nodes, made.graft.keep, made.rollout.group_size) == ("depth", "all", 8)


@pytest.mark.slow
def test_every_run_of_the_plan_is_a_run_that_can_be_made(tmp_path):
    for run in compare_algorithms.planned(PLAN, [group["name"] for group in PLAN["groups"]]):
        config = compare_algorithms.config_of(run, tmp_path)
        assert config.env == find_entry(run.env).id
        assert config.turns is not None or (run.group, config.iterations) == ("sokoban-easy", 60)
        assert config.tstar == (not run.method.startswith(("grpo", "dapo", "gigpo", "ppo")))


def test_the_command_says_what_is_missing_and_makes_nothing(tmp_path):
    words = [
        "scripts/reproduce.py",
        "tables",
        "--dry-run",
        "--groups",
        "nq",
        "--record",
        str(tmp_path / "none"),
    ]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "9 runs missing, 1.2 CPU-hours in all"
    assert not list(tmp_path.iterdir())


def test_options_of_the_runs_are_taken_as_they_are_written():
    words = ["--dry-run", "--options", "--processes 4 --engine vllm", "--record", "own.jsonl"]
    assert paper_tables.joined(words) == [
        "--dry-run",
        "--options=--processes 4 --engine vllm",
        "--record",
        "own.jsonl",
    ]
    assert paper_tables.joined(["--options"]) == ["--options"]
    options = tyro.cli(paper_tables.Options, args=paper_tables.joined(words))
    assert options.options == "--processes 4 --engine vllm" and options.dry_run


@pytest.mark.slow
def test_a_run_is_recorded_with_what_it_was_also_measured_on(tmp_path):
    made = {
        "groups": [
            {
                "name": "small",
                "env": "nq",
                "split": "valid",
                "tasks": 4,
                "samples": 1,
                "seeds": [0],
                "minutes": 1,
                "options": "--iterations 1 --rollout.tasks-per-iteration 2 --rollout.group-size 2",
                "methods": {"grpo": "--no-tstar"},
                "also": {"bamboogle": 3},
            }
        ]
    }
    (run,) = paper_tables.missing(made, paper_tables.Options(record=tmp_path / "none"))
    compare_algorithms.make(run, tmp_path, paper_tables.Console())
    assert compare_algorithms.result(dataclasses.replace(run, also=(("popqa", 2),)), tmp_path) is None
    compare_algorithms.collect([run], tmp_path, tmp_path / "record.jsonl")
    (recorded,) = compare_algorithms.read(tmp_path / "record.jsonl")
    assert len(recorded["also"]["bamboogle"]["after"]["sampled"]) == 3 and recorded["commit"]
