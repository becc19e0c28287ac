"""An import-linter contract: modules import what the table of ARCHITECTURE.md lets them, and the table lists nothing
more.

Each line of the table names folders and files of the package and, in its last column, the names that they may import.
A module belongs to the line with the longest name that fits it. A line lists only what stands above it, so there are no
cycles; `*` is everything above.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output

__all__ = ["Line", "TableContract", "faults_of", "read_table"]

_BRACES = re.compile(r"\{([^}]*)\}")


@dataclass(frozen=True, slots=True)
class Line:
    """Names are dotted, below the package."""

    names: tuple[str, ...]
    allowed: frozenset[str]
    used: set[str] = field(default_factory=set)


def read_table(text: str) -> list[Line]:
    """The lines of the first table whose last column is headed `imports`."""
    rows = (row for row in text.partition("| imports |\n")[2].splitlines())
    next(rows, None)
    found = []
    for row in rows:
        if not row.startswith("|"):
            break
        cells = row.strip().strip("|").split("|")
        names = [dotted for quoted in _quoted(cells[0]) for dotted in _dotted(quoted)]
        found.append(Line(tuple(names), frozenset(" ".join(_quoted(cells[-1])).split())))
    return found


def faults_of(lines: Sequence[Line], package: str, imports: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """The violations, one sentence each. `imports`: the modules of the package with their direct imports."""
    prefix = f"{package}."
    for module, others in sorted(imports.items()):
        line, _ = _find(module.removeprefix(prefix), lines)
        if line is None:
            yield f"{module} is in no line of the table"
            continue
        for other in sorted(name for name in others if name.startswith(prefix)):
            target, name = _find(other.removeprefix(prefix), lines)
            if target is None or target is line:
                continue
            line.used.add(name)
            if name not in line.allowed and "*" not in line.allowed:
                yield f"{module} imports {other}: {', '.join(line.names)} may not import {name}"
    above: set[str] = set()
    for line in lines:
        listed = line.used if "*" in line.allowed else line.allowed
        yield from (f"{line.names[0]} lists {name}, which nothing of it imports" for name in sorted(listed - line.used))
        yield from (f"{line.names[0]} imports {name}, which does not stand above it" for name in sorted(listed - above))
        above |= set(line.names)


def _quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]*)`", text)


def _dotted(name: str) -> Iterator[str]:
    """`platforms/{cpu,sim}/` gives `platforms.cpu` and `platforms.sim`."""
    parts = _BRACES.split(name.removesuffix("/").removesuffix(".py"))
    for chosen in product(*(part.split(",") if at % 2 else [part] for at, part in enumerate(parts))):
        yield "".join(chosen).replace("/", ".")


def _find(module: str, lines: Sequence[Line]) -> tuple[Line | None, str]:
    """The line and its name that match a module best."""
    fitting = [(len(name), line, name) for line in lines for name in line.names if f"{module}.".startswith(f"{name}.")]
    _, line, name = max(fitting, key=lambda found: found[0], default=(0, None, ""))
    return line, name


class TableContract(Contract):
    """`file`: the file of the table; `package`: the package of its modules; `free`: modules that may import
    everything."""

    type_name = "table"
    file = fields.StringField()
    package = fields.StringField()
    free = fields.ListField(subfield=fields.StringField(), required=False)

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        package, free = str(self.package), {f"{self.package}.{name}" for name in self.free or ()}  # type: ignore[attr-defined]
        modules = [name for name in graph.modules if name.startswith(f"{package}.") and name not in free]
        imports: dict[str, Any] = {name: graph.find_modules_directly_imported_by(name) for name in modules}
        lines = read_table(Path(str(self.file)).read_text(encoding="utf-8"))
        faults = list(faults_of(lines, package, imports))
        return ContractCheck(kept=bool(lines) and not faults, metadata={"faults": faults})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for fault in check.metadata["faults"]:
            output.print_error(fault)
