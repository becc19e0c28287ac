"""Requests that both generation routes refuse: with the field's name, a reason, and no effect on the next request."""

from __future__ import annotations

import asyncio
import json

import pytest
from server_fakes import BOS, CONTEXT, MODEL, VOCAB, ByteTokenizer, fault, serve_fake

from headrace.errors import InvalidRequest
from headrace.server.request_body import MAX_BODY, decode_body
from headrace.server.schemas import ChatRequest, CompletionRequest, Message, StreamOptions

SERVED = serve_fake()

WRONG = [
    ("temperature", -0.1),
    ("temperature", 2.1),
    ("temperature", "hot"),
    ("temperature", True),
    ("top_p", 0),
    ("top_p", 1.1),
    ("top_k", -2),
    ("top_k", 1.5),
    ("top_k", 2**40),
    ("min_p", -0.1),
    ("min_p", 1.1),
    ("n", 0),
    ("n", -1),
    ("n", 129),
    ("n", 10**6),
    ("n", 1.5),
    ("max_tokens", -1),
    ("max_tokens", 0),
    ("max_tokens", 10**9),
    ("max_tokens", 10**30),
    ("max_tokens", "5"),
    ("min_tokens", -1),
    ("min_tokens", 10**9),
    ("seed", 2**64),
    ("seed", "a"),
    ("presence_penalty", 2.1),
    ("frequency_penalty", -2.1),
    ("repetition_penalty", 0),
    ("repetition_penalty", 1e308),
    ("stop", ""),
    ("stop", [""]),
    ("stop", [1]),
    ("stop", ["a"] * 65),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", [VOCAB]),
    ("stop_token_ids", [1] * 50_000),
    ("stop_token_ids", [10**308]),
    ("allowed_token_ids", []),
    ("allowed_token_ids", [VOCAB]),
    ("allowed_token_ids", [-5]),
    ("allowed_token_ids", [1] * 50_000),
    ("logit_bias", {"x": 1}),
    ("logit_bias", {"1.5": 1}),
    ("logit_bias", {"": 1}),
    ("logit_bias", {"-1": 1}),
    ("logit_bias", {"²": 1}),
    ("logit_bias", {"9" * 30: 1}),
    ("logit_bias", {str(VOCAB): 1}),
    ("logit_bias", {"1": 101}),
    ("logit_bias", {"1": "a"}),
    ("logit_bias", {str(i): 1 for i in range(50_000)}),
    ("logit_bias", [1]),
    ("prompt_logprobs", 21),
    ("prompt_logprobs", -1),
    ("prompt_logprobs_start", -1),
    ("priority", 2**40),
    ("cache_salt", ""),
    ("cache_salt", "x" * 300),
    ("stream", "yes"),
    ("stream_options", {"include_usge": True}),
    ("user", 7),
    ("metadata", []),
    ("speculation", 1),
    ("speculation", "ngram"),
    ("speculation", []),
    ("speculation", {"tokens": 3}),
    ("speculation", {"method": 3}),
    ("speculation", {"method": "ngram"}),
    ("speculation", {"method": "predicted"}),
    ("speculation", {"max_tokens": -1}),
    ("speculation", {"max_tokens": "3"}),
    ("speculation", {"max_tokens": 1.5}),
    ("speculation", {"max_tokens": 2**31}),
    ("prediction", "text"),
    ("prediction", {}),
    ("prediction", {"type": "content"}),
    ("prediction", {"content": "text"}),
    ("prediction", {"type": "contents", "content": "text"}),
    ("prediction", {"type": "content", "content": None}),
    ("prediction", {"type": "content", "content": 5}),
    ("prediction", {"type": "content", "content": ["text"]}),
    ("prediction", {"type": "content", "content": [{"type": "text"}]}),
    ("prediction", {"type": "content", "content": [{"type": "image_url", "text": "text"}]}),
    ("prediction", {"type": "content", "content": "text", "tokens": [1]}),
    ("prediction", {"type": "content", "content": "a" * (CONTEXT + 1)}),
    ("prediction", {"type": "content", "content": "a" * 10**6}),
]


def post(path: str, body: dict):
    return asyncio.run(SERVED.post(path, **body))


