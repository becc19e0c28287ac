"""The options of the HTTP server, a part of the configuration."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from headrace.config_fields import Frozen, unit

__all__ = ["ServerConfig"]


class ServerConfig(Frozen):
    """The HTTP server."""

    host: str = Field(
        default="127.0.0.1",
        description="Address to listen on; 0.0.0.0 is every one.",
        json_schema_extra=unit("address"),
    )
    port: int = Field(default=8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    uds: str | None = Field(
        default=None,
        description="File of a unix socket to listen on, in place of host and port.",
        json_schema_extra=unit("path"),
    )
    ssl_certfile: str | None = Field(
        default=None,
        description="Certificate, with those of its issuers, in the form PEM: the server speaks TLS. Read again on "
        "SIGHUP.",
        json_schema_extra=unit("file"),
    )
    ssl_keyfile: str | None = Field(
        default=None,
        description="The certificate's key, if it is in a file of its own.",
        json_schema_extra=unit("file"),
    )
    root_path: str = Field(
        default="",
        description="Prefix under which a proxy shows the server, as /llm; whether the proxy removes it or not.",
        json_schema_extra=unit("path"),
    )
    api_key: str | None = Field(
        default=None,
        description="Key that every client must send. HEADRACE_API_KEY does the same, unseen in the process list.",
        json_schema_extra=unit("key"),
    )
    api_keys_file: str | None = Field(
        default=None,
        description="File of keys, each with a name and limits (docs/operations.md); read again on SIGHUP.",
        json_schema_extra=unit("file"),
    )
    served_model_name: str | None = Field(
        default=None, description="What clients call the model. Default: its own name.", json_schema_extra=unit("name")
    )
    cors_origin: str | None = Field(
        default=None,
        description="Origin of web pages that may read the answers, as https://chat.example; several are separated by "
        "commas, and * is every origin.",
        json_schema_extra=unit("origin"),
    )
    tool_format: str | None = Field(default=None, description="Format of tool calls, or none. Default: detected.")
    reasoning_format: str | None = Field(default=None, description="Format of reasoning, or none. Default: detected.")
    drain_timeout: float = Field(
        default=30.0, ge=0, description="Time for running requests after SIGTERM.", json_schema_extra=unit("seconds")
    )
    max_waiting_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Prompt tokens that may wait for a first answer; a request beyond is refused with 503. Default: "
        "no limit beside max_waiting.",
        json_schema_extra=unit("tokens"),
    )
    kv_events_endpoint: str | None = Field(
        default=None,
        description="ZeroMQ address to publish the prefix cache's changes on, as tcp://*:5557, in the form that vLLM's "
        "routers read; needs the extra events. headrace route needs none.",
        json_schema_extra=unit("address"),
    )
    state_dir: str | None = Field(
        default=None,
        description="Folder for what clients ask to keep: responses (at most 10,000, 1 GiB and 30 days), files (at "
        "most 10,000 and 10 GiB) and batches. Default: nothing is kept.",
        json_schema_extra=unit("path"),
    )
    log_format: Literal["text", "json"] = Field(
        default="text", description="Form of the log on standard error: lines of text, or a JSON object a line."
    )
    tracing: bool = Field(
        default=False,
        description="Send a trace of each request by OpenTelemetry (the extra otel), to OTEL_EXPORTER_OTLP_ENDPOINT.",
    )
    enable_control_routes: bool = Field(
        default=False,
        description="Offer the routes that control the engine. Every client with a key may then call them; of a file's "
        "keys, those marked admin.",
    )

    profile_dir: str | None = Field(
        default=None,
        description="Folder of the traces that /start_profile and /stop_profile write. Default: profiles in "
        "HEADRACE_CACHE.",
        json_schema_extra=unit("path"),
    )

    @field_validator("root_path")
    @classmethod
    def _prefix(cls, text: str) -> str:
        prefix = text.rstrip("/")
        if prefix and not re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", prefix):
            raise ValueError("a prefix is written as /llm or /a/b, with letters, digits and . _ ~ -")
        return prefix

    @field_validator("ssl_keyfile")
    @classmethod
    def _certificate(cls, file: str | None, info: ValidationInfo) -> str | None:
        if file is not None and info.data.get("ssl_certfile") is None:
            raise ValueError("a key needs its certificate: give --ssl-certfile, too")
        return file

    @field_validator("cors_origin")
    @classmethod
    def _origins(cls, text: str | None) -> str | None:
        for origin in [] if text is None else text.split(","):
            if not re.fullmatch(r"\*|null|[a-z][a-z0-9+.-]*://[^/\s,]+", origin.strip()):
                raise ValueError(
                    f"{origin.strip()!r} is no origin: write it as https://chat.example, without a path, or *"
                )
        return text
