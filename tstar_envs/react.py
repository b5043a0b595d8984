"""Take the thought and the action out of an agent's reply.

Accepted, in one rule for all environments: ``Thought: ... Action: ...`` (with numbers, bold marks or any case),
``<think>...</think><action>...</action>``, Search-R1's ``<search>`` and ``<answer>``, and a bare action. Of several
action cues the first counts, and what follows its line (or closing tag) is ignored: models like to write the
observation themselves. Nothing here raises, and every expression is linear in the length of the reply: quantifiers that
stand next to one another are possessive (``*+``), or a long row of spaces would be tried in every way of dividing it.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple


class Reply(NamedTuple):
    """A parsed reply: both parts stripped, either may be empty. ``cue`` says how the action was marked."""

    thought: str
    action: str
    cue: str


_LINE_CUE = re.compile(r"^[ \t]*+\**+action[ \t]*+\d{0,4}+\**+[ \t]*+:\**+", re.IGNORECASE | re.MULTILINE)
# "Thought: ... Action: ..." on one line; looked for only after a thought, where no line starts with a cue and no tag stands.
_INLINE_CUE = re.compile(r"\baction[ \t]?\d{0,4}:", re.IGNORECASE)
_TAG_CUE = re.compile(r"<(action|search|answer)>", re.IGNORECASE)
_THOUGHT_LINE = re.compile(r"^[ \t]*+\**+thought[ \t]*+\d{0,4}+\**+[ \t]*+:\**+", re.IGNORECASE | re.MULTILINE)
_THINK_TAG = re.compile(r"</?think>", re.IGNORECASE)
# Not str.find on lowered text: lowering can change the length of a string.
_CLOSING = {name: re.compile(f"</{name}>", re.IGNORECASE) for name in ("action", "search", "answer")}
_TAG_ACTIONS = {"search": "search[{}]", "answer": "finish[{}]"}
# What agents put around an action without meaning anything by it: quotes, brackets, bold marks, a full stop.
AROUND_ACTION = " \t\r\n.,;:!?()[]{}`'\"*"
_ANSWER, _ANSWER_END = _TAG_ACTIONS["answer"].split("{}")
_SHORT = 512  # characters; agents repeat themselves, and what short replies were read as is remembered


def parse_reply(reply: str) -> Reply:
    """Split a reply into thought and action.

    Args:
        reply: what the agent wrote, any string.

    Returns:
        The thought ("" if there is none) and the action line or tag content ("" if there is none). ``<search>q</search>``
        and ``<answer>a</answer>`` give ``search[q]`` and ``finish[a]``. Without any cue the first line that is neither
        blank nor a thought is the action.
    """
    return _parse_short(reply) if len(reply) <= _SHORT else _parse(reply)


def _parse(reply: str) -> Reply:
    line, tag = _LINE_CUE.search(reply), _TAG_CUE.search(reply)
    if line is not None and (tag is None or line.start() < tag.start()):
        return Reply(_thought(reply[: line.start()]), _first_line(reply[line.end() :]), "line")
    if tag is not None:
        name = tag.group(1).lower()
        rest = reply[tag.end() :]
        end = _CLOSING[name].search(rest)
        content = " ".join((rest if end is None else rest[: end.start()]).split())
        action = _TAG_ACTIONS[name].format(content) if name in _TAG_ACTIONS else content
        return Reply(_thought(reply[: tag.start()]), action, name)
    cue = _THOUGHT_LINE.search(reply)
    if cue is not None and not reply[: cue.start()].strip():
        inline = _INLINE_CUE.search(reply, cue.end())
        if inline is not None:
            return Reply(_thought(reply[: inline.start()]), _first_line(reply[inline.end() :]), "line")
        head, _, tail = reply[cue.end() :].lstrip().partition("\n")
        return Reply(head.strip(), _first_line(tail), "bare")
    head, closing, tail = reply.rpartition("</think>")
    if closing:
        return Reply(_thought(head), _first_line(tail), "bare")
    return Reply("", _first_line(reply), "bare")


_parse_short = lru_cache(maxsize=4096)(_parse)


def answer_content(action: str) -> str:
    """What stood in ``<answer>`` tags, from the action that ``parse_reply`` made of it."""
    return action.removeprefix(_ANSWER).removesuffix(_ANSWER_END)


def _thought(text: str) -> str:
    return _THINK_TAG.sub("", _THOUGHT_LINE.sub("", text, count=1)).strip()


def _first_line(text: str) -> str:
    stripped = text.strip()
    return stripped.partition("\n")[0].strip()


def match_action(action: str, admissible: list[str]) -> str | None:
    """The admissible action that equals ``action`` up to case and white space, or None."""
    wanted = " ".join(action.split()).casefold()
    return next((a for a in admissible if " ".join(a.split()).casefold() == wanted), None)


def render_reply(thought: str, action: str, style: str = "react") -> str:
    """A reply in the given prompt style.

    Args:
        thought: may be empty.
        action: as the environment writes it.
        style: ``react`` (Thought/Action lines), ``tags`` (``<think>``, ``<action>``) or ``search_r1`` (``<think>`` and
            ``<search>`` or ``<answer>``; what is neither a search nor an answer has no form there and is written as an action).
    """
    if style == "react":
        return f"Thought: {thought}\nAction: {action}" if thought else f"Action: {action}"
    tag, content = "action", action
    if style == "search_r1":
        for name, form in _TAG_ACTIONS.items():
            start, end = form.split("{}")
            if action.startswith(start) and action.endswith(end):
                tag, content = name, action[len(start) : -len(end)]
    return f"<think>{thought}</think><{tag}>{content}</{tag}>"
