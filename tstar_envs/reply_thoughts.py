"""Where the thoughts of a reply end: tags, brackets and channels in which models mark what they only think."""

from __future__ import annotations

import re

# Alone, or as a part of a name: `seed:think`, `inner_monologue`, `thought_process`, `chain_of_thought`. Bounds keep all linear.
_NAMES = (
    r"(?:think|thinking|thought|thoughts|reasoning|reason|reflection|analysis|scratchpad|antthinking|plan|planning)|"
    r"(?:\w{1,20}[_:\-])?(?:think|thinking|thoughts?|reasoning|monologue)(?:_process)?"
)
_BLANKS = r"\s{0,8}"  # `<think >`
_ATTRIBUTES = r"(?:\s{1,8}[\w\-]{1,20}=[^<>]{0,80})?"
_OPEN = rf"<(?:{_NAMES}){_ATTRIBUTES}{_BLANKS}>|\[think\]|\u25c1think\u25b7|<\|start_thinking\|>|<\|begin_of_thought\|>|<\|inner_prefix\|>"
_CLOSE = rf"</(?:{_NAMES}){_BLANKS}>|\[/think\]|\u25c1/think\u25b7|<\|end_thinking\|>|<\|end_of_thought\|>|<\|inner_suffix\|>"
OPEN = re.compile(_OPEN, re.IGNORECASE)
CLOSE = re.compile(_CLOSE, re.IGNORECASE)
TAG = re.compile(f"{_OPEN}|{_CLOSE}", re.IGNORECASE)
# Of a thought that is never closed: a tag counts at the beginning or end of a line alone, since elsewhere it may be mentioned.
_LEFT_OPEN = re.compile(
    rf"^[ \t]*+(?:{_OPEN})|(?:{_OPEN})(?=[ \t]*\n)|\u25c1think\u25b7|<\|(?:start_thinking|begin_of_thought|inner_prefix)\|>",
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
# The same where the server has left out its special tokens, or the template has written the first.
_PLAIN_FINAL = "assistantfinal"
_PLAIN_ANALYSIS = re.compile(r"\s*+(?:assistant)?+(?:analysis|commentary)(?=[A-Z\"'\u201c(]|<\|message\|>)")
# Thoughts that whole lines mark at the beginning of a reply, and what closes them: Granite 3.2, Open WebUI, a block of its own.
_FRAMES = (
    (r"here(?: is|'s) my thought process:", r"here(?: is|'s) my response:"),
    (r"<details type=\"?reasoning\b[^<>]{0,200}>", r"</details>"),
    (r"(?:`{3}|~{3})(?:think|thinking|thoughts?|reasoning|scratchpad)[ \t]*\n", r"^(?:`{3}|~{3})[ \t]*$"),
)
_FRAMED = tuple(
    (re.compile(opening, re.IGNORECASE), re.compile(closing, re.IGNORECASE | re.MULTILINE))
    for opening, closing in _FRAMES
)


def after_thoughts(reply: str, cues: re.Pattern[str]) -> int:
    """Where the closed thoughts before the first cue end; 0 where none is closed, or all are behind an action.

    Args:
        reply: any string.
        cues: finds the next mark of an action.
    """
    closed = CLOSE.search(reply)
    if closed is None:
        return 0
    end = closed.end()
    opened = OPEN.search(reply)
    if opened is not None and opened.start() < closed.start():
        before = cues.search(reply, 0, opened.start())
        played = before is not None and bool(reply[before.end() : opened.start()].strip())
        if played or (not reply[end:].strip() and reply[: opened.start()].strip()):
            return 0
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
    if _PLAIN_ANALYSIS.match(reply) is not None:
        final_at = reply.rfind(_PLAIN_FINAL)
        return (len(reply) if final_at < 0 else final_at + len(_PLAIN_FINAL)), len(reply)
    first = len(reply) - len(reply.lstrip())
    for opening, closing in _FRAMED:
        if (framed := opening.match(reply, first)) is not None:
            closed = closing.search(reply, framed.end())
            return (len(reply) if closed is None else closed.end()), len(reply)
    start = after_thoughts(reply, cues)
    opened = _LEFT_OPEN.search(reply, start)
    end = len(reply) if opened is None else opened.start()
    # One that is opened behind an action and closed is none of it, on the same line too.
    later = OPEN.search(reply, start, end)
    if later is not None and reply[start : later.start()].strip() and CLOSE.search(reply, later.end()):
        end = later.start()
    return start, end


def without_marks(thought: str) -> str:
    """A thought without the tags and channels that mark it."""
    if _CHANNEL in thought:
        thought = _CHANNEL_MARK.sub("", thought)
    return TAG.sub("", thought)
