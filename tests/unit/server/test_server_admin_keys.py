"""Routes that only a key with `admin` may use."""

from __future__ import annotations

import asyncio

import pytest
from server_fakes import fault
from test_server_keys import headers, served_with

from headrace.server import app


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/engine/events"), ("POST", "/v1/engine/role")])
def test_what_tells_about_all_clients_needs_an_admin(tmp_path, method, path):
    served = served_with(tmp_path, {"name": "a"}, {"name": "b", "admin": True})
    row = next(row for row in app._ROUTES if (row.method, row.path) == (method, path))
    assert row.needs_admin
    error = fault(asyncio.run(served.http.request(method, path, headers=headers("a"))), 403)
    assert "admin" in error["message"]
    if method == "POST":
        assert asyncio.run(served.http.post(path, json={}, headers=headers("b"))).status_code != 403


def test_control_routes_need_an_admin(tmp_path, monkeypatch):
    from headrace.server import routes
    from headrace.server.route_spec import RouteSpec

    row = RouteSpec("POST", "/v1/engine/turn", routes.health, "Turn it", control=True)
    monkeypatch.setattr(app, "_ROUTES", (*app._ROUTES, row))
    served = served_with(tmp_path, {"name": "a"}, {"name": "b", "admin": True}, enable_control_routes=True)

    async def main() -> None:
        assert (await served.http.post(row.path, headers=headers("b"))).status_code == 200
        error = fault(await served.http.post(row.path, headers=headers("a")), 403)
        assert "admin" in error["message"]

    asyncio.run(main())
