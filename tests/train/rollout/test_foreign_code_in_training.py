"""Whatever an environment or a logger does wrong in training is one sentence; what was whole is saved, and the way to go on is said."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import foreign_code
import pytest
import torch
from foreign_code import ENVIRONMENTS, is_said
from policies import random_policy
from train_process import run
from transformers import AutoConfig

from tstar_envs import BadData, EnvironmentFailed, TStarError, called, find_entry, task_ids_of
from tstar_train.engines.local import LocalEngine
from tstar_train.policy.chat import render
from tstar_train.policy.model import has_few_parameters, load_policy, require_no_kernel, require_text_model
from tstar_train.rollout.collect import EnvSpec, collect
from tstar_train.rollout.player import Sampling
from tstar_train.stopping import resume_command


@pytest.fixture(scope="module")
def policy() -> object:
    torch.set_num_threads(1)
    return random_policy()


@pytest.fixture(autouse=True)
def table() -> Iterator[None]:
    foreign_code.forget()
    with foreign_code.registered():
        yield


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_what_an_environment_does_wrong_is_said(name: str, policy) -> None:
    """Over the part of training that runs it: making, tasks, reset, step, and what the trainer asks beside them."""
    case, env_id = ENVIRONMENTS[name], f"foreign_code:mine/{name}"
    with pytest.raises(TStarError) as caught:
        entry = find_entry(env_id)
        env = called("making the environment", EnvironmentFailed, entry.load_class(), split="train")
        tasks = task_ids_of(env, "train")[:2]
        for _ in range(2):
            collect(
                EnvSpec(env_id, {"horizon": 2}),
                LocalEngine(policy),
                policy.codec,
                tasks,
                size=1,
                split="train",
                seed="s",
                sampling=Sampling(2, 1.0),
            )
    # What is missing among the tasks is another one here.
    wanted = case.said.replace("'lamps-5", "'lamps-") if not case.only_agents_that_bind else "prompt"
    assert case.at_start or is_said(wanted, str(caught.value)), str(caught.value)


SMALL = (
    *(
        "--env",
        "hotpotqa",
        "--iterations",
        2,
        "--rollout.tasks-per-iteration",
        2,
        "--rollout.group-size",
        2,
        "--processes",
        1,
    ),
    *("--checkpoint-every", 100, "--evaluation.tasks", 2, "--evaluation.samples", 1, "--rollout.horizon", 1),
    *("--rollout.max-tokens", 8, "--evaluation.validate-every", 0),
)


def test_a_logger_that_fails_loses_no_iteration(tmp_path: Path) -> None:
    """Weights & Biases without a key: the iteration that it should have shown is saved, and a run without it goes on."""
    out = tmp_path / "run"
    offline = {"WANDB_MODE": "online", "WANDB_API_KEY": "", "NETRC": "/dev/null", "HOME": str(tmp_path)}
    done = run(tmp_path, *SMALL, "--wandb", "x", "--out", out, check=False, environment=offline)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert "Weights & Biases (--wandb) failed" in done.stderr and "wandb login" in done.stderr
    assert "up to iteration 1 is saved" in done.stderr and f"-m tstar_train --resume {out}" in done.stderr
    assert [json.loads(line)["iteration"] for line in (out / "metrics.jsonl").read_text().splitlines()] == [1]
    config = json.loads((out / "config.json").read_text())
    assert config["wandb"] == "x" and (out / "checkpoints" / "000001").is_dir()
    again = {**offline, "WANDB_MODE": "disabled"}
    run(tmp_path, "--resume", out, environment=again)
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 2


def test_trees_that_somebody_removed_are_made_again(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run(tmp_path, *SMALL, "--iterations", 1, "--out", out)
    shutil.rmtree(out / "trees")
    run(tmp_path, "--resume", out, "--iterations", 3)
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 3


def test_a_refused_run_leaves_no_folder(tmp_path: Path) -> None:
    """What is known only once an episode is begun: rules that are longer than the context may be."""
    out = tmp_path / "run"
    done = run(tmp_path, *SMALL, "--rollout.context-tokens", 20, "--out", out, check=False)
    assert done.returncode == 2 and "no episode can begin" in done.stderr, done.stderr
    assert not out.exists()


def test_an_environment_given_twice_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path, "--env", "tstar/HotpotQA:2", *SMALL, "--out", tmp_path / "run", check=False)
    assert done.returncode == 2 and "--env: tstar/HotpotQA is given twice" in done.stderr
    assert not (tmp_path / "run").exists()


def test_the_command_that_goes_on_is_of_the_python_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    command = shlex.split(resume_command(tmp_path / "a run"))
    assert Path(command[0]).resolve() == Path(sys.executable).resolve() and command[-1] == str(
        tmp_path / "a run"
    )
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert resume_command(Path("runs/x")) == "python -m tstar_train --resume runs/x"


def test_a_task_that_comes_twice_in_a_round_is_played_anew(policy) -> None:
    def played(repeats: list[int]) -> list[list[int]]:
        trajectories = collect(
            EnvSpec("tstar/HotpotQA", {"horizon": 1}),
            LocalEngine(policy),
            policy.codec,
            [0, 0],
            size=1,
            split="train",
            seed="s",
            sampling=Sampling(12, 1.0),
            repeats=repeats,
        )
        return [t.turns[0].reply for t in trajectories]

    same, first = played([0, 0]), played([0, 1])
    assert same[0] == same[1] == first[0] != first[1]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "an empty file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (b"<html>too many requests</html>", "a web page"),
        (b"\x10" + b"\0" * 40, "bytes ("),
    ],
)
def test_weights_that_are_no_weights_are_called_by_their_name(
    tmp_path: Path, content: bytes, said: str
) -> None:
    (tmp_path / "config.json").write_text(CONFIG)
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(BadData, match=re.escape(said)):
        has_few_parameters(str(tmp_path), "search_qa")
    with pytest.raises(BadData, match=re.escape(said)):
        load_policy(str(tmp_path), "search_qa")


CONFIG = json.dumps(
    {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "vocab_size": 100,
    }
)


def test_a_pipe_for_weights_and_a_kernel_of_a_hub_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(CONFIG)
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(BadData, match="pipe|regular"):
        load_policy(str(tmp_path), "search_qa")
    for field in ("attn_implementation", "_attn_implementation"):
        described = AutoConfig.for_model("qwen2", **{field: "somebody/flash-kernel"})
        if getattr(described, "_attn_implementation", None) == "somebody/flash-kernel":
            with pytest.raises(BadData, match="kernel 'somebody/flash-kernel'"):
                require_no_kernel(described, "m")
    policy = random_policy()
    folder = tmp_path / "m"
    policy.model.save_pretrained(folder)
    policy.codec._tokenizer.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    for field in ("attn_implementation", "_attn_implementation"):
        (folder / "config.json").write_text(json.dumps({**config, field: "somebody/flash-kernel"}))
        with pytest.raises(BadData, match="kernel"):
            load_policy(str(folder), "search_qa")


def test_a_plan_needs_the_configuration_alone(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text(CONFIG)
    done = run(tmp_path, "--env", "hotpotqa", "--model", tmp_path / "m", "--dry-run")
    assert "98,304 sampled tokens" in done.stdout, "6 turns of HotpotQA's own, not the preset's 20"
    for said in (
        "tokens of KL draws",
        "tokens of grafts",
        "5,120 episodes of training, and 10,000 that measure",
    ):
        assert said in done.stdout
    assert " 0 GFLOP/s" not in done.stdout


def test_a_chat_template_that_asks_for_all_memory_is_refused() -> None:
    tokenizer = deepcopy(random_policy().codec._tokenizer)  # other tests share it
    for template in (
        "{{ 'x' * 10**10 }}",
        "{% set a = 'x' * 99999 %}{{ a * 99999 }}",
        "{{ '%9999999999d' % 1 }}",
    ):
        tokenizer.chat_template = template
        with pytest.raises(BadData, match="needs more than 1 GiB|fails"):
            render(tokenizer, [{"role": "user", "content": "x"}])


def test_a_token_beyond_the_embedding_is_named() -> None:
    policy = random_policy()
    size = int(policy.model.get_input_embeddings().weight.shape[0])
    small = type(
        "Tokenizer", (), {"get_vocab": lambda self: {"a": 0, "<far>": size + 5}, "__len__": lambda self: 2}
    )()
    with pytest.raises(BadData, match=f"gives '<far>' the id {size + 5}"):
        require_text_model(policy.model, small, "m")
