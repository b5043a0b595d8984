"""``warmstart --model``: what is imitated is what a run would see, and what cannot be imitated is said in one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import gymnasium as gym
import pytest
import torch
from lamps_environment import Lamps, NoExpert, entry_of
from transformers import AutoModelForCausalLM

from scripts.studies.small_models import save_small
from tstar_envs import append_episode, find_entry, new_episode, parse_reply, read_episodes, register, registry
from tstar_envs.cli import main as envs
from tstar_train.__main__ import main
from tstar_train.agent import settings_seen
from tstar_train.config import Config
from tstar_train.distributed import SingleProcess
from tstar_train.engines.base import Sample
from tstar_train.imitation.options import ImitationOptions, ShownConfig, default_options, run_of
from tstar_train.imitation.train import (
    Gathered,
    Shown,
    encoded,
    gather,
    mean_loss,
    of_record,
    split_held_out,
)
from tstar_train.learner.torch import TorchLearner
from tstar_train.learner.update import Batching
from tstar_train.policy.files import sha256_of
from tstar_train.policy.model import load_policy
from tstar_train.presets import chosen_for, read_shares
from tstar_train.rollout.collect import EnvSpec, collect
from tstar_train.rollout.player import Sampling
from tstar_train.types import join_rows, rows_of

SOKOBAN = find_entry("sokoban-easy")
SHORT = "--rollout.context step --rollout.history 0 --rollout.max-tokens 200".split()


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Small random models, made when first asked for."""
    folder = tmp_path_factory.mktemp("models")

    def made(name="qwen2"):
        if not (folder / name).exists():
            save_small(name, folder / name)
        return folder / name

    return made


def played(entry, task, mistakes=0, replies=(), **options):
    """A record of the expert, after some turns that were not an action, or of given replies."""
    env = entry.make(**options)
    episode = new_episode(env, entry, "expert", task)
    episode.begin(*env.reset(options={"task": task}))
    over = False
    while not over:
        number = len(episode.steps)
        if replies:
            reply = replies[number]
        else:
            reply = env.oracle() if number >= mistakes else "Thought: Where am I?\nAction: dance"
        observation, reward, terminated, truncated, info = env.step(reply)
        episode.add(reply, observation, info)
        over = terminated or truncated
    episode.end(reward, terminated, info)
    return episode


def recorded(path, *episodes):
    for episode in episodes:
        append_episode(path, episode)
    return path


class Says:
    """An engine that says the replies of a record, one after another."""

    shares_weights = True

    def __init__(self, codec, episode, limit):
        self._replies = [codec.reply(step.reply) for step in episode.steps]
        self.limit = limit

    def generate(self, contexts, seeds, **options):
        (context,) = contexts
        ids = self._replies.pop(0)
        return [Sample(ids, [-1.0] * len(ids))]


@pytest.mark.parametrize(
    ("model", "env", "context", "history", "limit"),
    [
        ("qwen2", "sokoban-easy", "concat", 2, 2048),
        ("qwen2", "sokoban-easy", "concat", 2, 800),  # old turns are left out
        ("llama3", "sokoban-easy", "step", 2, 2048),
        ("llama2-base", "blocksworld-stack", "step", 0, 2048),
        ("gemma2", "hotpotqa", "concat", 2, 2048),
    ],
)
def test_rows_are_those_of_a_run_that_says_the_same(models, model, env, context, history, limit):
    """Contexts, replies with their ends, and the tokens that count, as training would record them."""
    policy, entry = load_policy(str(models(model)), ""), find_entry(env)
    codec, task = policy.codec, entry.make().task_ids("train")[3]
    episode = played(entry, task, mistakes=2)
    sampling = Sampling(200, 1.0, context, history)
    (trajectory,) = collect(
        EnvSpec(entry.id),
        Says(codec, episode, limit),
        codec,
        [task],
        size=1,
        split="train",
        seed="",
        sampling=sampling,
    )
    assert trajectory.episode.success and len(trajectory.turns) == len(episode.steps)
    theirs = join_rows(rows_of(trajectory, [0.0] * len(trajectory.turns)))
    config = Config(env=entry.id, model="")
    config = run_of(config, ImitationOptions(rollout=ShownConfig(context, history, 200)))
    shown = of_record(episode, entry.make().prompt())
    ((_, _, ours),) = encoded(Gathered([Shown(entry.id, task, shown)]), codec, config, limit)
    assert [(r.ids, r.response_mask) for r in ours] == [(r.ids, r.response_mask) for r in theirs]
    if limit == 800:
        assert len(ours) > 1


