"""Where a model's turn ends: every token that closes one, and what is written behind a reply that lacks it."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizerBase

from tstar_envs import BadData


def named_ends(tokenizer: PreTrainedTokenizerBase, generation_config: Any = None) -> frozenset[int]:
    """The ends that the tokenizer and the model's ``generation_config.json`` name.

    Args:
        tokenizer: of the model; its end-of-sequence token.
        generation_config: of the model; its ``eos_token_id`` is a number, a list of them, or nothing.
    """
    named = getattr(generation_config, "eos_token_id", None)
    listed = named if isinstance(named, list | tuple) else [named]
    ends = {tokenizer.eos_token_id, *listed} - {None}
    return frozenset(int(i) for i in ends if 0 <= int(i) < len(tokenizer))


def closing_token(tokenizer: PreTrainedTokenizerBase, between: str) -> tuple[str, int]:
    r"""What a chat template writes behind the assistant's words, up to the token that closes the turn.

    Args:
        tokenizer: of the model.
        between: the template's text between the assistant's words and the next user's.

    Returns:
        (text before the closing token, the token): ``"\n"`` and ``<|EOT|>`` of ``"\n<|EOT|>\n### Instruction:\n"``.

    Raises:
        BadData: no token of the vocabulary's own stands there, so that nothing the model can say would end its turn.
    """
    added = {str(token.content): number for number, token in tokenizer.added_tokens_decoder.items()}
    added |= dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))
    found = min(
        ((between.find(text), -len(text), text) for text in added if text and text in between), default=None
    )
    if found is None:
        raise BadData(
            f"the chat template of {tokenizer.name_or_path!r} closes the assistant's turn with {between!r:.60}, in which there is no token "
            f"made for it: nothing the model can say would end its turn. Use a model whose template closes turns, or take chat_template "
            f"out of its tokenizer's files to use it as a base model"
        )
    return between[: found[0]], added[found[2]]
