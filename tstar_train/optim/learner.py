"""What an optimizer backend does: forward and backward passes, one step over all ranks, and its part of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from torch import Tensor

from tstar_train.optim.batch import Micro
from tstar_train.optim.forward import Outputs


class Learner(Protocol):
    """Trains the weights of one rank, in step with those of the others.

    An optimizer step is: for each part of the loss any number of ``backward``, then ``end_part`` and ``reduce``; then ``apply``.
    """

    @property
    def steps(self) -> int:
        """Optimizer steps begun: whether the weights are still those of before."""

    @property
    def shares(self) -> bool:
        """Whether it can compute rows as branches of a beginning that they have in common."""

    def forward(self, micro: Micro) -> Outputs:
        """Compute outputs with a gradient, under the current weights."""

    def frozen(self, micro: Micro) -> Outputs:
        """Without one, under the current weights."""

    @property
    def has_reference(self) -> bool:
        """Whether there is a moving average of the policy to compare it with."""

    def reference(self, micro: Micro) -> Tensor:
        """Log-probabilities of the wanted tokens under the moving average of the policy, without a gradient."""

    def backward(self, loss: Tensor) -> None:
        """Add a loss's gradient to what is accumulated; ranks may call it different numbers of times."""

    def abandon(self) -> None:
        """Let the others know, who may wait in ``backward``, that this rank cannot finish its part; all ranks then raise."""

    def discard(self) -> None:
        """Forget the step's gradient."""

    def end_part(self, what: str) -> None:
        """Take what was accumulated as a whole part of this rank's gradient.

        Raises:
            NotFinite: it is no number.
        """

    def reduce(self, what: str) -> float:
        """Sum the part over all ranks and add it to the step's gradient; the norm of the sum.

        Raises:
            NotFinite: it is no number.
        """

    def apply(self, factor: float) -> float:
        """Clip the step's gradient by its norm and take the step, unless it is zero everywhere.

        Args:
            factor: of the learning rates.

        Returns:
            The norm before it was clipped.

        Raises:
            NotFinite: it is no number; the step is not taken.
        """

    def end_iteration(self) -> None:
        """The reference follows the policy."""

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """The policy's weights by name, for the sampling engine."""

    @property
    def saves_alone(self) -> bool:
        """Whether the first rank can ``save`` without ``gather``, and so after the others have failed."""

    def gather(self) -> None:
        """Bring to the first rank what it needs to ``save``; all ranks call it, between iterations."""

    def save(self, folder: Path) -> None:
        """Write all that the learner's future depends on; the first rank alone calls it.

        Raises:
            ValueError: ``gather`` was not called since the last step.
        """

    def load(self, folder: Path) -> None:
        """Read what ``save`` wrote.

        Raises:
            BadData: a file is damaged, or of another model.
        """
