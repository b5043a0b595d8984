"""The contrast prompt: how the policy is shown a failed and a successful branch and asked for a better thought."""

from __future__ import annotations

from typing import NamedTuple

from tstar_train.policy.codec import Codec


class Branch(NamedTuple):
    """One way that was taken from a divergence: what was thought, done and seen there."""

    thought: str
    action: str
    observation: str


HEADER_FAILED = "An attempt that failed went on here like this:"
HEADER_SUCCEEDED = "An attempt that succeeded went on here like this:"
REQUEST = "Write the turn that should stand here instead."


def contrast_text(failed: Branch, succeeded: Branch) -> str:
    """The text that follows the plain context."""
    return f"{HEADER_FAILED}\n{_branch(failed)}\n{HEADER_SUCCEEDED}\n{_branch(succeeded)}\n{REQUEST}\n"


def contrast_context(codec: Codec, context: list[int], failed: Branch, succeeded: Branch) -> list[int]:
    """The context in which the rectified thought is written; it never enters a training context of the policy."""
    return codec.asked(context, contrast_text(failed, succeeded))


def _branch(branch: Branch) -> str:
    thought = f"Thought: {branch.thought}\n" if branch.thought else ""
    return f"{thought}Action: {branch.action or '(none)'}\nObservation: {branch.observation}"
