"""Search-QA: what a search, a repeated search and an answer do, and what the records say about them."""

from typing import Any

import pytest
from counting_searcher import CountingSearcher

from tstar_envs import GroupEnv, UnknownOption
from tstar_envs.envs.search_qa import rules
from tstar_envs.envs.search_qa.env import SearchQAEnv
from tstar_envs.envs.search_qa.search import open_searcher
from tstar_envs.envs.search_qa.tasks import Passage, load_set

TASK = "hotpotqa-mini-test-0473"
NAME, ANSWER = "Torwick Hesbel", "Ebsel"


def started(**options: Any) -> SearchQAEnv:
    env = SearchQAEnv(**options)
    env.reset(options={"task": TASK})
    return env


@pytest.fixture
def counting() -> CountingSearcher:
    return CountingSearcher(open_searcher("hashed", load_set("hotpotqa", "mini").corpus))


def test_reset_tells_the_question() -> None:
    env = SearchQAEnv()
    observation, info = env.reset(options={"task": TASK})
    assert observation == f"Question: {info['question']}" and info["instruction"] == info["question"]
    assert "golden_answers" not in info and info["kind"] == "person-city"


def test_search_shows_topk_passages() -> None:
    observation, reward, terminated, truncated, info = started(topk=2).step(f"search[{NAME}]")
    lines = observation.splitlines()
    assert [line.partition(" (Title: ")[0] for line in lines] == ["Doc 1", "Doc 2"]
    assert lines[0].startswith(f"Doc 1 (Title: {NAME}) ")
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert len(info["doc_ids"]) == 2 and sorted(info["doc_ids"]) == sorted(info["new_doc_ids"])
    assert info["effect_key"] == f"search:{NAME.lower()}" and info["modifies_state"]


def test_repeated_query_comes_from_the_episode_and_changes_nothing(counting: CountingSearcher) -> None:
    env = started(searcher=counting)
    first, *_ = env.step(f"search[{NAME}]")
    before = env.state_key()
    for spelling in (NAME, f"  {NAME.upper()} ", f"{NAME}?", f"«{NAME}»", NAME.replace(" ", "  -  ")):
        observation, *_, info = env.step(f"search[{spelling}]")
        assert observation == first and info["repeat_query"] and info["action_valid"]
        assert (
            info["effect_key"] == ""
            and not info["modifies_state"]
            and info["doc_ids"] == info["new_doc_ids"] == []
        )
        assert env.state_key() == before
    assert counting.requests == [([NAME], 3)]


def test_word_order_makes_another_query(counting: CountingSearcher) -> None:
    env = started(searcher=counting)
    env.step(f"search[{NAME}]")
    env.step(f"search[{' '.join(reversed(NAME.split()))}]")
    assert len(counting.requests) == 2


def test_search_without_news_does_not_modify() -> None:
    env = started(topk=1)
    env.step(f"search[{NAME}]")
    before = env.state_key()
    *_, info = env.step(f"search[{NAME} person]")
    assert info["doc_ids"] and info["new_doc_ids"] == [] and not info["repeat_query"]
    assert info["effect_key"] == "" and not info["modifies_state"] and env.state_key() == before
    assert env.modifies_state(f"search[{NAME} person]"), "the static predicate speaks of the kind of action"


def test_search_that_finds_nothing() -> None:
    observation, *_, info = started(retriever="bm25").step("search[qqqqqq]")
    assert observation == "No passage was found." and info["action_valid"] and not info["modifies_state"]


def test_state_is_what_was_seen_not_how() -> None:
    one, two = started(topk=1), started(topk=1)
    one.step(f"search[{NAME}]"), one.step("search[Velros Springs]")
    two.step("search[Velros Springs]"), two.step("invalid"), two.step(f"search[{NAME}]")
    assert one.state_key() == two.state_key()


@pytest.mark.parametrize("answer", [ANSWER, f"the {ANSWER}.", f" {ANSWER.upper()}"])
def test_right_answer(answer: str) -> None:
    env = started()
    observation, reward, terminated, truncated, info = env.step(f"finish[{answer}]")
    assert (reward, terminated, truncated, info["success"], info["score"]) == (1.0, True, False, True, 1.0)
    assert (info["em"], info["f1"], info["effect_key"]) == (1.0, 1.0, "finish:ebsel")
    assert observation == "The answer is right." and env.progress() == 1.0


