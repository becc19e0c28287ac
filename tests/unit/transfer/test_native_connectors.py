"""NIXL and Mooncake in the suite of connectors, where they are installed, and what their processes do when they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.conformance.connector_peer import expected, names, put, tokens
from headrace.conformance.connectors import ConnectorSuite
from headrace.conformance.conversions import identity_of
from headrace.errors import ConfigError
from headrace.transfer.connectors import library_process
from headrace.transfer.connectors.connector import Arrival, Connector, ConnectorSettings, Order, Prefix
from headrace.transfer.connectors.finding import open_connector
from headrace.transfer.connectors.mooncake_connector import joined
from headrace.transfer.connectors.native_connector import NativeConnector
from headrace.transfer.identity import Identity

_IDENTITY = Identity("ab" * 16, b"layout-of-blocks", "bfloat16", 16, 5000, epoch=7)
_SETTINGS = ConnectorSettings(_IDENTITY, b"a secret", shelf_blocks=64, staging_blocks=16)


def _loads(module: str) -> bool:
    """In a process of its own: these libraries have threads."""
    found = subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True, check=False)
    return found.returncode == 0


def _skip_unless(module: str) -> None:
    if not _loads(module):
        pytest.skip(f"{module} is not installed, or lacks a library of the system")


class TestNixl(ConnectorSuite):
    connector = "nixl"
    converts = False

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def installed(cls) -> None:
        _skip_unless("nixl._api")


class TestMooncake(ConnectorSuite):
    connector = "mooncake"
    converts = False

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def installed(cls) -> None:
        _skip_unless("mooncake.engine")


class _StandIn(NativeConnector):
    name = "stand-in"
    library = "stand_in_library:StandInLibrary"


class _Broken(NativeConnector):
    name = "broken"
    library = "stand_in_library:BrokenLibrary"


@pytest.fixture
def ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Connector, Connector]]:
    """(here, the one that gives)"""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("HEADRACE_STAND_IN_LIBRARY", str(tmp_path))
    monkeypatch.setattr(library_process, "FENCE", 0.2)
    here, there = _StandIn(_SETTINGS), _StandIn(_SETTINGS)
    put(there, _IDENTITY, 1, 0, 12)
    yield here, there
    here.close()
    there.close()


def _fetch(here: Connector, there: Connector, timeout: float = 300.0) -> Arrival:
    ticket = here.fetch(Order(there.address, names(_IDENTITY, 1, 12), timeout))
    ended = _end(here)
    here.release(ticket)
    return ended


def _end(here: Connector) -> Arrival:
    """Of the only ticket."""
    while True:
        for arrival in here.poll():
            if arrival.state != "moving":
                return arrival
        time.sleep(0.001)


@pytest.mark.parametrize("fault", ["crash", "hang"])
def test_a_library_that_ends_is_a_failed_transfer(
    ends: tuple[Connector, Connector], tmp_path: Path, fault: str
) -> None:
    here, there = ends
    assert _fetch(here, there)[1:3] == (12, "sealed")
    (tmp_path / fault).touch()
    failed = _fetch(here, there, timeout=300.0 if fault == "crash" else 0.5)
    assert failed[1:3] == (0, "failed")
    assert "the library" in failed.reason or "deadline" in failed.reason
    (tmp_path / fault).unlink(missing_ok=True)  # There still, if the library began nothing before the deadline.
    assert _fetch(here, there)[1:3] == (12, "sealed")


def test_the_giving_side_starts_its_library_again(ends: tuple[Connector, Connector]) -> None:
    here, there = ends
    assert _fetch(here, there).state == "sealed"
    assert isinstance(there, _StandIn)
    process = there._process
    assert process is not None
    os.kill(process._process.pid, signal.SIGKILL)
    end = time.monotonic() + 300
    while process.alive():
        assert time.monotonic() < end
        time.sleep(0.01)
    # One transfer may find that the old memory is gone.
    assert "sealed" in (_fetch(here, there).state, _fetch(here, there).state)


def test_the_library_ends_with_its_engine(ends: tuple[Connector, Connector]) -> None:
    here, _ = ends
    assert isinstance(here, _StandIn)
    assert here._process is not None
    process = here._process._process
    here.close()
    assert process.poll() is not None


def test_a_library_that_cannot_be_opened_is_an_error_of_the_start(ends: tuple[Connector, Connector]) -> None:
    with pytest.raises(ConfigError, match="OSError: no such transport"):
        _Broken(_SETTINGS)


@pytest.mark.parametrize(("name", "module"), [("nixl", "nixl"), ("mooncake", "mooncake")])
def test_a_missing_library_says_how_to_get_it(
    name: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{module}.py").write_text("raise ImportError('not here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ConfigError, match=rf"pip install 'headrace\[{name}\]'"):
        open_connector(name, replace(_SETTINGS, shelf_blocks=1))


def test_slots_that_follow_each_other_are_one_read() -> None:
    assert joined([0, 10, 20, 40, 30], [50, 60, 70, 80, 90], 10) == [(0, 50, 30), (40, 80, 10), (30, 90, 10)]
    assert joined([0, 10], [50, 70], 10) == [(0, 50, 10), (10, 70, 10)]
    assert joined([], [], 10) == []


@pytest.mark.parametrize(
    ("theirs", "ours", "state", "reason"),
    [
        ((16, 2), (16, 1), "sealed", ""),
        ((32, 1), (16, 1), "failed", "block_size 32 and this engine 16"),
        ((16, 4), (16, 1), "failed", "use the connector tcp or shm"),
    ],
)
def test_blocks_of_one_size_only(
    ends: tuple[Connector, Connector], theirs: tuple[int, int], ours: tuple[int, int], state: str, reason: str
) -> None:
    """Another split is converted if that leaves the size of a block as it is."""
    there, here = (_StandIn(replace(_SETTINGS, identity=identity_of(*engine))) for engine in (theirs, ours))
    try:
        put(there, there.settings.identity, 1, 0, 4)
        prefix = Prefix(tokens(1, 64), 64, salt="1")
        hashes = names(here.settings.identity, 1, 3)
        ticket = here.fetch(Order(there.address, hashes, 300.0, prefix=prefix))
        ended = _end(here)
        assert ended.state == state
        assert reason in ended.reason
        found = [bytes(block) for block in here.blocks(ticket)]
        assert found == [expected(here.settings.identity, 1, at) for at in range(3 * (state == "sealed"))]
    finally:
        here.close()
        there.close()
