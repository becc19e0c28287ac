"""The example, built once a session and installed into a folder of its own; a Python that sees it; a tiny model."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]


def install(source: Path, site: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    command += ["--disable-pip-version-check", "--target", str(site), str(source)]
    done = subprocess.run(command, check=False, timeout=600, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


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
def python(site: Path, request: pytest.FixtureRequest) -> Run:
    """`python(*arguments)` runs the interpreter with the example, and the harness of the engine's tests, on its path."""
    harness = request.config.rootpath / "tests" / "engine"
    environment = os.environ | {"PYTHONPATH": f"{site}{os.pathsep}{harness}", "OMP_NUM_THREADS": "1"}

    def run(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *arguments]
        return subprocess.run(
            command, env=environment, check=False, timeout=120, capture_output=True, text=True, **options
        )  # type: ignore[call-overload, no-any-return]

    return run


@pytest.fixture(scope="session")
def tiny(python: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of random weights with a byte tokenizer."""
    model = tmp_path_factory.mktemp("tiny")
    made = python("-c", "import sys, pathlib, server_harness as h; h.make_model(pathlib.Path(sys.argv[1]))", str(model))
    assert made.returncode == 0, made.stderr
    return model
