"""The constraints can be installed: on every supported Python, and with a torch that requires its own Triton."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]
PYTHONS = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
# Its first release without wheels for a Python that we promise.
WITHOUT_WHEELS = {"3.10": "3.9.0"}


def requirements(name: str) -> list[Requirement]:
    lines = (ROOT / "constraints" / name).read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("python", PYTHONS)
def test_every_python_gets_one_triton_that_has_wheels_for_it(python: str) -> None:
    machine = {"python_version": python, "platform_system": "Linux", "platform_machine": "x86_64"}
    (held,) = [one for one in requirements("triton.txt") if one.marker is None or one.marker.evaluate(machine)]
    (version,) = [pin.version for pin in held.specifier]
    assert held.name == "triton"
    assert str(held.specifier) == f"=={version}"
    assert version != WITHOUT_WHEELS.get(python)


def test_no_triton_if_the_dev_extra_does_not_require_it() -> None:
    machine = {"python_version": "3.12", "platform_system": "Linux", "platform_machine": "aarch64"}
    assert not [one for one in requirements("triton.txt") if one.marker is None or one.marker.evaluate(machine)]


def test_no_dependency_of_torch_is_pinned_in_the_same_call() -> None:
    """A build of torch with CUDA requires one exact Triton: a constraint to another leaves nothing to install."""
    assert [one.name for one in requirements("cpu.txt")] == ["torch"]


@pytest.mark.parametrize(("name", "dev"), [("Makefile", "'headrace[dev]'"), ("ci/torch.sh", "-e '.[dev]'")])
def test_triton_is_pinned_after_the_dev_extra_and_without_dependencies(name: str, dev: str) -> None:
    text = (ROOT / name).read_text()
    assert 0 < text.index(dev) < text.index("--no-deps -r constraints/triton.txt")


def test_the_dev_extra_brings_what_builds_the_example_without_isolation() -> None:
    """An environment of Python 3.10 or 3.11 begins with an older setuptools, which not every torch replaces."""
    wanted = re.search(
        r'requires = \["(setuptools.*)"\]', (ROOT / "examples" / "backend_plugin" / "pyproject.toml").read_text()
    )
    assert wanted
    assert f'"{wanted[1]}"' in (ROOT / "pyproject.toml").read_text().partition("\ndev = [")[2].partition("]")[0]
