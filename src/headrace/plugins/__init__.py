"""Plugins: hook specifications, discovery by entry point (group `headrace.plugins`), and the choice of a platform.

Platforms with a score below `AUTO_SCORE` (10) are used only where they are named.
"""

from headrace.plugins.discovery import GROUP, discover
from headrace.plugins.hooks import Hooks, hookimpl, hookspec
from headrace.plugins.info import PluginInfo
from headrace.plugins.select import AUTO_SCORE, PluginSet, Probe
from headrace.plugins.version import version_fault

__all__ = [
    "AUTO_SCORE",
    "GROUP",
    "Hooks",
    "PluginInfo",
    "PluginSet",
    "Probe",
    "discover",
    "hookimpl",
    "hookspec",
    "version_fault",
]
