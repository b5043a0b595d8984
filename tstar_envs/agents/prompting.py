"""Prompting methods: direct, ReAct, Reflexion and Search-o1."""

from __future__ import annotations

import re

from tstar_envs.agents.answers import Answer
from tstar_envs.agents.base import ACT, EnvironmentView, Info
from tstar_envs.agents.llm import ChatAgent, Conversation, aloud
from tstar_envs.errors import UnknownOption
from tstar_envs.react import bracket_content, closing_bracket, parse_reply, render_reply
from tstar_envs.tools import inert

_ACTION_ONLY = "Write no thought. Answer in each turn with the action line alone:\nAction: the action"


class Direct(ChatAgent):
    """The baseline that shows what a model knows to do at once."""

    method = "direct"
    takes_tools = False

    def rules(self) -> str:
        """The environment's rules, without the thought."""
        return f"{super().rules()}\n\n{_ACTION_ONLY}"

    def in_form(self, reply: str) -> str:
        """The action line alone."""
        return render_reply("", parse_reply(reply).action)


SHOTS = 3


class ReAct(ChatAgent):
    """Three demonstrations, played by the environment's expert on tasks of the train split."""

    method = "react"
    takes_tools = False
    _examples = ""

    def bind(self, env: EnvironmentView) -> None:
        """Take the rules and the demonstrations."""
        super().bind(env)
        if not self._examples:
            shown = env.demonstrations(SHOTS, "react")
            self._examples = "\n\n".join(
                f"Example {number}:\n{text}" for number, text in enumerate(shown, start=1)
            )

    def rules(self) -> str:
        """The environment's rules and the solved episodes."""
        return (
            f"{self._view().prompt('react')}\n\n{self._examples}\n\nNow it is your turn, with another task."
        )


REFLECTIONS = 3  # so many at most, that is four attempts
_ASK = (
    "You did not solve the task in this attempt. Say in a few sentences what went wrong and where, and what you will do "
    "differently in the next attempt, so concretely that it helps without seeing this attempt again. Write no action."
)


class Reflexion(ReAct):
    """ReAct that learns from its own words."""

    method = "reflexion"

    def reset(self, observation: str, info: Info) -> None:
        """Begin an attempt; the first one of a task knows nothing of the task before."""
        if not info.get("attempt"):
            self._reflections: list[str] = []
        super().reset(observation, info)

    def rules(self) -> str:
        """ReAct's, and what was learned from the attempts before."""
        if not self._reflections:
            return super().rules()
        learned = "\n".join(f"Attempt {n}: {text}" for n, text in enumerate(self._reflections, start=1))
        return f"{super().rules()}\n\nYou have tried this task before and did not solve it. What you told yourself:\n{learned}"

    @staticmethod
    def requests(turns: int) -> int:
        """All attempts, and a reflection between each two."""
        return (REFLECTIONS + 1) * turns + REFLECTIONS

    async def again(self, observation: str, reward: float, info: Info) -> bool:
        """Reflect on a failed attempt; whether to try once more."""
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
_MOST_BOXES, _MOST_FORMATS = 20, 4  # that are looked at, from the last; that stand inside one another


class SearchO1(ChatAgent):
    """See the module."""

    method = "search-o1"
    takes_tools = False

    def bind(self, env: EnvironmentView) -> None:
        """Take the number of turns.

        Raises:
            UnknownOption: the environment has no search.
        """
        if {tool.name for tool in env.tools} != {"search", "finish"}:
            raise UnknownOption(
                f"search-o1 plays question sets only (hotpotqa, nq, musique, ...), not {env.env_id}"
            )
        super().bind(env)

    def rules(self) -> str:
        """How to search inside the reasoning; one turn is kept for the answer."""
        searches = max(0, (self._view().horizon or 1) - 1)
        marks = {
            "begin": BEGIN_QUERY,
            "end": END_QUERY,
            "begin_result": BEGIN_RESULT,
            "end_result": END_RESULT,
        }
        return _RULES.format(searches=searches, **marks)

    def reset(self, observation: str, info: Info) -> None:
        """Begin to reason."""
        super().reset(observation, info)
        self._question, self._reasoning, self._query = info["instruction"], "", ""

    def in_form(self, reply: str) -> str:
        """A search between marks, or a boxed answer."""
        thought, action, _ = parse_reply(reply)
        content = bracket_content(action, action.find("[")) or ""
        return (
            f"{thought} {BEGIN_QUERY}{content}{END_QUERY}"
            if action.startswith("search")
            else f"{thought} \\boxed{{{content}}}"
        )

    @staticmethod
    def requests(turns: int) -> int:
        """One for each turn, and one to read the passages of each but the last."""
        return 2 * turns - 1

    async def act(self, observation: str, info: Info) -> str:
        """Reason up to the next search or to the answer."""
        if self._query:
            found = await self._refined(observation)
            self._reasoning += f"\n{BEGIN_RESULT}{found}{END_RESULT}\n"
            self.conversation.add(
                *self._said, {"role": "user", "content": f"{BEGIN_RESULT}{found}{END_RESULT}"}
            )
        elif self._said:  # neither a search nor an answer: the environment said so
            self.conversation.add(*self._said, {"role": "user", "content": observation})
        self._said = []
        return self.reply_to(await self.ask(ACT, stop=[END_QUERY]))

    def reply_to(self, answer: Answer) -> str:
        """A search where one was begun, the answer where one is boxed, else the words as they are.

        Marks inside a closed thought are only mentioned there. A model whose thoughts come apart may stop inside them, at the end of
        a query: then it said nothing else, and that is its search.
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
        """What the model takes from the passages, read apart from its reasoning."""
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
    r"""Read the last box of a text as plain words; None without one.

    Args:
        text: with ``\boxed{...}``; the brace that balances ends it, and what formats its words is taken off (``\text{...}``).
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
    """The query that a thought ends with, "" where it ends otherwise."""
    _, mark, rest = thought.rpartition(BEGIN_QUERY)
    query, _, more = rest.partition(END_QUERY)
    return query if mark and not more.strip() else ""


METHODS: dict[str, type[ChatAgent]] = {
    method.method: method for method in (ChatAgent, Direct, ReAct, Reflexion, SearchO1)
}

__all__ = ["METHODS", "Direct", "ReAct", "Reflexion", "SearchO1"]
