"""Kinds of reasons why an episode did not solve its task: a model that plays badly is not an endpoint that is down."""

from __future__ import annotations

from tstar_envs.errors import TStarError
from tstar_envs.record import FAILURES, Episode

MODEL, UNPARSED, ENDPOINT, ENVIRONMENT, AGENT = FAILURES
# How tables name each kind, in their order; the first two are results of the agent, the others are in no rate.
KINDS = {
    MODEL: "the model failed",
    UNPARSED: "the replies did not parse",
    ENDPOINT: "the endpoint failed",
    ENVIRONMENT: "the environment failed",
    AGENT: "the agent's code failed",
}
SCORED = (MODEL, UNPARSED)
UNREADABLE_SHARE = 0.5  # of an episode's replies; from there on the form of the replies is what failed


class AgentError(TStarError):
    """An agent raised, or returned something that is not a string."""


class EndpointError(TStarError):
    """The endpoint of a model gave no answer that could be used, after all tries."""


def failure(episode: Episode, error: Exception | None = None) -> str:
    """Which of ``KINDS`` an episode is, "" where it solved its task.

    An episode that was played and not solved is ``unparsed`` where at least half of its replies held no action that could be read, else
    ``model``.

    Args:
        episode: it has ended.
        error: what ended it, if it ended in an error and the error is at hand; else its record is read.
    """
    if episode.ended == "error":
        name = type(error).__name__ if error is not None else episode.error.partition(":")[0]
        if name == EndpointError.__name__:
            return ENDPOINT
        return (
            AGENT if name in (AgentError.__name__, "NoExpert", "NotShown", "ContextTooLong") else ENVIRONMENT
        )
    if episode.success:
        return ""
    unreadable = sum(not step.action for step in episode.steps)
    return UNPARSED if episode.steps and unreadable >= UNREADABLE_SHARE * len(episode.steps) else MODEL


def failure_of(episode: Episode) -> str:
    """Which of ``KINDS`` an episode is, as its record says, or as its steps show where the record is older than this field."""
    return episode.failure or failure(episode)
