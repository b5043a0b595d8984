"""How the tiny policy starts: heads that look back, texts that are one token."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from policies import RECIPE, tokenizer

from tstar_train.policy.model import new_tiny
from tstar_train.policy.tokenizer import train_tokenizer
from tstar_train.recipes.recipe import ModelRecipe, load_recipe

OFFSETS = ((1, 2, 8), (1,))


def attention(offsets: tuple[tuple[int, ...], ...]) -> list[torch.Tensor]:
    """Attention weights per layer, of shape (heads, tokens, tokens), on random tokens."""
    model = new_tiny(tokenizer(), 0, dataclasses.replace(RECIPE.model, look_back=offsets))
    model.set_attn_implementation("eager")
    ids = torch.randint(10, 500, (1, 90), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return [weights[0] for weights in model(ids, output_attentions=True).attentions]


def test_heads_look_back_by_their_distance() -> None:
    looking, plain = attention(OFFSETS), attention(())
    for layer, distances in enumerate(OFFSETS):
        for head, distance in enumerate(distances):
            seen = torch.arange(distance, 90)
            assert looking[layer][head, seen, seen - distance].min() > 0.5
            assert plain[layer][head, seen, seen - distance].mean() < 0.2


def test_other_heads_keep_their_random_start() -> None:
    plain = new_tiny(tokenizer(), 0, RECIPE.model)
    looking = new_tiny(tokenizer(), 0, dataclasses.replace(RECIPE.model, look_back=OFFSETS))
    changed = [
        name
        for name, value in looking.named_parameters()
        if not torch.equal(value, plain.get_parameter(name))
    ]
    assert changed == [
        f"model.layers.{n}.self_attn.{p}_proj.{w}" for n in (0, 1) for p in "qk" for w in ("weight", "bias")
    ]
    rows = (
        looking.model.layers[0].self_attn.q_proj.weight != plain.model.layers[0].self_attn.q_proj.weight
    ).any(1)
    assert rows.tolist() == [True] * 96 + [False] * 32


def test_copying_heads_expect_what_followed_before() -> None:
    """On random tokens that are repeated the second half is easier than the first, before any training."""
    half = torch.randint(300, len(tokenizer()), (8, 60), generator=torch.Generator().manual_seed(0))
    rows = torch.cat([half, half], 1)

    def gain(copying: bool) -> float:
        with torch.no_grad():
            logits = new_tiny(tokenizer(), 0, ModelRecipe(100_000.0, ((1, 2), (1,)), copying))(rows).logits
        losses = torch.nn.functional.cross_entropy(
            logits[:, :-1].transpose(1, 2), rows[:, 1:], reduction="none"
        )
        return float(losses[:, :59].mean() - losses[:, 60:].mean())

    assert gain(copying=True) > 0.5
    assert abs(gain(copying=False)) < 0.2


def test_heads_look_back_under_a_larger_base_too() -> None:
    model = new_tiny(tokenizer(), 0, ModelRecipe(100_000.0, ((1, 2),)))
    model.set_attn_implementation("eager")
    with torch.no_grad():
        attentions = model(torch.randint(0, len(tokenizer()), (4, 40)), output_attentions=True).attentions
    seen = torch.arange(10, 40)
    assert attentions[0][:, 0, seen, seen - 1].mean() > 0.8
    assert attentions[0][:, 1, seen, seen - 2].mean() > 0.8


@pytest.fixture(scope="module")
def places():
    return train_tokenizer(["Boxes: (1, 2), (3, 4)\n#_X#\n"] * 50, 300, r"[#_X]|\n", (" (1, 2)", " (3, 4)"))


def test_fixed_texts_are_one_token(places) -> None:
    assert (
        len(places.encode(" (1, 2)", add_special_tokens=False))
        == len(places.encode(" (3, 4)", add_special_tokens=False))
        == 1
    )
    assert len(places.encode(" (2, 1)", add_special_tokens=False)) > 1


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from("#_X(1234, )\n√ab"), max_size=40))
def test_any_text_comes_back(places, text: str) -> None:
    assert places.decode(places.encode(text, add_special_tokens=False)) == text


def test_a_bracket_makes_no_new_word_and_leaves_no_space() -> None:
    text = "Action: click[next >]\n"
    ids = tokenizer().encode(text, add_special_tokens=False)
    assert (
        tokenizer()
        .convert_ids_to_tokens(ids)[ids.index(tokenizer().convert_tokens_to_ids("[")) + 1]
        .startswith("\u0120")
    )
    assert tokenizer().decode(ids) == text


def test_a_code_is_cut_alike_wherever_it_stands() -> None:
    units = load_recipe("webshop").tokenizer.units
    codes = ["b04e0nn7c7", "b0kf26egw0", "b011d05zyx"]
    texts = [f"Product {code}: Lamp\n{code}: Lamp, {code}\nclick[{code}]" for code in codes] * 50
    cut = train_tokenizer([*texts, "in 4e boxes, b0 and b0kf"] * 3, 400, units=units)
    places = (f"{mark}{codes[1]}:" for mark in ("", " ", "\n", "["))
    pieces = {tuple(p.strip("\u0120") for p in cut.tokenize(text)) for text in places}
    codes_only = {tuple(p for p in row if p not in ("[", "\u010a", ":", "")) for row in pieces}
    assert codes_only == {("b0", "kf", "26", "eg", "w0")}
    for text in ("b0kf26egw", "b0kf26egw01", "ab0kf26egw0", "b0, 26eg"):  # no codes
        assert "b0" not in cut.tokenize(text)
        assert cut.decode(cut.encode(text, add_special_tokens=False)) == text


def test_without_units_words_are_cut_as_gpt2_does() -> None:
    text = "it's 12 o'clock,  isn't it? b04e0nn7c7\n\n x"
    plain = train_tokenizer([text] * 30, 330)
    assert plain.tokenize(text) == train_tokenizer([text] * 30, 330, units="\x00").tokenize(text)