def test_wrong_answer() -> None:
    env = started()
    _, reward, terminated, _, info = env.step(f"finish[{ANSWER} or Bredra]")
    assert (reward, terminated, info["success"], info["em"]) == (0.0, True, False, 0.0)
    assert info["f1"] == pytest.approx(0.5)
    assert env.progress() == 0.0 and env.oracle() is None


@pytest.mark.parametrize(
    "action",
    ["finish[]", "finish[ \n ]", "search[]", "search[?!]", "look", "search", "search[x", "", "research[x]"],
)
def test_invalid_actions_are_no_ops(action: str) -> None:
    env = started()
    before = env.state_key()
    observation, reward, terminated, truncated, info = env.step(action)
    assert (reward, terminated, truncated, info["step"]) == (0.0, False, False, 1)
    assert observation == f"Invalid action: {info['invalid_reason']}." and not info["action_valid"]
    assert (info["action"], info["effect_key"], env.state_key()) == ("", "", before)
    assert not env.modifies_state(action)


@pytest.mark.parametrize(
    ("reply", "canonical"),
    [
        (f"<think>hm</think><search>{NAME}</search>", f"search[{NAME}]"),
        (f"<think>hm</think><answer>{ANSWER}</answer>", f"finish[{ANSWER}]"),
        (f"<think>hm</think><action>SEARCH [ {NAME} ]</action>", f"search[{NAME}]"),
        (f"Thought: hm\nAction: Search[{NAME}].", f"search[{NAME}]"),
        (f"`finish[{ANSWER}]`", f"finish[{ANSWER}]"),
    ],
)
def test_forms_of_an_action(reply: str, canonical: str) -> None:
    *_, info = started().step(reply)
    assert (info["action"], info["action_valid"]) == (canonical, True)


def test_limits() -> None:
    *_, info = started().step(f"search[{'x' * (rules.LONGEST_QUERY + 1)}]")
    assert not info["action_valid"] and str(rules.LONGEST_QUERY) in info["invalid_reason"]
    observation, *_ = started(topk=100).step(f"search[{NAME}]")
    assert len(observation) == SearchQAEnv.longest_observation and observation.endswith(
        "[observation cut here]"
    )
    for topk in (0, 101, True, "3"):
        with pytest.raises(UnknownOption, match="topk"):
            SearchQAEnv(topk=topk)  # type: ignore[arg-type]
    with pytest.raises(UnknownOption, match="hashed"):
        SearchQAEnv(retriever="google")


def test_progress_counts_what_is_left() -> None:
    env = started(topk=1)
    assert env.progress() == 0.0
    env.step(f"search[{NAME}]")
    assert env.progress() == pytest.approx(1 / 3)
    env.step("search[Velros Springs]")
    assert env.progress() == pytest.approx(2 / 3)


def test_lost_state_has_no_progress() -> None:
    """Nothing finds the hop any more once each of its queries has brought something else."""

    class Useless:
        def search(self, queries: list[str], topk: int) -> list[list[Passage]]:
            return [[Passage("p", "Elsewhere", "Nothing of use.")] for _ in queries]

    env = started(searcher=Useless())
    while (reply := env.oracle()) is not None:
        env.step(reply)
    assert not env.snapshot().over and env.progress() == 0.0


def test_group_sends_one_request_per_step(counting: CountingSearcher) -> None:
    group = GroupEnv([SearchQAEnv(searcher=counting, topk=2) for _ in range(6)], [TASK, 0], 3)
    group.reset()
    group.step(
        [
            f"search[{NAME}]",
            f"Action: search[{NAME}]",
            "<search>Brekor</search>",
            "search[Brekor]",
            "garbage",
            "finish[x]",
        ]
    )
    assert counting.requests == [([NAME, "Brekor"], 2)], "equal queries once, others not at all"
    group.step(
        [f"search[{NAME}]", f"search[{NAME.lower()}!]", "search[Brekor]", "search[Brekor]", "garbage", None]
    )
    assert len(counting.requests) == 1, "repeated queries ask nobody"
    group.step(["search[one]", "search[two]", "search[three]", "search[One]", "search[two]", None])
    assert counting.requests[1:] == [(["one", "two", "three", "One"], 2)]
    group.step(["finish[x]"] * 5 + [None])
    assert len(counting.requests) == 2 and not any(group.running)
