"""Take the thought and the action out of an agent's reply: one reader for all environments.

Accepted are ``Thought: ... Action: ...`` (with numbers, bold and list marks, a full-width colon, any case),
``<think>...</think><action>...</action>``, Search-R1's ``<search>`` and ``<answer>``, ``{"thought": ..., "action": ...}`` and a bare
action. After a closed thought only what follows it is read. Of several action cues the first counts, and what follows its line (or
closing tag) is ignored: models like to write the observation themselves. What they put around an action without meaning
anything by it (a full stop, backticks, a fenced block, quotes, the token that ends a turn) is taken off.

Nothing here raises, and every expression is linear in the length of the reply: quantifiers that stand next to one another are
possessive (``*+``), or a long row of spaces would be tried in every way of dividing it.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import NamedTuple


class Reply(NamedTuple):
    """A parsed reply: both parts stripped, either may be empty. ``cue`` says how the action was marked."""

    thought: str
    action: str
    cue: str


_BEFORE_CUE = r"^[ \t>#*\-]*+(?:\d{1,3}+[.)][ \t]*+)?+\**+"  # quoted, a heading, an item of a list, bold
_AFTER_CUE = r"[ \t]*+\d{0,4}+\**+[ \t]*+[:\uff1a]\**+"
_LINE_CUE = re.compile(f"{_BEFORE_CUE}action{_AFTER_CUE}", re.IGNORECASE | re.MULTILINE)
_THOUGHT_LINE = re.compile(f"{_BEFORE_CUE}thought{_AFTER_CUE}", re.IGNORECASE | re.MULTILINE)
# "Thought: ... Action: ..." on one line; looked for only after a thought, where no line starts with a cue and no tag stands.
_INLINE_CUE = re.compile(r"\baction[ \t]?\d{0,4}[:\uff1a]", re.IGNORECASE)
_TAG_CUE = re.compile(r"<(action|search|answer)>", re.IGNORECASE)
_ANY_CUE = re.compile(f"{_LINE_CUE.pattern}|{_TAG_CUE.pattern}", re.IGNORECASE | re.MULTILINE)
_THOUGHT_NAMES = "think|thinking|thought|reasoning"
_THINK_OPEN = re.compile(rf"<(?:{_THOUGHT_NAMES})>|\[think\]", re.IGNORECASE)
_THINK_CLOSE = re.compile(rf"</(?:{_THOUGHT_NAMES})>|\[/think\]", re.IGNORECASE)
_THINK_TAG = re.compile(rf"</?(?:{_THOUGHT_NAMES})>|\[/?think\]", re.IGNORECASE)
# Not str.find on lowered text: lowering can change the length of a string.
_CLOSING = {name: re.compile(f"</{name}>", re.IGNORECASE) for name in ("action", "search", "answer")}
_TAG_ACTIONS = {"search": "search[{}]", "answer": "finish[{}]"}
# The token that ends a turn, where a server leaves it in the text: of the chat forms of Qwen, Llama, Mistral, Gemma, Phi, GLM, DeepSeek.
_END_OF_TURN = re.compile(
    r"<\|(?:im_end|im_start|end|endoftext|end_of_text|end_of_turn|eot_id|eom_id|eot|return|user|observation)\|>|</s>|<eos>|"
    r"<end_of_turn>|<\uff5cend\u2581of\u2581sentence\uff5c>",
    re.IGNORECASE,
)
_MARKS = re.compile(f"{_THINK_TAG.pattern}|{_END_OF_TURN.pattern}", re.IGNORECASE)
_FENCE = re.compile(r"[ \t]*+(?:`{3,}+|~{3,}+)[ \t]*+\w*+[ \t]*+")
_FENCED_WORD = re.compile(r"`{3,}(?:json|text|txt|plaintext|action|python|bash)(?=\s)", re.IGNORECASE)
# What agents put around an action without meaning anything by it: quotes, brackets, bold marks, a full stop.
AROUND_ACTION = " \t\r\n.,;:!?()[]{}`'\"*"
_AROUND = " \t\r\n.,;:!?`'\"*。"
_IN_FRONT = _AROUND + "->#•"
_PAIRS = {"(": ")", "[": "]", "{": "}"}
_BOXED = "\\boxed{"
_MOST_WRAPPERS = 4  # taken off one after the other
_MOST_JSON = 20_000  # characters of a reply in JSON
_ANSWER, _ANSWER_END = _TAG_ACTIONS["answer"].split("{}")
_SHORT = 512  # characters; agents repeat themselves, and what short replies were read as is remembered


def read_reply(reply: str, exact: bool = False, answers: bool = True) -> Reply:
    """Split a reply into thought and action, as an environment does.

    Args:
        reply: what the agent wrote, any string.
        exact: nothing is taken off the action, and only ``Action:`` lines, tags and bare actions are read (environments that
            answer exactly as an original does).
        answers: whether ``<answer>`` gives a final answer; False: it holds an action as ``<action>`` does (RAGEN's form).

    Returns:
        See ``parse_reply``.
    """
    return _read_short(reply, exact, answers) if len(reply) <= _SHORT else _read(reply, exact, answers)


def _read(reply: str, exact: bool, answers: bool) -> Reply:
    thought, action, cue = _parse(reply, exact)
    if cue == "answer" and not answers:
        action = answer_content(action)
    if exact:
        return Reply(thought, action, cue)
    # A mark of the reply's own form is no part of a query, and could not be said again.
    if "<" in action or "[" in action:
        action = _MARKS.sub("", action)
    return Reply(thought, plain_action(action), cue)


_read_short = lru_cache(maxsize=4096)(_read)


def parse_reply(reply: str) -> Reply:
    """Split a reply into thought and action; the action stays as it is written.

    Args:
        reply: what the agent wrote, any string.

    Returns:
        The thought ("" if there is none) and the action line or tag content ("" if there is none). ``<search>q</search>``
        and ``<answer>a</answer>`` give ``search[q]`` and ``finish[a]``. Without any cue the first line that is neither
        blank nor a thought is the action.
    """
    return _parse(reply, False)


def _parse(reply: str, exact: bool) -> Reply:
    start = after_thoughts(reply)
    body = reply[start:]
    if not exact and (end := _END_OF_TURN.search(body)) is not None and body[: end.start()].strip():
        body = body[: end.start()]
    line, tag = _LINE_CUE.search(body), _TAG_CUE.search(body)
    opening = _THOUGHT_LINE.match(body, len(body) - len(body.lstrip()))
    if line is not None and (
        tag is None or line.start() < tag.start() or (opening is not None and _is_mention(body, tag))
    ):
        action, cue = _after_line_cue(body[line.end() :], exact)
        return Reply(thought_text(reply[: start + line.start()]), action, cue)
    if tag is not None:
        return Reply(thought_text(reply[: start + tag.start()]), *_tagged(body, tag))
    if opening is not None:
        inline = _INLINE_CUE.search(body, opening.end())
        if inline is not None:
            return Reply(
                thought_text(reply[: start + inline.start()]),
                _first_line(body[inline.end() :], exact),
                "line",
            )
        head, _, tail = body[opening.end() :].lstrip().partition("\n")
        return Reply(thought_text(f"{reply[:start]}{head}"), _first_line(tail, exact), "bare")
    thought = thought_text(reply[:start])
    if not exact and (found := _json_reply(body)) is not None:
        return Reply("\n".join(filter(None, (thought, found.thought))), found.action, found.cue)
    return Reply(thought, _first_line(body, exact), "bare")


def after_thoughts(reply: str) -> int:
    """Where the closed thoughts before the first cue end; 0 where none is closed."""
    closed = _THINK_CLOSE.search(reply)
    if closed is None:
        return 0
    end = closed.end()
    cue = _ANY_CUE.search(reply, end)
    while (opened := _THINK_OPEN.search(reply, end)) is not None:
        played = (
            cue.start() < opened.start() if cue is not None else bool(reply[end : opened.start()].strip())
        )
        if played or (closed := _THINK_CLOSE.search(reply, opened.end())) is None:
            break
        end = closed.end()
        if cue is not None and cue.start() < end:
            cue = _ANY_CUE.search(reply, end)
    return end


def _is_mention(body: str, tag: re.Match[str]) -> bool:
    """Whether a tag stands in the middle of a sentence: in a reply that begins with ``Thought:``, such a one is thought of, not played."""
    return bool(body[body.rfind("\n", 0, tag.start()) + 1 : tag.start()].strip())


def _tagged(body: str, tag: re.Match[str]) -> tuple[str, str]:
    """The content of a tag; of one that is never closed, its first line."""
    name = tag.group(1).lower()
    rest = body[tag.end() :]
    end = _CLOSING[name].search(rest)
    content = " ".join((rest.strip().partition("\n")[0] if end is None else rest[: end.start()]).split())
    return _TAG_ACTIONS[name].format(content) if name in _TAG_ACTIONS else content, name


def _after_line_cue(rest: str, exact: bool) -> tuple[str, str]:
    """What follows ``Action:``, and how it is marked there in turn."""
    if not exact:
        plain = rest.lstrip()
        if (again := _LINE_CUE.match(plain)) is not None:
            plain = plain[again.end() :].lstrip()
        if (tag := _TAG_CUE.match(plain)) is not None:
            return _tagged(plain, tag)
        if (found := _json_reply(rest)) is not None:
            return found.action, found.cue
        return _first_line(plain, exact), "line"
    return _first_line(rest, exact), "line"


def _json_reply(text: str) -> Reply | None:
    """``{"thought": ..., "action": ...}``, alone or in a fenced block; None if it is something else."""
    text = (
        "\n".join(line for line in text.split("\n") if not _FENCE.fullmatch(line)).strip()
        if "{" in text
        else ""
    )
    # Deep nesting would raise.
    if not text.startswith("{") or len(text) > _MOST_JSON or text.count("{") + text.count("[") > 100:
        return None
    try:
        content, _ = json.JSONDecoder().raw_decode(text)
    except ValueError:
        return None
    action = content.get("action")
    if not isinstance(action, str):
        return None
    thought = next(
        (
            content[key]
            for key in ("thought", "thoughts", "reasoning", "think")
            if isinstance(content.get(key), str)
        ),
        "",
    )
    return Reply(thought.strip(), _first_line(action, False), "json")


def answer_content(action: str) -> str:
    """What stood in ``<answer>`` tags, from the action that ``parse_reply`` made of it."""
    return action.removeprefix(_ANSWER).removesuffix(_ANSWER_END)


def plain_action(action: str) -> str:
    """An action without what agents put around it: a full stop, quotes, backticks, a pair of brackets around the whole, a list mark."""
    text = _FENCED_WORD.sub("", action, count=1) if action.startswith("```") else action
    for _ in range(_MOST_WRAPPERS):
        text = text.lstrip(_IN_FRONT).rstrip(_AROUND)
        if text.startswith(_BOXED) and text.endswith("}"):
            text = text[len(_BOXED) : -1]
        elif text[:1] in _PAIRS and closing_bracket(text, 0) == len(text) - 1:
            text = text[1:-1]
        else:
            return text
    return text


def closing_bracket(text: str, opening: int) -> int:
    """Where the bracket that stands at ``opening`` is closed: the one of its kind that balances, -1 if there is none."""
    left, depth = text[opening], 0
    for found in re.finditer(f"[\\{left}\\{_PAIRS[left]}]", text[opening:]):
        depth += 1 if found[0] == left else -1
        if not depth:
            return opening + found.start()
    return -1


def bracket_content(text: str, opening: int) -> str | None:
    """The argument in square brackets that begins at ``opening``: up to the bracket that balances, or where none does to the last one.

    Returns:
        None where no bracket follows at all.
    """
    end = closing_bracket(text, opening)
    if end < 0:
        end = text.rfind("]", opening)
    return text[opening + 1 : end] if end > 0 else None


def thought_text(text: str) -> str:
    """What is thought, without its tags or its ``Thought:``."""
    return _THINK_TAG.sub("", _THOUGHT_LINE.sub("", text, count=1)).strip()


def _first_line(text: str, exact: bool) -> str:
    """The first line that holds anything, not counting the fence of a block."""
    stripped = text.strip()
    if not exact and stripped.startswith(("```", "~~~")):
        held = (line.strip() for line in stripped.split("\n") if line.strip() and not _FENCE.fullmatch(line))
        return next(held, stripped.partition("\n")[0].strip())
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
