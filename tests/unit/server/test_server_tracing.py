"""Traces, read back from the SDK's exporter in memory: spans, their times and attributes, the caller's context."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from server_fakes import MODEL, Served, serve_fake, with_key
from test_server_process import server, until

from headrace.errors import ConfigError
from headrace.server.tracing import Tracing, _exporter

SECRET = "the prompt of a client"


def traced(**engine: Any) -> tuple[Served, InMemorySpanExporter]:
    served, exporter = serve_fake(**engine), InMemorySpanExporter()
    served.app.state.context.tracing = Tracing(exporter)
    return served, exporter


def by_name(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    spans = exporter.get_finished_spans()
    assert len({span.name for span in spans}) == len(spans)
    return {span.name: span for span in spans}


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_and_its_stages(stream: bool) -> None:
    served, exporter = traced()
    answer = asyncio.run(
        served.chat(stream=stream, temperature=0.5, max_tokens=4, messages=[{"role": "user", "content": SECRET}])
    )
    spans = by_name(exporter)
    assert set(spans) == {f"chat {MODEL}", "prepare", "queue", "prefill", "decode"}
    root = spans[f"chat {MODEL}"]
    assert root.kind == SpanKind.SERVER
    assert root.parent is None
    assert root.status.status_code == StatusCode.UNSET
    attributes = dict(root.attributes or {})
    assert 0 <= attributes.pop("gen_ai.response.time_to_first_chunk") < 60
    assert attributes == {
        "http.request.method": "POST",
        "url.path": "/v1/chat/completions",
        "url.scheme": "http",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "headrace",
        "gen_ai.request.model": MODEL,
        "gen_ai.response.model": MODEL,
        "gen_ai.response.id": answer.headers["x-request-id"],
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.request.stream": stream,
        "gen_ai.request.max_tokens": 4,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.choice.count": 1,
        "gen_ai.usage.input_tokens": len(SECRET) + 1,
        "gen_ai.usage.cache_read.input_tokens": 3,
        "gen_ai.usage.output_tokens": 4,
    }
    at = root.start_time
    for name in ("prepare", "queue", "prefill", "decode"):
        span = spans[name]
        assert span.parent is not None
        assert span.parent.span_id == root.context.span_id
        assert span.start_time == at
        assert span.end_time is not None
        assert span.end_time >= span.start_time
        at = span.end_time
    assert at == root.end_time
    assert SECRET not in "".join(span.to_json() for span in spans.values())


@pytest.mark.parametrize("sampled", [True, False])
def test_the_incoming_context_is_honoured(sampled: bool) -> None:
    served, exporter = traced()
    trace_id, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    headers = {"traceparent": f"00-{trace_id}-{parent}-0{int(sampled)}", "tracestate": "a=1"}
    asyncio.run(served.http.post("/v1/completions", json={"prompt": "Hi"}, headers=headers))
    spans = exporter.get_finished_spans()
    if not sampled:
        assert not spans
        return
    root = by_name(exporter)[f"text_completion {MODEL}"]
    assert root.parent is not None
    assert f"{root.parent.span_id:016x}" == parent
    assert {f"{span.context.trace_id:032x}" for span in spans} == {trace_id}
    assert root.context.trace_state.get("a") == "1"


@pytest.mark.parametrize("header", ["", "00-00-00-01", "x" * 5000, "é"])
def test_a_wrong_context_begins_a_new_trace(header: str) -> None:
    served, exporter = traced()
    headers = {"traceparent": header.encode()}
    assert asyncio.run(served.http.get("/version", headers=headers)).status_code == 200
    (span,) = exporter.get_finished_spans()
    assert (span.name, span.parent) == ("GET /version", None)


def test_errors() -> None:
    served, exporter = traced(fail_after=2)
    asyncio.run(served.complete(stream=True))
    root = by_name(exporter)[f"text_completion {MODEL}"]
    assert root.status.status_code == StatusCode.ERROR
    assert root.attributes is not None
    assert root.attributes["error.type"] == "error"
    served, exporter = traced(refuse=RuntimeError("boom"))
    asyncio.run(served.complete())
    spans = by_name(exporter)
    root = spans[f"text_completion {MODEL}"]
    assert root.attributes is not None
    assert (root.attributes["error.type"], root.attributes["http.response.status_code"]) == ("500", 500)
    assert set(spans) == {root.name, "prepare", "queue"}


def test_other_requests() -> None:
    served, exporter = traced()

    async def main() -> None:
        for path in ("/v1/models/fake%2Fmodel", "/no/such/route", "/health", "/metrics"):
            await served.http.get(path)

    asyncio.run(main())
    found, missing = exporter.get_finished_spans()
    assert (found.name, missing.name) == ("GET /v1/models/{model:path}", "GET")
    assert missing.attributes is not None
    assert missing.attributes["http.response.status_code"] == 404
    assert missing.status.status_code == StatusCode.UNSET


def test_the_libraries_are_imported_only_if_they_are_asked_for() -> None:
    code = (
        "import sys, headrace.server.app; "
        "assert not [name for name in sys.modules if name.startswith('opentelemetry.sdk')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_missing_libraries_are_an_error_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r"--tracing needs OpenTelemetry .*headrace\[otel\]"):
        Tracing(InMemorySpanExporter())


def test_protocols(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "carrier-pigeon")
    with pytest.raises(ConfigError, match="choose http/protobuf"):
        _exporter()
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", None)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(ConfigError, match="otlp-proto-grpc"):
        _exporter()


def test_spans_reach_a_collector_by_the_standard_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    got: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None: ...

    collector = HTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "my-service")
    with server(server={"tracing": True}) as running:
        assert running.get("/version") == 200
        running.process.terminate()
        assert running.stop()[0] == 0
    until(lambda: got)
    collector.shutdown()
    collector.server_close()
    (path, body), *_ = got
    assert path == "/v1/traces"
    assert b"GET /version" in body
    assert b"my-service" in body


def test_the_name_of_the_key() -> None:
    served, exporter = serve_fake(with_key("k")), InMemorySpanExporter()
    served.app.state.context.tracing = Tracing(exporter)
    asyncio.run(served.http.get("/version"))
    (span,) = exporter.get_finished_spans()
    assert span.attributes is not None
    assert span.attributes["http.response.status_code"] == 401
    assert "headrace.key.name" not in span.attributes
