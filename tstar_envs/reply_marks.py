"""What chat templates leave in a reply, and models put around all of it: roles, ends of turns, boxes, blanks that nobody sees."""

from __future__ import annotations

import re

INVISIBLE = (
    "\ufeff\u200b\u200c\u200d\u200e\u200f\u2060"  # a byte order mark, blanks without width, directions
)
# The token that ends a turn or begins the next, where a server leaves it in the text: of the chat forms of Qwen, Llama, Mistral, Gemma,
# Phi, GLM, DeepSeek, Command A, Sky-T1, Seed, MiniMax, Nemotron, EXAONE, Granite, Apertus and Kimi.
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
    """A reply without what a chat template leaves in front of it and a model puts around it."""
    if reply[:1] in INVISIBLE:
        reply = reply.lstrip(INVISIBLE)
    if (role := _ROLE.match(reply) or _BEGINNING.match(reply)) is not None:
        reply = reply[role.end() :]
    marked = "<|" in reply or "tool_call>" in reply or "esponse>" in reply
    return _WRAPPER.sub("", reply) if marked else reply
