"""What an endpoint's refusal is taken for: too long, for good, to be asked otherwise; in the words of many servers."""

import json
import time
from typing import Any

import pytest
from chat_server import Body, Raw, completion, serving, streamed
from test_chat_agents import called, play
from test_endpoint import play as play_many

from tstar_envs import UnknownOption
from tstar_envs.agents.base import ENDPOINT, MODEL
from tstar_envs.agents.endpoint import Dialect, Endpoint, Refusal

pytest.importorskip("aiohttp")
MOVE = "Thought: I go.\nAction: Up"
JSON = {"Content-Type": "application/json"}


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tstar_envs.agents.endpoint.FIRST_WAIT", 0.01)


def refusal(status: int, body: Any, **headers: str) -> Raw:
    return Raw(status, json.dumps(body).encode(), {**JSON, **headers})


def said(message: str, **more: Any) -> Body:
    return {"error": {"message": message, **more}}


OVERFLOWS = {
    "llama.cpp": (
        400,
        said(
            "request (5003 tokens) exceeds the available context size (4096 tokens), try increasing it",
            code=400,
        ),
    ),
    "llama.cpp, older": (500, said("the request exceeds the available context size", code=500)),
    "llama.cpp, by its type alone": (400, said("no", type="exceed_context_size_error")),
    "OpenAI": (
        400,
        said("This model's maximum context length is 4096 tokens.", code="context_length_exceeded"),
    ),
    "OpenAI, by its code alone": (400, said("bad", code="context_length_exceeded")),
    "Gemini": (
        400,
        [said("The input token count (1234567) exceeds the maximum number of tokens allowed (1048575).")],
    ),
    "vLLM V1": (
        400,
        {
            "object": "error",
            "message": "The decoder prompt (length 5000) is longer than the maximum model length of 4096.",
        },
    ),
    "vLLM, the answer's bound named too": (
        400,
        said(
            "'max_tokens' is too large: 1024. This model's maximum context length is 4096 tokens and your request has 3500 input tokens"
        ),
    ),
    "xAI": (
        400,
        {
            "code": "Client",
            "error": "This model's maximum prompt length is 131072 but the request contains 160000 tokens.",
        },
    ),
    "TGI": (
        422,
        {
            "error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4097. Given: 4000 `inputs` tokens"
        },
    ),
    "DashScope": (
        400,
        said("<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 30720]"),
    ),
    "Groq": (
        413,
        said("Request too large for model `x` on tokens per minute (TPM)", code="rate_limit_exceeded"),
    ),
    "a proxy": (413, "<html>413 Request Entity Too Large</html>"),
    "OpenAI, tokens of a minute": (
        429,
        said("Request too large for gpt-4 on tokens per min (TPM): Limit 30000, Requested 34000."),
    ),
    "OpenRouter": (200, said("This endpoint's maximum context length is 4096 tokens", code=400)),
    "OpenRouter, the provider's words": (
        200,
        said(
            "Provider returned error", code=400, metadata={"raw": "prompt is too long: 9 tokens > 8 maximum"}
        ),
    ),
    "Anthropic": (400, said("prompt is too long: 210000 tokens > 200000 maximum")),
    "Anthropic, with the answer": (
        400,
        said("input length and `max_tokens` exceed context limit: 198000 + 8192 > 200000"),
    ),
    "Bedrock": (400, {"message": "Input is too long for requested model."}),
    "Kimi": (400, said("Invalid request: Your request exceeded model token limit: 8192")),
    "Mistral": (
        400,
        {
            "object": "error",
            "message": "Prompt contains 40000 tokens, too large for model with 32768 maximum context length",
        },
    ),
    "LM Studio": (
        400,
        {"error": "The number of tokens to keep from the initial prompt is greater than the context length."},
    ),
    "GLM": (400, said("Prompt exceeds max length", code="1261")),
    "GLM, in Chinese": (
        400,
        said(
            "API \u8c03\u7528\u53c2\u6570\u6709\u8bef: tokens\u6570\u91cf\u8d85\u8fc7\u6a21\u578b\u4e0a\u9650",
            code="1210",
        ),
    ),
    "a limit in other words": (
        400,
        said("input token count is 40000 but this model supports input up to 32768"),
    ),
    "a limit named alone": (400, {"message": "Your prompt has 5000 tokens; the limit is 4096"}),
    "Bedrock, by its schema": (
        400,
        {"message": "Malformed input request: expected maxLength: 200000, actual: 210000"},
    ),
    "a gateway of status 503": (503, said("context length exceeded")),
    "SGLang": (
        400,
        {
            "object": "error",
            "message": "The input (4100 tokens) is longer than the model's context length (4096 tokens).",
        },
    ),
}