def both(**body):
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], **body}
    yield post("/v1/chat/completions", chat)
    yield post("/v1/completions", {"model": MODEL, "prompt": "Hi", **body})


@pytest.mark.parametrize(("field", "value"), WRONG, ids=[f"{field}-{str(value)[:20]}" for field, value in WRONG])
def test_wrong_values_name_the_field(field, value):
    before = len(SERVED.engine.requests)
    for response in both(**{field: value}):
        assert fault(response, 400)["param"].split(".")[0].split("[")[0] == field
    assert len(SERVED.engine.requests) == before
    assert all(response.status_code == 200 for response in both())


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e400", "1e999999"])
def test_numbers_that_are_not_finite(literal):
    for field in ("temperature", "logit_bias"):
        value = literal if field == "temperature" else f'{{"1": {literal}}}'
        raw = f'{{"model": "{MODEL}", "prompt": "Hi", "{field}": {value}}}'
        fault(asyncio.run(SERVED.http.post("/v1/completions", content=raw)), 400)


def test_misspelt_fields_are_reported():
    for response in both(response_fromat={"type": "json_object"}):
        error = fault(response, 400, "response_fromat")
        assert error["code"] == "unknown_parameter"
    chat, _ = both(response_fromat={"type": "json_object"})
    assert "did you mean `response_format`?" in chat.json()["error"]["message"]
    for response in both(max_token=1):
        assert "did you mean `max_tokens`?" in fault(response, 400, "max_token")["message"]
    for response in both(stream=True, stream_options={"include_usge": True}):
        message = fault(response, 400, "stream_options.include_usge")["message"]
        assert "did you mean `include_usage`?" in message


@pytest.mark.parametrize("field", ["guided_json", "guided_regex", "functions", "logits_processors", "é`\n"])
def test_unknown_fields_are_refused(field):
    for response in both(**{field: {}}):
        assert fault(response, 400, field)["code"] == "unknown_parameter"


def test_harmless_fields_are_accepted():
    inert = {
        "user": "me",
        "store": True,
        "metadata": {"a": "b"},
        "service_tier": "auto",
        "safety_identifier": "x",
        "prompt_cache_key": "k",
    }
    assert all(response.status_code == 200 for response in both(**inert))


BROKEN = [
    b"",
    b"{",
    b"[]",
    b'"x"',
    b"null",
    b"\xff\xfe",
    b'{"prompt": "\xff"}',
    b'{"prompt": "\\ud800"}',
    b'{"prompt": "a"} x',
    b'{"prompt": "a",}',
    b'{"metadata": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"messages": ' + b"[" * 100_000,
]


@pytest.mark.parametrize("raw", BROKEN, ids=range(len(BROKEN)))
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"])
def test_bodies_that_are_not_json_objects(raw, path):
    fault(asyncio.run(SERVED.http.post(path, content=raw)), 400)


def test_bodies_over_the_limit():
    async def chunks():
        for _ in range(MAX_BODY // 2**20 + 1):
            yield b" " * 2**20

    declared = asyncio.run(SERVED.http.post("/v1/completions", content=b" " * (MAX_BODY + 1)))
    assert fault(declared, 413)["code"] == "request_too_large"
    assert declared.headers["connection"] == "close"
    fault(asyncio.run(SERVED.http.post("/v1/completions", content=chunks())), 413)


def test_deep_tools_are_parsed_or_refused():
    deep = json.loads("[" * 400 + "]" * 400)
    tool = {"type": "function", "function": {"name": "f", "parameters": {"a": deep}}}
    response = post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "tools": [tool]})
    assert response.status_code in (200, 400)


@pytest.mark.parametrize(
    ("field", "given", "meant"),
    [
        ("max_tokens", 2.0, 2),
        ("n", 2.0, 2),
        ("top_k", 5.0, 5),
        ("seed", -0.0, 0),
        ("stop_token_ids", [1.0, 2], (1, 2)),
        ("temperature", 1.0, 1.0),
    ],
)
def test_integers_may_have_a_decimal_point(field, given, meant):
    for response in both(**{field: given}):
        assert response.status_code == 200
        assert getattr(SERVED.engine.requests[-1].params, field) == meant


