"""Routes beside generation, the API key over all of them, and the OpenAPI document."""

from __future__ import annotations

import asyncio
import hmac
import re

import pytest
from server_fakes import BOS, CONTEXT, MODEL, VOCAB, ByteTokenizer, Served, fault, serve_fake, with_key
from starlette.routing import Route

from headrace import __version__
from headrace.config import Config
from headrace.errors import ConfigError
from headrace.keys import key_ring
from headrace.server import app, routes
from headrace.server.access import OPEN_PATHS
from headrace.server.http_errors import to_http
from headrace.server.route_spec import RouteSpec

KEY = "sk-secret"


def get(path: str, served: Served | None = None, **headers: str | bytes):
    return asyncio.run((served or serve_fake()).http.get(path, headers=headers))


def test_models():
    listed = get("/v1/models").json()
    assert listed["object"] == "list"
    (card,) = listed["data"]
    plain = {"id": MODEL, "object": "model", "created": 123, "owned_by": "headrace", "max_model_len": CONTEXT}
    limits = {"max_input_tokens": CONTEXT, "max_tokens": CONTEXT}
    assert card == {**plain, **limits, "type": "model", "display_name": MODEL, "created_at": "1970-01-01T00:02:03Z"}
    assert (listed["has_more"], listed["first_id"], listed["last_id"]) == (False, MODEL, MODEL)
    assert get(f"/v1/models/{MODEL}").json() == card
    assert get("/v1/models/fake%2Fmodel").json() == card
    assert fault(get("/v1/models/other"), 404, "model")["code"] == "model_not_found"


def test_served_name_replaces_the_models_own():
    base = Config()
    config = base.model_copy(update={"server": base.server.model_copy(update={"served_model_name": "mine"})})
    served = serve_fake(config)
    assert get("/v1/models", served).json()["data"][0]["id"] == "mine"
    assert asyncio.run(served.complete(model="mine")).status_code == 200
    fault(asyncio.run(served.complete(model=MODEL)), 404, "model")


def test_version():
    assert get("/version").json() == {"version": __version__}


def test_tokenize_and_back():
    served = serve_fake()
    reply = asyncio.run(served.post("/tokenize", prompt="Hé", return_token_strs=True)).json()
    assert reply["tokens"] == [BOS, *"Hé".encode()]
    assert (reply["count"], reply["max_model_len"]) == (4, CONTEXT)
    assert reply["token_strs"][:2] == ["<s>", "H"]
    assert "token_strs" not in asyncio.run(served.post("/tokenize", prompt="a")).json()
    bare = asyncio.run(served.post("/tokenize", prompt="", add_special_tokens=False)).json()
    assert (bare["tokens"], bare["count"]) == ([], 0)
    back = asyncio.run(served.post("/detokenize", tokens=reply["tokens"]))
    assert back.json() == {"prompt": "<s>Hé"}
    messages = [{"role": "user", "content": "Hi"}]
    assert asyncio.run(served.post("/tokenize", messages=messages)).json()["tokens"] == list(b"Hi>")


def test_a_conversation_is_rendered_without_an_answer():
    served = serve_fake()
    messages = [{"role": "user", "content": "Hi"}]
    told = asyncio.run(served.post("/v1/chat/completions/render", messages=messages, verbosity="low")).json()
    assert told == {"prompt": "Hi>", "token_ids": list(b"Hi>"), "count": 3, "max_model_len": CONTEXT}
    assert not served.engine.requests
    fault(asyncio.run(served.post("/v1/chat/completions/render", messages=messages, n=0)), 400, "n")


def test_the_tokenizer_is_described():
    assert get("/tokenizer_info").json() == {
        "tokenizer_class": "ByteTokenizer",
        "bos_token": "<s>",
        "eos_token": None,
        "pad_token": None,
        "chat_template": ByteTokenizer.template_source,
        "model_max_length": CONTEXT,
    }


def test_a_clients_request_id_comes_back():
    for path in ("/version", "/nothing"):
        assert get(path, **{"x-request-id": "mine-7"}).headers["x-request-id"] == "mine-7"
    served = serve_fake()
    for headers, own in (({"x-request-id": "mine"}, False), ({"x-request-id": "a b"}, True), ({}, True)):
        body = {"model": MODEL, "prompt": "Hi", "stream": True}
        answer = asyncio.run(served.http.post("/v1/completions", json=body, headers=headers))
        assert answer.headers.get_list("x-request-id") == [answer.headers["x-request-id"]]
        assert answer.headers["x-request-id"].startswith("cmpl-") == own


