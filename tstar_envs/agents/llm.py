"""Chat models as agents: conversation, text actions or tool calls, and prompting methods."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tstar_envs.agents.answers import Answer, ToolCall, addressed_calls, written_calls
from tstar_envs.agents.base import ACT, AgentEnv, Call, EndpointError, Info, never_waits
from tstar_envs.agents.endpoint import Endpoint, TooLong
from tstar_envs.errors import UnknownOption
from tstar_envs.react import ANY_CUE, bracket_content, closing_bracket, parse_reply, render_reply, spoken
from tstar_envs.redaction import redacted_fields
from tstar_envs.tools import NOT_PLAYED, TOOLS_NOTE, inert, reply_to_call

Message = dict[str, Any]
# Used until the endpoint has counted a request; English has about four, so this is conservative.
FEWEST_CHARACTERS_PER_TOKEN = 3.0
# English has four to five, grids and JSON fewer: a smaller count means that the endpoint did not count everything.
MOST_CHARACTERS_PER_TOKEN = 10.0
_LONG = 5_000  # characters; in shorter requests the overhead around the messages dominates
_LONGER = 1.25  # times the characters of a request that had as many tokens
_OVERHEAD = 6  # tokens around a message


class Conversation:
    """Messages of an episode in chronological order.

    Args:
        opening: messages that are always sent: rules, demonstrations, first observation; the last has role ``user``.
    """

    def __init__(self, opening: list[Message]) -> None:
        self._opening = opening
        self._turns: list[list[Message]] = []
        self.per_token = FEWEST_CHARACTERS_PER_TOKEN
        self._refused = math.inf  # characters of the shortest request that did not fit the model
        self._counted = (0, 0)  # characters and tokens of the largest request

    def add(self, *messages: Message) -> None:
        """Append a turn: the agent's message and the answer to it."""
        self._turns.append(list(messages))

    @property
    def turns(self) -> int:
        """Number of turns added."""
        return len(self._turns)

    def fitting(self, tokens: int, drop: int = 0) -> tuple[list[Message], int]:
        """Select the messages to send, dropping the oldest turns to fit.

        Args:
            tokens: limit on their length, estimated from the characters. The opening and the last turn are always sent.
            drop: minimum number of oldest turns to drop.

        Returns:
            Messages and the number of dropped turns; if any, the last message of the opening says so.
        """
        kept = self._turns[drop:]
        while len(kept) > 1 and not self._fits([*self._opening, *(m for turn in kept for m in turn)], tokens):
            kept = kept[1:]
        dropped = len(self._turns) - len(kept)
        opening = list(self._opening)
        if dropped:
            turns = "turn is" if dropped == 1 else "turns are"
            opening[-1] = {
                **opening[-1],
                "content": f"{opening[-1]['content']}\n\n({dropped} earlier {turns} left out here.)",
            }
        return [*opening, *(m for turn in kept for m in turn)], dropped

    def counted(self, messages: list[Message], tokens: int | None) -> bool:
        """Update the estimate of characters per token from the endpoint's count.

        Returns:
            False if the count is implausible: fewer tokens than so many characters have, or no more than a much shorter request had.
                The endpoint then truncated the messages or counts only a part; nothing is learned.
        """
        if not tokens:
            return True
        characters, (before, most) = _characters(messages), self._counted
        per_token = characters / max(1, tokens - _OVERHEAD * len(messages))
        stands_still = tokens <= most and characters > _LONGER * before
        if stands_still or (per_token > MOST_CHARACTERS_PER_TOKEN and characters > _LONG):
            return False
        if tokens > most:
            self._counted = (characters, tokens)
        self.per_token = min(MOST_CHARACTERS_PER_TOKEN, max(1.0, per_token))
        return True

    def refused(self, messages: list[Message]) -> None:
        """Remember the length of messages that did not fit, so that it is not sent again."""
        self._refused = min(self._refused, _characters(messages))

    def _fits(self, messages: list[Message], tokens: int) -> bool:
        characters = _characters(messages)
        return (
            characters / self.per_token + _OVERHEAD * len(messages) <= tokens and characters < self._refused
        )


