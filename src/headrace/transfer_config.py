"""The options of blocks of the KV cache that pass between engines."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from headrace.config_fields import Bytes, Frozen, unit

__all__ = ["TransferConfig"]


class TransferConfig(Frozen):
    """Blocks of the KV cache that pass between engines."""

    role: Literal["prefill", "decode", "both"] | None = Field(
        default=None,
        description="Part of a group of engines: prefill computes prompts and gives their blocks to others, decode "
        "fetches blocks and generates, both does either. Default: no blocks pass.",
    )
    kv_connector: str = Field(
        default="tcp",
        description="What moves the blocks: tcp, shm (one machine), nixl or mooncake (extras), memory (one process), "
        "or a plugin's connector.",
        json_schema_extra=unit("name"),
    )
    kv_listen: str | None = Field(
        default=None,
        description="Where other engines fetch blocks: HOST:PORT, or a path for shm. Default: where only this machine "
        "reaches it.",
        json_schema_extra=unit("address"),
    )
    kv_secret_file: str | None = Field(
        default=None,
        description="A file with the secret that the engines of a group share. HEADRACE_KV_SECRET does the same.",
        json_schema_extra=unit("file"),
    )
    kv_shelf: Bytes = Field(default=1 << 30, ge=0, description="Most host memory for blocks that others may fetch.")
    kv_lease: float = Field(
        default=30.0, gt=0, description="Time for which others may fetch a block.", json_schema_extra=unit("seconds")
    )
    kv_timeout: float = Field(
        default=5.0,
        gt=0,
        description="Time after which blocks that have not arrived from another engine are computed instead.",
        json_schema_extra=unit("seconds"),
    )
