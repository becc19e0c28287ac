"""The example, built once per test run and installed into a separate folder; a Python that finds it; a tiny model."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from example_harness import Run, install, interpreter


@pytest.fixture(scope="session")
def example_source(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    source = tmp_path_factory.mktemp("example") / "source"
    leave = shutil.ignore_patterns("build", "*.egg-info", "*.so", "__pycache__")
    shutil.copytree(request.config.rootpath / "examples" / "backend_plugin", source, ignore=leave)
    return source


@pytest.fixture(scope="session")
def site(example_source: Path) -> Path:
    target = example_source.with_name("site")
    install(example_source, target)
    return target


@pytest.fixture(scope="session")
def python(site: Path) -> Run:
    """A Python that sees the example."""
    return interpreter(site)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A checkpoint of random weights with a byte tokenizer."""
    model = tmp_path_factory.mktemp("tiny")
    tests = request.config.rootpath / "tests"
    make = "import sys, pathlib, server_harness as h; h.make_model(pathlib.Path(sys.argv[1]))"
    made = interpreter(tests, tests / "engine")("-c", make, str(model))
    assert made.returncode == 0, made.stderr
    return model
