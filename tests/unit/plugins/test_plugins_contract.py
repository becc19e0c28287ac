"""The contract's 23 names, and that finding platforms costs nothing."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from headrace.platforms import interface
from headrace.plugins import GROUP, discover

IN_TREE = [EntryPoint(name, f"headrace.platforms.{name}", GROUP) for name in ("cpu", "sim")]


def test_the_contract_is_the_23_public_members_of_the_protocols() -> None:
    protocols = ("Platform", "Device", "Executable", "Pending", "Communicator")
    members = set()
    for name in protocols:
        protocol = getattr(interface, name)
        own = {*vars(protocol), *vars(protocol).get("__annotations__", {})}
        members |= {f"{name}.{m}" for m in own if not m.startswith("_") or m == "__call__"}
    assert members == set(interface.CONTRACT)
    assert len(interface.CONTRACT) == 23


def test_in_tree_platforms_satisfy_the_protocol_and_only_cpu_is_chosen_unasked() -> None:
    plugins = discover(IN_TREE)
    assert plugins.failures == ()
    assert all(isinstance(platform, interface.Platform) for platform in plugins.platforms().values())
    assert plugins.select_platform()[0].name == "cpu"
    assert plugins.select_platform("sim")[0].name == "sim"


@pytest.mark.parametrize("name", ["cpu", "sim"])
def test_importing_probing_and_listing_loads_no_torch(name: str) -> None:
    code = (
        f"import sys; from headrace.platforms import {name} as m; p, = m.headrace_platforms();"
        "p.probe(); p.devices(); import headrace.plugins; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=300).returncode == 0


def test_pyproject_names_the_in_tree_plugins(request: pytest.FixtureRequest) -> None:
    text = (request.config.rootpath / "pyproject.toml").read_text()
    for entry in IN_TREE:
        assert f'{entry.name} = "{entry.value}"' in text
