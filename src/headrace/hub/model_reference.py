"""References to models: parses what a user writes, and derives the name that clients see."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Repository", "display_name", "parse_repository"]

_REPOSITORY = re.compile(
    r"(?P<id>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<revision>[\w][\w./-]*))?(?::(?P<file>[\w][\w./ +-]*\.gguf))?"
)


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository of a model hub: `org/name`, `org/name@revision`, `org/name:file.gguf`."""

    id: str
    revision: str | None = None
    """A branch, a tag or a commit; None: the default branch."""
    file: str | None = None
    """The GGUF file; None: a directory of safetensors, or the only GGUF file there is."""


def parse_repository(text: str) -> Repository | None:
    """The repository that a text names; None if it names none. A text that is an existing path is not a repository."""
    match = _REPOSITORY.fullmatch(text)
    if match is None or ".." in text or Path(text).exists():
        return None
    return Repository(match["id"], match["revision"], match["file"])


def display_name(model: str) -> str:
    """The default name of a model for clients: a repository's id, else the last part of its path. Paths such as `.` are
    resolved first."""
    repository = parse_repository(model)
    if repository is not None:
        return repository.id
    name = Path(model).name
    return name if name not in ("", "..") else Path(model).expanduser().resolve().name or model
