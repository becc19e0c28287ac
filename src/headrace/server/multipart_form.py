"""Reads a form of the type multipart/form-data as it comes (RFC 7578): short fields, and one file onto the disk."""

from __future__ import annotations

import re
from typing import BinaryIO

from headrace.errors import InvalidRequest
from headrace.server.http_errors import HttpError

__all__ = ["FormReader", "boundary_of"]

_BOUNDARY = re.compile(r'multipart/form-data\s*;.*?boundary="?([^\s";]{1,70})"?', re.IGNORECASE | re.DOTALL)
_NAME = re.compile(r'[;\s]name="([^"]*)"')
_FILENAME = re.compile(r'[;\s]filename="((?:[^"\\]|\\.)*)"')
_MOST_HEAD = 8192
_MOST_FIELD = 65536
_MOST_FIELDS = 32


def boundary_of(content_type: str) -> bytes:
    """Raises InvalidRequest for another type of body."""
    found = _BOUNDARY.match(content_type)
    if found is None:
        raise InvalidRequest("send the file as multipart/form-data with a boundary", code="invalid_form")
    return found[1].encode("latin-1")


class FormReader:
    """Fed with the body's pieces. The part `file` goes to `target`, and all others into `fields`."""

    def __init__(self, boundary: bytes, target: BinaryIO, most: int) -> None:
        """`most`: bytes of the file."""
        self._line = b"\r\n--" + boundary
        self._target, self._most = target, most
        # The first boundary needs no line before it.
        self._rest = b"\r\n"
        self._state = "before"
        self._name: str | None = None
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        """None until the part `file` has come."""
        self.size = 0

    def feed(self, data: bytes) -> None:
        """Raises InvalidRequest for a malformed form, and HttpError 413 for a file that is too large."""
        self._rest += data
        while self._step():
            pass

    def finish(self) -> None:
        """Raises InvalidRequest for a form that does not end, or has no file."""
        if self._state != "end":
            raise InvalidRequest("the form ends in the middle", code="invalid_form")
        if self.filename is None:
            raise InvalidRequest("`file` is required", "file", "missing_required_parameter")

    def _step(self) -> bool:
        """Read one thing; False if more bytes are needed for it."""
        if self._state in ("before", "body"):
            return self._body()
        return self._head() if self._state == "head" else False

    def _body(self) -> bool:
        at, ends = self._next_boundary()
        # The end of what has come may be the beginning of a boundary.
        length = at if at >= 0 else max(0, len(self._rest) - len(self._line) + 1)
        if self._state == "body":
            self._take(self._rest[:length])
        self._rest = self._rest[length + len(self._line) * ends :]
        if ends:
            self._state = "head"
        return ends

    def _next_boundary(self) -> tuple[int, bool]:
        """(Where the next boundary is or may be, or -1; whether it is one: what follows it must have come)."""
        at = self._rest.find(self._line)
        while at >= 0:
            follows = self._rest[at + len(self._line) :][:2]
            if len(follows) < 2 or follows in (b"--", b"\r\n"):
                return at, len(follows) == 2
            at = self._rest.find(self._line, at + 1)
        return -1, False

    def _head(self) -> bool:
        if self._rest.startswith(b"--"):
            self._state = "end"
            return False
        at = self._rest.find(b"\r\n\r\n")
        if at < 0:
            if len(self._rest) > _MOST_HEAD:
                raise InvalidRequest("the form's headers are too long", code="invalid_form")
            return False
        self._begin(self._rest[:at].decode("utf-8", "replace"))
        self._rest = self._rest[at + 4 :]
        self._state = "body"
        return True

    def _begin(self, head: str) -> None:
        found = _NAME.search(head)
        if found is None:
            raise InvalidRequest("a part of the form has no name", code="invalid_form")
        self._name = found[1]
        if self._name == "file":
            if self.filename is not None:
                raise InvalidRequest("the form has two files", "file", "invalid_form")
            named = _FILENAME.search(head)
            self.filename = named[1] if named is not None else "file"
        elif self._name in self.fields or len(self.fields) == _MOST_FIELDS:
            raise InvalidRequest(f"the form has too many fields {self._name!r:.60}", code="invalid_form")
        else:
            self.fields[self._name] = ""

    def _take(self, data: bytes) -> None:
        assert self._name is not None
        if self._name == "file":
            self.size += len(data)
            if self.size > self._most:
                message = f"the file is larger than the {self._most} bytes that are accepted"
                raise HttpError(413, message, param="file", code="file_too_large", headers={"connection": "close"})
            self._target.write(data)
            return
        self.fields[self._name] += data.decode("utf-8", "replace")
        if len(self.fields[self._name]) > _MOST_FIELD:
            raise InvalidRequest(f"the form's field {self._name!r:.60} is too long", code="invalid_form")
