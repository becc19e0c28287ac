"""What a module offers stands in its `__all__`, and nothing else does."""

from __future__ import annotations

import ast
import importlib.util
import pkgutil
from pathlib import Path

import pytest

import headrace

ROOT = Path(headrace.__file__).parent
MODULES = sorted(m.name for m in pkgutil.walk_packages([str(ROOT)], "headrace.") if "__main__" not in m.name)


def declared(source: str) -> list[str] | None:
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return [str(name) for name in ast.literal_eval(node.value)]
    return None


@pytest.mark.parametrize("name", MODULES)
def test_all_names_exist_and_are_sorted_once(name: str) -> None:
    source = Path(importlib.util.find_spec(name).origin)
    names = declared(source.read_text())
    if names is None:
        return
    assert len(names) == len(set(names))
    if name.rpartition(".")[2] == "pallas" or ".pallaslib" in name:
        pytest.importorskip("jax", reason="Pallas kernels need JAX, which only the extra tpu installs")
    module = importlib.import_module(name)
    assert [n for n in names if not hasattr(module, n)] == []


def test_the_package_exports_its_public_names() -> None:
    assert sorted(headrace.__all__) == ["AsyncLLM", "LLM", "SamplingParams", "StructuredOutputs", "__version__"]
    for name in headrace.__all__:
        assert getattr(headrace, name) is not None


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_files_are_not_too_long(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400
