"""Values at and beyond the limits, against a real server: 200 with finite numbers, or 400 that names the field."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from server_harness import CONTEXT, VOCAB, Server

BLOCK, POOL = 16, 20
HI = [{"role": "user", "content": "Hi"}]


def chat(server: Server, **body: Any) -> Any:
    return server.http.post("/v1/chat/completions", json={"messages": HI, "max_tokens": 2, **body})


def refused(response: Any, param: str | None, code: str | None = None) -> str:
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param, error
    assert code is None or error["code"] == code
    return str(error["message"])


@pytest.fixture(autouse=True)
def and_the_next_request_works(narrow):
    yield
    assert narrow.complete(max_tokens=1).status_code == 200


class TestRoom:
    def test_a_default_length_fits_the_cache(self, narrow):
        """The context is larger than the cache: a request without a length must not be refused for this."""
        usage = chat(narrow, max_tokens=None, ignore_eos=True).json()["usage"]
        assert usage["total_tokens"] == POOL * BLOCK + 1
        usage = narrow.complete(prompt=[70] * (POOL * BLOCK - 3), ignore_eos=True).json()["usage"]
        assert usage["completion_tokens"] == 4

    @pytest.mark.parametrize("stream", [False, True])
    def test_requests_that_can_never_fit_are_refused_at_once(self, narrow, stream):
        full = POOL * BLOCK
        assert narrow.complete(prompt=[70] * full, max_tokens=1, stream=stream).status_code == 200
        for prompt, tokens, param, need in (
            ([70] * (full + BLOCK), None, "prompt", full + BLOCK),
            ([70] * (full + 1), 1, "prompt", full + 1),
            ([70] * full, 2, "max_tokens", full + 1),
            ([[70], [70] * (full + 1)], 1, "prompt", full + 1),
        ):
            response = narrow.complete(prompt=prompt, max_tokens=tokens, stream=stream)
            message = refused(response, param, "kv_capacity_exceeded")
            assert f"holds {full} tokens" in message
            assert f"needs {need}:" in message

    @pytest.mark.parametrize("stream", [False, True])
    def test_context_to_the_token(self, narrow, stream):
        for length in (CONTEXT, CONTEXT + 1):
            response = narrow.complete(prompt=[70] * length, max_tokens=1, stream=stream)
            message = refused(response, "prompt", "context_length_exceeded")
            assert f"{CONTEXT} tokens" in message
            assert str(length) in message
        refused(narrow.complete(max_tokens=CONTEXT, stream=stream), "max_tokens", "context_length_exceeded")
        whole = narrow.complete(prompt=[70] * CONTEXT, max_tokens=0, echo=True, stream=False).json()
        assert (len(whole["choices"][0]["text"]), whole["usage"]["total_tokens"]) == (CONTEXT, CONTEXT)

    def test_a_text_far_beyond_the_context_is_not_even_tokenised(self, narrow):
        for body in ({"prompt": "a" * 2_000_000}, {"prompt": ["b", "a" * 2_000_000]}):
            message = refused(narrow.complete(**body), "prompt", "context_length_exceeded")
            assert "at least" in message
            assert str(CONTEXT) in message
        talk = [{"role": "user", "content": "a" * 2_000_000}]
        assert "at least" in refused(chat(narrow, messages=talk), "messages", "context_length_exceeded")

    @pytest.mark.parametrize("value", [-1, 10**9, 2**63, 1.5, "3", True])
    def test_impossible_lengths(self, narrow, value):
        refused(narrow.complete(max_tokens=value), "max_tokens")
        refused(chat(narrow, max_tokens=value), "max_tokens")

    @pytest.mark.parametrize("prompt", ["", [""], [], [[]], [[], [1]], [[1], []], ["a", ""], [1, "a"], [1, [2]]])
    def test_prompts_without_tokens(self, narrow, prompt):
        refused(narrow.complete(prompt=prompt), "prompt")

    def test_a_prompt_alone(self, narrow):
        for stream in (False, True):
            assert narrow.complete(max_tokens=0, stream=stream).status_code == 400
        choice = narrow.complete(prompt=["Hi", "yo"], max_tokens=0, echo=True, n=2).json()
        assert [c["text"] for c in choice["choices"]] == ["Hi", "Hi", "yo", "yo"]
        usage = choice["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (4, 0, 4)


FIELDS = [
    ("stop_token_ids", [VOCAB]),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", [10**30]),
    ("allowed_token_ids", [VOCAB]),
    ("allowed_token_ids", [0] * 50_000),
    ("allowed_token_ids", []),
    ("logit_bias", {str(VOCAB): 1}),
    ("logit_bias", {"-1": 1}),
    ("logit_bias", {"x": 1}),
    ("logit_bias", {" 70": 1}),
    ("logit_bias", {"7_0": 1}),
    ("logit_bias", {"70": 1e308}),
    ("logit_bias", {str(i): 1 for i in range(50_000)}),
    ("top_p", 0),
    ("temperature", 1e308),
    ("n", 0),
    ("n", -1),
    ("n", 129),
    ("n", 10**6),
    ("chat_template", "{{ 1 }}"),
    ("guided_json", {}),
    ("structured_outputs", {"json": {}, "regex": "a"}),
    ("grammar", "x"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("field", "value"), FIELDS, ids=[f"{f}-{str(v)[:16]}" for f, v in FIELDS])
def test_wrong_values_are_plain_400_streamed_or_not(narrow, field, value, stream):
    refused(chat(narrow, stream=stream, **{field: value}), field)
    if field != "chat_template":
        refused(narrow.complete(stream=stream, **{field: value}), field)


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b'{"prompt": "a", "temperature": NaN}', None),
        (b'{"prompt": "a", "temperature": -Infinity}', None),
        (b'{"prompt": "a", "temperature": 1e400}', "temperature"),
        (b'{"prompt": "a", "max_tokens": ' + b"9" * 5000 + b"}", "max_tokens"),
        (b'{"prompt": "a", "metadata": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", None),
        (b'{"prompt": "\\ud83d"}', None),
        (b'{"prompt": "a", "stop": "\\udc00"}', None),
        (b'{"prompt": "\xff"}', None),
        ('{"prompt": "a"}'.encode("utf-16"), None),
        (b"", None),
    ],
)
def test_invalid_json(narrow, raw, param):
    response = narrow.http.post("/v1/completions", content=raw)
    error = response.json()["error"]
    assert response.status_code == 400
    assert param is None or error["param"] == param


def test_the_last_of_equal_keys_counts(narrow):
    raw = b'{"prompt": "a", "prompt": "b", "max_tokens": 9, "max_tokens": 0, "echo": true}'
    assert narrow.http.post("/v1/completions", content=raw).json()["choices"][0]["text"] == "b"


EXTREME = [
    {"temperature": 0, "top_p": 1e-300, "top_k": 1, "min_p": 1},
    {"temperature": 1e-8},
    {"temperature": 1e-320},
    {"temperature": 1, "top_k": 1},
    {"temperature": 1, "top_p": 1e-300},
    {"temperature": 2, "min_p": 1},
]


@pytest.mark.parametrize("extreme", EXTREME, ids=[str(e)[:50] for e in EXTREME])
def test_settings_that_leave_one_token_are_greedy_and_finite(narrow, extreme):
    body = {"max_tokens": 6, "ignore_eos": True, "logprobs": 5, "echo": True}
    greedy = narrow.complete(**body).json()["choices"][0]
    response = narrow.complete(**body, **extreme)
    assert response.json()["choices"][0]["text"] == greedy["text"]
    json.loads(response.text, parse_constant=pytest.fail)


@pytest.mark.parametrize(
    "extreme", [{"logit_bias": {str(i): -100 for i in range(VOCAB)}}, {"repetition_penalty": 0.01}]
)
def test_numbers_stay_finite(narrow, extreme):
    response = narrow.complete(prompt="aaaa", max_tokens=6, logprobs=5, echo=True, temperature=1, **extreme)
    assert response.status_code == 200
    json.loads(response.text, parse_constant=pytest.fail)


FORMATS = [
    {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#"}}},
    {"type": "json_schema", "json_schema": {"name": "x", "schema": {"x-guidance": {"lenient": True}, "not": {}}}},
    {"type": "structural_tag"},
    {"type": "structural_tag", "format": {"type": "grammar", "grammar": "root ::= [0-9]"}},
    {"type": "structural_tag", "structures": [{"begin": "<", "schema": {"not": {}}, "end": ">"}], "triggers": ["<"]},
    {"type": "structural_tag", "structures": [{"begin": "<", "schema": {}, "end": ">"}], "triggers": ["("]},
    {"type": "json_object", "triggers": ["<"]},
    {"type": "xml"},
    {},
    "json",
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("wanted", FORMATS, ids=[str(f)[:40] for f in FORMATS])
def test_output_that_cannot_be_constrained_is_never_just_free(narrow, wanted, stream):
    response = chat(narrow, response_format=wanted, stream=stream)
    assert response.json()["error"]["param"].startswith("response_format")
    assert response.status_code == 400
    assert "did you mean `response_format`" in refused(chat(narrow, response_fromat=wanted), "response_fromat")


TAGS = {
    "type": "tags_with_separator",
    "tags": [{"type": "tag", "begin": "<n>", "content": {"type": "json_schema", "json_schema": {"enum": [7, "x"]}},
              "end": "</n>"}],
    "separator": ", ",
    "stop_after_first": True,
    "at_least_one": True,
}  # fmt: skip


def tags_hold(text: str) -> bool:
    return re.fullmatch(r'<n>\s*(7|"x")\s*</n>', text) is not None


CONSTRAINTS: list[tuple[dict[str, Any], Callable[[str], bool]]] = [
    ({"structured_outputs": {"choice": ["yes", "no"]}}, lambda text: text in ("yes", "no")),
    ({"structured_outputs": {"regex": "[a-f]{3}[0-9]"}}, lambda text: re.fullmatch("[a-f]{3}[0-9]", text) is not None),
    (
        {"structured_outputs": {"json": {"enum": ["a", 17, None]}, "whitespace": "compact"}},
        lambda text: json.loads(text) in ("a", 17, None),
    ),
    ({"response_format": {"type": "structural_tag", "format": TAGS}}, tags_hold),
    ({"structured_outputs": {"structural_tag": json.dumps({"format": TAGS})}}, tags_hold),
]


@pytest.mark.parametrize("field", ["response_format", "structured_outputs"])
def test_free_text_ends_at_a_trigger(narrow, field):
    """Every text is free, but for what a trigger demands: `e` stands for one that random weights hit by themselves."""
    tag = {"structures": [{"begin": "e", "schema": {"enum": [7, 8]}, "end": "!"}], "triggers": ["e"]}
    asked = {"response_format": {"type": "structural_tag", **tag}, "structured_outputs": {"structural_tag": tag}}[field]
    answer = chat(narrow, **{field: asked}, max_tokens=80, temperature=1.5, n=8, seed=5).json()["choices"]
    texts = [choice["message"]["content"] for choice in answer]
    found = [behind for text in texts for behind in text.split("e")[1:]]
    assert found
    # The last one of a text that was cut may be incomplete.
    whole = [behind for text, choice in zip(texts, answer, strict=True)
             for behind in text.split("e")[1 : None if choice["finish_reason"] == "stop" else -1]]  # fmt: skip
    assert [behind for behind in whole if not re.match(r"\s*[78]\s*!", behind)] == []


@pytest.mark.parametrize(("constraint", "holds"), CONSTRAINTS, ids=[str(c)[:60] for c, _ in CONSTRAINTS])
def test_output_follows_its_constraint_in_any_batch(narrow, constraint, holds):
    """Random weights at a high temperature: only the constraint makes sense of them."""
    asked = {"max_tokens": 30, "temperature": 1.5, "n": 4, "seed": 3, "logprobs": True, **constraint}
    alone = chat(narrow, **asked).json()["choices"]
    assert [choice["finish_reason"] for choice in alone] == ["stop"] * 4
    assert all(holds(choice["message"]["content"]) for choice in alone)
    with ThreadPoolExecutor(4) as pool:
        free = [pool.submit(chat, narrow, max_tokens=60, ignore_eos=True, seed=i) for i in range(3)]
        crowded = pool.submit(chat, narrow, **asked).result().json()["choices"]
        assert all(one.result().status_code == 200 for one in free)
    assert crowded == alone


@pytest.mark.parametrize("shape", ["http", "file", "text"])
def test_an_image_is_refused_and_nothing_is_fetched(narrow, shape):
    with socket.create_server(("127.0.0.1", 0)) as bait:
        bait.settimeout(0.05)
        address = {"http": f"http://127.0.0.1:{bait.getsockname()[1]}/x.png", "file": "file:///etc/passwd", "text": "x"}
        for url in (address[shape], {"url": address[shape]}):
            part = {"type": "image_url", "image_url": url}
            response = chat(narrow, messages=[{"role": "user", "content": [part]}])
            refused(response, "messages[0].content[0]", "unsupported_content")
        with pytest.raises(TimeoutError):
            bait.accept()


def call(arguments: Any) -> list[dict[str, Any]]:
    function = {"name": "look", "arguments": arguments}
    return [
        *HI,
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]},
        {
            "role": "tool",
            "tool_call_id": "1",
            "content": [{"type": "text", "text": "so"}, {"type": "text", "text": "it is"}],
        },
    ]


def test_conversations_with_calls(narrow):
    for arguments in ("", "{}", '{"a": 1}', None):
        assert chat(narrow, messages=call(arguments)).status_code == 200
    for arguments in ("{", "[1]", "3", '{"a": NaN}', '{"a": -Infinity}', "[" * 100_000):
        refused(chat(narrow, messages=call(arguments)), "messages[1].tool_calls[0].function.arguments")
    tokens = narrow.http.post("/tokenize", json={"messages": call("")}).json()["tokens"]
    assert "so\nit is" in narrow.http.post("/detokenize", json={"tokens": tokens}).json()["prompt"]


def test_a_continued_message(narrow):
    talk = [*HI, {"role": "assistant", "content": "It is  "}]
    body = {"messages": talk, "continue_final_message": True}
    tokens = narrow.http.post("/tokenize", json=body).json()["tokens"]
    assert narrow.http.post("/detokenize", json={"tokens": tokens}).json()["prompt"].endswith("It is  ")
    assert chat(narrow, **body).json()["usage"]["prompt_tokens"] == len(tokens)
    refused(chat(narrow, **body, add_generation_prompt=True), "continue_final_message")


@pytest.mark.parametrize(
    "name", ["messages", "tools", "tokenize", "add_generation_prompt", "chat_template", "bos_token"]
)
def test_reserved_template_variables_cannot_be_replaced(narrow, name):
    refused(chat(narrow, chat_template_kwargs={name: "x"}), f"chat_template_kwargs.{name}")