@pytest.mark.parametrize("who", OVERFLOWS)
def test_turns_are_dropped_where_messages_do_not_fit(who: str) -> None:
    status, body = OVERFLOWS[who]
    with serving(lambda sent, number: refusal(status, body) if len(sent["messages"]) > 6 else MOVE) as served:
        episode = play(served.url, horizon=6, retries=0)
    assert episode.ended == "truncated" and len(episode.steps) == 6 and episode.calls[-1]["dropped"] >= 1
    with serving(lambda sent, number: refusal(status, body)) as served:
        episode = play(served.url, retries=0)
    assert (
        "nothing is left to leave out" in episode.error
        and len(served.requests) == 1
        and episode.failure == ENDPOINT
    )


OTHERS = {
    "an answer's bound": "max_tokens is too large: 200000. This model supports at most 16384 completion tokens, you provided 200000.",
    "DeepSeek": "Invalid max_tokens value, the valid range of max_tokens is [1, 8192]",
    "a schema": "Invalid schema for function 'move': maximum depth exceeded",
    "Anthropic's answer": "max_tokens exceeds the model's maximum output of 8192",
    "tools": "tools: maximum number of functions exceeded: input schema too large",
    "stop": "stop: array too long. Expected an array with maximum length 4",
    "an image": "the input image is too large",
    "a model": "The model `x` does not exist",
    "a field": "Extra inputs are not permitted",
}


@pytest.mark.parametrize("who", OTHERS)
def test_what_is_no_overflow_drops_no_turn(who: str) -> None:
    with serving(lambda sent, number: refusal(400, said(OTHERS[who])) if number == 3 else MOVE) as served:
        episode = play(served.url, horizon=6, retries=0)
    assert (
        OTHERS[who] in episode.error
        and len(served.requests) == 4
        and not any(call.get("dropped") for call in episode.calls)
    )
    assert ("--max-tokens N asks for fewer" in episode.error) == ("max_tokens" in OTHERS[who])


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (said("Provider returned error", code=429), "HTTP 200 with an error 429: Provider returned error"),
        (said("Upstream error", code="503"), "HTTP 200 with an error 503: Upstream error"),
        ({"error": "overloaded"}, "HTTP 200 with an error 502: overloaded"),
        (
            {"object": "error", "message": "engine died", "code": 500},
            "HTTP 200 with an error 500: engine died",
        ),
        (
            {
                "choices": [
                    {
                        "finish_reason": "error",
                        "error": {"code": 502, "message": "Upstream error"},
                        "message": {"content": ""},
                    }
                ]
            },
            "HTTP 200 with an error 502: Upstream error",
        ),
        (
            {"choices": [{"finish_reason": "error", "message": {"content": "Action: Le"}}]},
            "HTTP 200 with an error 502: finish_reason",
        ),
    ],
)
def test_an_error_inside_an_answer_is_tried_again_and_the_endpoints(body: Body, shown: str) -> None:
    with serving(lambda sent, number: refusal(200, body) if number == 0 else MOVE) as served:
        episode = play(served.url, horizon=2)
    assert episode.failure == MODEL and [call.get("tries", 1) for call in episode.calls] == [2, 1]
    with serving(lambda sent, number: refusal(200, body)) as served:
        episode = play(served.url, horizon=2, retries=1)
    assert episode.failure == ENDPOINT and shown in episode.error and "None" not in episode.error


