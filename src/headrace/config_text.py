"""Reads YAML and TOML into plain values, and tells the line of each."""

from __future__ import annotations

import re
import sys
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError

__all__ = ["Place", "WrittenConfig", "read_written"]

Place = tuple[Hashable, ...]
"""The keys and indices that lead to a value."""
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class WrittenConfig:
    """A file's mapping, and the lines of its keys and items."""

    file: Path
    values: dict[str, Any]
    lines: dict[Place, int]

    def error(self, place: Place, message: str) -> ConfigError:
        """The error about a value, with its file and line."""
        while place and place not in self.lines:
            place = place[:-1]
        line = self.lines.get(place)
        return ConfigError(f"{self.file}{'' if line is None else f', line {line}'}: {message}")


def read_written(file: Path) -> WrittenConfig:
    """Raises ConfigError for a file that cannot be read, is neither YAML nor TOML, or gives a key twice."""
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise ConfigError(f"{file}: a configuration has {_MOST_BYTES} bytes at most")
        text = file.read_text("utf-8")
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror or error}: give --config an existing file") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not UTF-8 text: a configuration is YAML or TOML") from None
    if file.suffix in (".yaml", ".yml", ".json"):
        return _yaml(file, text)
    if file.suffix == ".toml":
        return _toml(file, text)
    raise ConfigError(f"{file}: the name of a configuration ends in .yaml, .yml, .json or .toml")


def _yaml(file: Path, text: str) -> WrittenConfig:
    import yaml

    lines: dict[Place, int] = {}
    try:
        root = yaml.compose(text, yaml.SafeLoader)
        values = {} if root is None else yaml.safe_load(text)
        if root is not None:
            _note_lines(file, root, (), lines)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f", line {mark.line + 1}"
        why = getattr(error, "problem", None) or str(error)
        raise ConfigError(f"{file}{where}: this is not YAML: {why}") from None
    except RecursionError:
        raise ConfigError(f"{file}: this is nested too deeply") from None
    return WrittenConfig(file, _mapping(file, values), lines)


def _note_lines(file: Path, node: Any, place: Place, lines: dict[Place, int]) -> None:
    """Note the lines of a YAML node's keys and items. Raises ConfigError for a key that stands twice: YAML's readers
    would take the last."""
    if node.id == "sequence":
        for index, item in enumerate(node.value):
            here = (*place, index)
            lines[here] = item.start_mark.line + 1
            _note_lines(file, item, here, lines)
    elif node.id == "mapping":
        for key, value in node.value:
            here = (*place, str(key.value))
            line = key.start_mark.line + 1
            if here in lines:
                raise ConfigError(f"{file}, line {line}: {key.value!r:.100} stands in line {lines[here]} already")
            lines[here] = line
            _note_lines(file, value, here, lines)


def _toml(file: Path, text: str) -> WrittenConfig:
    if sys.version_info >= (3, 11):
        import tomllib as toml
    else:
        import tomli as toml

    try:
        values = toml.loads(text)
    except toml.TOMLDecodeError as error:
        raise ConfigError(f"{file}: this is not TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{file}: this is nested too deeply") from None
    return WrittenConfig(file, values, dict(_toml_lines(text)))


_HEADER = re.compile(r"\s*(\[\[?)\s*([\w.\"' -]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"\s*([\w-]+|\"[^\"]*\"|'[^']*')\s*=")


def _toml_lines(text: str) -> Iterator[tuple[Place, int]]:
    """The lines of headers and of simple keys; those of inline tables are on the line of their key."""
    place: Place = ()
    counts: dict[Place, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        header = _HEADER.match(line)
        if header is not None:
            place = tuple(part.strip(" \"'") for part in header[2].split("."))
            if header[1] == "[[":
                counts[place] = counts.get(place, -1) + 1
                place = (*place, counts[place])
            yield place, number
        elif (key := _KEY.match(line)) is not None:
            yield (*place, key[1].strip("\"'")), number


def _mapping(file: Path, values: Any) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise ConfigError(f"{file}: a configuration is a mapping of options to values, not {type(values).__name__}")
    return {str(key): value for key, value in values.items()}