def test_tokenize_refusals():
    served = serve_fake()
    fault(asyncio.run(served.post("/tokenize")), 400, "prompt")
    fault(asyncio.run(served.post("/tokenize", prompt="a", messages=[])), 400, "prompt")
    fault(asyncio.run(served.post("/tokenize", prompt="a", model="x")), 404, "model")
    fault(asyncio.run(served.post("/detokenize", tokens=[VOCAB])), 400, "tokens")
    fault(asyncio.run(served.post("/detokenize", tokens=[-1])), 400, "tokens")
    assert asyncio.run(served.post("/detokenize", tokens=[])).json() == {"prompt": ""}


def test_health_follows_the_engine():
    served = serve_fake()
    assert get("/health", served).json() == {"status": "ok"}
    served.engine.dead = True
    refused = get("/health", served)
    fault(refused, 503)
    assert "retry-after" in refused.headers
    served.engine.dead = False
    assert get("/health", served).status_code == 200


def test_health_of_an_engine_that_never_answers(monkeypatch):
    served = serve_fake()

    async def hang() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("headrace.server.routes._HEALTH_TIMEOUT", 0.01)
    monkeypatch.setattr(served.engine, "check_health", hang)
    fault(get("/health", served), 503)
    assert "headrace_engine_up 0.0" in get("/metrics", served).text


def test_metrics():
    served = serve_fake()
    asyncio.run(served.complete(max_tokens=50))
    asyncio.run(served.chat(max_tokens=2, n=2, stream=True))
    fault(asyncio.run(served.complete(n=0)), 400)
    page = get("/metrics", served)
    assert page.headers["content-type"].startswith("text/plain")
    lines = page.text.splitlines()
    for line in (
        "headrace_requests_running 2.0",
        "headrace_requests_waiting 3.0",
        'headrace_kv_blocks{state="free"} 10.0',
        'headrace_kv_blocks{state="cached"} 20.0',
        'headrace_kv_blocks{state="held"} 30.0',
        "headrace_kv_utilization 0.75",
        "headrace_slot_occupancy 0.25",
        "headrace_device_busy 0.5",
        "headrace_engine_up 1.0",
        "headrace_device_busy_seconds_total 12.5",
        "headrace_slot_share_sum 1.75",
        "headrace_slot_share_count 7.0",
        "headrace_kv_share_sum 3.5",
        "headrace_kv_share_count 9.0",
        'headrace_host_cpu_seconds_total{part="engine"} 0.625',
        'headrace_peak_memory_bytes{part="engine"} 5000.0',
        "headrace_time_to_first_token_seconds_count 2.0",
        # 4 after the first of 5, and 1 after the first of 2 in each of two choices.
        "headrace_inter_token_latency_seconds_count 6.0",
        "headrace_queue_time_seconds_count 3.0",
        'headrace_queue_time_seconds_bucket{le="0.005"} 0.0',
        'headrace_queue_time_seconds_bucket{le="0.01"} 3.0',
        'headrace_queue_time_seconds_bucket{le="+Inf"} 3.0',
        "headrace_request_duration_seconds_count 2.0",
        "headrace_prompt_tokens_total 6.0",
        "headrace_generation_tokens_total 9.0",
        "headrace_cached_tokens_total 6.0",
        'headrace_requests_finished_total{reason="stop"} 1.0',
        'headrace_requests_finished_total{reason="length"} 2.0',
        'headrace_http_errors_total{status="400"} 1.0',
        'headrace_speculation_drafted_tokens_total{method="ngram",position="0"} 4.0',
        'headrace_speculation_drafted_tokens_total{method="ngram",position="1"} 3.0',
        'headrace_speculation_accepted_tokens_total{method="ngram",position="1"} 1.0',
        'headrace_speculation_rejected_tokens_total{method="ngram",position="1"} 2.0',
        'headrace_speculation_rejected_tokens_total{method="predicted",position="0"} 1.0',
        'headrace_speculation_rounds_total{method="ngram"} 4.0',
        'headrace_speculation_mean_accepted_length{method="ngram"} 2.0',
        'headrace_speculation_mean_accepted_length{method="predicted"} 1.0',
        "headrace_speculation_drafting_seconds_total 0.375",
        'headrace_request_generation_tokens_bucket{le="4.0"} 1.0',
        'headrace_request_generation_tokens_bucket{le="8.0"} 2.0',
    ):
        assert line in lines, (line, page.text)