@pytest.mark.parametrize("code", [400, 401, 404])
def test_an_error_inside_an_answer_that_is_for_good_is_not_tried_again(code: int) -> None:
    with serving(lambda sent, number: refusal(200, said("no such model", code=code))) as served:
        episode = play(served.url)
    assert f"HTTP 200 with an error {code}: no such model" in episode.error and len(served.requests) == 1


@pytest.mark.parametrize(
    ("status", "body", "advice"),
    [
        (
            429,
            said("You exceeded your current quota", type="insufficient_quota", code="insufficient_quota"),
            "insufficient_quota",
        ),
        (429, said("Your credit balance is too low"), "credit balance"),
        (429, said("You exceeded your current quota, please check your plan and billing details"), "quota"),
        (
            500,
            said("tools param requires --jinja flag"),
            "start llama-server with --jinja, or leave --tools out",
        ),
        (501, said("not here"), "HTTP 501"),
        (500, said("image input is not supported"), "not supported"),
        (401, said("bad key"), "OPENAI_API_KEY"),
    ],
)
def test_what_waiting_does_not_change_is_tried_once(status: int, body: Body, advice: str) -> None:
    with serving(lambda sent, number: refusal(status, body)) as served:
        episode = play(served.url)
    assert len(served.requests) == 1 and advice in episode.error and episode.failure == ENDPOINT


def test_an_address_without_v1_gets_a_hint() -> None:
    with serving(lambda sent, number: refusal(404, {"detail": "Not Found"})) as served:
        episode = play(served.url.removesuffix("/v1"))
        assert f"--base-url {served.url.removesuffix('/v1')}/v1" in episode.error
        assert "end in /v1" not in play(served.url).error


@pytest.mark.parametrize(
    ("headers", "body", "seconds"),
    [
        ({"retry-after-ms": "1500"}, said("slow"), 1.5),
        ({"retry-after-ms": "250.5", "retry-after": "9"}, said("slow"), 0.2505),
        ({}, [said("quota", details=[{"@type": "RetryInfo", "retryDelay": "34.5s"}])], 34.5),
        ({}, said("slow", details=[{"retryDelay": "7s"}]), 7.0),
        ({"retry-after": "Fri, 31 Dec 99999 23:59:59 GMT"}, said("slow"), None),
        ({"retry-after": "Sun, 06 Nov 1994 08:49:37 GMT"}, said("slow"), 0.0),
        ({"retry-after": "soon"}, said("slow"), None),
        ({"retry-after": "nan"}, said("slow"), None),
        ({"retry-after-ms": "1e9"}, said("slow"), None),
        ({}, said("slow", details=[{"retryDelay": {"seconds": 3}}]), None),
    ],
)
def test_how_long_a_refusal_asks_to_wait(headers: dict[str, str], body: Any, seconds: float | None) -> None:
    assert (
        Refusal(429, body, headers).wait == pytest.approx(seconds)
        if seconds is not None
        else Refusal(429, body, headers).wait is None
    )


def test_a_quota_that_comes_back_is_waited_for() -> None:
    google = [
        said("You exceeded your current quota, please check your plan", details=[{"retryDelay": "0.05s"}])
    ]
    with serving(lambda sent, number: refusal(429, google) if number == 0 else MOVE) as served:
        assert play(served.url, horizon=1).calls[0]["tries"] == 2
    with serving(
        lambda sent, number: refusal(503, said("x"), **{"Retry-After": "Fri, 31 Dec 99999 23:59:59 GMT"})
    ) as served:
        episode = play(served.url, retries=1)
        assert episode.failure == ENDPOINT and len(served.requests) == 2, (
            "the endpoint's fault, not the agent's"
        )


