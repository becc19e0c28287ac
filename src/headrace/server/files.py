"""OpenAI's files: `/v1/files`, for the input and the output of batches."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from headrace.errors import InvalidRequest
from headrace.server.batch_schemas import BatchObject, DeletedFile, FileForm, FileList, FileObject
from headrace.server.batch_store import BatchStore
from headrace.server.caller import owner_of
from headrace.server.context import Context
from headrace.server.http_errors import HttpError
from headrace.server.multipart_form import FormReader, boundary_of
from headrace.server.route_spec import RouteSpec

__all__ = ["ROUTES", "batch_store", "page"]

MOST_BYTES = 200 * 2**20
"""Of one file."""
_FORM_BYTES = 2**20
_SHORTEST, _LONGEST = 3600, 2592000
_DIGITS = 9
"""Python reads a number of a few thousand digits at most."""
P = TypeVar("P", FileObject, BatchObject)


def batch_store(context: Context) -> BatchStore:
    """Raises HttpError 404 if the server keeps nothing."""
    if context.batches is None:
        raise HttpError(404, "this server keeps no files and batches: serve with --state-dir", code="not_found")
    return context.batches


async def add_file(context: Context, request: Request) -> Response:
    store = batch_store(context)
    boundary = boundary_of(request.headers.get("content-type", ""))
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > MOST_BYTES + _FORM_BYTES:
        message = f"the file is larger than the {MOST_BYTES} bytes that are accepted"
        raise HttpError(413, message, param="file", code="file_too_large", headers={"connection": "close"})
    file_id, path = store.new_file()
    try:
        with path.open("xb") as target:
            form = FormReader(boundary, target, MOST_BYTES)
            async for piece in request.stream():
                form.feed(piece)
            form.finish()
        file = _described(file_id, form)
        await context.workers.run(0, partial(store.add_file, file, owner_of(request.scope)))
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return _json(file)


def _described(file_id: str, form: FormReader) -> FileObject:
    purpose = form.fields.get("purpose")
    if purpose != "batch":
        raise InvalidRequest("`purpose` must be batch", "purpose", "invalid_value")
    now, expires = int(time.time()), None
    seconds = form.fields.get("expires_after[seconds]")
    if seconds is not None:
        if not seconds.isdecimal() or len(seconds) > _DIGITS or not _SHORTEST <= int(seconds) <= _LONGEST:
            message = f"`expires_after[seconds]` must be from {_SHORTEST} to {_LONGEST}"
            raise InvalidRequest(message, "expires_after[seconds]", "invalid_value")
        expires = now + int(seconds)
    name = (form.filename or "file")[:255]
    return FileObject(file_id, form.size, now, name, purpose, expires_at=expires)


async def list_files(context: Context, request: Request) -> Response:
    files = await context.workers.run(0, partial(batch_store(context).files, owner_of(request.scope)))
    query = request.query_params
    if query.get("purpose"):
        files = [file for file in files if file.purpose == query["purpose"]]
    if query.get("order", "desc") == "desc":
        files.reverse()
    shown, more = page(files, [file.id for file in files], request, 10000)
    return _json(FileList(shown, more, shown[0].id if shown else None, shown[-1].id if shown else None))


def page(items: Sequence[P], ids: Sequence[str], request: Request, most: int) -> tuple[list[P], bool]:
    """(The items after `after`, at most `limit`; whether more follow)."""
    query = request.query_params
    limit, after = query.get("limit", ""), query.get("after")
    count = int(limit) if limit.isdecimal() and len(limit) <= _DIGITS and int(limit) > 0 else most
    start = ids.index(after) + 1 if after in ids else 0
    end = start + min(count, most)
    return list(items[start:end]), end < len(items)


async def _found(context: Context, request: Request) -> FileObject:
    name = request.path_params["file_id"]
    file = await context.workers.run(0, partial(batch_store(context).file, name, owner_of(request.scope)))
    if file is None:
        raise _missing(name)
    return file


def _missing(name: str) -> HttpError:
    return HttpError(404, f"there is no file {name[:100]!r}", code="not_found")


async def show_file(context: Context, request: Request) -> Response:
    return _json(await _found(context, request))


async def show_content(context: Context, request: Request) -> Response:
    file = await _found(context, request)
    return FileResponse(batch_store(context).path(file.id), media_type="application/octet-stream")


async def delete_file(context: Context, request: Request) -> Response:
    name = (await _found(context, request)).id
    if name in await context.workers.run(0, batch_store(context).in_use):
        raise HttpError(409, "a batch reads this file: cancel it first", code="file_in_use")
    if not await context.workers.run(0, partial(batch_store(context).delete_file, name, owner_of(request.scope))):
        raise _missing(name)
    return _json(DeletedFile(name))


def _json(data: object) -> Response:
    return Response(msgspec.json.encode(data), media_type="application/json")


ROUTES = (
    RouteSpec(
        "POST",
        "/v1/files",
        add_file,
        "Keep a file",
        FileForm,
        FileObject,
        request_media="multipart/form-data",
    ),
    RouteSpec("GET", "/v1/files", list_files, "List the files", reply=FileList),
    RouteSpec("GET", "/v1/files/{file_id}", show_file, "Describe a file", reply=FileObject),
    RouteSpec("GET", "/v1/files/{file_id}/content", show_content, "A file's content", media="application/octet-stream"),
    RouteSpec("DELETE", "/v1/files/{file_id}", delete_file, "Delete a file", reply=DeletedFile, conflicts=True),
)
