"""The entry point that pytest loads if Headrace is installed: it sorts the tiers of suites that use the kit."""

from __future__ import annotations

import pytest

__all__ = ["pytest_addoption", "pytest_configure"]


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "calls of each operator and type in Headrace's conformance kit"
    parser.getgroup("headrace").addoption("--conformance-examples", type=int, metavar="N", help=text)


def pytest_configure(config: pytest.Config) -> None:
    from headrace.conformance.tier_plugin import TierPlugin

    if not any(isinstance(plugin, TierPlugin) for plugin in config.pluginmanager.get_plugins()):
        config.pluginmanager.register(TierPlugin(), "headrace-conformance-tiers")
