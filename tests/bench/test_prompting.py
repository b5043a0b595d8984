"""The paper's prompting methods: what each says to a model, and all of them played end to end by a trained policy behind an endpoint."""

from collections.abc import Iterator
from typing import Any

import pytest
from chat_server import Body, completion, serving
from linear import require_linear

from tstar_envs import Episode, TextEnv, UnknownOption, find_entry
from tstar_envs.agents import ModelOptions, load_agent
from tstar_envs.agents.base import MODEL, bind_agent
from tstar_envs.agents.llm import BEGIN_QUERY, BEGIN_RESULT, END_QUERY, END_RESULT, REFLECTIONS, boxed_answer
from tstar_envs.cli.console import make_env
from tstar_envs.evaluation.runner import play_episode

pytest.importorskip("aiohttp")


def play(url: str, env: str, method: str, task: int = 0, **options: Any) -> Episode:
    entry = find_entry(env)
    played = make_env(entry, options)
    agent = load_agent(method, env_id=entry.id, seed=0, model=ModelOptions("m", url))
    bind_agent(agent, played)
    return play_episode(played, entry, agent, name=method, task=played.task_ids()[task])


def test_direct_asks_for_the_action_alone() -> None:
    with serving(lambda body, number: "Action: Up") as served:
        episode = play(served.url, "sokoban-easy", "direct", horizon=2)
    assert (
        "Write no thought" in served.requests[0]["messages"][0]["content"] and episode.steps[0].thought == ""
    )


@pytest.mark.parametrize(
    "env", ["sokoban-easy", "alfworld", "webshop", "blocksworld-stack", "hotpotqa", "popqa", "bamboogle"]
)
def test_react_shows_three_solved_train_tasks(env: str) -> None:
    entry = find_entry(env)
    with serving(lambda body, number: "Action: look") as served:
        play(served.url, env, "react")
    shown = served.requests[0]["messages"][0]["content"]
    other = find_entry(entry.train_on) if entry.train_on else entry
    for number, text in enumerate(make_env(other, {}).demonstrations(3), start=1):
        assert f"Example {number}:\n{text}" in shown
    assert shown.startswith(make_env(entry, {}).prompt()) and "Example 4" not in shown


def test_reflexion_learns_from_its_own_words_and_every_attempt_is_recorded() -> None:
    def answer(body: Body, number: int) -> str:
        return (
            f"lesson {number}"
            if "You did not solve the task" in body["messages"][-1]["content"]
            else "Thought: t.\nAction: Up"
        )

    with serving(answer) as served:
        episode = play(served.url, "sokoban-easy", "reflexion", horizon=2)
    assert len(episode.attempts) == REFLECTIONS == 3 and len(served.requests) == 4 * 2 + 3
    assert (
        all(attempt["success"] is False and len(attempt["steps"]) == 2 for attempt in episode.attempts)
        and len(episode.steps) == 2
    )
    reflected = [call for call in episode.calls if call["purpose"] == "reflect"]
    assert [(call.get("attempt", 0), call["text"]) for call in reflected] == [
        (0, "lesson 2"),
        (1, "lesson 5"),
        (2, "lesson 8"),
    ]
    last = served.requests[-1]["messages"]
    assert (
        "Attempt 1: lesson 2\nAttempt 2: lesson 5\nAttempt 3: lesson 8" in last[0]["content"]
        and len(last) == 4
    )
    asked = served.requests[2]["messages"]
    assert (
        asked[-1]["role"] == "user" and episode.attempts[0]["steps"][1]["observation"] in asked[-1]["content"]
    )
    assert "lesson" not in served.requests[0]["messages"][0]["content"]
    assert episode.failure == MODEL and Episode.from_json(episode.to_json()) == episode


def solved(env: TextEnv[Any, Any], task: str) -> str:
    """The expert's last reply on a task."""
    env.reset(options={"task": task})
    while True:
        reply = env.oracle()
        assert reply is not None
        if env.step(reply)[2]:
            return reply