SYSTEM = [
    (400, said("System role not supported")),
    (400, said("Developer instruction is not enabled for models/gemma-3-27b-it")),
    (500, said("Conversation roles must alternate user/assistant/user/assistant/...")),
    (422, {"detail": "Unexpected role 'system'"}),
    (400, said("messages[0].role: 'system' is not allowed")),
    (400, "Only user and assistant roles are supported!"),
    (422, said("messages.0.role: Input should be 'user' or 'assistant'")),
]


@pytest.mark.parametrize(("status", "body"), SYSTEM)
def test_an_endpoint_without_system_role_gets_the_rules_in_the_first_user_turn(
    status: int, body: Any
) -> None:
    def answer(sent: Body, number: int) -> Any:
        return refusal(status, body) if sent["messages"][0]["role"] == "system" else MOVE

    with serving(answer) as served:
        episode = play(served.url, horizon=3, retries=0)
    assert episode.failure == MODEL and len(served.requests) == 4, "refused once, and known from then on"
    system, first = served.requests[0]["messages"]
    (merged,) = served.requests[1]["messages"]
    assert merged == {"role": "user", "content": f"{system['content']}\n\n{first['content']}"}
    assert [m["role"] for m in served.requests[-1]["messages"]] == [
        "user",
        "assistant",
        "user",
        "assistant",
        "user",
    ]


def test_requests_that_are_refused_together_all_learn() -> None:
    def answer(sent: Body, number: int) -> Any:
        if "max_tokens" in sent:
            return refusal(400, said("Use 'max_completion_tokens' instead."))
        return (
            refusal(400, said("System role not supported"))
            if sent["messages"][0]["role"] == "system"
            else MOVE
        )

    with serving(answer, delay=0.2) as served:
        episodes = play_many(served, tasks=8, at_once=8, horizon=1, retries=0)
    assert [episode.failure for episode in episodes] == [MODEL] * 8 and max(served.at_once) == 8


@pytest.mark.parametrize(
    "message",
    [
        "Unsupported parameter: 'stop' is not supported with this model.",
        "Argument not supported on this model: stop",
        "unknown field: stop",
    ],
)
def test_where_stop_is_not_taken_answers_are_cut_here(message: str) -> None:
    def answer(sent: Body, number: int) -> Any:
        if "stop" in sent:
            return refusal(400, said(message))
        return "Action: Up<END>\nObservation: invented"

    async def ask(endpoint: Endpoint) -> list[str]:
        try:
            asked = [{"role": "user", "content": "x"}]
            return [
                (await endpoint.ask(asked, "act", max_tokens=5, stop=stop)).text
                for stop in (["<END>"], "<END>", None)
            ]
        finally:
            await endpoint.close()

    import asyncio

    with serving(answer) as served:
        texts = asyncio.run(ask(Endpoint("m", served.url)))
    assert (
        texts == ["Action: Up", "Action: Up", "Action: Up<END>\nObservation: invented"]
        and len(served.requests) == 4
    )


@pytest.mark.parametrize(
    "message",
    [
        "This model only support stream mode, please enable the stream parameter to access the model.",
        "Stream must be set to true",
        "Non-streaming requests are not supported",
    ],
)
def test_an_endpoint_that_only_streams(message: str) -> None:
    with serving(
        lambda sent, number: streamed(MOVE) if sent.get("stream") else refusal(400, said(message))
    ) as served:
        episode = play(served.url, horizon=2, retries=0)
    assert [step.reply for step in episode.steps] == [MOVE] * 2 and len(served.requests) == 3
    assert episode.calls[0]["input_tokens"] == 10 and episode.calls[0]["finish"] == "stop"


