"""The suite on a platform that is named: collected by `runner.run`, and by nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.conformance.runner import Target
from headrace.conformance.suite import Suite
from headrace.platforms.interface import Device, Platform

__all__ = ["TestBackend"]


class TestBackend(Suite):
    @pytest.fixture(scope="class")
    @classmethod
    def examples(cls, request: pytest.FixtureRequest) -> int:
        return request.config.stash[Target.KEY].examples

    @pytest.fixture(scope="class")
    @classmethod
    def platform(cls, request: pytest.FixtureRequest) -> Platform:
        return request.config.stash[Target.KEY].platform

    @pytest.fixture(scope="class")
    @classmethod
    def device(cls, request: pytest.FixtureRequest) -> Iterator[Device]:
        target = request.config.stash[Target.KEY]
        device = target.platform.open(target.index, target.options)
        yield device
        device.close()