def test_prompts_and_large_bodies_may_have_decimal_points_too():
    for prompt in ([1.0, 2.0], [[1.0, 2.0]]):
        assert post("/v1/completions", {"model": MODEL, "prompt": prompt}).status_code == 200
        assert SERVED.engine.requests[-1].prompt == (1, 2)
    large = {"metadata": {"a": "x" * 70_000}, "max_tokens": 2.0}
    for response in both(**large):
        assert response.json()["usage"]["completion_tokens"] == 2
    for response in both(max_tokens=2.5):
        assert "got `float`" in fault(response, 400, "max_tokens")["message"]


@pytest.mark.parametrize(
    ("message", "param", "told"),
    [
        ({"content": "a", "stop": "x"}, "messages[0].stop", "field of the request itself"),
        ({"content": "a", "nmae": "x"}, "messages[0].nmae", "did you mean `name`?"),
        ({"content": [{"type": "text", "txt": "x"}]}, "messages[0].content[0].txt", "did you mean `text`?"),
        (
            {"content": "a", "tool_calls": [{"function": {"name": "f", "argument": "x"}}]},
            "messages[0].tool_calls[0].function.argument",
            "did you mean `arguments`?",
        ),
        ({"content": "a", "include_usage": True}, "messages[0].include_usage", "not supported"),
    ],
)
def test_suggestions_are_fields_of_the_object_in_question(message, param, told):
    response = post("/v1/chat/completions", {"model": MODEL, "messages": [{"role": "user", **message}]})
    assert told in fault(response, 400, param)["message"]


def test_no_suggestion_is_the_name_that_was_given():
    names = {
        name for kind in (ChatRequest, CompletionRequest, Message, StreamOptions) for name in kind.__struct_fields__
    }
    for where in ({"stream_options": {}, "stream": True}, {"messages": [{"role": "user", "content": "a"}]}):
        for name in sorted(names):
            body = json.loads(json.dumps({"model": MODEL, "messages": [], **where}))
            inner = body["messages"][0] if body["messages"] else body["stream_options"]
            if name in inner or name in (Message if body["messages"] else StreamOptions).__struct_fields__:
                continue
            inner[name] = None
            error = fault(post("/v1/chat/completions", body), 400)
            assert error["code"] == "unknown_parameter"
            assert f"mean `{name}`" not in error["message"]


class Special(ByteTokenizer):
    """Knows the text of its special token."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [BOS] if text == "<s>" else super().encode(text, add_special_tokens)


def test_the_text_of_a_special_token_stops_by_the_token():
    served = serve_fake()
    served.app.state.context.tokenizer = Special()
    for ask in (served.complete, served.chat):
        asyncio.run(ask(stop=["a", "<s>"], stop_token_ids=[7]))
        params = served.engine.requests[-1].params
        assert (params.stop, params.stop_token_ids) == (("a", "<s>"), (7, BOS))
        # Where it is shown, the text stops.
        asyncio.run(ask(stop="<s>", skip_special_tokens=False))
        assert served.engine.requests[-1].params.stop_token_ids == ()


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        (b'"temperature": 3', "`temperature`: expected `float` <= 2.0, got 3"),
        (b'"max_tokens": -1', "`max_tokens`: expected `int` >= 0, got -1"),
        (b'"speculation": {"max_tokens": -2}', "`speculation.max_tokens`: expected `int` >= 0, got -2"),
        (b'"temperature": 3, "seed": ', "`temperature`: expected `float` <= 2.0"),
    ],
)
def test_a_number_out_of_range_is_told(fields: bytes, fault: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        decode_body(b'{"messages": [], ' + fields + b"}", ChatRequest)
    assert str(refused.value) == fault


@pytest.mark.parametrize(
    ("body", "param", "values"),
    [
        (b'{"messages": [{"role": "usr", "content": "a"}]}', "messages[0].role", "assistant, developer, system, tool"),
        (b'{"messages": [], "structured_outputs": {"whitespace": "no"}}', "structured_outputs.whitespace", "compact"),
    ],
)
def test_values_of_a_fixed_set_are_listed(body: bytes, param: str, values: str) -> None:
    with pytest.raises(InvalidRequest, match=f"one of {values}") as refused:
        decode_body(body, ChatRequest)
    assert refused.value.param == param