def test_an_endpoint_that_refuses_its_own_fields_gets_its_calls_bare() -> None:
    def answer(sent: Body, number: int) -> Any:
        if any("reasoning" in message for message in sent["messages"]):
            return refusal(400, said("'messages.2' : property 'reasoning' is unsupported"))
        message = json.loads(called("move", direction="Up").body)["choices"][0]["message"]
        return completion({**message, "reasoning": "I think."})

    with serving(answer) as served:
        episode = play(served.url, horizon=3, tools=True, retries=0)
    assert [step.action for step in episode.steps] == ["Up"] * 3 and len(served.requests) == 4
    assert set(served.requests[-1]["messages"][2]) == {"role", "content", "tool_calls"}


def test_a_dialect_learns_each_thing_once() -> None:
    dialect, sent = (
        Dialect(),
        {"messages": [{"role": "system", "content": "r"}], "max_tokens": 5, "stop": ["x"]},
    )
    for body in (
        said("use max_completion_tokens"),
        said("stop is not supported"),
        said("system role not supported"),
        said("only stream"),
    ):
        assert dialect.learn(Refusal(400, body), sent) and not dialect.learn(
            Refusal(400, body), {**sent, "stop": ["x"]}
        )
    for status in (401, 403, 429):
        assert not Dialect().learn(Refusal(status, said("system role not supported")), sent)


def test_what_openais_client_takes_beside_a_request() -> None:
    with serving(lambda sent, number: MOVE) as served:
        play(served.url, horizon=1, request={"extra_body": {"top_k": 5, "seed": 1}, "seed": 2})
        assert (served.requests[0]["top_k"], served.requests[0]["seed"]) == (
            5,
            2,
        ) and "extra_body" not in served.requests[0]
    for fields in ({"extra_headers": {"a": "b"}}, {"extra_query": {}}, {"extra_body": 3}):
        with pytest.raises(UnknownOption, match="--request extra_"):
            Endpoint("m", "http://127.0.0.1:9/v1", fields=fields)


@pytest.mark.parametrize(
    "url",
    [
        "http://",
        "http://[::1",
        "http://host:99999/v1",
        "http://ho st/v1",
        "http://host:port/v1",
        "http://a:b@/v1",
        "http://host\n/v1",
    ],
)
def test_an_address_that_is_none_is_refused_at_once(url: str) -> None:
    with pytest.raises(UnknownOption, match="--base-url .* is not a URL"):
        Endpoint("m", url)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SSL_CERT_FILE", "/no/such/file.pem"),
        ("ALL_PROXY", "socks9://127.0.0.1:1"),
        ("HTTPS_PROXY", "ftp://me:pass-word9@127.0.0.1:1"),
    ],
)
def test_a_proxy_or_certificates_that_cannot_be_used_are_refused_at_once(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(
        UnknownOption, match=f"no connection can be prepared to .* set are: .*{variable}="
    ) as caught:
        Endpoint("m", "http://127.0.0.1:9/v1")
    assert "pass-word9" not in str(caught.value)


def test_a_refusal_without_end_is_read_as_far_as_it_is_of_use() -> None:
    huge = Raw(400, b'{"error": {"message": "no such model"}} ' + b"x" * 30_000_000, JSON)
    with serving(lambda sent, number: huge) as served:
        began = time.process_time()
        episode = play(served.url)
    assert (
        "no such model" in episode.error and len(episode.error) < 1000 and time.process_time() - began < 5.0
    )


@pytest.mark.parametrize(
    "sign", ["system role ", "unsupported ", "x", " ", "exceed", "\\", "[", '{"error":', "role: "]
)
def test_reading_a_refusal_takes_time_in_proportion_to_its_length(sign: str) -> None:
    began = time.process_time()
    found = Refusal(400, said(sign * 60_000))
    assert (found.is_too_long, found.is_final) is not None and len(found.told()) < 400
    Dialect().learn(found, {"messages": [{"role": "system", "content": ""}], "stop": "x"})
    assert time.process_time() - began < 3.0
