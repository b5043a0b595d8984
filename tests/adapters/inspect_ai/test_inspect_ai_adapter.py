"""The inspect_ai adapter under the real package: scripted models, with the log read back from its file."""

import math
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("inspect_ai")

from inspect_ai import eval as inspect_eval
from inspect_ai.log import read_eval_log
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from scripted import ENVS, call_of, scripted_answer, scripts, tasks

from tstar_envs import UnknownOption, panel
from tstar_envs.adapters.inspect_ai import play

ROOT = Path(__file__).resolve().parents[3]


USAGE = ModelUsage(
    input_tokens=1, output_tokens=1, total_tokens=2
)  # else inspect_ai fetches a tokenizer to count with


def output(text: str) -> ModelOutput:
    return ModelOutput.from_content("mockllm/model", text).model_copy(update={"usage": USAGE})


def scripted_model(env):
    answer = scripted_answer(env)

    def reply(messages, tools, tool_choice, config):
        return output(answer([{"role": m.role, "content": m.text} for m in messages]))

    return get_model("mockllm/model", custom_outputs=reply)


def evaluate(task, model, tmp_path, **options):
    log = inspect_eval(task, model=model, log_dir=str(tmp_path), display="none", **options)[0]
    return read_eval_log(log.location)


@pytest.mark.parametrize("env", ENVS)
def test_scripted_replies_earn_what_they_earn_in_eval(env, tmp_path):
    log = evaluate(play(env, panel="v1", limit=4), scripted_model(env), tmp_path)
    assert log.status == "success", log.error
    earned = {sample.id: sample.scores["reward"].value for sample in log.samples}
    assert earned == {
        s.task: {"reward": pytest.approx(s.reward), "success": float(s.success)} for s in scripts(env)
    }
    steps = {sample.id: sample.scores["reward"].metadata["steps"] for sample in log.samples}
    assert steps == {s.task: len(s.replies) for s in scripts(env)}
    assert log.eval.task_version == tasks(env).rules_version
    assert log.eval.metadata["tasks_hash"] == tasks(env).hash == log.samples[0].metadata["tasks_hash"]
    means = {
        name: metrics["mean"].value for name, metrics in ((s.name, s.metrics) for s in log.results.scores)
    }
    assert means["reward"] == pytest.approx(sum(s.reward for s in scripts(env)) / 4)


def test_the_whole_panel_carries_its_hash():
    task = play("tstar/WebShop", panel="v1")
    assert task.metadata["tasks_hash"] == panel("v1")["webshop"].hash and task.metadata["panel"] == "v1"
    assert [sample.id for sample in task.dataset] == list(panel("v1")["webshop"].tasks)


@pytest.mark.parametrize("env", ["tstar/Sokoban-easy", "tstar/HotpotQA", "tstar/Blocksworld-stack"])
def test_typed_calls_earn_what_their_actions_earn(env, tmp_path):
    made, answer = tasks(env).make(), scripted_answer(env)
    offered = []

    def reply(messages, tools, tool_choice, config):
        offered.append({tool.name for tool in tools})
        call = call_of(made.tools, answer([{"role": m.role, "content": m.text} for m in messages]))
        name, arguments = call or ("no_such_tool", {"x": "y"})
        return ModelOutput.for_tool_call("mockllm/model", name, arguments).model_copy(update={"usage": USAGE})

    log = evaluate(
        play(env, panel="v1", limit=2, tools=True), get_model("mockllm/model", custom_outputs=reply), tmp_path
    )
    assert log.status == "success", log.error
    assert {s.id: s.scores["reward"].value["reward"] for s in log.samples} == {
        s.task: s.reward for s in scripts(env)[:2]
    }
    assert offered[0] == {tool.name for tool in made.tools}
    # The second script begins with what no tool says: the answer to the call says why.
    answered = next(m for m in log.samples[1].messages if m.role == "tool")
    assert answered.text.startswith("Error: there is no tool 'no_such_tool'") and answered.tool_call_id


def test_a_failing_search_service_is_an_error_and_no_score(tmp_path):
    options = {"retriever": "http://127.0.0.1:9"}
    task = play("tstar/HotpotQA", limit=1, options=options)
    model = get_model("mockllm/model", custom_outputs=lambda *_: output("Action: search[anything]"))
    log = evaluate(task, model, tmp_path, fail_on_error=False)
    assert "RetrieverError" in log.samples[0].error.message and not log.samples[0].scores
    # Where errors are to be scored, this one is kept out of the means.
    log = evaluate(task, model, tmp_path, score_on_error=True)
    score = log.samples[0].scores["reward"]
    assert (
        math.isnan(score.value)
        and score.reason == "infrastructure_failed"
        and "127.0.0.1:9" in score.explanation
    )
    assert [found.unscored_samples for found in log.results.scores] == [1, 1]


def test_what_there_is_not_is_refused():
    with pytest.raises(UnknownOption, match="valid"):
        play("tstar/Nothing")


def test_the_command_finds_the_task_of_the_installed_package(tmp_path):
    """As pip leaves it: the package in a folder of that name, and metadata whose entry points are those of pyproject.toml."""
    metadata = tmp_path / "site-packages" / "tstar-0.1.0.dist-info"
    metadata.mkdir(parents=True)
    (tmp_path / "site-packages" / "tstar_envs").symlink_to(ROOT / "tstar_envs")
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["inspect_ai"]
    lines = "".join(f"{name} = {value}\n" for name, value in points.items())
    (metadata / "entry_points.txt").write_text(f"[inspect_ai]\n{lines}")
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: tstar\nVersion: 0.1.0\n")
    program = (
        "from inspect_ai import eval\n"
        "from inspect_ai.model import ModelOutput, ModelUsage, get_model\n"
        "said = ModelOutput.from_content('m', 'Action: Up').model_copy(update={'usage': ModelUsage()})\n"
        "model = get_model('mockllm/model', custom_outputs=lambda *_: said)\n"
        "log = eval('tstar_envs/play', task_args={'env': 'sokoban-easy', 'limit': 1}, model=model, log_dir='logs', display='none')[0]\n"
        "print(log.status, log.eval.task, log.samples[0].scores['reward'].value)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site-packages")}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("success Sokoban-easy {'reward': 0"), done.stdout
