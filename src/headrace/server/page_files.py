"""The page at `/`: files of the package, read once, sent with headers that keep everything foreign out."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.resources import files

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

__all__ = ["PAGE_PATHS", "PageFile", "add_page", "page_files"]

_FOLDER = files("headrace.server") / "page"
_INDEX = "index.html"
_MEDIA = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        # A text can't become markup or a script in this page, whatever the model writes.
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    content: bytes
    media: str
    etag: str

    def answer(self, request: Request) -> Response:
        """The file, or 304 if the browser has it. A browser asks each time, so it never shows an old version."""
        headers = {**_HEADERS, "etag": self.etag}
        known = request.headers.get("if-none-match", "")
        if self.etag in (tag.strip().removeprefix("W/") for tag in known.split(",")):
            return Response(status_code=304, headers=headers)
        return Response(self.content, media_type=self.media, headers=headers)


def _names() -> list[str]:
    return sorted(entry.name for entry in _FOLDER.iterdir() if entry.is_file())


def _path(name: str) -> str:
    return "/" if name == _INDEX else f"/page/{name}"


PAGE_PATHS = frozenset(map(_path, _names()))
"""The paths of all files; they need no key."""


def page_files() -> dict[str, PageFile]:
    """Path → file. Files refer to each other by relative paths, so that the page also works behind a proxy's prefix."""
    found: dict[str, PageFile] = {}
    for name in _names():
        content = (_FOLDER / name).read_bytes()
        media = _MEDIA["." + name.rpartition(".")[2]]
        found[_path(name)] = PageFile(content, media, f'"{hashlib.sha256(content).hexdigest()[:24]}"')
    return found


def add_page(app: FastAPI) -> None:
    """Add the routes of the page's files, which the OpenAPI document leaves out."""
    for path, file in page_files().items():
        app.add_api_route(path, _endpoint(file), methods=["GET"], include_in_schema=False, response_class=Response)


def _endpoint(file: PageFile) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        return file.answer(request)

    return endpoint