def test_two_servers_share_no_metrics():
    first, second = serve_fake(), serve_fake()
    asyncio.run(first.complete())
    assert "headrace_prompt_tokens_total 0.0" in get("/metrics", second).text


def paths(served: Served) -> list[tuple[str, str]]:
    found = []
    for route in served.app.routes:
        assert isinstance(route, Route), route
        path = route.path.replace("{model:path}", "x").replace("{model}", "x")
        found += [(method, path) for method in route.methods or ()]
    return found


def test_every_route_needs_the_key():
    served = serve_fake(with_key(KEY))
    routes = paths(served)
    assert len(routes) >= 9
    for method, path in routes:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": KEY}, {"x-api-key": ""}):
            response = asyncio.run(served.http.request(method, path, headers=headers))
            if path in OPEN_PATHS:
                assert response.status_code == 200
                continue
            assert response.status_code == 401, (method, path)
            if method != "HEAD":
                assert "a valid API key is needed" in response.text
        for headers in ({"authorization": f"Bearer {KEY}"}, {"authorization": f"bearer {KEY}"}, {"x-api-key": KEY}):
            response = asyncio.run(served.http.request(method, path, headers=headers))
            assert response.status_code not in (401, 403), (method, path)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models/",
        "//v1/models",
        "/%761/models",
        "/v1%2Fmodels",
        "/health/",
        "//health",
        "/health/../v1/models",
        "/health%2f..%2fv1/models",
        "/page/../v1/models",
        "/page/index.html",
        "/page/",
        "/page/%2e%2e/page_files.py",
        "/v1/engine/state",
        "/HEALTH",
        "/nothing",
        "/openapi.json",
        "/docs/",
        "/docs/index.html",
        "/docs/oauth2-redirect",
        "/metrics",
    ],
)
def test_no_spelling_of_a_path_bypasses_the_key(path):
    served = serve_fake(with_key(KEY))
    for headers in ({}, {"host": "localhost/health"}, {"x-forwarded-path": "/health", "x-original-url": "/health"}):
        response = asyncio.run(served.http.get(f"http://server{path}", headers=headers))
        assert response.status_code == 401 or response.request.url.raw_path == b"/health", path
        assert response.content.startswith(b'{"error"') or response.request.url.raw_path == b"/health", path


def test_key_is_compared_in_constant_time(monkeypatch):
    compared, original = [], hmac.compare_digest

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return original(a, b)

    monkeypatch.setattr(key_ring.hmac, "compare_digest", compare)
    assert get("/version", serve_fake(with_key(KEY)), authorization="Bearer é".encode()).status_code == 401
    assert compared


@pytest.mark.parametrize("enabled", [False, True])
def test_control_routes_are_there_only_if_they_are_enabled(monkeypatch, enabled):
    row = RouteSpec("POST", "/v1/engine/turn", routes.health, "Turn it", control=True)
    monkeypatch.setattr(app, "_ROUTES", (*app._ROUTES, row))
    base = Config()
    server = base.server.model_copy(update={"enable_control_routes": enabled})
    served = serve_fake(base.model_copy(update={"server": server}))
    assert asyncio.run(served.http.post(row.path)).status_code == (200 if enabled else 404)
    assert (row.path in served.app.openapi()["paths"]) == enabled


def test_an_empty_key_is_an_error():
    with pytest.raises(ConfigError, match="empty"):
        serve_fake(with_key(""))


