"""Plugins: hook specifications, discovery by entry point (group `headrace.plugins`), and the choice of a platform.

Platforms with a score below `AUTO_SCORE` (10) are used only if the user names them.
"""

from headrace.plugins.contract_version import version_fault
from headrace.plugins.hooks import Hooks, hookimpl, hookspec
from headrace.plugins.info import PluginInfo
from headrace.plugins.plugin_discovery import GROUP, discover
from headrace.plugins.plugin_set import AUTO_SCORE, PlatformProbe, PluginSet

__all__ = [
    "AUTO_SCORE",
    "GROUP",
    "Hooks",
    "PlatformProbe",
    "PluginInfo",
    "PluginSet",
    "discover",
    "hookimpl",
    "hookspec",
    "version_fault",
]
