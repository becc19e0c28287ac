"""Results of earlier runs of the Triton report, by the content of the compiled kernels: unchanged kernels are not
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
    """The rows of a file by chip and kernel, each with its key; a file of another triton version counts as empty."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.compiled = 0
        """Launches that `find` did not find."""
        found = json.loads(path.read_text()) if path.exists() else {}
        self._rows: dict[str, dict[str, Row]] = found["chips"] if found.get("triton") == version("triton") else {}

    def find(self, chip: Chip, launch: Recorded) -> Row | None:
        """The row without its key; None if this launch was not compiled before."""
        row = self._rows.get(chip.name, {}).get(launch.name, {})
        if row.get("key") == key_of(launch, chip):
            return {**{name: value for name, value in row.items() if name != "key"}, "wants": launch.matrix or ""}
        self.compiled += 1
        return None

    def add(self, chip: Chip, launch: Recorded, row: Row) -> None:
        self._rows.setdefault(chip.name, {})[launch.name] = {"key": key_of(launch, chip), **row}

    def write(self) -> None:
        """Write JSON, one kernel per line."""
        chips = []
        for name, rows in sorted(self._rows.items()):
            lines = ",\n".join(f"  {json.dumps(kernel)}: {json.dumps(row)}" for kernel, row in sorted(rows.items()))
            chips.append(f" {json.dumps(name)}: {{\n{lines}\n }}")
        text = ",\n".join(chips)
        self._path.write_text(f'{{"triton": "{version("triton")}", "chips": {{\n{text}\n}}}}\n')


def key_of(launch: Recorded, chip: Chip) -> str:
    """A hash of everything that determines the machine code, except triton itself: the kernel's source with all
    functions and constants it uses, the specialization of the launch, and the chip. Comments and line numbers don't
    count."""
    from compile_report.code import specialise

    facts = [chip.backend, str(chip.arch), str(chip.lanes), str(launch.warps), str(launch.stages)]
    facts += [repr(part) for part in specialise(launch)]
    facts += [f"{name}: {text}" for name, text in sorted(sources_of(launch.kernel.fn).items())]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def sources_of(function: Any) -> dict[str, str]:
    """The sources of a function, of the functions it calls and of the constants it uses, by module and name."""
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