def _characters(messages: list[Message]) -> int:
    return sum(
        len(str(value))
        for message in messages
        for name, value in message.items()
        if name in ("content", "tool_calls")
    )


DEFAULT_CONCURRENCY = 8  # episodes


@dataclass(frozen=True)
class ChatOptions:
    """Options of requests to a chat model.

    Attributes:
        temperature: 0 is greedy; None takes the endpoint's default.
        max_tokens: token limit of an answer; reasoning models need more.
        context_tokens: limit on the messages of a request, in tokens estimated from their length. The oldest turns are dropped first;
            the rules, demonstrations, the first observation and the last turn never are. If the endpoint reports that its model takes
            less, further turns are dropped.
        tools: True to use typed tool calls instead of text actions.
    """

    temperature: float | None = 0.0
    max_tokens: int = 1024
    context_tokens: int = 24_000
    tools: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens < 1 or self.context_tokens < 1:
            raise UnknownOption(
                f"max_tokens and context_tokens must be 1 or more, got {self.max_tokens} and {self.context_tokens}"
            )


class ChatAgent:
    """Chat model prompted with the environment's rules alone; base class of the prompting methods."""

    method = "chat"
    takes_tools = True
    concurrency = DEFAULT_CONCURRENCY

    def __init__(self, endpoint: Endpoint, options: ChatOptions) -> None:
        if options.tools and not self.takes_tools:
            raise UnknownOption(
                f"--tools: {self.method} writes its actions as text; leave the option out, or take --agent chat"
            )
        self.endpoint, self.options = endpoint, options
        self.calls: list[Call] = []
        self.env: AgentEnv | None = None
        self.conversation = Conversation([])
        self.observation = ""  # latest observation
        self._said: list[Message] = []  # last message of the model, to be followed by the answer
        self._wrong = ""  # fault of its call

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that the records of this agent depend on; the endpoint's URL is not one."""
        chosen = {
            name: getattr(self.options, name)
            for name in ("temperature", "max_tokens", "context_tokens", "tools")
        }
        return {
            "model": self.endpoint.model,
            **chosen,
            **({"request": redacted_fields(self.endpoint.fields)} if self.endpoint.fields else {}),
        }

    def another(self) -> ChatAgent:
        """Make another agent for a second concurrent episode, on the same connections."""
        twin = copy.copy(self)
        twin.calls, twin.conversation, twin._said = [], Conversation([]), []
        return twin

    async def close(self) -> None:
        """Close the connections."""
        await self.endpoint.close()

    def bind(self, env: AgentEnv) -> None:
        """Keep the view of the environment with its rules."""
        self.env = env

    def _view(self) -> AgentEnv:
        if self.env is None:
            raise RuntimeError("the agent knows no rules yet: call bind(env) first")
        return self.env

    def rules(self) -> str:
        """Text of the system prompt."""
        rules = self._view().prompt()
        return f"{rules}\n\n{TOOLS_NOTE}" if self.options.tools else rules

    @never_waits
    def reset(self, observation: str, info: Info) -> None:
        """Start a conversation."""
        self.observation, self._said, self._wrong = observation, [], ""
        self.conversation = Conversation(
            [{"role": "system", "content": self.rules()}, {"role": "user", "content": observation}]
        )

    async def act(self, observation: str, info: Info) -> str:
        """Request the next reply."""
        if self._said:
            self.conversation.add(*self._said, *self._answered(observation))
            self._said = []
        self.observation = observation
        fields: dict[str, Any] = (
            {"tools": [tool.schema() for tool in self._view().tools]} if self.options.tools else {}
        )
        answer = await self.ask(ACT, **fields)
        return self.reply_to(answer)

    def in_form(self, reply: str) -> str:
        """Convert an expert's reply to this method's format, as the assumed answer of a dry run."""
        return reply

    @staticmethod
    def requests(turns: int) -> int:
        """Compute the maximum number of requests for a task of so many turns."""
        return turns

    async def ask(self, purpose: str, conversation: Conversation | None = None, **fields: Any) -> Answer:
        """Send a conversation (default: the episode's own), truncated to fit, and record its cost.

        Raises:
            EndpointError: no usable answer, or the rules and the latest turn alone are too long for the model.
        """
        conversation = conversation or self.conversation
        least = 0
        while True:
            messages, dropped = conversation.fitting(self.options.context_tokens, least)
            try:
                answer = await self.endpoint.ask(
                    messages,
                    purpose,
                    max_tokens=self.options.max_tokens,
                    **{"temperature": self.options.temperature, **fields},
                )
            except TooLong as error:
                if dropped >= conversation.turns - 1:
                    raise EndpointError(f"{error} (nothing is left to leave out)") from error
                conversation.refused(messages)
                least = dropped + max(1, (conversation.turns - dropped) // 2)
                continue
            answer.call.miscounted = not conversation.counted(messages, answer.call.input_tokens)
            answer.call.dropped = dropped
            if purpose != ACT:
                answer.call.text = answer.text
            self.calls.append(answer.call)
            return answer

    def reply_to(self, answer: Answer) -> str:
        """Convert an answer to the reply to play, and append it unchanged to the conversation."""
        self._said, self._wrong = [_message(answer)], ""
        tools = self._view().tools if self.options.tools else ()
        calls = answer.tool_calls or (calls_in(answer.text, [tool.name for tool in tools]) if tools else ())
        if not calls:
            return (
                f"<think>{inert(answer.reasoning)}</think>\n{answer.text}"
                if answer.reasoning
                else answer.text
            )
        _, name, arguments = calls[0]
        thought = (answer.text if answer.tool_calls else "") or answer.reasoning
        reply, self._wrong = reply_to_call(self._view().tools, name, arguments, thought)
        return reply

    def _answered(self, observation: str) -> list[Message]:
        """Format the observation, preceded by the fault of the call if any, as the next message."""
        content = f"Error: {self._wrong}\n\n{observation}" if self._wrong else observation
        calls = self._said[0].get("tool_calls", ())
        if not calls:
            return [{"role": "user", "content": content}]
        # Put it into the tool's answer: some templates reject a user's turn after a tool's (Mistral's).
        return [
            {"role": "tool", "tool_call_id": call["id"], "content": NOT_PLAYED if number else content}
            for number, call in enumerate(calls)
        ]


def aloud(text: str) -> str:
    """Extract the text after thoughts, if they are part of the text."""
    start, end = spoken(text, ANY_CUE)
    return text[start:end].strip()


def calls_in(text: str, names: Sequence[str]) -> tuple[ToolCall, ...]:
    """Find the calls in a model's text, outside its thoughts."""
    return written_calls(aloud(text), names) or addressed_calls(text)


def _message(answer: Answer) -> Message:
    """Build the assistant's message to send back to the model.

    A message with tool calls is sent back verbatim: models that think between calls need their thoughts, or a signature, with it. Other
    messages are sent as text only: no model needs its thoughts on other turns.
    """
    if not answer.tool_calls:
        return {"role": "assistant", "content": answer.text}
    # Each call needs an id and text arguments, whatever was received.
    calls = [
        {
            **given,
            "id": call.id,
            "type": "function",
            "function": {**given["function"], "arguments": call.arguments},
        }
        for given, call in zip(answer.message["tool_calls"], answer.tool_calls, strict=True)
    ]
    kept = {name: value for name, value in answer.message.items() if value is not None and value != []}
    return {**kept, "role": "assistant", "content": answer.message.get("content"), "tool_calls": calls}


_ACTION_ONLY = "Write no thought. Answer in each turn with the action line alone:\nAction: the action"


class Direct(ChatAgent):
    """Prompting method ``direct``: the action alone, without thought. A baseline of zero-shot knowledge."""

    method = "direct"
    takes_tools = False

    def rules(self) -> str:
        """Rules of the environment, without the thought."""
        return f"{super().rules()}\n\n{_ACTION_ONLY}"

    def in_form(self, reply: str) -> str:
        """Keep only the action line."""
        return render_reply("", parse_reply(reply).action)


SHOTS = 3


class ReAct(ChatAgent):
    """Prompting method ``react``: three demonstrations by the expert on tasks of the train split."""

    method = "react"
    takes_tools = False
    _examples = ""

    def bind(self, env: AgentEnv) -> None:
        """Keep the rules and render the demonstrations."""
        super().bind(env)
        if not self._examples:
            shown = env.demonstrations(SHOTS, "react")
            self._examples = "\n\n".join(
                f"Example {number}:\n{text}" for number, text in enumerate(shown, start=1)
            )

    def rules(self) -> str:
        """Rules of the environment and the demonstrations."""
        return (
            f"{self._view().prompt('react')}\n\n{self._examples}\n\nNow it is your turn, with another task."
        )


REFLECTIONS = 3  # maximum, so four attempts
_ASK = (
    "You did not solve the task in this attempt. Say in a few sentences what went wrong and where, and what you will do "
    "differently in the next attempt, so concretely that it helps without seeing this attempt again. Write no action."
)


class Reflexion(ReAct):
    """Prompting method ``reflexion``: ReAct with verbal reflections on failed attempts."""

    method = "reflexion"

    @never_waits
    def reset(self, observation: str, info: Info) -> None:
        """Start an attempt; the first attempt at a task clears the reflections."""
        if not info.get("attempt"):
            self._reflections: list[str] = []
        super().reset(observation, info)

    def rules(self) -> str:
        """ReAct's rules, and the reflections on earlier attempts."""
        if not self._reflections:
            return super().rules()
        learned = "\n".join(f"Attempt {n}: {text}" for n, text in enumerate(self._reflections, start=1))
        return f"{super().rules()}\n\nYou have tried this task before and did not solve it. What you told yourself:\n{learned}"

    @staticmethod
    def requests(turns: int) -> int:
        """Count the requests of all attempts, and of a reflection between each two."""
        return (REFLECTIONS + 1) * turns + REFLECTIONS

    async def again(self, observation: str, reward: float, info: Info) -> bool:
        """Reflect on a failed attempt; return True to try again."""
        if info["success"] or len(self._reflections) == REFLECTIONS:
            return False
        ended = self._answered(f"{observation}\n\n{_ASK}")
        self.conversation.add(*self._said, *ended)
        self._said = []
        answer = await self.ask("reflect")
        self._reflections.append(" ".join(aloud(answer.text).split()))
        return True


BEGIN_QUERY, END_QUERY = "<|begin_search_query|>", "<|end_search_query|>"
BEGIN_RESULT, END_RESULT = "<|begin_search_result|>", "<|end_search_result|>"
_RULES = """Answer the question by reasoning step by step. Whenever you are not sure of a fact, search a collection of short passages: write
{begin}your query{end} and stop. You are then given what was found as {begin_result}...{end_result}, and reason on. You can search
{searches} times. When you know the answer, write it as short as possible (a name, a year, yes or no) in the form \\boxed{{answer}}."""
_REFINE = """You help to answer a question. Read the passages that were found for the current search, and write down what in them helps with
the next step of the reasoning, in a few sentences and in no other words than the passages support. If nothing helps, write: No helpful
information found.

Question: {question}

Reasoning so far:
{reasoning}

Current search: {query}

Passages:
{passages}"""
_BOX = re.compile(r"\\(?:f?boxed|fbox)[ ]?\{")
_FORMAT = re.compile(
    r"\\(?:text|textbf|textit|textrm|textsf|mbox|mathrm|mathbf|mathit|mathsf|operatorname)[ ]?\{([^{}]*)\}"
)
_SPACE = re.compile(r"\\[ ,;:!]|~|\\quad")
_MOST_BOXES, _MOST_FORMATS = 20, 4  # boxes searched, from the last; nested formats removed


class SearchO1(ChatAgent):
    """Prompting method ``search-o1``: search requests inside the reasoning, with refined passages."""

    method = "search-o1"
    takes_tools = False

    def bind(self, env: AgentEnv) -> None:
        """Keep the number of turns.

        Raises:
            UnknownOption: the environment has no search.
        """
        if {tool.name for tool in env.tools} != {"search", "finish"}:
            raise UnknownOption(
                f"search-o1 plays question sets only (hotpotqa, nq, musique, ...), not {env.env_id}"
            )
        super().bind(env)

    def rules(self) -> str:
        """Instructions for searching inside the reasoning; one turn is kept for the answer."""
        searches = max(0, (self._view().horizon or 1) - 1)
        marks = {
            "begin": BEGIN_QUERY,
            "end": END_QUERY,
            "begin_result": BEGIN_RESULT,
            "end_result": END_RESULT,
        }
        return _RULES.format(searches=searches, **marks)

    @never_waits
    def reset(self, observation: str, info: Info) -> None:
        """Start the reasoning."""
        super().reset(observation, info)
        self._question, self._reasoning, self._query = info["instruction"], "", ""

    def in_form(self, reply: str) -> str:
        """Render a search between marks, or a boxed answer."""
        thought, action, _ = parse_reply(reply)
        content = bracket_content(action, action.find("[")) or ""
        return (
            f"{thought} {BEGIN_QUERY}{content}{END_QUERY}"
            if action.startswith("search")
            else f"{thought} \\boxed{{{content}}}"
        )

    @staticmethod
    def requests(turns: int) -> int:
        """Count one request per turn, and one to refine the passages of each but the last."""
        return 2 * turns - 1

    async def act(self, observation: str, info: Info) -> str:
        """Continue the reasoning to the next search or the answer."""
        if self._query:
            found = await self._refined(observation)
            self._reasoning += f"\n{BEGIN_RESULT}{found}{END_RESULT}\n"
            self.conversation.add(
                *self._said, {"role": "user", "content": f"{BEGIN_RESULT}{found}{END_RESULT}"}
            )
        elif self._said:  # neither a search nor an answer: the environment reported that
            self.conversation.add(*self._said, {"role": "user", "content": observation})
        self._said = []
        return self.reply_to(await self.ask(ACT, stop=[END_QUERY]))

    def reply_to(self, answer: Answer) -> str:
        """Convert an answer: a search if one was begun, a boxed answer, else the text itself.

        Marks inside a closed thought are only mentions. A model with separate thoughts may stop inside them, at the end of a query, without
        any other text: the query is then its search.
        """
        words = aloud(answer.text)
        before, mark, rest = words.partition(BEGIN_QUERY)
        if not mark:
            before, rest = words, "" if words else _query_at_the_end(answer.reasoning or answer.text)
        self._query = " ".join(rest.partition(END_QUERY)[0].split())
        shown = f"{before}{BEGIN_QUERY}{self._query}{END_QUERY}" if self._query else words
        self._said = [{"role": "assistant", "content": shown}]
        self._reasoning += shown
        thought = inert(" ".join(f"{answer.reasoning} {before}".split()))
        if self._query:
            return render_reply(thought, f"search[{self._query}]")
        boxed = boxed_answer(words)
        return answer.text if boxed is None else render_reply(thought, f"finish[{boxed}]")

    async def _refined(self, passages: str) -> str:
        """Refine the passages with a separate request, outside the reasoning."""
        facts = {
            "question": self._question,
            "reasoning": self._reasoning,
            "query": self._query,
            "passages": passages,
        }
        answer = await self.ask(
            "refine", Conversation([{"role": "user", "content": _REFINE.format(**facts)}])
        )
        return aloud(answer.text) or "No helpful information found."


def boxed_answer(text: str) -> str | None:
    r"""Extract the last ``\boxed{...}`` of a text as plain words; None if there is none.

    Args:
        text: text with ``\boxed{...}``; the balancing brace ends it, and formatting commands (``\text{...}``) are removed.
    """
    for begin in list(_BOX.finditer(text))[: -_MOST_BOXES - 1 : -1]:
        opening = begin.end() - 1
        end = closing_bracket(text, opening)
        if end < 0:
            continue
        content = text[opening + 1 : end]
        for _ in range(_MOST_FORMATS):
            content = _FORMAT.sub(r"\1", content)
        return " ".join(
            _SPACE.sub(" ", content).replace("{,}", ",").replace("$", "").replace("\\", "").split()
        )
    return None


def _query_at_the_end(thought: str) -> str:
    """Extract the query at the end of a thought, "" if there is none."""
    _, mark, rest = thought.rpartition(BEGIN_QUERY)
    query, _, more = rest.partition(END_QUERY)
    return query if mark and not more.strip() else ""


METHODS: dict[str, type[ChatAgent]] = {
    method.method: method for method in (ChatAgent, Direct, ReAct, Reflexion, SearchO1)
}
