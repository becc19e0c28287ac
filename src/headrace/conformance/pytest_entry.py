"""Loaded by pytest wherever Headrace is installed: orders tiers and skips after a failure in suites that adopt the kit."""

from __future__ import annotations

import pytest

__all__ = ["pytest_configure"]


def pytest_configure(config: pytest.Config) -> None:
    from headrace.conformance.plugin import TierPlugin

    if not any(isinstance(plugin, TierPlugin) for plugin in config.pluginmanager.get_plugins()):
        config.pluginmanager.register(TierPlugin(), "headrace-conformance-tiers")
