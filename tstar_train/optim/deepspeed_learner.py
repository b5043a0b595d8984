"""The learner of DeepSpeed's ZeRO stage 2: every rank keeps all weights, but only its part of gradient and optimizer state.

A backward pass sums over the ranks while it runs, so all ranks must make equally many: each is preceded by a vote, and a rank that
has none left joins in with an empty one until nobody has.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tstar_train.finite import NotFinite
from tstar_train.optim.batch import Micro
from tstar_train.optim.policy_learner import PolicyLearner
from tstar_train.optim.torch_learner import PARTS_BELOW
from tstar_train.optim.zero import Zero
from tstar_train.world import RankFailed

# Entries of a gradient that are squared at a time: in double precision they take 128 MiB.
_SQUARED = 1 << 24


class DeepSpeedLearner(PolicyLearner):
    """See ``Learner``; arguments as of ``PolicyLearner``.

    Attributes:
        gradient: sums of the parts so far, a tensor per group of this rank; None before the first part and after each step. Those of a
            large model stay with DeepSpeed until the step.

    Raises:
        MissingExtra: deepspeed is not installed.
    """

    def _set_up(self, groups: list[list[torch.nn.Parameter]], rates: list[float]) -> None:
        self._parameters = [p for group in groups for p in group]
        # DeepSpeed wants one precision per group: (which are clipped together, parameters) of each.
        split = [
            (n, [p for p in group if p.dtype == d])
            for n, group in enumerate(groups)
            for d in dict.fromkeys(p.dtype for p in group)
        ]
        self._clipped = [n for n, _ in split]
        self._rates = [rates[n] for n in self._clipped]
        self._numbers = [_numbers(group, self._parameters) for _, group in split]
        self._zero = Zero([group for _, group in split], self._world, self.model.device)
        self.gradient: list[Tensor] | None = None
        # As in ``TorchLearner``: the norms of its parts are not worth a further copy of a large gradient.
        self._whole = sum(p.numel() for p in self._parameters) > PARTS_BELOW
        self._summed = False
        self._gathered: tuple[list[Tensor], dict[str, Any]] | None = None
        self._ended = False
        self._broken: list[Tensor] = []
        self._order: list[int] = []
        for number, parameter in enumerate(self._parameters):
            parameter.register_hook(partial(self._seen, number))

    @property
    def saves_alone(self) -> bool:  # type: ignore[override]
        """See ``Learner``."""
        return self._world.size == 1

    def backward(self, loss: Tensor) -> None:
        """See ``Learner``."""
        if self._ended or not self._vote(more=True):  # another rank has failed: all are about to raise
            return
        self._together(loss)

    def abandon(self) -> None:
        """See ``Learner``."""
        if not self._ended:
            self._vote(failed=True)

    def discard(self) -> None:
        """See ``Learner``."""
        self.gradient, self._summed = None, False
        self._begin()
        self._zero.forget()

    def end_part(self, what: str) -> None:
        """See ``Learner``; the rank whose own gradient is no number is the one that raises."""
        while not self._ended and self._vote():
            self._together(self._nothing())
        self._ended = True
        if any(bool(flag) for flag in self._broken):
            raise NotFinite(f"the gradient of the {what} loss has values that are NaN or infinite")

    def reduce(self, what: str) -> float:
        """See ``Learner``; the norm of a part of a large model's gradient is not known (NaN)."""
        self._summed = True
        if self._whole:
            self._begin()
            return math.nan
        part = self._taken()
        norm = self._norm(part, f"the gradient of the {what} loss of all processes together")
        self.gradient = (
            part if self.gradient is None else [a.add_(b) for a, b in zip(self.gradient, part, strict=True)]
        )
        return norm

    def apply(self, factor: float) -> float:
        """See ``Learner``."""
        if not self._summed:
            raise ValueError("no part of the gradient was summed")
        gradient = self._taken() if self.gradient is None else self.gradient
        self.gradient, self._summed = None, False
        norms = []
        for which in dict.fromkeys(self._clipped):
            own = [part for n, part in zip(self._clipped, gradient, strict=True) if n == which]
            norm = self._norm(own, "the gradient of all processes and losses together")
            if norm > self._max_norm:
                for part in own:
                    part.mul_(self._max_norm / norm)
            norms.append(norm)
        if any(norms):  # see ``TorchLearner``
            self._steps += 1
            self._gathered = None
            self._guarded(
                "DeepSpeed's step", lambda: self._zero.step(gradient, [rate * factor for rate in self._rates])
            )
        return norms[0]

    def gather(self) -> None:
        """See ``Learner``."""
        masters: list[Tensor] = [torch.empty(0)] * len(self._parameters)
        state: dict[int, dict[str, Tensor]] = {}
        for n, numbers in enumerate(self._numbers):
            half = self._parameters[numbers[0]].dtype.itemsize < 4
            for number, weights in zip(numbers, self._zero.masters(n) if half else [], strict=False):
                masters[number] = weights
            for name, value in self._zero.moments(n).items():
                # Each its own number of steps: torch would count a shared one once for every parameter.
                values = [value.clone() for _ in numbers] if isinstance(value, Tensor) else value
                for number, each in zip(numbers, values, strict=False):  # none on the other ranks
                    state.setdefault(number, {})[name] = each
        options = {
            "betas": (0.9, 0.99),
            "eps": 1e-8,
            "weight_decay": 0.0,
            "amsgrad": False,
            "maximize": False,
        }
        self._gathered = (
            masters,
            {"state": state, "param_groups": [{**options, "params": list(range(len(self._parameters)))}]},
        )

    def _vote(self, more: bool = False, failed: bool = False) -> bool:
        """Whether a backward pass follows on all ranks: some rank has one to make, and none has failed.

        Raises:
            RankFailed: the ranks' last passes met their parameters in different orders, so that what they summed is wrong.
        """
        order = zlib.crc32(repr(self._order).encode()) >> 8
        votes = self._world.sum(
            torch.tensor([more, failed, order, order * order], dtype=torch.int64)
        ).tolist()
        if votes[1]:
            self._ended = True
            return False
        if votes[2] ** 2 != self._world.size * votes[3]:
            self._ended = True
            raise RankFailed(
                "the ranks' backward passes differ, which ZeRO cannot sum; use --optimizer torch for this model"
            )
        return bool(votes[0])

    def _together(self, loss: Tensor, last: bool = False) -> None:
        """A backward pass on all ranks."""
        self._order = []
        self._guarded("DeepSpeed's backward pass", lambda: self._zero.backward(loss, last))

    def _guarded(self, what: str, call: Any) -> None:
        """What fails within DeepSpeed on one rank leaves the others in the middle of a call: no more calls are made."""
        try:
            with self._world.elsewhere(what):
                call()
        except RuntimeError:
            self._ended = True
            raise

    def _taken(self) -> list[Tensor]:
        """What all backward passes since the last time have summed: this rank's part of each group."""
        self._together(self._nothing(), last=True)
        part = self._zero.take()
        self._begin()
        return part

    def _nothing(self) -> Tensor:
        """A loss of 0 over all that is trained, through the layers in the order of a real one: ZeRO sums in that order."""
        ids = torch.zeros(1, 2, dtype=torch.int64, device=self.model.device)
        outputs = self.forward(Micro(ids, torch.tensor([[False, True]], device=self.model.device)))
        total = (
            outputs.logprobs.sum()
            if outputs.values is None
            else outputs.logprobs.sum() + outputs.values.sum()
        )
        return total * 0.0

    def _begin(self) -> None:
        """A new part of the loss."""
        self._ended, self._broken, self._order = False, [], []

    def _seen(self, number: int, gradient: Tensor) -> None:
        self._order.append(number)
        self._broken = [(~torch.isfinite(gradient)).any() | (self._broken[0] if self._broken else False)]

    def _norm(self, parts: Sequence[Tensor], what: str) -> float:
        """The norm over this and all other ranks' parts."""
        pieces = [piece for part in parts for piece in part.split(_SQUARED)]
        squares = torch.stack([piece.double().square().sum() for piece in pieces]).sum().cpu()
        norm = math.sqrt(value) if (value := self._world.sum(squares.reshape(1)).item()) >= 0 else math.nan
        if not math.isfinite(norm):
            raise NotFinite(f"{what} has a norm of {norm}")
        return norm

    def _master_names(self) -> Sequence[str]:
        return [f"{n:05d}" for n, _ in enumerate(p for p in self._parameters if p.dtype.itemsize < 4)]

    def _masters_state(self) -> dict[str, Tensor]:
        masters, _ = self._whole_state()
        half = [weight for weight, p in zip(masters, self._parameters, strict=True) if p.dtype.itemsize < 4]
        return dict(zip(self._master_names(), half, strict=True))

    def _restore_masters(self, state: dict[str, Tensor]) -> None:
        half = iter(state.values())
        weights = [next(half) if p.dtype.itemsize < 4 else p.detach().cpu().clone() for p in self._parameters]
        for n, numbers in enumerate(self._numbers):
            self._zero.restore_masters(n, [weights[number] for number in numbers])

    def _optimizer_state(self) -> dict[str, Any]:
        return self._whole_state()[1]

    def _restore_optimizer(self, state: dict[str, Any]) -> None:
        for n, numbers in enumerate(self._numbers):
            given = [state["state"].get(number, {}) for number in numbers]
            moments = {
                name: value if value.dim() == 0 else [one[name] for one in given]
                for name, value in given[0].items()
            }
            self._zero.restore_moments(n, moments)
        self._gathered = None

    def _whole_state(self) -> tuple[list[Tensor], dict[str, Any]]:
        if self._gathered is None:
            if not self.saves_alone:
                raise ValueError("the ranks' parts were not gathered since the last step")
            self.gather()
        if self._gathered is None:
            raise ValueError("nothing was gathered")
        return self._gathered


def _numbers(group: Sequence[torch.nn.Parameter], parameters: Sequence[torch.nn.Parameter]) -> list[int]:
    """Where the parameters of a group are among all of them."""
    place = {id(p): n for n, p in enumerate(parameters)}
    return [place[id(p)] for p in group]