def asked(*envs, model="", **options):
    """Options of a run on environments, and of the imitation."""
    preset = chosen_for(read_shares(envs), model or "none", None)[0]
    given = ImitationOptions(rollout=default_options(preset).rollout, **options)
    return run_of(preset, given), given


def test_recorded_episodes_are_chosen_by_score_task_and_rules(tmp_path):
    tasks = SOKOBAN.make().task_ids("train")[:3]
    good, again, other = (played(SOKOBAN, tasks[0], mistakes=n) for n in (0, 1, 2))
    lost, failed, old = (played(SOKOBAN, tasks[1]) for _ in range(3))
    lost.reward, lost.success = 0.25, False
    failed.ended = "error"
    old.rules_version = "0"
    changed = played(SOKOBAN, tasks[2], observation="grid_coords")
    relabelled = played(SOKOBAN, SOKOBAN.make().task_ids("test")[0])
    relabelled.split = "train"
    path = recorded(tmp_path / "e.jsonl", good, again, other, lost, failed, old, changed, relabelled)
    config, given = asked("sokoban-easy", episodes=(path,))
    found = gather(config, given)
    assert [shown.task for shown in found.shown] == [tasks[0]] * 3
    assert found.dropped == {
        "with a score below 1": 1,
        "without a result (error)": 1,
        "of another version of the rules": 1,
        "of tasks that are not in that split of these data": 1,
        "that read otherwise with these environment options (--env-option)": 1,
    }
    found = gather(*asked("sokoban-easy", episodes=(path,), max_per_task=2, min_score=0.2))
    assert [shown.task for shown in found.shown] == [tasks[0]] * 2 + [tasks[1]]
    assert [len(shown.episode.turns) for shown in found.shown[:2]] == [len(good.steps), len(again.steps)]
    assert found.dropped["beyond --max-per-task 2"] == 1


def test_experts_play_each_environment_by_its_weight_on_tasks_of_no_split():
    config, given = asked("sokoban-easy:2", "blocksworld-stack", demonstrations=12)
    shown = gather(config, given).shown
    counts = [
        sum(one.env == env for one in shown) for env in ("tstar/Sokoban-easy", "tstar/Blocksworld-stack")
    ]
    assert counts == [8, 4]
    assert not {one.task.partition("/")[2] for one in shown} & {*SOKOBAN.make().task_ids("train")}
    config, given = asked("sokoban-easy", demonstrations=12, tasks="train")
    assert {one.task for one in gather(config, given).shown} <= {*SOKOBAN.make().task_ids("train")}
    assert gather(config, given) == gather(config, given)


def test_the_oracle_that_demonstrations_show_is_imitated():
    """ALFWorld has a second one, which knows only what it has seen."""
    config, given = asked(
        "alfworld", demonstrations=3, tasks="train", mistakes=0.0, no_thought=0.0, wordings=1
    )
    env = find_entry("alfworld").make()
    for one in gather(config, given).shown:
        env.reset(options={"task": one.task})
        for turn in one.episode.turns:
            assert parse_reply(turn.reply).action == parse_reply(env.oracle(kind=env.demonstrated)).action
            env.step(turn.reply)


def test_held_out_are_whole_tasks(models):
    config, given = asked("sokoban-easy", model=str(models()), demonstrations=20)
    policy = load_policy(str(models()), "")
    made = encoded(gather(config, given), policy.codec, config, 2048)
    train, held = split_held_out([*made, *made], 0.2, 0)
    assert len(held) == 8 and len(train) == 32
    assert not {one.task for one in train} & {one.task for one in held}
    assert split_held_out(made, 0.0, 0) == (made, [])


def test_the_loss_is_the_plain_cross_entropy_of_the_replies(models):
    config, given = asked("sokoban-easy", model=str(models()), demonstrations=3, mistakes=0.3)
    policy = load_policy(str(models()), "")
    made = encoded(gather(config, given), policy.codec, config, 2048)
    total, count = 0.0, 0
    with torch.no_grad():
        for row in (row for one in made for row in one.rows):
            logprobs = torch.log_softmax(policy.model(torch.tensor([row.ids])).logits[0].double(), -1)
            for place, wanted in enumerate(row.response_mask):
                if wanted:
                    total, count = total - float(logprobs[place - 1, row.ids[place]]), count + 1
    learner = TorchLearner(policy.model, None, SingleProcess(), learning_rate=0.0)
    batching = Batching(700, 1.0, policy.codec.pad, policy.model.device)
    assert mean_loss(learner, made, batching) == pytest.approx(total / count, abs=1e-5)


