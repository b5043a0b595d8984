"""Optimizers: AdamW alone, or Muon for the matrices within the layers and AdamW for all other weights."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel

from tstar_envs import BadData
from tstar_train.config import OptimConfig


class OptimizerOptions(NamedTuple):
    """Options of the optimizer (``--optim.optimizer`` and those beside it).

    Attributes:
        name: ``adamw``; or ``muon`` for matrices within layers, with AdamW for the rest.
        betas: decay of AdamW's two moments per step.
        weight_decay: decoupled weight decay of weights with two or more dimensions; biases and norms have none.
        zero_stage: stage of DeepSpeed's ZeRO, 1 or 2.
    """

    name: Literal["adamw", "muon"] = "adamw"
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0
    zero_stage: int = 1

    @classmethod
    def of(cls, optim: OptimConfig) -> OptimizerOptions:
        """Read them from the options of a run."""
        betas = optim.adam_beta1, optim.adam_beta2
        return cls(optim.optimizer, betas, optim.weight_decay, optim.zero_stage)


def layer_matrices(model: nn.Module) -> list[nn.Parameter]:
    """List the trained matrices within a model's layers: all but embeddings and the output matrix, which Muon does not suit.

    Source: https://kellerjordan.github.io/posts/muon
    """
    outside = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    if isinstance(model, PreTrainedModel) and (output := model.get_output_embeddings()) is not None:
        outside.add(id(output.weight))
    return [p for p in model.parameters() if p.requires_grad and p.ndim == 2 and id(p) not in outside]


def decayed(parameters: Sequence[nn.Parameter], weight_decay: float) -> Iterator[dict[str, Any]]:
    """Yield AdamW's parameter groups: those that decay and those that do not; one group if none does."""
    if not weight_decay:
        yield {"params": list(parameters)}
        return
    for decay, wide in ((weight_decay, True), (0.0, False)):
        if chosen := [p for p in parameters if (p.ndim >= 2) is wide]:
            yield {"params": chosen, "weight_decay": decay}


class Optimizers:
    """One or two torch optimizers that step together.

    Args:
        groups: trained weights, by learning rate.
        rates: peak learning rate of each group.
        options: see ``OptimizerOptions``.
        matrices: ids (``id``) of the weights that Muon updates, if it is chosen. Its steps are scaled to the root mean square of AdamW's
            (torch's ``match_rms_adamw``, arXiv 2502.16982), so that one learning rate fits both.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[nn.Parameter]],
        rates: Sequence[float],
        options: OptimizerOptions,
        matrices: Collection[int] = (),
    ) -> None:
        of_muon = set(matrices) if options.name == "muon" else set()
        adamw: list[dict[str, Any]] = []
        muon: list[dict[str, Any]] = []
        for group, rate in zip(groups, rates, strict=True):
            others = [p for p in group if id(p) not in of_muon]
            adamw += [{**g, "lr": rate} for g in decayed(others, options.weight_decay) if g["params"]]
            if chosen := [p for p in group if id(p) in of_muon]:
                muon.append({"params": chosen, "lr": rate})
        self.parts: dict[str, torch.optim.Optimizer] = {}
        if adamw:
            self.parts["adamw"] = torch.optim.AdamW(adamw, lr=rates[0], betas=options.betas, weight_decay=0.0)
        if muon:
            self.parts["muon"] = torch.optim.Muon(
                muon, lr=rates[0], weight_decay=options.weight_decay, adjust_lr_fn="match_rms_adamw"
            )
        self._peaks = [g["lr"] for g in self.param_groups]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Parameter groups of all parts."""
        return [group for part in self.parts.values() for group in part.param_groups]

    def step(self, factor: float) -> None:
        """Take a step with the peak learning rates times a factor."""
        for group, peak in zip(self.param_groups, self._peaks, strict=True):
            group["lr"] = peak * factor
        for part in self.parts.values():
            part.step()

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for part in self.parts.values():
            part.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """Return the state: torch's own of AdamW alone, else one by the name of each part."""
        if list(self.parts) == ["adamw"]:
            return self.parts["adamw"].state_dict()
        return {name: part.state_dict() for name, part in self.parts.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of ``state_dict``.

        Raises:
            BadData: the state is of another optimizer.
        """
        given = {"adamw": state} if "param_groups" in state else state
        if set(given) != set(self.parts):
            raise BadData(
                f"the optimizer's state is of {' and '.join(sorted(given))}, and this run has {' and '.join(sorted(self.parts))}"
            )
        for name, part in self.parts.items():
            part.load_state_dict(given[name])
