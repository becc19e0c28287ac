"""What earlier runs of the Triton report found, by the content of what they compiled: what is the same need not be
compiled again."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import textwrap
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

from compile_report.chips import Chip
from compile_report.shipped import Recorded

__all__ = ["Known", "key_of", "sources_of"]

Row = dict[str, Any]


class Known:
    """Rows of a file by chip and kernel, each with the key of what was compiled; those of another triton are none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.compiled = 0
        """Launches that `find` did not know."""
        found = json.loads(path.read_text()) if path.exists() else {}
        self._rows: dict[str, dict[str, Row]] = found["chips"] if found.get("triton") == version("triton") else {}

    def find(self, chip: Chip, launch: Recorded) -> Row | None:
        """Without its key; None where nothing or something else was compiled."""
        row = self._rows.get(chip.name, {}).get(launch.name, {})
        if row.get("key") == key_of(launch, chip):
            return {**{name: value for name, value in row.items() if name != "key"}, "wants": launch.matrix or ""}
        self.compiled += 1
        return None

    def add(self, chip: Chip, launch: Recorded, row: Row) -> None:
        self._rows.setdefault(chip.name, {})[launch.name] = {"key": key_of(launch, chip), **row}

    def write(self) -> None:
        """JSON, a kernel a line."""
        chips = []
        for name, rows in sorted(self._rows.items()):
            lines = ",\n".join(f"  {json.dumps(kernel)}: {json.dumps(row)}" for kernel, row in sorted(rows.items()))
            chips.append(f" {json.dumps(name)}: {{\n{lines}\n }}")
        text = ",\n".join(chips)
        self._path.write_text(f'{{"triton": "{version("triton")}", "chips": {{\n{text}\n}}}}\n')


def key_of(launch: Recorded, chip: Chip) -> str:
    """Of all that the machine code follows from, but for triton itself: the kernel's source with every function and
    constant that it uses, how the launch specialises it, and the chip. Comments and places in the file do not count."""
    from compile_report.code import specialise

    told = [chip.backend, str(chip.arch), str(chip.lanes), str(launch.warps), str(launch.stages)]
    told += [repr(part) for part in specialise(launch)]
    told += [f"{name}: {text}" for name, text in sorted(sources_of(launch.kernel.fn).items())]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:16]


def sources_of(function: Any) -> dict[str, str]:
    """A function of Python, the functions that it calls and the constants that it names, by module and name: how they
    read."""
    found: dict[str, str] = {}
    _collect(function, found)
    return found


def _collect(function: Any, into: dict[str, str]) -> None:
    name = f"{function.__module__}.{function.__qualname__}"
    if name in into:
        return
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    (definition,) = tree.body
    assert isinstance(definition, ast.FunctionDef)
    if ast.get_docstring(definition) is not None:
        definition.body = definition.body[1:]
    into[name] = ast.dump(tree)
    known: Mapping[str, Any] = function.__globals__
    for used in sorted({node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} & known.keys()):
        value = known[used]
        inner = getattr(value, "fn", value)
        if inspect.isfunction(inner):
            if not inner.__module__.startswith("triton."):  # triton's own follow from its version
                _collect(inner, into)
        elif not isinstance(value, ModuleType | type):
            into[f"{function.__module__}.{used}"] = repr(value)
