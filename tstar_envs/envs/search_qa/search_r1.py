"""Search-R1's form of the task: what its checkpoints were trained to read and write.

``prompt()`` followed by the first observation is its user message, and each later observation is what it puts behind a search.
Texts and layout are those of its public code (prompt template, ``_passages2string``, ``execute_predictions``).
"""

from __future__ import annotations

from collections.abc import Sequence

from tstar_envs.envs.search_qa.search.passage import Passage
from tstar_envs.envs.search_qa.text import Style
from tstar_envs.react import ANY_CUE, Reply, parse_reply, thought_text
from tstar_envs.reply_thoughts import after_thoughts

PROMPT = (
    "Answer the given question. You must conduct reasoning inside <think> and </think> first every time you get new information. "
    "After reasoning, if you find you lack some knowledge, you can call a search engine by <search> query </search> and it will "
    "return the top searched results between <information> and </information>. You can search as many times as your want. If you "
    "find no further external knowledge needed, you can directly provide the answer inside <answer> and </answer>, without "
    "detailed illustrations. For example, <answer> Beijing </answer>. "
)
INVALID = (
    "\nMy previous action is invalid. If I want to search, I should put the query between <search> and </search>. If I want to "
    "give the final answer, I should put the answer between <answer> and </answer>. Let me try again.\n"
)


def read_reply(reply: str) -> Reply:
    r"""The first closed pair of tags after a closed thought; nothing else is an action.

    As the expression ``<(search|answer)>(.*?)</\1>`` of its code finds it, but in linear time, and not inside a closed thought.
    """
    start = after_thoughts(reply, ANY_CUE)
    pairs = []
    for name in ("search", "answer"):
        opening = reply.find(f"<{name}>", start)
        content = opening + len(name) + 2
        if opening >= 0 and (closing := reply.find(f"</{name}>", content)) >= 0:
            pairs.append((opening, f"<{name}>{reply[content:closing].strip()}</{name}>"))
    if not pairs:
        return Reply(thought_text(reply), "", "none")
    opening, pair = min(pairs)
    _, action, cue = parse_reply(pair)
    return Reply(thought_text(reply[:opening]), action, cue)


def question(text: str) -> str:
    """The end of the user message; a question mark is added where there is none."""
    text = text.strip()
    return f"Question: {text if text.endswith('?') else text + '?'}\n"


def render(passages: Sequence[Passage], limit: int | None = None) -> str:
    """Search results between tags, best first.

    Args:
        passages: shown with their first line as the corpus has it (wiki-18: in double quotes, those inside doubled).
        limit: most characters of the text between the tags; the tags are never cut.
    """
    text = "\n".join(
        f"Doc {rank}(Title: {p.heading}) {p.text}" for rank, p in enumerate(passages, start=1)
    ).strip()
    return f"\n\n<information>{text[:limit]}</information>\n\n"


STYLE = Style(question, render, lambda problem: INVALID)
