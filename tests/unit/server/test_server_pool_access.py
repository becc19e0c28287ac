"""Keys, batches and stored responses of a server with several models."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from pool_fakes import FakeEngines, PoolServer, plan, pool_server, until

from headrace.server.access import OPEN_PATHS
from headrace.server.server_route import ServerRoute


def run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 300))  # type: ignore[arg-type]


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, Any]:
    """`all` may use every model, `some` the model b by its alias, `chief` may control."""
    file = tmp_path / "keys.yaml"
    entries = [
        {"key": "all-key", "name": "all"},
        {"key": "some-key", "name": "some", "models": ["other"]},
        {"key": "none-key", "name": "none", "models": ["c"]},
        {"key": "chief-key", "name": "chief", "admin": True},
    ]
    file.write_text(yaml.safe_dump({"keys": entries}))
    return {"api_keys_file": str(file), "enable_control_routes": True}


def with_key(server: PoolServer, name: str) -> None:
    server.http.headers["authorization"] = f"Bearer {name}-key"


def test_every_route_needs_a_key(keys: dict[str, Any]) -> None:
    async def work() -> None:
        async with pool_server(plan("a"), plan("b"), server=keys) as server:
            routes = [
                (method, route.path)
                for route in server.app.routes
                if isinstance(route, ServerRoute)
                for method in route.methods
                if route.path not in OPEN_PATHS
            ]
            assert len(routes) > 20
            for method, path in routes:
                answer = await server.http.request(method, path.replace("{model:path}", "a"), content=b"{}")
                assert answer.status_code == 401, (method, path)
            assert server.engines.opened == []

    run(work)


def test_a_key_opens_its_models_alone(keys: dict[str, Any]) -> None:
    async def work() -> None:
        async with pool_server(plan("a"), plan("b", ("other",)), server=keys) as server:
            with_key(server, "some")
            assert [card["id"] for card in (await server.http.get("/v1/models")).json()["data"]] == ["b"]
            assert [one["name"] for one in (await server.http.get("/api/tags")).json()["models"]] == ["b:latest"]
            assert (await server.http.get("/v1/models/a")).status_code == 404
            refused = await server.complete("a")
            assert refused.status_code == 404
            assert "not open to this key" in refused.json()["error"]["message"]
            assert (await server.http.post("/api/show", json={"model": "a"})).status_code == 404
            assert await server.text("other") == "b"
            # Without a name, the first model that is open.
            assert await server.text() == "b"
            with_key(server, "none")
            assert (await server.http.get("/v1/models")).json()["data"] == []
            assert (await server.complete()).status_code == 404
            with_key(server, "all")
            assert await server.text("a") == "a"
            assert server.engines.opened == ["b", "a"]

    run(work)


def test_only_an_admin_controls(keys: dict[str, Any]) -> None:
    async def work() -> None:
        async with pool_server(plan("a"), plan("b"), server=keys) as server:
            for method, path in (("POST", "/sleep"), ("POST", "/wake_up"), ("POST", "/reset_prefix_cache")):
                with_key(server, "all")
                assert (await server.http.request(method, path)).status_code == 403
            assert server.engines.opened == []
            with_key(server, "chief")
            assert (await server.http.post("/wake_up", params={"model": "b"})).status_code == 200
            assert (await server.http.post("/sleep", params={"model": "b"})).status_code == 200
            assert (await server.http.post("/sleep", params={"model": "none"})).status_code == 404

    run(work)


def test_a_batch_over_several_models(tmp_path: Path) -> None:
    async def work() -> None:
        engines = FakeEngines()
        state = {"state_dir": str(tmp_path / "state")}
        async with pool_server(plan("a"), plan("b"), server=state, engines=engines, models_max=1) as server:
            bodies = [{"model": name, "prompt": "Hi"} for name in "babac"]
            lines = [
                {"custom_id": str(n), "method": "POST", "url": "/v1/completions", "body": body}
                for n, body in enumerate(bodies)
            ]
            sent = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
            file = await server.http.post("/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", sent)})
            body = {"input_file_id": file.json()["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
            batch = (await server.http.post("/v1/batches", json=body)).json()
            assert batch["model"] == "b"

            async def ended() -> dict[str, Any]:
                found: dict[str, Any] = (await server.http.get(f"/v1/batches/{batch['id']}")).json()
                return found

            while (found := await ended())["status"] != "completed":
                await asyncio.sleep(0.01)
            assert found["request_counts"] == {"total": 5, "completed": 4, "failed": 1}
            output = await server.http.get(f"/v1/files/{found['output_file_id']}/content")
            texts = {
                one["custom_id"]: one["response"]["body"]["choices"][0]["text"]
                for one in map(json.loads, output.text.splitlines())
            }
            assert texts == {"0": "b", "1": "a", "2": "b", "3": "a"}
            assert server.pool.front is not None
            assert server.pool.front.runner is not None
            await server.pool.front.runner.stop()

    run(work)


def test_responses_are_kept_for_all_models(tmp_path: Path) -> None:
    async def work() -> None:
        async with pool_server(plan("a"), plan("b"), server={"state_dir": str(tmp_path / "state")}) as server:
            kept = (await server.http.post("/v1/responses", json={"model": "b", "input": "Hi", "store": True})).json()
            assert kept["model"] == "b"
            assert (await server.http.get(f"/v1/responses/{kept['id']}")).json()["id"] == kept["id"]
            more = {"model": "a", "input": "And?", "previous_response_id": kept["id"]}
            assert (await server.http.post("/v1/responses", json=more)).json()["model"] == "a"
            await until(lambda: all(model.users == 0 for model in server.pool.models.values()))

    run(work)
