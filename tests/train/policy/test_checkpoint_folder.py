"""A checkpoint says beside its weights what the model's own folder said, so that it loads wherever the model did."""

from __future__ import annotations

import json
import shutil

import huggingface_hub.constants
import pytest
import torch
from policies import trainer
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from scripts.studies.small_models import MODELS, POSITIONS, REFUSED, save_small
from tstar_train.build import build
from tstar_train.checkpoint import Progress, load_state, read_state, save_checkpoint
from tstar_train.config import Config, LoraConfig
from tstar_train.distributed import SingleProcess
from tstar_train.policy.model import load_policy

WORDS = "You are on a grid.\n\nAction: push left<|im_end|> <s> 1945"


def published(name, folder):
    """A small model as public ones are: its files are of transformers 4, whose words differ from those that 5 writes."""
    save_small(name, folder)
    config = json.loads((folder / "config.json").read_text())
    rotary = config.pop("rope_parameters", None)
    if rotary:
        config["rope_theta"] = 250_000.0
    if rotary and rotary.get("rope_type") == "longrope":
        config["rope_scaling"] = {
            "type": "longrope",
            **{key: rotary[key] for key in ("short_factor", "long_factor")},
        }
    config["auto_map"] = {"AutoConfig": "configuration_theirs.TheirConfig"}
    config["torch_dtype"] = "bfloat16"
    (folder / "config.json").write_text(json.dumps(config))
    said = json.loads((folder / "tokenizer_config.json").read_text())
    said["tokenizer_class"] = (
        "GPT2Tokenizer" if name.startswith(("phi", "gpt2")) else "PreTrainedTokenizerFast"
    )
    template = folder / "chat_template.jinja"
    if template.is_file():
        said["chat_template"] = template.read_text()
        template.unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    (folder / "tokenizer.model").write_bytes(b"\x0a pieces")
    (folder / "special_tokens_map.json").write_text(json.dumps({"eos_token": said["eos_token"]}))
    return folder


def checkpoint_of(model, run, **options):
    config = Config(env="hotpotqa", model=str(model), **options)
    return save_checkpoint(run, trainer(config, load_policy(config.model, "search_qa")), Progress(1), keep=1)


def record(path):
    return json.loads(path.read_text())


def test_the_files_of_the_tokenizer_and_the_names_of_the_rotary_embedding_stay(tmp_path):
    """llama.cpp's converter knows Phi-4-mini's tokenizer by its class, others' by ``tokenizer.model``, and reads with transformers 4."""
    source = published("phi4-mini", tmp_path / "model")
    made = checkpoint_of(source, tmp_path / "run")
    for name in ("tokenizer.json", "tokenizer.model", "special_tokens_map.json"):
        assert (made / name).read_bytes() == (source / name).read_bytes(), name
    assert record(made / "tokenizer_config.json") == record(source / "tokenizer_config.json")
    config, before = record(made / "config.json"), record(source / "config.json")
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 250_000.0
    assert (
        config["rope_scaling"] == before["rope_scaling"]
        and config["original_max_position_embeddings"] == POSITIONS
    )
    assert config["architectures"] == ["Phi3ForCausalLM"]
    assert "auto_map" not in config, "a program that does not lie beside it"
    assert "torch_dtype" not in config, "the weights are not in the published precision"
    assert (made / "generation_config.json").is_file()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if n % 3 else [])
        for n, name in enumerate(name for name in MODELS if name not in REFUSED)
    ],
)
def test_a_checkpoint_is_read_as_its_model(name, tmp_path):
    source = published(name, tmp_path / "model")
    made = checkpoint_of(source, tmp_path / "run")
    ours, theirs = AutoTokenizer.from_pretrained(made), AutoTokenizer.from_pretrained(source)
    assert (
        type(ours) is type(theirs)
        and ours(WORDS).input_ids == theirs(WORDS).input_ids
        and ours.chat_template == theirs.chat_template
    )
    model, before = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval() for folder in (made, source)
    )
    ids = torch.tensor([theirs(WORDS * 20).input_ids])
    with torch.no_grad():
        assert torch.equal(model(ids).logits, before(ids).logits)
    assert load_policy(str(made), "search_qa").codec.ends == load_policy(str(source), "search_qa").codec.ends


