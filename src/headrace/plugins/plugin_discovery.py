"""Finds plugins by entry point, loads each, and records their errors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points

import pluggy

from headrace.errors import PluginError
from headrace.plugins.hooks import PROJECT, Hooks
from headrace.plugins.info import PluginInfo
from headrace.plugins.plugin_set import PluginSet

__all__ = ["GROUP", "discover"]

GROUP = "headrace.plugins"


def discover(found: Iterable[EntryPoint] | None = None) -> PluginSet:
    """Load every plugin of the group `headrace.plugins`. Never raises: a plugin that fails to load is recorded with its
    PluginError, which is raised when a choice might depend on it."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(Hooks)
    points = entry_points(group=GROUP) if found is None else found
    # A distribution that is on the path twice has every entry point twice.
    distinct = {(point.name, point.value): point for point in points}
    return PluginSet(manager, tuple(_load(manager, point) for point in distinct.values()))


def _load(manager: pluggy.PluginManager, point: EntryPoint) -> PluginInfo:
    dist = point.dist
    name, version = (dist.name, dist.version) if dist is not None else ("unknown", "unknown")
    info = PluginInfo(point.name, point.value, name, version)
    try:
        return replace(info, hooks=_register(manager, point, info))
    except PluginError as error:
        return replace(info, error=error)


def _register(manager: pluggy.PluginManager, point: EntryPoint, info: PluginInfo) -> tuple[str, ...]:
    """Load and register a plugin. Returns the names of the hooks that it implements."""
    try:
        plugin = point.load()
    # A plugin's import may fail in any way, a missing driver library's OSError included.
    except (Exception, SystemExit) as error:
        raise info.fault(f"cannot be loaded: {type(error).__name__}: {error}") from error
    try:
        manager.register(plugin, point.name)
    except pluggy.PluginValidationError as error:
        raise info.fault(f"does not fit a hook: {error}") from error
    except ValueError as error:
        raise info.fault(f"is registered already: {error}") from error
    # Registration reads its members, which may be properties.
    except Exception as error:
        raise info.fault(f"cannot be registered: {type(error).__name__}: {error}") from error
    callers = manager.get_hookcallers(plugin) or []
    known = [name for name in dir(Hooks) if name.startswith(f"{PROJECT}_")]
    unknown = [caller.name for caller in callers if not caller.has_spec()]
    if unknown or not callers:
        manager.unregister(plugin)
        what = (
            f"implements unknown hook {unknown[0]}"
            if unknown
            else "implements no hook (are they marked with hookimpl?)"
        )
        raise info.fault(f"{what}; there are {', '.join(known)}")
    return tuple(sorted(caller.name for caller in callers))
