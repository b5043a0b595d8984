"""Log-probabilities over the vocabulary in chunks: those of one piece, in bounded memory."""

from __future__ import annotations

import pytest
import torch
from policies import random_policy

from tstar_train.learner import batch
from tstar_train.learner.batch import LOSS_BYTES, token_logprobs
from tstar_train.policy.kv import output_logits

TOKENS = 23


@pytest.fixture
def model():
    return random_policy().model


def computed(model, hidden, ids, temperature=0.7):
    """Return log-probabilities, entropies, and the gradients of both inputs of their weighted sum."""
    model.zero_grad()
    states = hidden.clone().requires_grad_()
    logprobs, entropy = token_logprobs(model, states, ids, temperature)
    assert not entropy.requires_grad
    (logprobs * torch.arange(1.0, TOKENS + 1)).sum().backward()
    weight = model.get_output_embeddings().weight
    return logprobs.detach(), entropy, states.grad, weight.grad.clone()


@pytest.mark.parametrize("tokens", [1, 4, 22])
def test_chunks_give_what_one_piece_gives(model, monkeypatch, tokens):
    torch.manual_seed(0)
    size = model.config.vocab_size
    hidden, ids = torch.randn(TOKENS, model.config.hidden_size), torch.randint(0, size, (TOKENS,))
    whole = computed(model, hidden, ids)
    plain = torch.log_softmax(output_logits(model, hidden).double() / 0.7, dim=-1)
    torch.testing.assert_close(whole[0].double(), plain[range(TOKENS), ids], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(whole[1].double(), -(plain.exp() * plain).sum(-1), atol=1e-5, rtol=1e-5)

    sizes = []
    monkeypatch.setattr(batch, "MOST_LOSS_BYTES", tokens * size * LOSS_BYTES)
    monkeypatch.setattr(
        batch, "output_logits", lambda of, states: (sizes.append(len(states)), output_logits(of, states))[1]
    )
    for one, other in zip(whole, computed(model, hidden, ids), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
    assert max(sizes) == tokens and sum(sizes) == 2 * TOKENS, "each is computed again for the gradient"
    sizes.clear()
    with torch.no_grad():
        token_logprobs(model, hidden, ids, 0.7)
    assert max(sizes) == tokens and sum(sizes) == TOKENS