def test_reflexion_stops_when_the_task_is_solved_and_forgets_between_tasks() -> None:
    entry = find_entry("hotpotqa")
    env = make_env(entry, {})
    agent = load_agent("reflexion", env_id=entry.id, seed=0, model=ModelOptions("m", "http://127.0.0.1:9/v1"))
    bind_agent(agent, env)

    def answer(body: Body, number: int) -> str:
        if "You did not solve" in body["messages"][-1]["content"]:
            return "say it right"
        return "Action: finish[wrong]" if "say it right" not in body["messages"][0]["content"] else right[0]

    right = [""]
    with serving(answer) as served:
        agent.endpoint = load_agent(
            "chat", env_id=entry.id, seed=0, model=ModelOptions("m", served.url)
        ).endpoint  # type: ignore[attr-defined]
        for task in env.task_ids()[:2]:
            right[0] = solved(env, task)
            episode = play_episode(env, entry, agent, name="reflexion", task=task)
            assert episode.success and episode.reward == 1.0 and len(episode.attempts) == 1, (
                "the second attempt was right"
            )
            assert episode.failure == "" and episode.attempts[0]["success"] is False


def test_search_o1_searches_inside_its_reasoning_and_reads_passages_apart() -> None:
    def answer(body: Body, number: int) -> str:
        if len(body["messages"]) == 1:
            return "It was Paris."
        return [f"I need it. {BEGIN_QUERY}capital of France", "", "So \\boxed{wrong} no, \\boxed{Paris}"][
            number
        ]

    with serving(answer) as served:
        episode = play(served.url, "hotpotqa", "search-o1")
    assert [step.action for step in episode.steps] == ["search[capital of France]", "finish[Paris]"]
    reason, refine, go_on = served.requests
    assert reason["stop"] == [END_QUERY] and "stop" not in refine
    (request,) = refine["messages"]
    for part in (
        episode.instruction,
        f"I need it. {BEGIN_QUERY}capital of France{END_QUERY}",
        episode.steps[0].observation,
    ):
        assert part in request["content"]
    assert go_on["messages"][-1]["content"] == f"{BEGIN_RESULT}It was Paris.{END_RESULT}"
    assert episode.steps[0].observation not in str(go_on), "passages themselves do not enter the reasoning"
    assert [(call["purpose"], call.get("text")) for call in episode.calls] == [
        ("act", None),
        ("refine", "It was Paris."),
        ("act", None),
    ]


def searched(*messages: Any) -> Episode:
    """What Search-o1 plays where a model answers so, the last for ever."""

    def answer(body: Body, number: int) -> Any:
        if len(body["messages"]) == 1:
            return "<think>Which of them? It says Oslo.</think>It was Oslo."
        asked = sum(message["role"] == "assistant" for message in body["messages"])
        return messages[min(asked, len(messages) - 1)]

    with serving(answer) as served:
        episode = play(served.url, "hotpotqa", "search-o1")
        episode.extra["requests"] = served.requests
    return episode


def separate(reasoning: str, content: str | None = None) -> Any:
    return completion({"content": content, "reasoning_content": reasoning})


@pytest.mark.parametrize("end", ["", END_QUERY, f"{END_QUERY}\n"])
def test_search_o1_searches_where_a_separate_thought_ends_with_a_query(end: str) -> None:
    episode = searched(separate(f"I need it. {BEGIN_QUERY}capital of Norway{end}"), "\\boxed{Oslo}")
    assert [step.action for step in episode.steps] == ["search[capital of Norway]", "finish[Oslo]"]
    asked = episode.extra["requests"][2]["messages"]
    assert asked[2]["content"] == f"{BEGIN_QUERY}capital of Norway{END_QUERY}", (
        "the query goes on, the thought does not"
    )


@pytest.mark.parametrize(
    "first",
    [
        separate(f"I could {BEGIN_QUERY}x{END_QUERY}, but I know.", "\\boxed{Oslo}"),
        f"<think>Should I write {BEGIN_QUERY}x{END_QUERY}? \\boxed{{Bergen}}? No.</think>\\boxed{{Oslo}}",
        separate("</think> \\boxed{Bergen}\nAction: finish[Bergen]", "\\boxed{Oslo}"),
    ],
)
def test_search_o1_does_not_search_for_what_a_thought_only_mentions(first: Any) -> None:
    episode = searched(first)
    assert [step.action for step in episode.steps] == ["finish[Oslo]"]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{\text{Oslo}}", "Oslo"),
        (r"\boxed{\textbf{Oslo} \text{and} \mathrm{Bergen}}", "Oslo and Bergen"),
        (r"\boxed{\text{\textbf{Oslo}}}", "Oslo"),
        (r"\boxed{a {b} {c {d}}}", "a {b} {c {d}}"),
        (r"\boxed{wrong} no, \boxed{Oslo}", "Oslo"),
        (r"\boxed{Oslo} and \boxed{unclosed", "Oslo"),
        (r"\boxed {$1{,}000$}", "1,000"),
        (r"\boxed{42\%}", "42%"),
        (r"\boxed{New~York\ City}", "New York City"),
        (r"\boxed{x]y}", "x]y"),
        (r"\boxed{}", ""),
        (r"\box{Oslo}", None),
        ("boxed{Oslo}", None),
        (r"\boxed", None),
    ],
)
def test_an_answer_in_a_box_is_read_as_plain_words(text: str, answer: str | None) -> None:
    assert boxed_answer(text) == answer


