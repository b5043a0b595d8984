"""What cannot be loaded as a policy is reported with its path and cause, in one message."""

from __future__ import annotations

import dataclasses
import json
import shutil

import gymnasium as gym
import pytest
from policies import HOTPOT, random_policy
from safetensors.torch import load_file, save_file

from scripts.studies.small_models import save_small
from tstar_envs import BadData, MissingData, TStarError, UnknownOption, find_entry
from tstar_envs.agents import load_agent
from tstar_envs.evaluation.runner import play_episode
from tstar_train.policy.chat import ChatCodec
from tstar_train.policy.files import POLICY_FIELD, WEIGHTS, has_tiny, is_tiny, settings_name
from tstar_train.policy.model import load_policy, save_tiny
from tstar_train.presets import choose, tiny
from tstar_train.recipes.recipe import policy_name


@pytest.fixture
def saved(tmp_path):
    policy = random_policy()
    save_tiny(policy.model, policy.tokenizer, tmp_path / "model")
    return tmp_path / "model"


def test_a_sound_folder_loads(saved, monkeypatch):
    assert load_policy(str(saved), "search_qa").parameters > 0 and is_tiny(str(saved))
    monkeypatch.setenv("HOME", str(saved.parent))
    assert load_policy("~/model", "search_qa").parameters > 0 and is_tiny("~/model")


@pytest.mark.parametrize("name", ["/nonexistent/model", "./nonexistent", "~/nonexistent"])
def test_a_path_without_a_folder(name):
    with pytest.raises(MissingData, match="no such folder") as caught:
        load_policy(name, "search_qa")
    assert name in str(caught.value)


def test_a_folder_without_a_model(tmp_path):
    with pytest.raises(MissingData, match=r"folder with config\.json") as caught:
        load_policy(str(tmp_path), "search_qa")
    assert "checkpoints/NUMBER" not in str(caught.value)
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(MissingData, match="checkpoints/NUMBER"):
        load_policy(str(tmp_path), "search_qa")


