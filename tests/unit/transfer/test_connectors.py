"""The connectors that ship, in the suite that every connector runs."""

from __future__ import annotations

from headrace.conformance.connectors import ConnectorSuite


class TestMemory(ConnectorSuite):
    connector = "memory"
    in_process = True


class TestSharedMemory(ConnectorSuite):
    connector = "shm"


class TestTCP(ConnectorSuite):
    connector = "tcp"
