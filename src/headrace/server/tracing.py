"""OpenTelemetry traces: a span for each request, with spans for its stages. The libraries are imported only if traces
are asked for.

Names of attributes are those of the semantic conventions for HTTP servers and generative AI. Spans are made when a
request has ended, from the times that the server notes anyway, so a trace costs nothing while tokens stream.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

from starlette.types import Scope

from headrace import __version__
from headrace.errors import ConfigError
from headrace.server.request_record import RequestRecord

__all__ = ["Tracing"]

_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/api/chat": "chat",
    "/v1/completions": "text_completion",
    "/api/generate": "text_completion",
    "/v1/embeddings": "embeddings",
    "/v1/programs": "invoke_workflow",
}
_SAMPLING = {"max_tokens": "max_tokens", "temperature": "temperature", "top_p": "top_p", "n": "choice.count"}
_CLOSING = 3000
"""Milliseconds for sending the last spans."""


class Tracing:
    """Sends traces by OTLP to where the standard environment variables say (`OTEL_EXPORTER_OTLP_ENDPOINT`,
    `OTEL_TRACES_SAMPLER`, `OTEL_SERVICE_NAME`…). Thread: the event loop's; sending has a thread of its own."""

    def __init__(self, exporter: Any = None) -> None:
        """`exporter`: a span exporter that gets each span at once, for tests. Raises ConfigError if the libraries are
        missing."""
        try:
            from opentelemetry import propagate, trace
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
        except ImportError as error:
            raise _missing(error) from None
        named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        resource = Resource.create({"service.version": __version__} | ({} if named else {"service.name": "headrace"}))
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        processor = BatchSpanProcessor(_exporter()) if exporter is None else SimpleSpanProcessor(exporter)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("headrace", __version__)
        self._propagate, self._trace = propagate, trace

    def note(self, scope: Scope, record: RequestRecord) -> None:
        """Make the spans of a request that has ended."""
        trace = self._trace
        carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        ahead = time.time_ns() - int(time.monotonic() * 1e9)

        def at(seconds: float) -> int:
            return ahead + int(seconds * 1e9)

        span = self._tracer.start_span(
            _name(scope, record),
            context=self._propagate.extract(carrier),
            kind=trace.SpanKind.SERVER,
            attributes=dict(_attributes(scope, record)),
            start_time=at(record.began),
        )
        if span.is_recording():
            inside = trace.set_span_in_context(span)
            for name, start, end in _stages(record):
                self._tracer.start_span(name, context=inside, start_time=at(start)).end(at(end))
            if (fault := _fault(record)) is not None:
                span.set_attribute("error.type", fault)
                span.set_status(trace.Status(trace.StatusCode.ERROR))
        span.end(at(record.ended))

    def close(self) -> None:
        """Send what is left, for a few seconds at most. Blocks."""
        self._provider.force_flush(_CLOSING)
        self._provider.shutdown()


def _missing(error: ImportError) -> ConfigError:
    return ConfigError(f"--tracing needs OpenTelemetry ({error}): pip install 'headrace[otel]'")


def _exporter() -> Any:
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    try:
        if protocol == "grpc":
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        elif protocol in (None, "", "http/protobuf"):
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        else:
            raise ConfigError(f"OTEL_EXPORTER_OTLP_PROTOCOL={protocol}: choose http/protobuf, or grpc")
    except ImportError as error:
        if protocol == "grpc":
            remedy = "pip install opentelemetry-exporter-otlp-proto-grpc, or set it to http/protobuf"
            raise ConfigError(f"OTEL_EXPORTER_OTLP_PROTOCOL=grpc needs its exporter ({error}): {remedy}") from None
        raise _missing(error) from None
    return OTLPSpanExporter()


def _route(scope: Scope) -> str | None:
    """The route with the names of its parameters: few different values, unlike the path."""
    path = getattr(scope.get("route"), "path", None)
    return None if path is None else str(path)


def _name(scope: Scope, record: RequestRecord) -> str:
    if record.model:
        return f"{_OPERATIONS.get(scope['path'], 'generate')} {record.model}"
    return f"{scope['method']} {_route(scope) or ''}".rstrip()


def _attributes(scope: Scope, record: RequestRecord) -> Iterator[tuple[str, Any]]:
    yield "http.request.method", scope["method"]
    yield "url.path", scope["path"]
    yield "url.scheme", scope["scheme"]
    if (route := _route(scope)) is not None:
        yield "http.route", route
    if record.status:
        yield "http.response.status_code", record.status
    if record.caller:
        yield "headrace.key.name", record.caller
    if not record.model:
        return
    yield "gen_ai.operation.name", _OPERATIONS.get(scope["path"], "generate")
    yield "gen_ai.provider.name", "headrace"
    yield "gen_ai.request.model", record.model
    yield "gen_ai.response.model", record.model
    yield "gen_ai.response.id", record.id
    yield "gen_ai.response.finish_reasons", record.finish.split(",")
    yield "gen_ai.request.stream", record.stream
    for name, value in record.sampling.items():
        if value is not None:
            yield f"gen_ai.request.{_SAMPLING[name]}", value
    yield "gen_ai.usage.input_tokens", record.prompt_tokens or 0
    yield "gen_ai.usage.cache_read.input_tokens", record.cached_tokens
    yield "gen_ai.usage.output_tokens", record.completion_tokens
    if record.first_token is not None:
        yield "gen_ai.response.time_to_first_chunk", record.first_token - record.began


def _stages(record: RequestRecord) -> Iterator[tuple[str, float, float]]:
    """(Name, start, end): before the engine, then as far as the request came in it."""
    if record.submitted is None:
        return
    yield "prepare", record.began, record.submitted
    if record.queue_seconds is None:
        yield "queue", record.submitted, record.ended
        return
    scheduled = record.submitted + record.queue_seconds
    first = record.ended if record.first_token is None else record.first_token
    yield "queue", record.submitted, min(scheduled, first)
    yield "prefill", min(scheduled, first), first
    if record.first_token is not None:
        yield "decode", first, record.ended


def _fault(record: RequestRecord) -> str | None:
    """What went wrong on the server's side."""
    if record.status >= 500:
        return str(record.status)
    return "error" if "error" in record.finish.split(",") else None
