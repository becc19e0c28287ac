"""`/v1/plans`: plans that are stored, and run by their ids."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import msgspec
from server_fakes import Served, fault, serve_fake
from test_server_programs import branches, calls, document, talk

from headrace import lang as hl
from headrace.lang.plan import plan_id
from headrace.server.plan_store import PlanStore, StoredPlan


def put(served: Served, plan: Any) -> httpx.Response:
    async def send() -> httpx.Response:
        return await served.http.put("/v1/plans", json={"plan": plan})

    return asyncio.run(send())


def run(served: Served, **body: Any) -> httpx.Response:
    return asyncio.run(served.post("/v1/programs", **body))


def test_a_stored_plan_runs_with_inputs_alone() -> None:
    served = serve_fake()
    told = put(served, document(talk, "Hi")).json()
    compiled, _ = talk.prepare(talk.bind("Hi"))
    assert told["id"] == plan_id(compiled.plan)
    assert told["inputs"] == [{"name": "question", "type": "text", "required": True}]
    assert told["outputs"] == ["answer", "sure"]
    assert told["bounds"]["tokens"] == 8
    by_id = run(served, plan_id=told["id"], inputs={"question": "Hi"}, seed=1).json()
    whole = run(served, plan=document(talk, "Hi"), inputs={"question": "Hi"}, seed=1).json()
    assert by_id["outputs"] == whole["outputs"]
    assert by_id["nodes"] == whole["nodes"]


def test_what_is_refused_names_the_node_and_is_not_stored() -> None:
    served = serve_fake()
    wrong = document(branches)
    wrong["body"]["ops"][0]["state"]["id"] = 999
    fault(put(served, wrong), 400, "plan.body.ops[0]")
    assert len(served.app.state.context.plans) == 0


def test_a_plan_that_is_not_stored() -> None:
    served = serve_fake()
    assert fault(run(served, plan_id="gone"), 404, "plan_id")["code"] == "plan_not_found"
    fault(run(served), 400, "plan")
    fault(run(served, plan=document(branches), plan_id="x"), 400, "plan")
    told = put(served, document(calls)).json()
    assert told["tools"] == ["add", "double"]
    fault(run(served, plan_id=told["id"]), 400, "stream")

    async def ask(method: str) -> httpx.Response:
        return await served.http.request(method, f"/v1/plans/{told['id']}")

    assert asyncio.run(ask("GET")).json() == told
    assert asyncio.run(ask("DELETE")).json() == {"id": told["id"], "deleted": True}
    for method in ("GET", "DELETE"):
        fault(asyncio.run(ask(method)), 404, "id")


def test_the_store_is_bounded_and_apart_by_owner() -> None:
    store = PlanStore(most=3, most_bytes=100)
    for at in range(4):
        store.put("me", f"p{at}", StoredPlan(None, None, 10))
        store.get("me", "p0")
    assert store.get("me", "p1") is None, "it was not used for the longest time"
    assert store.get("you", "p0") is None
    assert not store.remove("you", "p0")
    assert len(store) == 3
    store.put("you", "large", StoredPlan(None, None, 95))
    assert len(store) == 1
    assert store.remove("you", "large")
    assert not store.remove("you", "large")


def test_a_batch_sends_its_plan_once() -> None:
    served = serve_fake()
    sent: list[tuple[str, str, bytes]] = []

    class Counting(httpx.ASGITransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            sent.append((request.method, request.url.path, await request.aread()))
            return await super().handle_async_request(request)

    on = hl.server("http://here", transport=Counting(served.app))
    rows = [{"question": f"Q{at}"} for at in range(6)]

    async def both() -> None:
        found = await talk.arun_batch(rows, on=on, seed=2)
        assert [one.error for one in found] == [None] * 6
        count = len(sent)
        assert [path for method, path, _ in sent if method == "PUT"] == ["/v1/plans"]
        assert all(b'"plan_id"' in body for method, _, body in sent if method == "POST")
        alone = await talk.arun("Q0", on=on)
        assert alone["answer"] == "Hello"
        assert [entry[:2] for entry in sent[count:]] == [("POST", "/v1/programs")], "a single run asks nothing before"

    asyncio.run(both())
    assert msgspec.json.decode(sent[-1][2])["plan"]["name"] == "talk"
