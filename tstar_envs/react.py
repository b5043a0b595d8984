"""Reply parsing: the thought and the action of an agent's reply, in every form that models write."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

INVISIBLE = (
    "\ufeff\u200b\u200c\u200d\u200e\u200f\u2060"  # a byte order mark, zero-width spaces, direction marks
)
# Turn tokens that a server leaves in the text: chat templates of Qwen, Llama, Mistral, Gemma, Phi, GLM, DeepSeek, Command A,
# Sky-T1, Seed, MiniMax, Nemotron, EXAONE, Granite, Apertus and Kimi.
END_OF_TURN = re.compile(
    r"<\|(?:im_end|im_start|im_user|end|endoftext|end_of_text|end_of_turn|eot_id|eom_id|eot|eom|return|user|observation|end_response|"
    r"end_text|end_of_solution|end_of_turn_token|start_of_role|assistant_end|user_start)\|>|</s>|<eos>|<end_of_turn>|<seed:eos>|"
    r"<\uff5c(?:end\u2581of\u2581sentence|user)\uff5c>|<special_1[0-2]>|\[e~\[|\[\|(?:endofturn|user)\|\]",
    re.IGNORECASE,
)
_WRAPPER = re.compile(
    r"<\|(?:begin_of_box|end_of_box|begin_of_solution|start_response|start_text|assistant)\|>|</?tool_call>|</?response>",
    re.IGNORECASE,
)
_ROLE = re.compile(
    r"\s*+(?:<s>|<bos>|<seed:bos>|<\|begin_of_text\|>|<\uff5cbegin\u2581of\u2581sentence\uff5c>|\]~!b\[|\[gMASK\]|<sop>)?+\s*+"
    r"(?:<\uff5cassistant\uff5c>|\[\|assistant\|\]|(?:<\|start_of_turn_token\|>)?+<\|chatbot_token\|>|<\|assistant_start\|>|"
    r"(?:<\|im_start\|>|<\|(?:start_header_id|header_start)\|>|<\|start_of_role\|>|<\|im_assistant\|>|<\|start\|>|<start_of_turn>|\]~b\])?+"
    r"(?:assistant|model|ai)(?:<\|(?:end_header_id|header_end|end_of_role|im_middle)\|>[ \t]*+[\n:]?|[ \t]*+[\n:]))",
    re.IGNORECASE,
)
_BEGINNING = re.compile(
    r"\s*+(?:<s>|<bos>|<seed:bos>|<\|begin_of_text\|>|<\uff5cbegin\u2581of\u2581sentence\uff5c>)"
)


def unwrapped(reply: str) -> str:
    """Strip turn tokens of chat templates and wrappers from a reply."""
    if reply[:1] in INVISIBLE:
        reply = reply.lstrip(INVISIBLE)
    if (role := _ROLE.match(reply) or _BEGINNING.match(reply)) is not None:
        reply = reply[role.end() :]
    marked = "<|" in reply or "tool_call>" in reply or "esponse>" in reply
    return _WRAPPER.sub("", reply) if marked else reply


# Alone, or as part of a name: `seed:think`, `inner_monologue`, `thought_process`, `chain_of_thought`. Bounds keep matching linear.
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
# Unclosed thoughts: a tag counts only at the beginning or end of a line, since elsewhere it may be quoted.
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
# The same if the server removed its special tokens, or the template wrote the first.
_PLAIN_FINAL = "assistantfinal"
_PLAIN_ANALYSIS = re.compile(r"\s*+(?:assistant)?+(?:analysis|commentary)(?=[A-Z\"'\u201c(]|<\|message\|>)")
# Thoughts marked by whole lines at the beginning of a reply, with their closing marks: Granite 3.2, Open WebUI, a custom block.
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
    """Find the end of the closed thoughts before the first cue; 0 if there are none.

    Args:
        cues: pattern of the next mark of an action.
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
    """Find the part of a reply that is not thought; only this part can be played.

    Of several channels only the last ``final`` counts. A thought that opens at the beginning of a line and is never closed extends to
    the end of the reply (the token limit truncated it).

    Args:
        cues: pattern of the next mark of an action.

    Returns:
        Start and end in the reply.
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
    # A thought that opens after an action and is closed is not part of the action, not even on the same line.
    later = OPEN.search(reply, start, end)
    if later is not None and reply[start : later.start()].strip() and CLOSE.search(reply, later.end()):
        end = later.start()
    return start, end


def without_marks(thought: str) -> str:
    """Strip the tags and channels that mark a thought."""
    if _CHANNEL in thought:
        thought = _CHANNEL_MARK.sub("", thought)
    return TAG.sub("", thought)


class Reply(NamedTuple):
    """Parsed reply; both parts are stripped and may be empty. ``cue`` is the kind of mark of the action."""

    thought: str
    action: str
    cue: str


# Quoted, in backticks, a heading, a list item, bold, after an arrow or an emoji.
_BEFORE_CUE = (
    r"^[ \t\u00a0\u3000>#*_\-`\"'\u201c\u2022\u2013\u2014\u2190-\u2bff\ufe0f\U0001f300-\U0001faff]*+"
    r"(?:\d{1,3}+[.)][ \t]*+)?+[*_\[]*+"
)
_AFTER_CUE = r"[ \t]*+\d{0,4}+[*_\]]*+[ \t]*+[:\uff1a][*_]*+"
_LINE_CUE = re.compile(f"{_BEFORE_CUE}action{_AFTER_CUE}", re.IGNORECASE | re.MULTILINE)
_THOUGHT_LINE = re.compile(f"{_BEFORE_CUE}thought{_AFTER_CUE}", re.IGNORECASE | re.MULTILINE)
# "Thought: ... Action: ..." on one line; tried only after a thought, if no line starts with a cue and there is no tag.
_INLINE_CUE = re.compile(r"\baction[ \t]?\d{0,4}[:\uff1a]", re.IGNORECASE)
_TAG_CUE = re.compile(r"<(action|search|answer)(?:\s{1,8}[\w\-]{1,20}=[^<>]{0,80})?\s{0,8}>", re.IGNORECASE)
ANY_CUE = re.compile(f"{_LINE_CUE.pattern}|{_TAG_CUE.pattern}", re.IGNORECASE | re.MULTILINE)
# `### Action`, `**Action**` or the bare word, with the action on the next line; tried if there is no other cue.
_HEADING_CUE = re.compile(rf"{_BEFORE_CUE}action\**[ \t]*$", re.IGNORECASE | re.MULTILINE)
_INPUT_LINE = re.compile(rf"{_BEFORE_CUE}action[ _]input{_AFTER_CUE}", re.IGNORECASE)
# An observation invented by the model, on the line of its action.
_INVENTED = re.compile(
    r"(?:(?<=\s)|<br ?/?>)\**Observation[ \t]{0,4}\d{0,4}\**[ \t]{0,4}[:\uff1a]|<(?:observation|information|tool_response)>",
    re.IGNORECASE,
)
# Not str.find on lowered text: lowering can change the length of a string.
_CLOSING = {
    name: re.compile(rf"<\s{{0,4}}/\s{{0,4}}{name}\s{{0,8}}(?:>|$)", re.IGNORECASE)
    for name in ("action", "search", "answer")
}
_TAG_ACTIONS = {"search": "search[{}]", "answer": "finish[{}]"}
_MARKS = re.compile(f"{TAG.pattern}|{END_OF_TURN.pattern}", re.IGNORECASE)
_FENCE = re.compile(r"[ \t]*+(?:`{3,}+|~{3,}+)[ \t]*+\w*+[ \t]*+")
_FENCED_WORD = re.compile(r"`{3,}+(?:json|text|txt|plaintext|action|python|bash)(?=\s)", re.IGNORECASE)
# Meaningless wrappers around an action: quotes, brackets, bold marks, a full stop.
AROUND_ACTION = " \t\r\n.,;:!?()[]{}`'\"*"
_AROUND = " \t\r\n.,;:!?`'\"*。\u2026\u201c\u201d\u2018\u2019\u00ab\u00bb\u300c\u300d" + INVISIBLE
_IN_FRONT = _AROUND + "->#•\u2192"
_PAIRS = {"(": ")", "[": "]", "{": "}", "<": ">"}
_BOXED, _LATEX_TEXT = "\\boxed{", re.compile(r"\\(?:text|textbf|mathrm|mbox)\{")
_WIDE_CALL = re.compile(r"\s*+\w{1,40}[ \t]{0,4}[\uff3b\uff08\u3010]")
_WIDE = str.maketrans("\uff3b\uff3d\uff08\uff09\u3010\u3011", "[]()[]")
_MOST_WRAPPERS = 4  # stripped one after the other
_MOST_JSON = 20_000  # characters of a JSON reply
_ANSWER, _ANSWER_END = _TAG_ACTIONS["answer"].split("{}")
_SHORT = 512  # characters; agents repeat themselves, so parsed short replies are cached


def read_reply(reply: str, exact: bool = False, answers: bool = True) -> Reply:
    """Parse a reply into thought and action, as an environment does.

    Args:
        reply: text of the agent, any string.
        exact: take the action verbatim, and read only ``Action:`` lines, tags and bare actions (for environments that answer exactly
            as an original).
        answers: True if ``<answer>`` gives a final answer; False if it holds an action as ``<action>`` does (RAGEN's form).

    Returns:
        See ``parse_reply``.
    """
    return _read_short(reply, exact, answers) if len(reply) <= _SHORT else _read(reply, exact, answers)


def _read(reply: str, exact: bool, answers: bool) -> Reply:
    thought, action, cue = _parse(reply, exact)
    if cue == "answer" and not answers:
        action = answer_content(action)
        if not exact:  # Hunyuan puts its whole answers in these tags
            action = _parse(action, exact).action
    if exact:
        return Reply(thought, action, cue)
    # The reply's own markup is not part of a query, and could not be rendered again.
    if "<" in action or "[" in action:
        action = _MARKS.sub("", action)
    action = plain_action(_without_invention(action))
    if _WIDE_CALL.match(action) is not None:
        action = action.translate(_WIDE)
    if _BOXED in action and action.startswith(_ANSWER) and action.endswith(_ANSWER_END):
        action = f"{_ANSWER}{plain_action(answer_content(action))}{_ANSWER_END}"
    return Reply(thought, action, cue)


_read_short = lru_cache(maxsize=4096)(_read)


def parse_reply(reply: str) -> Reply:
    """Parse a reply into thought and action; the action keeps its spelling.

    Example:
        >>> from tstar_envs import parse_reply
        >>> parse_reply("<think>look it up</think><search>Oslo</search>")[:2]
        ('look it up', 'search[Oslo]')
        >>> parse_reply("<think>done</think><answer>Norway</answer>").action
        'finish[Norway]'

    Args:
        reply: text of the agent, any string.

    Returns:
        Thought and action, the action being an action line or the content of a tag; "" if missing. ``<search>q</search>`` and
            ``<answer>a</answer>`` give ``search[q]`` and ``finish[a]``. Without a cue, the first line that is neither blank nor a
            thought is the action.
    """
    return _parse(reply, False)


def _parse(reply: str, exact: bool) -> Reply:
    if not exact:
        reply = unwrapped(reply)
    start, end = spoken(reply, ANY_CUE)
    body = reply[start:end]
    if not exact and (ended := END_OF_TURN.search(body)) is not None and body[: ended.start()].strip():
        body = body[: ended.start()]
    found = _read_body(body, exact)
    if found is not None:
        said, action, cue, more = found
        thought = thought_text(f"{reply[:start]}{said}")
        return Reply("\n".join(filter(None, (thought, more))), action, cue)
    # A reply of nothing but a thought is all thought.
    cut = reply[end:] if not body.strip() else ""
    return Reply(thought_text(f"{reply[:start]}{cut}"), _first_line(body, exact), "bare")


class _Found(NamedTuple):
    """Action with its cue, the text before it, and a thought that came with it."""

    said: str
    action: str
    cue: str
    thought: str = ""


def _read_body(body: str, exact: bool) -> _Found | None:
    """Find the marked action in the text outside thoughts; None if there is none."""
    line, tag = _LINE_CUE.search(body), _TAG_CUE.search(body)
    opening = _THOUGHT_LINE.match(body, len(body) - len(body.lstrip()))
    if line is not None and (
        tag is None or line.start() < tag.start() or (opening is not None and _is_mention(body, tag))
    ):
        return _Found(body[: line.start()], *_after_line_cue(body[line.end() :], exact))
    if tag is not None:
        return _Found(body[: tag.start()], *_tagged(body, tag))
    if not exact and (heading := _HEADING_CUE.search(body)) is not None and body[heading.end() :].strip():
        return _Found(body[: heading.start()], *_after_line_cue(body[heading.end() :], exact))
    if opening is not None:
        inline = _INLINE_CUE.search(body, opening.end())
        if inline is not None:
            return _Found(body[: inline.start()], _first_line(body[inline.end() :], exact), "line")
        head, _, tail = body[opening.end() :].lstrip().partition("\n")
        return _Found(head, _first_line(tail, exact), "bare")
    if not exact and (found := _json_reply(body, anywhere=True)) is not None:
        return _Found("", found.action, found.cue, found.thought)
    return None


def _is_mention(body: str, tag: re.Match[str]) -> bool:
    """Check whether a tag is only mentioned in a sentence of a thought (after ``Thought:``)."""
    return bool(body[body.rfind("\n", 0, tag.start()) + 1 : tag.start()].strip())


def _tagged(body: str, tag: re.Match[str]) -> tuple[str, str]:
    """Extract the content of a tag; of an unclosed tag, its first line."""
    name = tag.group(1).lower()
    rest = body[tag.end() :]
    end = _CLOSING[name].search(rest)
    content = " ".join((rest.strip().partition("\n")[0] if end is None else rest[: end.start()]).split())
    return _TAG_ACTIONS[name].format(content) if name in _TAG_ACTIONS else content, name


def _after_line_cue(rest: str, exact: bool) -> tuple[str, str]:
    """Extract the text after ``Action:``, and its own mark if it has one."""
    if not exact:
        plain = rest.lstrip()
        if (again := _LINE_CUE.match(plain)) is not None:
            plain = plain[again.end() :].lstrip()
        if (tag := _TAG_CUE.match(plain)) is not None:
            return _tagged(plain, tag)
        if (found := _json_reply(rest)) is not None:
            return found.action, found.cue
        name, _, more = plain.partition("\n")
        if (given := _INPUT_LINE.match(more.lstrip())) is not None:
            return _call(name.strip(" \t\r`*\"'"), _input(more.lstrip()[given.end() :])), "line"
        return _first_line(plain, exact), "line"
    return _first_line(rest, exact), "line"


def _input(text: str) -> Any:
    """Parse the text after ``Action Input:``: a JSON object, or the line."""
    text = text.strip()
    for value in _objects(text) if text.startswith("{") else ():
        return value
    return text.partition("\n")[0].strip()


def _call(name: str, given: Any) -> str:
    """Render a tool call as an action: ``search[Oslo]``, or ``stack(block="a", onto="b")`` for several arguments."""
    if isinstance(given, Mapping):
        values = list(given.values())
        if len(values) != 1:
            return f"{name}({', '.join(f'{key}={json.dumps(value)}' for key, value in given.items())})"
        given = values[0]
    return f"{name}[{' '.join(given.split())}]" if isinstance(given, str) else f"{name}({json.dumps(given)})"


def _objects(text: str) -> Iterator[Mapping[str, Any]]:
    """Iterate over JSON objects at the first lines with a brace, unless too long or deep."""
    if len(text) > _MOST_JSON or text.count("{") + text.count("[") > 100:  # deep nesting would raise
        return
    decoder = json.JSONDecoder()
    for brace in islice(_BRACE_LINE.finditer(text), _MOST_WRAPPERS):
        try:
            content, _ = decoder.raw_decode(text, brace.end() - 1)
        except ValueError:
            continue
        if isinstance(content, Mapping):
            yield content


def _json_reply(text: str, anywhere: bool = False) -> Reply | None:
    """Parse ``{"thought": ..., "action": ...}``, alone or in a fenced block; None if it is anything else.

    Args:
        anywhere: accept it after prose too.
    """
    if "{" not in text:
        return None
    text = "\n".join(line for line in text.split("\n") if not _FENCE.fullmatch(line)).strip()
    if not anywhere and not text.startswith(("{", "[")):
        return None
    for content in _objects(text):
        fields = {str(key).lower(): value for key, value in content.items()}
        if isinstance(fields.get("function"), Mapping):  # an OpenAI-style call as text
            fields |= fields["function"]
        called = _CALL_KEYS if any(key in fields for key in _INPUT_KEYS) else ()
        keys = ("action", *called)
        action = next((value for key in keys if isinstance(value := fields.get(key), str)), None)
        if action is None:
            if anywhere:
                continue
            return None
        given = next((fields[key] for key in _INPUT_KEYS if fields.get(key) not in (None, "", {})), None)
        thought = next((value for key in _THOUGHT_KEYS if isinstance(value := fields.get(key), str)), "")
        first = _first_line(action, False)
        return Reply(thought.strip(), first if given is None else _call(first, given), "json")
    return None


_BRACE_LINE = re.compile(r"^[ \t]*+\[?+[ \t]*+\{", re.MULTILINE)
_CALL_KEYS = ("tool", "name")  # of a call, which also has an input
_INPUT_KEYS = ("action_input", "tool_input", "arguments", "args", "parameters", "input")
_THOUGHT_KEYS = ("thought", "thoughts", "reasoning", "think")


def _without_invention(action: str) -> str:
    """Cut an invented observation off an action's line; inside brackets it is an argument."""
    found = _INVENTED.search(action)
    if found is None:
        return action
    head = action[: found.start()]
    return head if all(head.count(left) <= head.count(_PAIRS[left]) for left in "([{") else action


def answer_content(action: str) -> str:
    """Recover the content of ``<answer>`` tags from the action that ``parse_reply`` made of it."""
    return action.removeprefix(_ANSWER).removesuffix(_ANSWER_END)


def plain_action(action: str) -> str:
    """Strip wrappers from an action: a full stop, quotes, backticks, brackets around the whole, a list mark."""
    fenced = _FENCED_WORD.match(action) if action.startswith("```") else None
    text = action if fenced is None else action[fenced.end() :]
    for _ in range(_MOST_WRAPPERS):
        text = text.lstrip(_IN_FRONT).rstrip(_AROUND)
        if text.startswith(_BOXED) and text.endswith("}"):
            text = text[len(_BOXED) : -1]
            if (words := _LATEX_TEXT.match(text)) is not None and text.endswith("}"):
                text = text[words.end() : -1]
        elif (text[:1] in _PAIRS and closing_bracket(text, 0) == len(text) - 1) or (
            len(text) > 1 and text[0] == text[-1] == "$"  # LaTeX
        ):
            text = text[1:-1]
        else:
            return text
    return text


def closing_bracket(text: str, opening: int) -> int:
    """Find the bracket that balances the one at ``opening``; -1 if there is none."""
    left, depth = text[opening], 0
    for found in re.finditer(f"[\\{left}\\{_PAIRS[left]}]", text[opening:]):
        depth += 1 if found[0] == left else -1
        if not depth:
            return opening + found.start()
    return -1


def bracket_content(text: str, opening: int) -> str | None:
    """Extract the argument in brackets at ``opening``, up to the balancing or else the last bracket.

    Returns:
        None if no bracket follows.
    """
    end = closing_bracket(text, opening)
    if end < 0:
        end = text.rfind("]", opening)
    return text[opening + 1 : end] if end > 0 else None


def thought_text(text: str) -> str:
    """Extract a thought without its tags or ``Thought:``."""
    return without_marks(_THOUGHT_LINE.sub("", text, count=1)).strip()


def _first_line(text: str, exact: bool) -> str:
    """Find the first line with content, skipping the fence of a block."""
    stripped = text.strip()
    if not exact and stripped.startswith(("```", "~~~")):
        held = (line.strip() for line in stripped.split("\n") if line.strip() and not _FENCE.fullmatch(line))
        return next(held, stripped.partition("\n")[0].strip())
    return stripped.partition("\n")[0].strip()


def match_action(action: str, admissible: list[str]) -> str | None:
    """Find the admissible action that equals ``action`` up to case and white space; None if there is none."""
    wanted = " ".join(action.split()).casefold()
    return next((a for a in admissible if " ".join(a.split()).casefold() == wanted), None)


def render_reply(thought: str, action: str, style: str = "react") -> str:
    """Render a reply in the given prompt style.

    Example:
        >>> from tstar_envs import render_reply
        >>> render_reply("go on", "Up", style="tags")
        '<think>go on</think><action>Up</action>'

    Args:
        thought: text of the thought, may be empty.
        action: action as the environment writes it.
        style: ``react`` (Thought/Action lines), ``tags`` (``<think>``, ``<action>``) or ``search_r1`` (``<think>`` and ``<search>``
            or ``<answer>``; any other action has no form there and is rendered in ``<action>``).
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
