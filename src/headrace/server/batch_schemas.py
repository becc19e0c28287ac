"""The bodies of OpenAI's files and batches, as msgspec structs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from headrace.server.schemas import Body

__all__ = [
    "BATCH_ENDPOINTS",
    "BatchCounts",
    "BatchError",
    "BatchErrors",
    "BatchList",
    "BatchObject",
    "BatchRequest",
    "DeletedFile",
    "FileForm",
    "FileList",
    "FileObject",
]

BATCH_ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings")


class FileForm(Struct):
    """A form of the type multipart/form-data."""

    file: str
    purpose: str
    """`batch`."""


class FileObject(Struct):
    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    object: str = "file"
    status: str = "processed"
    expires_at: int | None = None


class FileList(Struct):
    data: list[FileObject]
    has_more: bool
    first_id: str | None
    last_id: str | None
    object: str = "list"


class DeletedFile(Struct):
    id: str
    object: str = "file"
    deleted: bool = True


class ExpiresAfter(Body):
    anchor: Literal["created_at"]
    seconds: Annotated[int, Meta(ge=3600, le=2592000)]


Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]
"""As OpenAI bounds it: it is kept as long as the batch."""


class BatchRequest(Body):
    input_file_id: str
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"]
    completion_window: Literal["24h"]
    metadata: Metadata | None = None
    output_expires_after: ExpiresAfter | None = None


class BatchError(Struct):
    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchErrors(Struct):
    data: list[BatchError]
    object: str = "list"


class BatchCounts(Struct):
    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchObject(Struct):
    id: str
    endpoint: str
    input_file_id: str
    status: str
    created_at: int
    expires_at: int
    model: str
    completion_window: str = "24h"
    object: str = "batch"
    errors: BatchErrors | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: BatchCounts = field(default_factory=BatchCounts)
    usage: dict[str, Any] | None = None
    metadata: dict[str, str] | None = None
    output_seconds: int | None = None
    """The lifetime of the output's files; None: they stay."""


class BatchList(Struct):
    data: list[BatchObject]
    has_more: bool
    first_id: str | None
    last_id: str | None
    object: str = "list"
