"""The suite on a named platform; only `kit_runner.run` collects it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.conformance.kit_runner import KitTarget
from headrace.conformance.suite import Suite
from headrace.platforms.interface import Device, Platform

__all__ = ["TestBackend"]


class TestBackend(Suite):
    @pytest.fixture(scope="class")
    @classmethod
    def examples(cls, request: pytest.FixtureRequest) -> int:
        return request.config.stash[KitTarget.KEY].examples

    @pytest.fixture(scope="class")
    @classmethod
    def platform(cls, request: pytest.FixtureRequest) -> Platform:
        return request.config.stash[KitTarget.KEY].platform

    @pytest.fixture(scope="class")
    @classmethod
    def device(cls, request: pytest.FixtureRequest) -> Iterator[Device]:
        target = request.config.stash[KitTarget.KEY]
        device = target.platform.open(target.index, target.options)
        yield device
        device.close()
