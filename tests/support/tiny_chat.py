"""A trained tiny policy behind the chat API, so that agents which talk to an endpoint are tested with a model that can play."""

from __future__ import annotations

import threading
from typing import Any

from tstar_envs import find_entry, parse_reply
from tstar_train.engines.local import LocalEngine
from tstar_train.policy.model import load_policy
from tstar_train.recipes.recipe import load_recipe, policy_name
from tstar_train.rollout.player import Transcript

SEARCH, RESULT = (
    ("<|begin_search_query|>", "<|end_search_query|>"),
    ("<|begin_search_result|>", "<|end_search_result|>"),
)


class TinyChat:
    """Answers as the policy replies greedily; call it with the body of a request.

    To a prompt that asks for Search-o1's marks it speaks in them, and of passages it is asked to refine it repeats the first words.

    Args:
        env_id: what it was trained on.
        instruction: of the tasks, where the first observation does not hold it.
    """

    def __init__(self, env_id: str, instruction: str = "") -> None:
        self._instruction = instruction
        entry = find_entry(env_id)
        self._policy, self._seen = (
            load_policy("tiny", policy_name(entry)),
            load_recipe(policy_name(entry)).env,
        )
        self._engine, self._lock = LocalEngine(self._policy), threading.Lock()
        self.env_options = self._seen.options

    def __call__(self, body: dict[str, Any], number: int = 0) -> str:
        """The answer to a request."""
        system, *turns = body["messages"]
        if "Passages:\n" in system["content"]:
            return " ".join(system["content"].rpartition("Passages:\n")[2].split()[:150])
        marked = SEARCH[0] in system["content"]
        shown = [message["content"].removeprefix(RESULT[0]).removesuffix(RESULT[1]) for message in turns[::2]]
        said = [_plain(message["content"]) for message in turns[1::2]]
        codec = self._policy.codec
        instruction = self._instruction or shown[0].partition("Question: ")[2]
        transcript = Transcript(codec, "", instruction, shown[0], self._seen.context, self._seen.history)
        for reply, observation in zip(said, shown[1:], strict=True):
            transcript.add(codec.reply(reply), observation)
        with self._lock:
            self._engine.clear_cache()
            sample = self._engine.generate(
                [transcript.context()], ["0"], max_tokens=self._seen.max_tokens, temperature=0.0, keys=[0]
            )[0]
        text = codec.decode(codec.closed(sample.ids))
        return _marked(text) if marked else text


def _marked(reply: str) -> str:
    thought, action, _ = parse_reply(reply)
    content = action.partition("[")[2].removesuffix("]")
    return (
        f"{thought} {SEARCH[0]}{content}{SEARCH[1]}"
        if action.startswith("search")
        else f"{thought} \\boxed{{{content}}}"
    )


def _plain(said: str) -> str:
    thought, mark, query = said.partition(SEARCH[0])
    return f"Thought: {thought.strip()}\nAction: search[{query.removesuffix(SEARCH[1])}]" if mark else said