@pytest.mark.parametrize(
    "name", ["model.safetensors", "tokenizer_config.json", "tokenizer.json", "config.json"]
)
@pytest.mark.parametrize("damage", ["truncated", "emptied"])
def test_a_damaged_file(saved, name, damage):
    data = (saved / name).read_bytes()
    (saved / name).write_bytes(data[: len(data) // 2] if damage == "truncated" else b"")
    assert is_tiny(str(saved)) == (name != "tokenizer_config.json")
    with pytest.raises(BadData, match="cannot be read") as caught:
        load_policy(str(saved), "search_qa")
    assert str(saved) in str(caught.value) and "\n" not in str(caught.value)


def test_a_tokenizer_config_of_another_shape(saved):
    (saved / "tokenizer_config.json").write_text(json.dumps(["not", "a", "mapping"]))
    assert not is_tiny(str(saved))
    with pytest.raises(BadData, match="cannot be read"):
        load_policy(str(saved), "search_qa")


def test_the_advice_for_a_family_without_weights_can_be_typed():
    commands = r"warmstart --env \S+ --out FOLDER, .*--model FOLDER"
    with pytest.raises(MissingData, match=commands):
        load_policy("tiny", "no_such_family")
    without = dataclasses.replace(HOTPOT, id="tstar/NoSuchEnv", family="no_such_family")
    with pytest.raises(UnknownOption, match=commands):
        choose(without, "auto")


def test_an_agent_by_path(saved):
    agent = load_agent(f"tiny:{saved}", env_id=HOTPOT.id, seed=3)
    assert agent.engine is not None and agent.env_options == {"topk": 1}
    with pytest.raises(MissingData, match="no such folder"):
        load_agent("tiny:/nonexistent", env_id=HOTPOT.id, seed=3)
    if not has_tiny("alfworld"):
        with pytest.raises(MissingData, match="--out FOLDER"):
            load_agent("tiny", env_id="tstar/ALFWorld", seed=3)


@pytest.mark.slow
def test_the_tiny_agent_samples_at_the_temperature_asked_for():
    easy = find_entry("tstar/Sokoban-easy")

    def actions(temperature: float | None, seed: int) -> list[str]:
        agent = load_agent("tiny", env_id=easy.id, seed=seed, temperature=temperature)
        env = gym.make(easy.id, split="test", horizon=5, **agent.env_options).unwrapped
        tasks = env.task_ids()[:2]
        return [
            step.action
            for t in tasks
            for step in play_episode(env, easy, agent, name="tiny", task=t, seed=seed).steps
        ]

    assert actions(0.0, 1) == actions(0.0, 2), "greedy does not depend on the seed"
    assert actions(None, 1) == actions(1.0, 1) != actions(1.0, 2)


def test_settings_come_with_the_weights_of_the_same_family(saved):
    names = ("Sokoban-easy", "Sokoban-medium", "Sokoban-hard", "Blocksworld-stack")
    easy, medium, hard, stack = (find_entry(f"tstar/{name}") for name in names)
    harder = str(WEIGHTS / "sokoban_harder")
    assert (
        settings_name(harder, easy)
        == settings_name(harder, hard)
        == settings_name("tiny", medium)
        == "sokoban_harder"
    )
    assert settings_name("tiny", hard) == "sokoban_hard"
    assert settings_name("tiny", easy) == settings_name(str(WEIGHTS / "sokoban"), hard) == "sokoban"
    assert settings_name(harder, stack) == "blocksworld", "Sokoban's options mean nothing there"
    assert settings_name(str(saved), medium) == "sokoban_harder", (
        "a folder that names no policy has the environment's own"
    )
    config, reason = choose(easy, harder)
    assert (
        config == dataclasses.replace(tiny(medium), env=easy.id, model=harder)
        and "settings of sokoban_harder" in reason
    )
    agent = load_agent(f"tiny:{harder}", env_id=easy.id, seed=0)
    assert agent.env_options == {"observation": "grid_coords", "multi_action": True}


def test_weights_name_their_policy_and_checkpoints_keep_it(tmp_path):
    for folder in WEIGHTS.iterdir():
        assert json.loads((folder / "config.json").read_text())[POLICY_FIELD] == folder.name
    medium = find_entry("tstar/Sokoban-medium")
    load_policy("tiny", policy_name(medium)).model.config.save_pretrained(tmp_path)
    assert settings_name(str(tmp_path), find_entry("tstar/Sokoban-easy")) == "sokoban_harder"


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "qwen2"
    save_small("qwen2", folder)
    return folder


def _edit(path, **changes):
    record = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in (record | changes).items() if v is not None}))


def _without_tokenizer(folder):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()


def _larger_tokenizer(folder):
    record = json.loads((folder / "tokenizer.json").read_text())
    extra = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    record["added_tokens"] += [{"id": 700 + n, "content": f"<extra{n}>"} | extra for n in range(3)]
    (folder / "tokenizer.json").write_text(json.dumps(record))


def _without_an_end(folder):
    _edit(folder / "tokenizer_config.json", eos_token=None)
    _edit(folder / "config.json", eos_token_id=None)
    for name in ("chat_template.jinja", "generation_config.json"):
        (folder / name).unlink()


def _not_numbers(folder):
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][0] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_without_tokenizer, r"no tokenizer in .*tokenizer\.json.*copy the files"),
        (_larger_tokenizer, "the model embeds 600: resize the embedding"),
        (_without_an_end, "has no eos_token, which ends a reply"),
        (_not_numbers, r"the weights model\.norm\.weight are not all finite"),
    ],
)
def test_what_no_episode_can_be_played_with_is_said_in_one_sentence(chat_model, tmp_path, change, said):
    folder = tmp_path / "model"
    shutil.copytree(chat_model, folder)
    change(folder)
    with pytest.raises(TStarError, match=said) as caught:
        load_policy(str(folder), "search_qa")
    assert "\n" not in str(caught.value)


def test_the_ends_of_a_turn_are_those_of_the_generation_config_too(chat_model, tmp_path):
    shutil.copytree(chat_model, tmp_path / "model")
    _edit(tmp_path / "model" / "generation_config.json", eos_token_id=[0, 2])
    assert load_policy(str(tmp_path / "model"), "search_qa").codec.ends == {0, 1, 2}
    codec = load_policy(str(chat_model), "search_qa").codec
    assert isinstance(codec, ChatCodec) and codec.ends == {codec.end}
