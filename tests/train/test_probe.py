"""Sampler against the forward pass of other architectures: scaled logits, sliding windows, what is not known."""

import pytest
import torch
from policies import tokenizer
from transformers import AutoModelForCausalLM, CohereConfig, Gemma2Config, GraniteConfig, LlamaConfig, MistralConfig, Qwen2Config

from tstar_envs import UnknownOption
from tstar_train.engines.check import EngineMismatch, check_agreement
from tstar_train.engines.local import LocalEngine
from tstar_train.policy.codec import PlainCodec
from tstar_train.policy.model import Policy

SIZES = {
    "vocab_size": 300, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1,
}  # fmt: skip


def policy_of(config):
    torch.set_num_threads(1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
    return Policy(model, PlainCodec(tokenizer(), with_prompt=True), tokenizer(), config.model_type)


@pytest.mark.parametrize("config", [
    LlamaConfig(**SIZES), Qwen2Config(**SIZES), GraniteConfig(**SIZES, logits_scaling=8.0), CohereConfig(**SIZES, logit_scale=0.25),
    MistralConfig(**SIZES, sliding_window=None),
], ids=lambda c: c.model_type)  # fmt: skip
def test_sampler_and_forward_agree(config):
    policy = policy_of(config)
    assert check_agreement(policy, LocalEngine(policy)) < 1e-4


def test_a_context_beyond_a_sliding_window_is_refused():
    policy = policy_of(MistralConfig(**SIZES, sliding_window=8))
    with pytest.raises(UnknownOption, match="last 8 only"):
        check_agreement(policy, LocalEngine(policy))


def test_a_mismatch_stops():
    policy, other = policy_of(LlamaConfig(**SIZES)), policy_of(GraniteConfig(**SIZES))
    with pytest.raises(EngineMismatch, match=r"disagree by .* nats"):
        check_agreement(policy, LocalEngine(other))


def test_an_architecture_that_the_engine_does_not_know_is_refused():
    policy = policy_of(Gemma2Config(**SIZES, head_dim=16, final_logit_softcapping=5.0, sliding_window=64))
    with pytest.raises(EngineMismatch, match="gemma2"):
        check_agreement(policy, LocalEngine(policy))
