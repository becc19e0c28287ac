"""The page at `/`: its files, their headers, and that nothing in them leads elsewhere; and the state that it shows."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from pathlib import Path

import httpx
import pytest
from server_fakes import MODEL, VIEW, Served, fault, serve_fake, with_key

from headrace.server.page_files import DOCS_PATHS, PAGE_PATHS, page_files

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "src" / "headrace" / "server" / "page"
TEXTS = {path.name: path.read_text() for path in sorted(FOLDER.iterdir())}


def get(path: str, served: Served | None = None, **headers: str) -> httpx.Response:
    return asyncio.run((served or serve_fake()).http.get(path, headers=headers))


def test_every_file_is_served_without_a_key() -> None:
    served = serve_fake(with_key("sk-secret"))
    assert {f"/page/{name}" for name in TEXTS if name != "index.html"} | {"/"} == PAGE_PATHS
    for path in PAGE_PATHS:
        answer = get(path, served)
        assert answer.status_code == 200
        assert answer.content == (FOLDER / (path.removeprefix("/page/").strip("/") or "index.html")).read_bytes()
    fault(get("/v1/engine/state", served), 401)


@pytest.mark.parametrize("path", sorted(PAGE_PATHS))
def test_headers(path: str) -> None:
    headers = get(path).headers
    kinds = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
    assert headers["content-type"].startswith(kinds.get(Path(path).suffix, "text/html"))
    assert headers["cache-control"] == "no-cache"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert not re.search(r"unsafe|https?:|\*", headers["content-security-policy"])


def test_a_browser_that_has_a_file_does_not_get_it_again() -> None:
    first = get("/page/main.js")
    again = get("/page/main.js", **{"if-none-match": f'"other", W/{first.headers["etag"]}'})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    assert "content-security-policy" in again.headers
    assert get("/page/main.js", **{"if-none-match": '"other"'}).status_code == 200
    assert len({file.etag for file in page_files().values()}) == len(PAGE_PATHS | DOCS_PATHS)


def test_head_and_other_methods() -> None:
    served = serve_fake()
    assert asyncio.run(served.http.head("/")).status_code == 200
    fault(asyncio.run(served.http.post("/")), 405)
    fault(get("/page/nothing.js"), 404)
    assert "/page/main.js" not in get("/openapi.json").text


def test_every_reference_is_a_file_of_the_page() -> None:
    page = TEXTS["index.html"]
    found = set(re.findall(r'(?:src|href)="([^"#]+)"', page))
    assert {f"/{path}" for path in found} <= PAGE_PATHS
    scripts = {name for name in TEXTS if name.endswith(".js")}
    imported = {target for name in scripts for target in re.findall(r'from "\./([\w.]+)"', TEXTS[name])}
    assert imported <= scripts
    assert scripts == imported | {"main.js", "theme.js"}
    styles = {name for name in TEXTS if name.endswith(".css")}
    assert {f"page/{name}" for name in styles} <= found


def test_nothing_leads_elsewhere_and_no_text_becomes_markup() -> None:
    for name, text in TEXTS.items():
        urls = set(re.findall(r"https?://[\w.]+", text)) - {"http://www.w3.org"}
        assert not urls, (name, urls)
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), (
            name
        )
        assert not re.search(r'[\s"]on\w+="|style="|javascript:|@import|url\(', text), name
        assert len(text.splitlines()) <= 400, name


def test_every_element_that_a_script_names_is_in_the_page() -> None:
    ids = set(re.findall(r'\bid="([\w-]+)"', TEXTS["index.html"]))
    used = {name for text in TEXTS.values() for name in re.findall(r'byId\("([\w-]+)"\)', text)}
    assert used <= ids


def test_the_wheel_holds_the_page() -> None:
    """No rule of the build or of git leaves a file out."""
    build = (ROOT / "pyproject.toml").read_text()
    assert 'wheel.packages = ["src/headrace"]' in build
    assert 'wheel.exclude = ["**/*.cpp", "**/*.h", "**/*.inc"]' in build
    ignored = subprocess.run(
        ["git", "check-ignore", *FOLDER.iterdir()], check=False, cwd=ROOT, capture_output=True, text=True
    )
    assert ignored.stdout == ""


def test_the_engines_state() -> None:
    answer = get("/v1/engine/state")
    assert answer.headers["cache-control"] == "no-store"
    state = answer.json()
    assert state["model"] == {"id": MODEL, "platform": "fake", "dtype": "float32", "max_model_len": 100}
    assert (state["running_count"], state["waiting_count"], state["slots"]) == (2, 3, 8)
    first = state["running"][0]
    assert (first["id"], first["state"], first["seconds"]) == ("one#0", "decode", 2.5)
    assert (first["prompt_tokens"], first["cached_tokens"], first["output_tokens"]) == (300, 256, 40)
    blocks = state["blocks"]
    assert (blocks["total"], blocks["free"], blocks["cached"], blocks["held"]) == (60, 10, 20, 30)
    assert len(blocks["cells"]) == 60
    assert state["prefixes"][1] == {
        "parent": 0,
        "tokens": 304,
        "own_tokens": 48,
        "users": 1,
        "branches": 0,
        "adapter": "",
        "salted": True,
    }
    assert state["wastes"] == {"kv_utilization": 0.75, "slot_occupancy": 0.25, "device_busy": 0.5}
    assert state["totals"]["generation_tokens"] == 40
    assert json.loads(answer.content)["now"] == VIEW.now


def test_the_state_of_an_engine_that_is_lost_or_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve_fake()
    served.engine.dead = True
    fault(get("/v1/engine/state", served), 503)
    served.engine.dead = False

    async def hang() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("headrace.server.engine_state._TIMEOUT", 0.01)
    monkeypatch.setattr(served.engine, "view", hang)
    assert "did not answer" in fault(get("/v1/engine/state", served), 503)["message"]