def imitated(models, out, *more, model=None):
    arguments = [
        "warmstart",
        "--model",
        str(model or models()),
        "--env",
        "sokoban-easy",
        "--out",
        str(out),
        *SHORT,
    ]
    return main([*arguments, *map(str, more)])


def test_the_loss_falls_and_the_result_is_a_model_for_everything_else(models, tmp_path, capsys):
    few = "--demonstrations 10 --batch 2 --steps 10 --optim.learning-rate 3e-3 --env-option observation=grid_coords".split()
    assert imitated(models, tmp_path / "one", *few) == 0
    printed = capsys.readouterr().out
    assert "9 to train on, 1 held out" in printed and "10 steps of 2 rows" in printed
    record = json.loads((tmp_path / "one" / "training.json").read_text())
    loss = record["held_out_loss"]
    assert loss["after"] < loss["before"] - 1 and record["losses"][-1][1] < record["losses"][0][1] - 1
    assert record["sha256"]["model.safetensors"] == sha256_of(tmp_path / "one" / "model.safetensors")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "one")
    ours = load_policy(str(tmp_path / "one"), "")
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), ours.model.parameters(), strict=True))
    assert ours.tokenizer.chat_template == load_policy(str(models()), "").tokenizer.chat_template
    # A run on it and an evaluation show it what it imitated.
    preset = chosen_for(read_shares(["sokoban-easy"]), str(tmp_path / "one"), None)[0]
    seen = settings_seen(str(tmp_path / "one"), SOKOBAN)
    assert preset.env_options == seen.options == {"observation": "grid_coords"}
    assert (preset.rollout.context, preset.rollout.history, preset.rollout.max_tokens) == ("step", 0, 200)
    assert (seen.context, seen.history, seen.max_tokens) == ("step", 0, 200)
    # The same command makes the same bytes.
    assert imitated(models, tmp_path / "two", *few) == 0
    assert sha256_of(tmp_path / "two" / "model.safetensors") == record["sha256"]["model.safetensors"]
    # And its episodes can be imitated in turn.
    assert imitated(models, tmp_path / "three", *few[:4], "--steps", "1", model=tmp_path / "one") == 0


def test_adapters_are_merged_and_half_precision_learns(models, tmp_path):
    few = "--demonstrations 6 --batch 2 --steps 6 --lora.rank 4 --optim.learning-rate 3e-2 --optim.dtype bfloat16".split()
    assert imitated(models, tmp_path / "out", *few, "--optim.gradient-checkpointing") == 0
    record = json.loads((tmp_path / "out" / "training.json").read_text())
    assert record["held_out_loss"]["after"] < record["held_out_loss"]["before"] - 0.5
    before, after = (AutoModelForCausalLM.from_pretrained(path) for path in (models(), tmp_path / "out"))
    assert after.dtype == torch.bfloat16
    assert [name for name, _ in before.named_parameters()] == [name for name, _ in after.named_parameters()]
    assert torch.equal(
        before.get_input_embeddings().weight.bfloat16(), after.get_input_embeddings().weight
    )  # frozen


def test_a_built_in_policy_goes_on_from_where_it_is(tmp_path):
    out = tmp_path / "out"
    few = "--demonstrations 6 --steps 2 --batch 4".split()
    assert main(["warmstart", "--model", "tiny", "--env", "sokoban-easy", "--out", str(out), *few]) == 0
    record = json.loads((out / "training.json").read_text())
    # It knows this text: the rows are those that it was made with.
    assert record["held_out_loss"]["before"] < 0.2 and record["options"]["wordings"] == 1
    preset, reason = chosen_for(read_shares(["sokoban-easy"]), str(out), None)
    assert "settings of sokoban" in reason and preset.rollout.context == "step"


def refused(capsys, *arguments):
    assert main(["warmstart", *map(str, arguments)]) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith("tstar_train: ") and len(message) < 700
    return message