def test_unknown_routes_and_methods_have_the_error_shape():
    assert fault(get("/v1/nothing"), 404)["code"] == "not_found"
    assert fault(get("/v1/completions"), 405)["code"] == "method_not_allowed"
    assert get("/v1/models/", serve_fake()).status_code == 404
    assert "location" not in get("/version/").headers


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/chat/completions/", "/v1/chat/completions"),
        ("/v1/tokenize", "/tokenize"),
        ("/v1/api/chat", "/api/chat"),
        ("/nothing", None),
        ("/v1", None),
        ("/", None),
    ],
)
def test_a_wrong_base_address_is_answered_with_the_right_route(asked, meant):
    message = fault(asyncio.run(serve_fake().post(asked)), 404 if asked != "/" else 405)["message"]
    assert message.endswith(f"no such route: POST {asked}; did you mean {meant}?") == (meant is not None)
    assert ("did you mean" in message) == (meant is not None)


def test_a_draining_server_refuses_new_requests():
    served = serve_fake()
    served.app.state.context.draining = True
    refused = asyncio.run(served.complete())
    assert fault(refused, 503)["code"] == "shutting_down"
    assert int(refused.headers["retry-after"]) > 0
    fault(get("/health", served), 503)
    assert get("/metrics", served).status_code == 200
    assert not served.engine.requests


def test_openapi_describes_the_bodies():
    document = get("/openapi.json").json()
    operation = document["paths"]["/v1/chat/completions"]["post"]
    reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    schema = document["components"]["schemas"][reference.rsplit("/", 1)[1]]
    assert schema["required"] == ["messages"]
    assert schema["properties"]["top_p"]["anyOf"][0]["maximum"] == 1
    assert schema["additionalProperties"] is False
    text = str(document)
    names = {part.split("'")[0] for part in text.split("#/components/schemas/")[1:]}
    assert names <= document["components"]["schemas"].keys()
    assert "security" not in document
    keyed = get("/openapi.json", serve_fake(with_key(KEY)), **{"x-api-key": KEY}).json()
    assert keyed["security"]
    assert get("/docs").status_code == 200


def test_openapi_declares_parameters_errors_and_streams():
    document = get("/openapi.json").json()
    for path, methods in document["paths"].items():
        for operation in methods.values():
            named = {parameter["name"] for parameter in operation.get("parameters", ()) if parameter["in"] == "path"}
            assert named == set(re.findall(r"\{(\w+)\}", path))
            for status in ("401", "503", *(("400", "413", "415") if "requestBody" in operation else ())):
                content = operation["responses"][status]["content"]["application/json"]
                form = "/ErrorReply"
                if path.startswith(("/v1/messages", "/api/")):
                    form = "/AnthropicErrorReply" if path.startswith("/v1") else "/OllamaErrorReply"
                assert content["schema"]["$ref"].endswith(form)
            assert operation["responses"]["200"]["content"]
    streamed = {path for path, methods in document["paths"].items() if "text/event-stream" in str(methods)}
    names = ("chat/completions", "completions", "messages", "programs", "responses")
    assert streamed == {f"/v1/{name}" for name in (*names, "engine/events")}
    lines = {path for path, methods in document["paths"].items() if "application/x-ndjson" in str(methods)}
    assert lines == {"/api/chat", "/api/generate", "/api/pull"}
    error = asyncio.run(serve_fake().complete(n=0)).json()
    assert error["error"].keys() == document["components"]["schemas"]["ErrorDetail"]["properties"].keys()
    keyed = get("/openapi.json", serve_fake(with_key(KEY)), **{"x-api-key": KEY}).json()
    assert keyed["paths"]["/health"]["get"]["security"] == []


def test_an_unexpected_error_shows_no_internals():
    told = to_http(ValueError("/secret"))
    assert told.status == 500
    assert "/secret" not in told.message


def test_openapi_has_the_404_of_what_a_server_may_lack():
    served = serve_fake()
    assert get("/v1/engine/role", served).status_code == 404
    assert "404" in served.app.openapi()["paths"]["/v1/engine/role"]["get"]["responses"]


def test_openapi_has_both_forms_of_ranked_texts():
    """`texts` is the field of an API that answers with a list."""
    document = serve_fake().app.openapi()
    for path in ("/v1/rerank", "/rerank", "/v2/rerank"):
        content = document["paths"][path]["post"]["responses"]["200"]["content"]
        whole, listed = content["application/json"]["schema"]["anyOf"]
        assert whole == {"$ref": "#/components/schemas/RerankReply"}
        assert listed == {"type": "array", "items": {"$ref": "#/components/schemas/RankedText"}}
    assert document["components"]["schemas"]["RankedText"]["required"] == ["index", "score"]
