"""The part of the configuration about several engines of one model behind one router."""

from __future__ import annotations

import re

from pydantic import Field, ValidationInfo, field_validator

from headrace.config_fields import Frozen, Seconds, unit

__all__ = ["ScaleConfig"]


class ScaleConfig(Frozen):
    """Engines of one model behind one router (docs/scale.md)."""

    replicas: int | None = Field(
        default=None, ge=1, description="Engines behind one router, at the start. Default: min_replicas, or 1."
    )
    ray_address: str | None = Field(
        default=None,
        description="Ray cluster whose nodes run the engines: auto (the one that this machine belongs to), HOST:PORT "
        "of its head, or local (one on this machine, for as long as the server runs); needs the extra ray. Default: "
        "processes on this machine.",
        json_schema_extra=unit("address"),
    )
    min_replicas: int | None = Field(
        default=None, ge=1, description="Fewest engines, if their number follows the load. Default: replicas."
    )
    max_replicas: int | None = Field(
        default=None,
        ge=1,
        description="Most engines; above the fewest, their number follows the load. Default: replicas.",
    )
    target_ttft: Seconds = Field(
        default=2.0,
        gt=0,
        description="Time to first token, above which for nine of ten requests engines are added.",
        json_schema_extra=unit("time"),
    )
    target_queue: float = Field(
        default=4.0,
        gt=0,
        description="Requests per engine that may wait for their first token before engines are added.",
        json_schema_extra=unit("requests"),
    )
    max_restarts: int = Field(
        default=5, ge=0, description="Starts in a row that may fail before an engine is given up."
    )
    start_timeout: Seconds = Field(
        default=600.0,
        gt=0,
        description="Time in which an engine must be ready after it is started, or find its place in a Ray cluster.",
        json_schema_extra=unit("time"),
    )

    @property
    def first(self) -> int:
        """Engines at the start."""
        return self.replicas or self.min_replicas or 1

    @property
    def least(self) -> int:
        return self.min_replicas or self.first

    @property
    def most(self) -> int:
        return self.max_replicas or self.first

    @property
    def grouped(self) -> bool:
        """The engines are behind a router."""
        return self.most > 1 or self.ray_address is not None

    @property
    def why_grouped(self) -> str:
        """The options that make a group, for messages."""
        given = (
            ("--replicas", self.replicas),
            ("--max-replicas", self.max_replicas),
            ("--ray-address", self.ray_address),
        )
        return " and ".join(flag for flag, value in given if value not in (None, 1))

    def without_effect(self) -> str | None:
        """Why an option that was given does nothing, if one does."""
        given = self.model_fields_set
        for name in ("target_ttft", "target_queue") if self.least == self.most else ():
            if name in given:
                flag = name.replace("_", "-")
                return f"--{flag} has no effect: --max-replicas is the most engines, more than {self.least} of them"
        for name in ("max_restarts", "start_timeout") if not self.grouped else ():
            if name in given:
                return f"--{name.replace('_', '-')} has no effect: there is one engine; --replicas starts several"
        return None

    @field_validator("ray_address")
    @classmethod
    def _address(cls, text: str | None) -> str | None:
        if text is not None and text not in ("auto", "local") and not re.fullmatch(r"[^\s/:]+:\d{1,5}", text):
            raise ValueError("it is auto, local, or the HOST:PORT of the cluster's head; run this on one of its nodes")
        return text

    @field_validator("min_replicas")
    @classmethod
    def _least(cls, least: int | None, info: ValidationInfo) -> int | None:
        first = info.data.get("replicas")
        if least is not None and first is not None and first < least:
            raise ValueError(f"there are {first} at the start: choose at most as many")
        return least

    @field_validator("max_replicas")
    @classmethod
    def _most(cls, most: int | None, info: ValidationInfo) -> int | None:
        first = info.data.get("replicas") or info.data.get("min_replicas") or 1
        if most is not None and most < first:
            raise ValueError(f"there are {first} at the start: choose at least as many")
        return most