def test_what_cannot_be_imitated_is_said_in_one_line(models, tmp_path, capsys):
    tasks = {split: SOKOBAN.make().task_ids(split)[0] for split in ("train", "test")}
    won, tested = (
        recorded(tmp_path / f"{split}.jsonl", played(SOKOBAN, task)) for split, task in tasks.items()
    )
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"env": 1}\n')
    out = tmp_path / "out"
    model = ["--model", models(), "--out", out]
    sokoban, few = [*model, "--env", "sokoban-easy"], ["--demonstrations", "2"]
    for given, said in [
        (model, "which environment?"),
        (["--model", models(), "--env", "sokoban-easy"], "--out FOLDER"),
        ([*model, "--env", "popqa"], "for evaluation only"),
        ([*model, "--env", "none"], "none"),
        (["--model", tmp_path / "no", "--env", "sokoban-easy", "--out", out], "there is no such folder"),
        ([*sokoban, "--episodes", tmp_path / "no.jsonl"], "no.jsonl"),
        ([*sokoban, "--episodes", broken], "broken.jsonl, line 1"),
        ([*sokoban, "--episodes", tested], "1 episode of the split 'test'"),
        ([*sokoban, "--episodes", won, "--env-option", "observation=grid_coords"], "that read otherwise"),
        ([*model, "--env", "blocksworld-stack", "--episodes", won], "1 episode of another environment"),
        ([*sokoban, "--episodes", won, "--wordings", "2"], "--wordings is for the experts'"),
        ([*sokoban, "--min-score", "0.5"], "--min-score chooses among recorded episodes"),
        ([*sokoban, "--batch", "0"], "--batch must be 1 or more"),
        ([*sokoban, "--processes", "2"], "no option '--processes'"),
        ([*sokoban, "--recipe", "x"], "leave --model out"),
        ([*sokoban, *few, "--rollout.max-tokens", "5"], "with a reply that is too long"),
        ([*sokoban, *few, "--rollout.max-tokens", "5000"], "leaves no room"),
        (["--model", "tiny", "--env", "sokoban-easy", "--out", out, "--rollout.context", "concat"], "recipe"),
        (["--env", "sokoban-easy", "--out", out, "--lora.rank", "4"], "give --model PATH as well"),
    ]:
        assert said in refused(capsys, *given), given
    assert not out.exists()
    out.mkdir()
    (out / "mine").touch()
    assert "choose another --out" in refused(capsys, *sokoban)


def test_an_environment_without_an_expert_is_imitated_from_records_alone(
    models, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(registry, "OWN_ENTRIES", dict(registry.OWN_ENTRIES))
    entry = entry_of(NoExpert)
    register(entry)
    try:
        given = ["--model", models(), "--out", tmp_path / "out", "--env", entry.id, *SHORT]
        assert "has no expert" in refused(capsys, *given)
        env, replies = Lamps(), []
        task = env.task_ids("train")[0]
        env.reset(options={"task": task})
        while (reply := env.oracle()) is not None:
            replies.append(reply)
            env.step(reply)
        path = recorded(tmp_path / "e.jsonl", played(entry, task, replies=replies))
        assert main(["warmstart", *map(str, given), "--episodes", str(path), "--steps", "1"]) == 0
    finally:
        gym.registry.pop(entry.id, None)


def test_test_tasks_are_imitated_if_the_user_says_so(models, tmp_path):
    path = recorded(tmp_path / "e.jsonl", *(played(SOKOBAN, t) for t in SOKOBAN.make().task_ids("test")[:3]))
    assert imitated(models, tmp_path / "out", "--episodes", path, "--splits", "test", "--steps", "1") == 0
    record = json.loads((tmp_path / "out" / "training.json").read_text())
    assert record["episodes"] == {"used": 2, "held_out": 1, "dropped": {}}


def test_a_loss_that_is_no_number_ends_it_and_leaves_the_batch(models, tmp_path, capsys):
    few = "--demonstrations 4 --steps 6 --optim.learning-rate 1e30 --optim.warmup 0 --optim.decay 0".split()
    assert imitated(models, tmp_path / "out", *few) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert "of the imitation" in message and "broken_batch.json" in message
    assert json.loads((tmp_path / "out" / "broken_batch.json").read_text())["rows"]
    assert not (tmp_path / "out" / "model.safetensors").exists()


def test_records_of_an_evaluation_are_episodes(tmp_path, models):
    """As ``eval`` writes them."""
    path = tmp_path / "e.jsonl"
    run = "eval --env sokoban-easy --split train --tasks 4 --samples 2 --agent oracle --out"
    assert envs([*run.split(), str(path)]) == 0
    assert len(list(read_episodes(Path(path)))) == 8
    assert imitated(models, tmp_path / "out", "--episodes", path, "--max-per-task", "1", "--steps", "1") == 0
    record = json.loads((tmp_path / "out" / "training.json").read_text())
    assert record["episodes"] == {"used": 3, "held_out": 1, "dropped": {"beyond --max-per-task 1": 4}}
