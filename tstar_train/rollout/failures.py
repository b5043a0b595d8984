"""Episodes that failed for want of infrastructure: they are left out of everything that is learnt or measured, and counted.

A few of them thin an iteration out. When most of what was played failed, what is left says more about the failure than about
the policy, so the run stops instead, with what is saved so far.
"""

from __future__ import annotations

from collections.abc import Sequence

from tstar_envs import Episode, InfrastructureError

MOST = 0.5  # share of the episodes above which a run stops


def failed(episode: Episode) -> bool:
    """Whether an episode failed, so that its reward means nothing."""
    return episode.ended == "error"


def stop_if_most_failed(failures: Sequence[Episode], played: int) -> None:
    """Stop an iteration of which most episodes failed.

    Args:
        failures: the failed episodes.
        played: how many there were in all.

    Raises:
        InfrastructureError: most failed; the message gives the reason of the last one.
    """
    if len(failures) > MOST * played:
        raise InfrastructureError(
            f"{len(failures)} of {played} episodes failed and count for nothing, the last: {failures[-1].error}"
        )
