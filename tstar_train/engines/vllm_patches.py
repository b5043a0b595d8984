"""Patches of vLLM, and of what it does to the trainer's model, without which the two cannot share a process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def keep_weights_plain() -> None:
    """Let vLLM's CPU build compute with the weights as they are loaded; called before an ``LLM`` is made.

    It packs the weights of linear layers for oneDNN when they are first loaded and computes with the packed copy: weights loaded later
    change nothing, and some ways of loading them do not say so.
    """
    from vllm import _custom_ops

    _custom_ops._supports_onednn = False


def look_through_any_object() -> None:
    """Let vLLM's CPU build start beside libraries of any kind; called before an ``LLM`` is made.

    Where there is no Triton it looks for holders of its kernels among the objects of all loaded modules, and takes the ``__dict__`` of
    each for a mapping. An object that passes every attribute on has something else there: llvmlite's library, which numba loads (and
    bm25s loads numba).
    """
    try:
        from vllm.triton_utils import dispatcher
    except ImportError:  # this version (0.24.0, for one) does not look
        return

    def namespace(value: Any) -> Mapping[str, Any]:
        found = vars(value)
        return found if isinstance(found, Mapping) else {}

    dispatcher.vars = namespace  # in place of the builtin, in that module alone


def keep_class_callable(model: torch.nn.Module) -> None:
    """Let the trainer's model be called after an ``LLM`` was made of its architecture.

    Where vLLM has no class of its own (SmolLM3, GPT-NeoX) it takes transformers' and changes that in place: calls then ask for an
    attribute that only objects made by vLLM have.
    """
    for kind in {type(module) for module in model.modules()}:
        if kind.__call__.__module__.startswith("vllm."):
            setattr(kind, "do_not_compile", True)  # noqa: B010  # of ours; vLLM's objects have one of their own