@pytest.mark.parametrize(
    ("name", "adapters"), [("qwen2", 0), ("qwen2", 4), ("gpt-neox", 0), ("gpt-neox", 4), ("mixtral", 0)]
)
def test_weights_have_the_names_of_the_models_own_files(name, adapters, tmp_path):
    """And a run goes on from those by which the trainer knows them."""
    source = published(name, tmp_path / "model")
    config = Config(env="hotpotqa", model=str(source), lora=LoraConfig(rank=adapters))
    one = build(config, SingleProcess())
    made = save_checkpoint(tmp_path / "run", one, Progress(1), keep=1)
    ours, theirs = load_file(made / "model.safetensors"), load_file(source / "model.safetensors")
    assert set(ours) == set(theirs) and all(torch.equal(ours[key], theirs[key]) for key in theirs)
    assert (made / "model.safetensors").samefile(made / "policy.safetensors") == (name == "qwen2"), (
        "room for weights twice"
    )
    other = build(config, SingleProcess())
    with torch.no_grad():
        for parameter in other.policy.model.parameters():
            parameter.add_(1 if parameter.requires_grad else 0)
    load_state(other, made)
    assert all(
        torch.equal(a, b)
        for a, b in zip(one.policy.model.parameters(), other.policy.model.parameters(), strict=True)
    )


def test_several_chat_templates_stay_in_a_folder_of_plain_files(tmp_path):
    source = published("qwen2", tmp_path / "model")
    said = record(source / "tokenizer_config.json")
    both = [
        {"name": "default", "template": said["chat_template"]},
        {"name": "tool_use", "template": said["chat_template"] + "{# tools #}"},
    ]
    (source / "tokenizer_config.json").write_text(json.dumps(said | {"chat_template": both}))
    first = checkpoint_of(source, tmp_path / "run")
    AutoTokenizer.from_pretrained(source).save_pretrained(
        tmp_path / "newer"
    )  # as releases from 2025 on write them
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(tmp_path / "newer" / name, source)
    shutil.copytree(tmp_path / "newer" / "additional_chat_templates", source / "additional_chat_templates")
    assert "chat_template" not in record(source / "tokenizer_config.json")
    for made in (first, checkpoint_of(source, tmp_path / "again")):
        assert all(path.is_file() for path in made.iterdir()) and read_state(made)
        assert AutoTokenizer.from_pretrained(made).chat_template == {
            each["name"]: each["template"] for each in both
        }


def test_a_model_by_name_keeps_its_files_too(tmp_path, monkeypatch):
    """Out of the cache, where nothing can be fetched."""
    cache = tmp_path / "cache"
    snapshot = cache / "models--them--theirs" / "snapshots" / ("0" * 40)
    snapshot.parent.mkdir(parents=True)
    published("llama3", snapshot)
    (cache / "models--them--theirs" / "refs").mkdir()
    (cache / "models--them--theirs" / "refs" / "main").write_text("0" * 40)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    made = checkpoint_of("them/theirs", tmp_path / "run")
    assert (made / "tokenizer.model").read_bytes() == (snapshot / "tokenizer.model").read_bytes()
    assert record(made / "config.json")["rope_theta"] == 250_000.0


def test_the_tokenizer_of_a_built_in_policy_stays_its_own(tmp_path):
    made = save_checkpoint(
        tmp_path, build(Config(env="hotpotqa", model="tiny"), SingleProcess()), Progress(1), keep=1
    )
    ours, shipped = load_policy(str(made), "search_qa"), load_policy("tiny", "search_qa")
    assert ours.tokenizer.backend_tokenizer.to_str() == shipped.tokenizer.backend_tokenizer.to_str()
    assert ours.model.config.rope_parameters == shipped.model.config.rope_parameters
