"""Reads the file of keys: YAML, or JSON, which is YAML too."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml
from msgspec import Meta, Struct

from headrace.errors import ConfigError, truncate
from headrace.keys.limiter import Limits

__all__ = ["KeyEntry", "check_key", "read_keys"]

_log = logging.getLogger(__name__)
_Count = Annotated[int, Meta(ge=1)]
_Name = Annotated[str, Meta(pattern=r"^[\w][\w.@-]{0,63}\Z")]
_PATH = re.compile(r"at `\$([^`]*)`")
_STEP = re.compile(r"[^.\[\]]+")
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")


class KeyEntry(Struct, forbid_unknown_fields=True, frozen=True):
    """One client. Its name stands in logs and traces, and owns what the client stores."""

    name: _Name
    key: str | list[str] = []
    """The secret, or several while it is changed."""
    key_sha256: str | list[str] = []
    """The same as SHA-256 in hexadecimal digits, so that the file holds no secret."""
    requests_per_minute: _Count | None = None
    tokens_per_minute: _Count | None = None
    max_concurrency: _Count | None = None
    models: list[str] | None = None
    """Names of models that it may use; None: all."""
    batches: bool = True
    """Whether it may begin batches, whose lines count towards no limit."""
    private_cache: bool = False
    """Whether its prompts share cached prefixes with no other client's."""
    admin: bool = False
    """Whether it may call the routes that control the engine, or tell about all clients."""

    @property
    def keys(self) -> list[str]:
        return [self.key] if isinstance(self.key, str) else self.key

    @property
    def digests(self) -> list[str]:
        return [self.key_sha256] if isinstance(self.key_sha256, str) else self.key_sha256

    @property
    def limits(self) -> Limits:
        return Limits(self.requests_per_minute, self.tokens_per_minute, self.max_concurrency)


class _KeyFile(Struct, forbid_unknown_fields=True):
    keys: list[KeyEntry]


def read_keys(file: Path) -> list[KeyEntry]:
    """The entries, which are valid together. Raises ConfigError that never shows a key."""
    try:
        text = file.read_text(encoding="utf-8")
        shared = file.stat().st_mode & 0o004
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no UTF-8"
        raise ConfigError(f"the file of keys {file} cannot be read: {why}") from None
    if shared:
        _log.warning("every user of this machine can read the keys in %s: chmod o-r it", file)
    root = None
    try:
        root = yaml.compose(text, yaml.SafeLoader)
        _refuse_twice(root)
        found = msgspec.convert(yaml.safe_load(text), _KeyFile)
    except yaml.MarkedYAMLError as error:
        # The error's own text would quote the line.
        line = "" if error.problem_mark is None else f" line {error.problem_mark.line + 1}:"
        raise ConfigError(f"the file of keys {file}:{line} {error.problem or 'this is no YAML'}") from None
    except yaml.YAMLError:
        raise ConfigError(f"the file of keys {file} is no YAML: it has a character that cannot stand there") from None
    except (msgspec.ValidationError, RecursionError) as error:
        path = _PATH.search(str(error))
        raise ConfigError(
            f"the file of keys {file}:{_line(root, path[1] if path else '')} {_described(error)}"
        ) from None
    _check(file, found.keys, lambda index: _line(root, f".keys[{index}]"))
    return found.keys


def _line(root: Any, path: str) -> str:
    """` line N:` of what a path names (`.keys[1].name`), or of the innermost thing around it that is there."""
    node = root
    for step in _STEP.findall(path):
        inner = None
        if isinstance(node, yaml.SequenceNode) and step.isdecimal() and int(step) < len(node.value):
            inner = node.value[int(step)]
        elif isinstance(node, yaml.MappingNode):
            inner = next((value for key, value in node.value if key.value == step), None)
        if inner is None:
            break
        node = inner
    return "" if node is None else f" line {node.start_mark.line + 1}:"


def _refuse_twice(node: Any) -> None:
    """Refuse a mapping that has a key twice: the second would silently replace the first."""
    if not isinstance(node, yaml.CollectionNode):
        return
    seen = set[str]()
    for item in node.value:
        for part in item if isinstance(node, yaml.MappingNode) else (item,):
            _refuse_twice(part)
        if isinstance(node, yaml.MappingNode):
            name = str(item[0].value)
            if name in seen:
                raise yaml.MarkedYAMLError(None, None, f"{truncate(name)!r} stands here twice", item[0].start_mark)
            seen.add(name)


def _described(error: Exception) -> str:
    text = str(error)
    if "at `$." not in text:
        text += ": it must be a mapping with `keys`, a list of entries with `name` and `key`"
    return text


def _check(file: Path, entries: list[KeyEntry], line: Callable[[int], str]) -> None:
    """`line`: of an entry."""
    if not entries:
        raise ConfigError(f"the file of keys {file} has none: no client could get in")
    names, secrets = set[str](), set[str]()
    for index, entry in enumerate(entries):
        where = f"the file of keys {file}:{line(index)} {entry.name}"
        if entry.name in names:
            raise ConfigError(f"{where} stands there twice: give each entry a name of its own")
        names.add(entry.name)
        if not entry.keys and not entry.digests:
            raise ConfigError(f"{where} has neither `key` nor `key_sha256`")
        for key in entry.keys:
            check_key(key, f"the key of {entry.name} in {file},{line(index).removesuffix(':')},")
        for digest in entry.digests:
            if not _DIGEST.fullmatch(digest):
                raise ConfigError(f"{where}: `key_sha256` has 64 hexadecimal digits, as sha256sum prints them")
        for secret in (*entry.keys, *(digest.lower() for digest in entry.digests)):
            if secret in secrets:
                raise ConfigError(f"{where} has a key that stands there already: give each entry its own")
            secrets.add(secret)


def check_key(key: str, what: str) -> None:
    """Raise ConfigError for a key that no client could send. `what` names it in the message."""
    if not key:
        raise ConfigError(f"{what} is empty: give one, or leave the option out to serve without a key")
    if key != key.strip():
        raise ConfigError(f"{what} begins or ends with a space, which clients do not send")
    for at, letter in enumerate(key, 1):
        if not " " <= letter <= "~":
            raise ConfigError(
                f"character {at} of {what}, {letter!a}, cannot be sent in an HTTP header: use printable ASCII"
            )
