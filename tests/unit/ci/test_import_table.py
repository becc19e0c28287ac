"""The table of ARCHITECTURE.md is what the linter checks: planted faults are found."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
TABLE = """
| in `src/` | contents | imports |
|---|---|---|
| `types.py`, `errors.py` | plain data | |
| `core/` | the core | `types` |
| `platforms/{cpu,sim}/` | backends | `types errors` |
| `cli/` | verbs | `*` |

| another | imports |
"""
SOUND = {
    "p.types": ["p.errors", "numpy"],
    "p.errors": [],
    "p.core.plan": ["p.types", "p.core.queue"],
    "p.platforms.cpu": ["p.types"],
    "p.platforms.sim.clock": ["p.errors"],
    "p.cli.main": ["p.core.plan", "p.platforms.cpu"],
}


@pytest.fixture(scope="module")
def table() -> ModuleType:
    spec = importlib.util.spec_from_file_location("import_table", ROOT / "tools" / "import_table.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made  # dataclasses look their module up
    spec.loader.exec_module(made)
    return made


def test_a_valid_package_has_no_faults(table: ModuleType) -> None:
    assert list(table.faults_of(table.read_table(TABLE), "p", SOUND)) == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"p.core.plan": ["p.types", "p.errors"]}, "p.core.plan imports p.errors: core may not import errors"),
        ({"p.core.plan": []}, "core lists types, which nothing of it imports"),
        ({"p.extra": []}, "p.extra is in no line of the table"),
        ({"p.types": ["p.core.plan"]}, "p.types imports p.core.plan: types, errors may not import core"),
        ({"p.cli.main": ["p.cli.more", "p.cli"], "p.corex": []}, "p.corex is in no line of the table"),
    ],
)
def test_faults_are_named(table: ModuleType, change: dict[str, list[str]], fault: str) -> None:
    assert list(table.faults_of(table.read_table(TABLE), "p", {**SOUND, **change})) == [fault]


def test_a_row_lists_only_rows_above_it(table: ModuleType) -> None:
    lines = table.read_table(TABLE.replace("| plain data | |", "| plain data | `core` |"))
    changed = {**SOUND, "p.types": ["p.core.plan"]}
    assert list(table.faults_of(lines, "p", changed)) == ["types imports core, which does not stand above it"]


def test_the_projects_own_table_is_found(table: ModuleType) -> None:
    lines = table.read_table((ROOT / "ARCHITECTURE.md").read_text())
    names = {name for line in lines for name in line.names}
    assert {"types", "core", "platforms.tpu", "engine", "cli"} <= names
