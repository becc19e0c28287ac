"""The pages at `/` and `/docs`: files of the package, read once, sent with headers that keep everything foreign out."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

from headrace.server.server_route import ServerRoute

__all__ = ["DOCS_PATHS", "PAGE_PATHS", "PageFile", "page_files", "page_routes"]

_FOLDERS = {"page": "/", "docs_page": "/docs"}
"""Folder → the path of its index.html. Its other files are at `/page/…` and `/docs/…`."""
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


def _paths(folder: str) -> dict[str, str]:
    """Path → file name."""
    names = sorted(entry.name for entry in (files("headrace.server") / folder).iterdir() if entry.is_file())
    start = folder.removesuffix("_page")
    return {_FOLDERS[folder] if name == _INDEX else f"/{start}/{name}": name for name in names}


PAGE_PATHS = frozenset(_paths("page"))
"""The paths of the page's files; they need no key."""
DOCS_PATHS = frozenset(_paths("docs_page"))
"""The same of the page that shows the OpenAPI document."""


@cache
def page_files() -> dict[str, PageFile]:
    """Path → file. Files refer to each other by relative paths, so that the pages also work behind a proxy's prefix."""
    found: dict[str, PageFile] = {}
    for folder in _FOLDERS:
        for path, name in _paths(folder).items():
            content = (files("headrace.server") / folder / name).read_bytes()
            media = _MEDIA["." + name.rpartition(".")[2]]
            found[path] = PageFile(content, media, f'"{hashlib.sha256(content).hexdigest()[:24]}"')
    return found


def page_routes() -> list[ServerRoute]:
    """The routes of the pages' files."""
    return [ServerRoute("GET", path, _endpoint(file)) for path, file in page_files().items()]


def _endpoint(file: PageFile) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        return file.answer(request)

    return endpoint
