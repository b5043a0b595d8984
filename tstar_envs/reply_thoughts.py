"""Where the thoughts of a reply end: tags, brackets and channels in which models mark what they only think."""

from __future__ import annotations

import re

_NAMES = "think|thinking|thought|thoughts|reasoning|reason|reflection|analysis|scratchpad|inner_monologue|antthinking|seed:think"
_BLANKS = r"\s{0,8}"  # `<think >`; a bound keeps the expressions linear
_OPEN = rf"<(?:{_NAMES}){_BLANKS}>|\[think\]|\u25c1think\u25b7|<\|start_thinking\|>|<\|begin_of_thought\|>|<\|inner_prefix\|>"
_CLOSE = rf"</(?:{_NAMES}){_BLANKS}>|\[/think\]|\u25c1/think\u25b7|<\|end_thinking\|>|<\|end_of_thought\|>|<\|inner_suffix\|>"
OPEN = re.compile(_OPEN, re.IGNORECASE)
CLOSE = re.compile(_CLOSE, re.IGNORECASE)
TAG = re.compile(f"{_OPEN}|{_CLOSE}", re.IGNORECASE)
# Of a thought that is never closed: a tag counts at the beginning of a line alone, since elsewhere it may be mentioned.
_LEFT_OPEN = re.compile(
    rf"^[ \t]*+(?:{_OPEN})|\u25c1think\u25b7|<\|(?:start_thinking|begin_of_thought|inner_prefix)\|>",
    re.IGNORECASE | re.MULTILINE,
)
# gpt-oss: `<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...<|return|>`.
_CHANNEL = "<|channel|>"
_IN_CHANNELS = re.compile(r"\s*+(?:<\|start\|>\w{0,40})?<\|channel\|>")
_FINAL = re.compile(
    r"<\|channel\|>\s{0,8}final\b[^<]{0,40}(?:<\|constrain\|>[^<]{0,40})?<\|message\|>", re.IGNORECASE
)
_CHANNEL_MARK = re.compile(
    r"<\|channel\|>[^<]{0,80}(?:<\|constrain\|>[^<]{0,40})?<\|message\|>|<\|start\|>[^<]{0,40}|<\|(?:end|return|call)\|>",
    re.IGNORECASE,
)
# The same where the server has left out its special tokens.
_PLAIN_FINAL = "assistantfinal"


def after_thoughts(reply: str, cues: re.Pattern[str]) -> int:
    """Where the closed thoughts before the first cue end; 0 where none is closed.

    Args:
        reply: any string.
        cues: finds the next mark of an action.
    """
    closed = CLOSE.search(reply)
    if closed is None:
        return 0
    end = closed.end()
    cue = cues.search(reply, end)
    while (opened := OPEN.search(reply, end)) is not None:
        played = (
            cue.start() < opened.start() if cue is not None else bool(reply[end : opened.start()].strip())
        )
        if played or (closed := CLOSE.search(reply, opened.end())) is None:
            break
        end = closed.end()
        if cue is not None and cue.start() < end:
            cue = cues.search(reply, end)
    return end


def spoken(reply: str, cues: re.Pattern[str]) -> tuple[int, int]:
    """The part of a reply that is not thought: all that may be played.

    Of channels the last ``final`` alone is spoken. A thought that is opened at the beginning of a line and never closed goes on to
    the end of the reply (the limit of tokens cut it).

    Args:
        reply: any string.
        cues: finds the next mark of an action.

    Returns:
        Where it starts and ends in the reply.
    """
    if _CHANNEL in reply:
        finals = [final.end() for final in _FINAL.finditer(reply)]
        if finals or _IN_CHANNELS.match(reply) is not None:
            return (finals or [len(reply)])[-1], len(reply)
    if reply.startswith("analysis") and (final_at := reply.rfind(_PLAIN_FINAL)) >= 0:
        return final_at + len(_PLAIN_FINAL), len(reply)
    start = after_thoughts(reply, cues)
    opened = _LEFT_OPEN.search(reply, start)
    return start, len(reply) if opened is None else opened.start()


def without_marks(thought: str) -> str:
    """A thought without the tags and channels that mark it."""
    if _CHANNEL in thought:
        thought = _CHANNEL_MARK.sub("", thought)
    return TAG.sub("", thought)
