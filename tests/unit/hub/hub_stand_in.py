"""A model hub on loopback for huggingface_hub, which records every request."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

__all__ = ["Hub", "serving"]

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """`files` by repository and name."""

    repositories: dict[str, Mapping[str, bytes]]
    token: str | None = None
    """Required in every request for the repositories in `gated`."""
    gated: frozenset[str] = frozenset()
    cut: dict[str, int] = field(default_factory=dict)
    """Bytes after which the first answer with this file is interrupted."""
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    """(method, path, Range)"""
    url: str = ""

    def fetched(self) -> list[str]:
        """Names of the files whose content was sent."""
        return [path.rpartition("/")[2] for method, path, _ in self.asked if method == "GET" and "/resolve/" in path]


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    class Handler(_Handler):
        pass

    Handler.hub = hub
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append((self.command, path, self.headers.get("Range", "")))
        parts = path.strip("/").split("/")
        repository = "/".join(parts[2:4] if parts[0] == "api" else parts[:2])
        files = self.hub.repositories.get(repository)
        if files is None:
            self._error(404, "RepoNotFound", "Repository not found")
        elif repository in self.hub.gated and self.headers.get("Authorization") != f"Bearer {self.hub.token}":
            self._error(403, "GatedRepo", "Access to this repository is restricted")
        elif parts[0] == "api":
            self._describe(repository, files, parts[4:])
        elif parts[3] not in ("main", COMMIT):
            self._error(404, "RevisionNotFound", "Invalid rev id")
        else:
            self._file(files, "/".join(parts[4:]))

    def _describe(self, repository: str, files: Mapping[str, bytes], rest: list[str]) -> None:
        if rest[:1] in (["revision"], ["tree"]) and rest[1] not in ("main", COMMIT):
            self._error(404, "RevisionNotFound", "Invalid rev id")
        elif rest[:1] == ["tree"]:
            entries = [
                {"type": "file", "path": name, "size": len(data), "oid": _etag(data)} for name, data in files.items()
            ]
            self._json(200, entries)
        else:
            siblings = [{"rfilename": name} for name in files]
            self._json(200, {"id": repository, "modelId": repository, "sha": COMMIT, "siblings": siblings, "tags": []})

    def _file(self, files: Mapping[str, bytes], name: str) -> None:
        data = files.get(name)
        if data is None:
            self._error(404, "EntryNotFound", "Entry not found")
            return
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0])
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{_etag(data)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Accept-Ranges", "bytes")
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        if self.command == "GET":
            end = self.hub.cut.pop(name, None)
            self.wfile.write(data[start:end])
            if end is not None:
                self.close_connection = True

    def _json(self, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def _error(self, status: int, code: str, message: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", message)
        self.send_header("Content-Length", "0")
        self.end_headers()


def _etag(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()
