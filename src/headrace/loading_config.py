"""The part of the configuration that says which models are in memory, and for how long."""

from __future__ import annotations

from pydantic import Field

from headrace.config_fields import Bytes, Frozen, Seconds, unit

__all__ = ["LoadingConfig"]


class LoadingConfig(Frozen):
    """Which of a server's models are in memory, and for how long (docs/models.md)."""

    aliases: dict[str, str] = Field(default={}, description="Another name of a model, as gpt-4o=smollm2.")
    models_memory: Bytes | None = Field(
        default=None,
        ge=1,
        description="Memory that all loaded models may take together. Default: 80% of the host's memory that is free "
        "at the start, or of the device's own.",
    )
    models_max: int | None = Field(
        default=None, ge=1, description="Models that are loaded at once. Default: as many as their memory allows."
    )
    keep_alive: Seconds | None = Field(
        default=None,
        description="Time without requests after which a model is unloaded, as 10m; 0 is at once, -1 never. Default: "
        "when another model needs its memory.",
        json_schema_extra=unit("time"),
    )
    load_timeout: Seconds = Field(
        default=300.0,
        gt=0,
        description="Longest time that a request waits for its model to be loaded.",
        json_schema_extra=unit("time"),
    )
    preload: str | None = Field(
        default=None,
        description="Names of the models to load at the start, separated by commas, or all. Default: with several "
        "models, each is loaded by the first request for it.",
        json_schema_extra=unit("names"),
    )