def test_reading_boxes_takes_time_in_proportion_to_the_text() -> None:
    for sign in ("\\boxed{", "{", "}", "\\text{", "\\", " ", "\\boxed{\\text{", "\\text{}"):
        require_linear(lambda text: boxed_answer("\\boxed{" + text + "}"), sign, 30_000)


def test_thoughts_in_the_text_enter_neither_refinements_nor_reflections() -> None:
    episode = searched(
        f"<think>Hm, secretly.</think>I need it. {BEGIN_QUERY}capital{END_QUERY}", "\\boxed{Oslo}"
    )
    refine, go_on = episode.extra["requests"][1:3]
    assert (
        "secretly" not in refine["messages"][0]["content"]
        and "I need it." in refine["messages"][0]["content"]
    )
    assert go_on["messages"][-1]["content"] == f"{BEGIN_RESULT}It was Oslo.{END_RESULT}"

    def answer(body: Body, number: int) -> str:
        reflects = "You did not solve the task" in body["messages"][-1]["content"]
        return "<think>Privately.</think>I should push left." if reflects else "Action: Up"

    with serving(answer) as served:
        play(served.url, "sokoban-easy", "reflexion", horizon=2)
    rules = served.requests[-1]["messages"][0]["content"]
    assert "Attempt 1: I should push left." in rules and "Privately" not in rules


def test_search_o1_is_refused_where_there_is_no_search() -> None:
    for env in ("sokoban-easy", "webshop", "alfworld"):
        with pytest.raises(UnknownOption, match=r"search-o1 plays question sets only \(hotpotqa"):
            play("http://127.0.0.1:9/v1", env, "search-o1")


@pytest.fixture(scope="module")
def tiny() -> Iterator[Any]:
    pytest.importorskip("torch")
    from tiny_chat import TinyChat

    model = TinyChat("tstar/HotpotQA")
    with serving(model) as served:
        yield served, model.env_options


@pytest.mark.parametrize(
    "method",
    [
        "chat",
        "reflexion",
        *(pytest.param(m, marks=pytest.mark.slow) for m in ("direct", "react", "search-o1")),
    ],
)
def test_a_trained_policy_behind_an_endpoint_plays_as_it_does_itself(tiny: Any, method: str) -> None:
    served, options = tiny
    entry = find_entry("hotpotqa")
    own = load_agent("tiny", env_id=entry.id, seed=0, temperature=0.0)
    env = make_env(entry, options)
    bind_agent(own, env)
    for task in (0, 3):
        episode = play(served.url, "hotpotqa", method, task, **options)
        itself = play_episode(env, entry, own, name="tiny", task=env.task_ids()[task])
        first = (
            episode.attempts[0]["steps"]
            if episode.attempts
            else [{"action": step.action} for step in episode.steps]
        )
        assert [step["action"] for step in first] == [step.action for step in itself.steps]
        tries = [*(attempt["success"] for attempt in episode.attempts), episode.success]
        assert tries[0] == itself.success and not any(tries[:-1]), "a solved task is not tried again"
        if method != "reflexion":
            assert len(tries) == 1
        elif not episode.success:
            assert len(tries) == REFLECTIONS + 1
        env.reset(options={"task": env.task_ids()[task]})
        infos = [env.step(step.action)[4] for step in episode.steps]
        assert episode.success == infos[-1]["success"], "of the last attempt"
        assert {call["purpose"] for call in episode.calls} <= {"act", "reflect", "refine"}
