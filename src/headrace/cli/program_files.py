"""Finds programs in files: Python files with functions under `@program`, and plans as JSON."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError, HeadraceError, excerpt
from headrace.lang import LoadedPlan, Plan, Program, decode_plan

__all__ = ["compiled_plan", "open_program", "read_arguments", "read_rows"]


def open_program(where: str) -> Program | LoadedPlan:
    """The program of FILE.py (or FILE.py:NAME), or of a plan's document. Raises ConfigError and ProgramError."""
    found = _found(where)
    return found if isinstance(found, Program) else LoadedPlan(found)


def compiled_plan(where: str, static: Mapping[str, Any]) -> Plan:
    """The plan, not checked yet. `static`: the parameters that are known when compiling. Raises ProgramError."""
    found = _found(where)
    if isinstance(found, Program):
        return found.compile(**static)
    for name in static:
        raise ConfigError(f"{where} is a plan: it has been compiled, so there is no `{name}` to be given")
    return found


def _found(where: str) -> Program | Plan:
    file, _, name = where.partition(".py:")
    path = Path(f"{file}.py" if name else where)
    if path.suffix == ".py":
        return _from_python(path, name)
    try:
        return decode_plan(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None


def _from_python(path: Path, name: str) -> Program:
    programs = _programs(path)
    if name:
        if name not in programs:
            raise ConfigError(f"{path} has no program {name!r}; it has: {', '.join(programs) or 'none'}")
        return programs[name]
    if not programs:
        raise ConfigError(f"{path} has no program: put @program on a function over a state")
    # Programs that others use stand before them.
    return programs["main"] if "main" in programs else list(programs.values())[-1]


def _programs(path: Path) -> dict[str, Program]:
    """The programs that the file defines. It is executed, as `python FILE` would, but not as `__main__`."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    name = f"headrace_program_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # Annotations are looked up here.
    try:
        spec.loader.exec_module(module)
    except HeadraceError:
        raise
    except Exception as error:
        raise ConfigError(f"{path} cannot be executed: {type(error).__name__}: {excerpt(str(error), 200)}") from error
    return {key: value for key, value in vars(module).items() if isinstance(value, Program)}


def read_arguments(texts: Sequence[str]) -> dict[str, Any]:
    """NAME=VALUE: the value is JSON if it can be read so, else a text; NAME=@FILE is the text of a file. Raises
    ConfigError."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError(f"{excerpt(text)}: give an argument as NAME=VALUE")
        found[name] = _file_text(value[1:]) if value.startswith("@") else _value(value)
    return found


def read_rows(path: str) -> list[dict[str, Any]]:
    """Rows of arguments: a JSON object on each line. Raises ConfigError."""
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(_file_text(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise ConfigError(f"{path}:{number}: takes a JSON object of arguments, got {excerpt(line)}")
        rows.append(row)
    return rows


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _file_text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8") from None
