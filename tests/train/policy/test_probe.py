"""What is asked of a model once: whether sampler and forward pass agree, on small models of the real classes, and what is refused."""

import copy

import pytest
import torch
from policies import tokenizer
from transformers import AutoModelForCausalLM, GraniteConfig, LlamaConfig, MistralConfig

from scripts.studies.small_models import MODELS, POSITIONS, REFUSED, small_model
from tstar_envs import BadData, TStarError, UnknownOption
from tstar_train.engines import local
from tstar_train.engines.check import EngineMismatch, check_agreement
from tstar_train.engines.local import LocalEngine
from tstar_train.policy.codec import PlainCodec
from tstar_train.policy.kv import position_limit
from tstar_train.policy.model import Policy, require_text_model

SIZES = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 1,
}


def policy_of(model, name="model"):
    torch.set_num_threads(1)
    return Policy(model, PlainCodec(tokenizer(), with_prompt=True), tokenizer(), name)


def made(config):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
    return policy_of(model, config.model_type)


@pytest.mark.parametrize("name", [n for n in MODELS if n not in REFUSED])
def test_sampler_and_forward_agree(name):
    policy = policy_of(small_model(name, 1300), name)
    require_text_model(policy.model, policy.tokenizer, name)
    assert check_agreement(policy, LocalEngine(policy)) < 1e-4


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_cannot_be_computed_is_refused_in_one_sentence(name):
    policy = policy_of(small_model(name, 1300), name)
    with pytest.raises(TStarError) as caught:
        require_text_model(policy.model, policy.tokenizer, name)
        check_agreement(policy, LocalEngine(policy))
    said = str(caught.value)
    assert name in said and "\n" not in said and ("use " in said or "name " in said)


def test_a_context_beyond_a_sliding_window_is_refused():
    policy = made(MistralConfig(**SIZES, sliding_window=8))
    with pytest.raises(UnknownOption, match="last 8 tokens only"):
        check_agreement(policy, LocalEngine(policy))


def test_a_mismatch_stops():
    policy, other = made(LlamaConfig(**SIZES)), made(GraniteConfig(**SIZES))
    with pytest.raises(EngineMismatch, match=r"disagree by .* nats"):
        check_agreement(policy, LocalEngine(other))


def test_a_larger_tokenizer_is_refused_by_both_sizes():
    model = small_model("llama3", 300)
    with pytest.raises(
        BadData, match=rf"has {len(tokenizer())} tokens and the model embeds 300.*resize_token_embeddings"
    ):
        require_text_model(model, tokenizer(), "some/model")


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
def test_a_rotation_that_changes_with_the_length_is_used_up_to_where_it_changes(kind):
    """Keys that were kept from a shorter text are wrong beyond it: the sampler would differ from the forward pass."""
    if kind == "longrope":
        model = small_model("phi4-mini", 300)
    else:
        rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
        model = AutoModelForCausalLM.from_config(
            LlamaConfig(**SIZES, max_position_embeddings=POSITIONS, rope_parameters=rope)
        ).eval()
    assert position_limit(model.config) == POSITIONS < 8 * POSITIONS
    assert LocalEngine(policy_of(model), limit=10**6).limit == POSITIONS
    nested = copy.deepcopy(model.config)
    nested.rope_parameters = {
        "full_attention": model.config.rope_parameters,
        "sliding_attention": {"rope_type": "default"},
    }
    assert position_limit(nested) == POSITIONS
    assert position_limit(small_model("llama3", 300).config) == POSITIONS


def test_the_kept_keys_of_such_a_model_are_wrong_beyond(monkeypatch):
    policy = policy_of(small_model("phi4-mini", 300))
    monkeypatch.setattr(local, "context_limit", lambda *_: 2 * POSITIONS)  # as if nobody had looked
    engine = LocalEngine(policy)
    text = [(3 + 7 * n) % 300 for n in range(POSITIONS + 8)]
    ours = engine.logprobs([text[: POSITIONS - 4]], [[text[POSITIONS - 4 :]]])[0][0]
    with torch.no_grad():
        logits = policy.model(torch.tensor([text])).logits[0].log_softmax(-1)
    theirs = sum(float(logits[p - 1, text[p]]) for p in range(POSITIONS - 4, POSITIONS + 8))
    assert abs(ours - theirs) > 1e-3
