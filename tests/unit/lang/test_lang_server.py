"""Programs over HTTP: what is sent, what comes back, and what a server cannot do."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from lang_fakes import FakeServer

from headrace import lang as hl
from headrace.errors import ConfigError, EngineDead, InvalidRequest, Overloaded, ProgramError


@hl.program
def ask(s: hl.State, question: str) -> None:
    s.user(question)
    s.assistant(hl.gen("answer", max_tokens=10, temperature=0))


@hl.program
def inside(s: hl.State) -> None:
    s.user("Q")
    s.assistant("It is ", hl.gen("answer", max_tokens=3))


@hl.program
def plain(s: hl.State) -> None:
    s.text("One, two,")
    s.gen("next", max_tokens=4, top_k=5, regex=" t[a-z]+")


def test_a_message_is_a_chat_completion() -> None:
    fake = FakeServer(lambda text: "Yes.")
    assert ask.run("Q?", on=fake.on)["answer"] == "Yes."
    assert fake.bodies == [
        (
            "/v1/chat/completions",
            {
                "model": "tiny",
                "messages": [{"role": "user", "content": "Q?"}],
                "max_tokens": 10,
                "temperature": 0.0,
            },
        )
    ]


def test_text_inside_of_a_message_is_continued() -> None:
    fake = FakeServer(lambda text: "x" if text.endswith("It is ") else "?")
    assert inside.run(on=fake.on).text == "It is x"
    body = fake.bodies[0][1]
    assert body["continue_final_message"] is True
    assert body["add_generation_prompt"] is False


def test_a_text_without_roles_is_a_completion_with_all_fields() -> None:
    fake = FakeServer(lambda text: " three")
    assert plain.run(on=fake.on).text == "One, two, three"
    path, body = fake.bodies[0]
    assert path == "/v1/completions"
    assert body["structured_outputs"] == {"regex": " t[a-z]+"}
    assert body["top_k"] == 5


def test_streams_give_the_same_text() -> None:
    async def pieces(program: Any, *args: str) -> list[str]:
        fake = FakeServer(lambda text: "abc")
        return [event.text async for event in program.astream(*args, on=fake.on) if event.kind == "text"]

    assert asyncio.run(pieces(ask, "Q")) == ["a", "b", "c"]
    assert asyncio.run(pieces(plain)) == ["a", "b", "c"]


def test_branches_are_requested_at_the_same_time() -> None:
    @hl.program
    def many(s: hl.State) -> Any:
        s.text("Q")
        with s.fork(6) as branch:
            branch.gen("x")
        return branch["x"]

    fake = FakeServer()
    assert many.run(on=fake.on)["result"] == ["ok"] * 6
    assert fake.most_running == 6


@pytest.mark.parametrize("owner", ["headrace", "vllm"])
@pytest.mark.parametrize("method", ["greedy", "mean", "sum", "unconditional"])
def test_select_scores_token_ids_behind_the_rendered_chat(owner: str, method: str) -> None:
    @hl.program
    def pick(s: hl.State) -> None:
        s.user("Which?")
        s.assistant("The ", hl.select("it", ["cat", "dog"], method=method))

    fake = FakeServer(likes="<assistant>The dog", owner=owner)
    found = pick.run(on=fake.on)
    assert found["it"] == "dog"
    scored = [body for path, body in fake.bodies if path == "/v1/completions"]
    assert len(scored) == (2 if method == "unconditional" else 1)
    for body, start in zip(scored, (len(scored[0]["prompt"][0]) - len("cat"), None), strict=False):
        assert body["max_tokens"] == (0 if owner == "headrace" else 1)
        assert body.get("prompt_logprobs_start") == (start if owner == "headrace" else None)
        assert len(body["prompt"]) == 2
    assert found.nodes[0].scores is not None
    if method in ("greedy", "mean"):
        assert found.nodes[0].scores == {"cat": -2.0, "dog": -0.5}


def test_select_by_texts_where_there_is_no_tokenize() -> None:
    @hl.program
    def pick(s: hl.State, method: hl.Static[str] = "greedy") -> None:
        s.text("The ", hl.select("it", ["cat", "dog"], method=method))

    fake = FakeServer(likes="The dog", owner="someone")
    assert pick.run(on=fake.on)["it"] == "dog"
    with pytest.raises(ProgramError, match="`unconditional` needs a server with /tokenize"):
        pick.run("unconditional", on=fake.on)


def refused(program: Any, owner: str = "openai") -> str:
    fake = FakeServer(owner=owner)
    with pytest.raises(ProgramError) as caught:
        program.run(on=fake.on)
    assert fake.bodies == []
    return str(caught.value)


def test_a_plain_server_is_told_nothing_that_it_cannot_do() -> None:
    @hl.program
    def chat_select(s: hl.State) -> None:
        s.user("Q")
        s.assistant(hl.select("x", ["a", "b"]))

    @hl.program
    def choices(s: hl.State) -> None:
        s.user("Q")
        s.assistant(hl.gen("x", choices=["a", "b"]))

    @hl.program
    def text_schema(s: hl.State) -> None:
        s.gen("x", json={"type": "object"})

    assert "cannot go on with a text" in refused(inside)
    assert "takes no `top_k`" in refused(plain)
    assert "select in a chat needs a server with /tokenize" in refused(chat_select)
    assert "cannot enforce the constraint `choice`" in refused(choices)
    assert "cannot enforce the constraint `json` in a text" in refused(text_schema)
    assert refused(inside).startswith("test_lang_server.py:")


def test_a_plain_server_takes_schemas_in_chats() -> None:
    @hl.program
    def schema(s: hl.State) -> None:
        s.user("Q")
        s.assistant(hl.gen("x", json={"type": "object"}))

    fake = FakeServer(lambda text: '{"a": 1}', owner="openai")
    assert schema.run(on=fake.on)["x"] == {"a": 1}
    assert fake.bodies[0][1]["response_format"]["json_schema"]["schema"] == {"type": "object"}


def test_other_fields_reach_the_server() -> None:
    @hl.program
    def fields(s: hl.State) -> None:
        s.user("Q")
        s.assistant(hl.gen("x", logit_bias={5: 1.5}, logprobs=2, stop=["a", "b"], seed=3))

    fake = FakeServer()
    fields.run(on=fake.on)
    body = fake.bodies[0][1]
    assert (body["logit_bias"], body["logprobs"], body["top_logprobs"]) == ({"5": 1.5}, True, 2)
    assert (body["stop"], body["seed"]) == (["a", "b"], 3)


def answering(status: int, content: bytes) -> Any:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(status, content=content, headers={"Retry-After": "0"})

    return hl.server("fake", "m", kind="headrace", plans=False, transport=httpx.MockTransport(answer))


def test_a_server_that_is_full_is_asked_again() -> None:
    tries: list[int] = []

    def answer(request: httpx.Request) -> httpx.Response:
        tries.append(1)
        if len(tries) < 3:
            return httpx.Response(503, headers={"Retry-After": "0"})
        return httpx.Response(200, json={"choices": [{"message": {"content": "ok"}}]})

    full = hl.server("fake", "m", kind="headrace", plans=False, transport=httpx.MockTransport(answer))
    assert ask.run("Q", on=full)["answer"] == "ok"
    assert len(tries) == 3


@pytest.mark.parametrize(
    ("status", "content", "kind", "message"),
    [
        (400, b'{"error": {"message": "`stop` is wrong"}}', InvalidRequest, "`stop` is wrong"),
        (429, b'{"error": {"message": "full"}}', Overloaded, "full"),
        (500, b"oops", EngineDead, "answers 500"),
        (200, b"oops", EngineDead, "not in the form"),
        (200, b'{"choices": []}', EngineDead, "not in the form"),
    ],
)
def test_errors_of_the_server_keep_their_kind_and_name_the_line(
    status: int, content: bytes, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=rf"test_lang_server\.py:\d+: gen 'answer': .*{message}"):
        ask.run("Q", on=answering(status, content))


def test_a_server_that_does_not_answer() -> None:
    def none(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(EngineDead, match="is the server running"):
        ask.run("Q", on=hl.server("http://fake", transport=httpx.MockTransport(none)))


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:port"])
def test_addresses_are_checked(url: str) -> None:
    with pytest.raises(ConfigError):
        hl.server(url)
    with pytest.raises(ConfigError, match="`kind` is one of headrace, vllm, openai"):
        hl.server("x", kind="other")
