"""What single turns are credited with for the way to the goal, beside the advantage that the end of their episode gives them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tstar_train.rollout.types import Turn


def progress_made(turns: Sequence[Turn]) -> NDArray[np.float64]:
    """How much of the way each turn made, shape (turns,), in shares of the whole way: the change of ``Turn.progress``.

    A turn that loses the task, or uses up the steps, gives back all that was made before it. The sum over an episode is 1 where it
    succeeds and 0 where it ends otherwise, whatever happened on the way. It is the one-step advantage with the progress as the critic
    (GAE with gamma 1 and lambda 0, Schulman et al. 2016), a difference of potentials as in Ng, Harada and Russell (1999); but theirs counts
    for the turns before it too, so that the best policy stays the best, and this is given to the turn alone and makes no such promise.

    Args:
        turns: of one episode, in order; all of them with their ``progress``.

    Raises:
        ValueError: progress was not recorded (see ``Sampling.progress``).
    """
    after = []
    for number, turn in enumerate(turns):
        if turn.progress is None:
            raise ValueError(
                f"turn {number} has no progress: collect the episodes with Sampling(progress=True)"
            )
        after.append(turn.progress)
    return np.diff(np.array(after, dtype=np.float64), prepend=0.0)
