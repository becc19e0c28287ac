"""`/v1/programs`: answers, events, call-outs, limits, and what ends a program."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import msgspec
import pytest
from counted_lines import counted
from server_fakes import MODEL, Served, events, fault, serve_fake

from headrace import lang as hl
from headrace.server import programs


@hl.program
def talk(s: hl.State, question: str) -> None:
    s.user(question)
    s.assistant(hl.gen("answer", max_tokens=5))
    s.user("Sure?")
    with s.assistant():
        s.text("I am ")
        s.gen("sure", max_tokens=3)


@hl.program
def branches(s: hl.State) -> Any:
    s.text("Go")
    with s.fork(3) as branch:
        branch.text(branch.index)
        branch.gen("said", max_tokens=4)
    return branch["said"]


@hl.program
def calls(s: hl.State) -> Any:
    s.text("x")
    with s.fork(2) as branch:
        branch.text(hl.call("double", number=branch.index).to_text())
        branch.gen("said", max_tokens=2)
    return hl.call("add", a=1, b=[2])


def document(program: Any, *args: Any) -> dict[str, Any]:
    compiled, _ = program.prepare(program.bind(*args))
    found: dict[str, Any] = msgspec.to_builtins(compiled.plan)
    return found


def post(served: Served, program: Any, *args: Any, **body: Any) -> httpx.Response:
    given = program.bind(*args)
    return asyncio.run(served.post("/v1/programs", plan=document(program, *args), inputs=given, **body))


def test_a_whole_answer():
    served = serve_fake()
    reply = post(served, talk, "Hi", model=MODEL, seed=3, priority=2, cache_salt="mine").json()
    assert reply["object"] == "program"
    assert reply["outputs"] == {"answer": "Hello", "sure": "Hel"}
    assert [one["content"] for one in reply["messages"]] == ["Hi", "Hello", "Sure?", "I am Hel"]
    assert reply["text"] == "I am Hel"
    assert reply["usage"]["completion_tokens"] == 8
    assert [one["name"] for one in reply["nodes"]] == ["answer", "sure"]
    first, second = served.engine.requests
    assert (first.priority, first.salt, first.keep) == (2, "mine", True)
    assert first.params.seed != second.params.seed
    assert {first.id, second.id} <= set(served.engine.released), "nothing stays open"


def test_states_stay_in_the_engine():
    @hl.program
    def two(s: hl.State) -> None:
        s.text("Hi ", hl.gen("a", max_tokens=5), " and ", hl.gen("b", max_tokens=2))

    served = serve_fake()
    usage = post(served, two).json()["usage"]
    first, second = served.engine.requests
    assert second.extends == first.id
    assert second.prompt == (*first.prompt, *b"Hello and ")
    assert (usage["prompt_tokens"], usage["encoded_tokens"]) == (4 + 14, 4 + 5)


def test_a_program_queues_as_of_its_beginning():
    served = serve_fake()
    for _ in range(2):
        post(served, branches)
        post(served, talk, "Hi")
    since = [request.since for request in served.engine.requests]
    assert [len({*since[at : at + size]}) for at, size in ((0, 3), (3, 2), (5, 3), (8, 2))] == [1] * 4
    assert None not in since
    assert sorted(since) == since
    assert since[0] < since[3] < since[5]


def test_choices_of_one_token_are_one_request():
    @hl.program
    def choose(s: hl.State) -> None:
        s.text("Hi", hl.select("letter", ["a", "b", "c"]), " and", hl.gen("then", max_tokens=3))

    served = serve_fake()
    reply = post(served, choose).json()
    scored, then = served.engine.requests
    assert (scored.prompt, scored.rivals) == ((256, *b"Hia"), (*b"bc",))
    assert (scored.keep, then.extends, then.whole) == (True, scored.id, True)
    assert reply["outputs"]["letter"] == "a"
    assert {scored.id, then.id} <= set(served.engine.released)
    streamed = served.engine.requests
    streamed.clear()
    post(served, choose, stream=True)
    assert not streamed[1].whole, "a stream's pieces come as they are made"


def test_branches_with_the_same_conversation_render_it_once():
    @hl.program
    def same(s: hl.State) -> Any:
        s.user("Hi")
        with s.fork(4) as branch:
            branch.assistant(hl.gen("said", max_tokens=2))
        return branch["said"]

    served = serve_fake()
    assert post(served, same).json()["outputs"]["result"] == ["He"] * 4
    assert len(served.tokenizer.rendered) == 1


def test_events_by_variable():
    served = serve_fake()
    found = events(post(served, branches, stream=True))
    assert [one["sequence_number"] for one in found] == list(range(len(found)))
    assert found[0]["type"] == "program.created"
    assert found[-1]["type"] == "program.completed"
    assert found[-1]["program"]["outputs"]["result"] == ["Hell"] * 3
    for index in range(3):
        pieces = [one["text"] for one in found if one["type"] == "text.delta" and one["path"] == [index]]
        assert "".join(pieces) == "Hell"
    assert [one["value"] for one in found if one["type"] == "value.done"] == ["Hell"] * 3
    assert served.app.state.context.programs == {}


def test_call_outs_are_answered_by_the_client():
    served = serve_fake()

    async def run() -> httpx.Response:
        context = served.app.state.context
        stream = asyncio.create_task(served.post("/v1/programs", plan=document(calls), stream=True))
        answered: set[str] = set()
        while not stream.done():
            for name, run in [*context.programs.items()]:
                for call_id in [*run._calls.keys() - answered]:
                    answered.add(call_id)
                    path = f"/v1/programs/{name}/tool_outputs"
                    assert (await served.post(path, call_id=call_id, output=7)).status_code == 200
                    fault(await served.post(path, call_id=call_id, output=8), 404, "call_id")
            await asyncio.sleep(0)
        assert len(answered) == 3
        return stream.result()

    found = events(asyncio.run(run()))
    called = [(one["name"], one["arguments"], one["path"]) for one in found if one["type"] == "tool.call"]
    assert called == [("double", {"number": 0}, [0]), ("double", {"number": 1}, [1]), ("add", {"a": 1, "b": [2]}, [])]
    assert found[-1]["program"]["outputs"]["result"] == 7
    assert {request.prompt[1:] for request in served.engine.requests} == {tuple(b"x7")}


def test_call_outs_need_a_stream():
    fault(post(serve_fake(), calls), 400, "stream")


def test_errors_of_a_call_and_of_the_engine_are_events():
    served = serve_fake()

    async def run() -> httpx.Response:
        context = served.app.state.context
        stream = asyncio.create_task(served.post("/v1/programs", plan=document(calls), stream=True))
        while not stream.done():
            for name, run in [*context.programs.items()]:
                for call_id in [*run._calls]:
                    await served.post(f"/v1/programs/{name}/tool_outputs", call_id=call_id, error="no such number")
            await asyncio.sleep(0)
        return stream.result()

    failed = events(asyncio.run(run()))[-1]
    assert failed["type"] == "program.failed"
    assert "call 'double'" in failed["error"]["message"]
    assert "no such number" in failed["error"]["message"]
    assert failed["status"] == 400
    dead = events(post(serve_fake(fail_after=1), branches, stream=True))[-1]
    assert (dead["type"], dead["status"]) == ("program.failed", 503)
    fault(post(serve_fake(fail_after=1), branches), 503)


def region(*ops: dict[str, Any], args: Any = (0,), yields: Any = (0,)) -> dict[str, Any]:
    return {"args": list(args), "ops": list(ops), "yields": [{"kind": "ref", "id": one} for one in yields]}


def plan(*ops: dict[str, Any], end: int = 0) -> dict[str, Any]:
    return {"format": "headrace.plan", "version": [1, 0], "name": "bad", "inputs": [], "outputs": {},
            "body": region(*ops, yields=[end])}  # fmt: skip


def ref(number: int) -> dict[str, Any]:
    return {"kind": "ref", "id": number}


def lit(value: Any) -> dict[str, Any]:
    return {"kind": "lit", "value": value}


def loop(most: int, *ops: dict[str, Any], number: int = 10) -> dict[str, Any]:
    return {"op": "while", "init": [], "max": most, "outs": [],
            "cond": {"args": [], "ops": [], "yields": [lit(True)]},
            "body": {"args": [], "ops": list(ops), "yields": []}}  # fmt: skip


def text(number: int, content: Any, state: int = 0) -> dict[str, Any]:
    return {"op": "text", "state": ref(state), "parts": [lit(content)], "out": number}


def const(number: int) -> dict[str, Any]:
    return {"op": "expr", "fn": "const", "args": [lit(1)], "out": number}


def many_forks() -> dict[str, Any]:
    inner: dict[str, Any] = {"op": "fork", "state": ref(0), "over": lit(64), "max": 64, "outs": [],
                             "body": region(args=[31, 32, 33], yields=[])}  # fmt: skip
    return plan({"op": "fork", "state": ref(0), "over": lit(64), "max": 64, "outs": [],
                 "body": region(inner, args=[21, 22, 23], yields=[])})  # fmt: skip


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "10^5 branches": (
        plan({"op": "fork", "state": ref(0), "over": lit(10**5), "max": 10**5, "outs": [],
              "body": region(args=[1, 2, 3], yields=[])}),
        "body.ops[0]",
    ),
    "branches of branches": (many_forks(), "body.ops[0]"),
    "20,000 operations": (plan(*(const(number) for number in range(1, 20_000))), "body.ops[10000]"),
    "a loop without an end": (plan(loop(2**31 - 1, const(1))), "body.ops[0]"),
    "loops of loops": (plan(loop(10**4, loop(10**4, const(1)))), "body.ops[0]"),
    "too many tokens": (
        plan({"op": "gen", "state": ref(0), "name": "a", "out_state": 1, "out": 2,
              "sampling": {"max_tokens": 10**8}}, end=1),
        "body.ops[0]",
    ),
    "a constant of 10 MB": (plan(text(1, "x" * 10**7), end=1), "body.ops[0]"),
    "a cycle": (plan(text(1, "a", state=2), text(2, "b", state=1), end=2), "body.ops[0]"),
    "itself": (plan(text(1, "a", state=1), end=1), "body.ops[0]"),
    "a value twice": (plan(text(1, "a"), text(1, "b"), end=1), "body.ops[1]"),
    "no such operation": (plan({"op": "fly"}), "body.ops"),
    "no such operator": (plan({"op": "expr", "fn": "eval", "args": [], "out": 1}), "body.ops[0]"),
    "a wrong regular expression": (
        plan({"op": "gen", "state": ref(0), "name": "a", "out_state": 1, "out": 2,
              "sampling": {"max_tokens": 5}, "constraint": {"regex": "("}}, end=1),
        "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_plan_is_refused_with_its_node(name: str):
    served = serve_fake()
    found, node = HOSTILE[name]
    content = json.dumps({"plan": found}).encode()
    headers = {"content-type": "application/json"}
    asyncio.run(served.http.get("/v1/programs"))  # The language is loaded.
    response, lines = counted(lambda: asyncio.run(served.http.post("/v1/programs", content=content, headers=headers)))
    assert lines < 2_000_000, "refusing it costs little"
    if not node:  # The engine compiles constraints, and refuses them itself.
        return
    error = fault(response, 400)
    assert error["code"] == "invalid_plan"
    assert node in error["message"]
    assert error["param"].startswith("plan.")
    assert served.engine.requests == []
    assert served.app.state.context.programs == {}


def test_huge_and_deep_documents_are_refused():
    huge = plan(*(const(number) for number in range(1, 10**5)))
    fault(asyncio.run(serve_fake().post("/v1/programs", plan=huge)), 400)
    nested: Any = []
    for _ in range(500):
        nested = [nested]
    response = asyncio.run(serve_fake().post("/v1/programs", plan=plan(text(1, nested), end=1)))
    assert response.status_code == 400


def test_values_that_a_run_reads_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headrace.server.program_run.MOST_READ", 1000)

    @hl.program
    def grows(s: hl.State) -> None:
        for _ in range(5):
            s.text("abc" * 100)

    error = fault(post(serve_fake(), grows), 400)
    assert "read more than 1000 characters" in error["message"]


def test_inputs_are_checked():
    served = serve_fake()
    for inputs in ({}, {"question": 3}, {"question": "a", "other": 1}):
        response = asyncio.run(served.post("/v1/programs", plan=document(talk, "Hi"), inputs=inputs))
        fault(response, 400, "inputs")
    fault(asyncio.run(served.post("/v1/programs", plan=document(branches), model="other")), 404, "model")
    fault(asyncio.run(served.post("/v1/programs", inputs={})), 400, "plan")


@pytest.mark.parametrize("stream", [False, True])
def test_delete_cancels_everything(stream: bool):
    served = serve_fake(hold=1)

    async def run() -> httpx.Response:
        context = served.app.state.context
        sent = asyncio.create_task(served.post("/v1/programs", plan=document(branches), stream=stream))
        while served.engine.held < 3:
            await asyncio.sleep(0)
        (name,) = context.programs
        assert (await served.http.delete(f"/v1/programs/{name}")).json() == {"id": name, "cancelled": True}
        response = await sent
        fault(await served.http.delete(f"/v1/programs/{name}"), 404, "id")
        return response

    response = asyncio.run(run())
    if stream:
        assert events(response)[-1]["type"] == "program.cancelled"
    else:
        fault(response, 409)
    assert sorted(served.engine.closed) == sorted(request.id for request in served.engine.requests)
    assert served.engine.completed == []
    assert 'headrace_programs_total{result="cancelled"} 1.0' in asyncio.run(served.http.get("/metrics")).text


def test_a_timeout_ends_a_program():
    served = serve_fake(hold=1)
    error = fault(post(served, branches, timeout=0.05), 400)
    assert "longer than 0.05 s" in error["message"]
    assert len(served.engine.closed) == 3
    assert served.app.state.context.programs == {}


def test_limits_and_their_number(monkeypatch: pytest.MonkeyPatch):
    served = serve_fake()
    found = asyncio.run(served.http.get("/v1/programs")).json()
    assert (found["object"], found["version"], found["running"]) == ("programs", [1, 0], 0)
    assert found["limits"]["branches"] == 256
    monkeypatch.setattr(programs, "MOST_PROGRAMS", 0)
    fault(post(served, branches), 503)


@hl.program
def shown(s: hl.State, value: Any) -> Any:
    return hl.out(value=value)


@pytest.mark.parametrize("depth", [101, 400, 900])
def test_deep_bodies_are_refused_with_their_place(depth: int):
    value: Any = []
    for _ in range(depth):
        value = [value]
    served, plan = serve_fake(), document(shown, 1)
    reply = asyncio.run(served.post("/v1/programs", plan=plan, inputs={"value": value}))
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "inputs")
    plan["outputs"]["value"] = {"kind": "lit", "value": value}
    reply = asyncio.run(served.post("/v1/programs", plan=plan, inputs={"value": 1}))
    assert reply.status_code == 400
    assert reply.json()["error"]["param"].startswith("plan")
