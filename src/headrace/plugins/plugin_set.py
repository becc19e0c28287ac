"""The installed plugins, and the choice among their platforms."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import pluggy

from headrace.errors import ConfigError, PlatformError, PluginError
from headrace.platforms.interface import Platform
from headrace.plugins.contract_version import version_fault
from headrace.plugins.info import PluginInfo
from headrace.suggestions import did_you_mean

__all__ = ["AUTO_SCORE", "PlatformProbe", "PluginSet"]

_T = TypeVar("_T")
AUTO_SCORE = 10
"""The lowest score of a platform that is chosen automatically. Simulators and experiments have lower scores."""


@dataclass(frozen=True, slots=True)
class PlatformProbe:
    """The result of a platform's probe on this machine."""

    platform: Platform
    plugin: PluginInfo
    score: int
    reason: str


class PluginSet:
    """Plugins in the order of their entry points. `plugins` also contains those that failed to load."""

    def __init__(self, manager: pluggy.PluginManager, plugins: tuple[PluginInfo, ...]) -> None:
        self._manager = manager
        self.plugins = plugins

    @property
    def failures(self) -> tuple[PluginError, ...]:
        return tuple(info.error for info in self.plugins if info.error is not None)

    def platforms(self) -> dict[str, Platform]:
        """Platforms by name. Raises PluginError if a hook fails, or a platform violates the contract or uses another's
        name."""
        return {name: platform for name, (platform, _) in self._platforms().items()}

    def probes(self) -> list[PlatformProbe]:
        """Every platform's score and reason, the best first. Raises as `platforms` does, and if a probe raises."""
        probes = [_probe(platform, info) for platform, info in self._platforms().values()]
        return sorted(probes, key=lambda probe: (-probe.score, probe.platform.name))

    def survey(self) -> tuple[list[PlatformProbe], list[PluginError]]:
        """The probes that succeed, and the errors of the other plugins. For reports only: a choice must not ignore
        errors."""
        found: dict[str, tuple[Platform, PluginInfo]] = {}
        faults: list[PluginError] = []
        hook = "headrace_platforms"
        for info, function in self._implementations(hook):
            _collecting(
                faults,
                lambda info, function: _admit(found, info, _call_hook(info, hook, function, list)),
                info,
                function,
            )
        asked = (_collecting(faults, _probe, platform, info) for platform, info in found.values())
        probes = [probe for probe in asked if probe is not None]
        return sorted(probes, key=lambda probe: (-probe.score, probe.platform.name)), faults

    def select_platform(self, name: str | None = None) -> tuple[Platform, str]:
        """The platform of that name, or the one with the highest score of at least AUTO_SCORE; and the reason.

        Raises ConfigError for an unknown name, PlatformError if it cannot be used here, and PluginError if a plugin
        that failed to load may provide the platform: for an unknown name, or without a name.
        """
        if name is None:
            return self._best()
        known = self._platforms()
        if name not in known:
            self._raise_failure()
            there = ", ".join(sorted(known)) or "none"
            raise ConfigError(f"platform {name!r} is not installed; there are {there}{did_you_mean(name, known)}")
        found = _probe(*known[name])
        if found.score <= 0:
            raise PlatformError(f"platform {name!r} cannot be used here: {found.reason}")
        return found.platform, f"{name}: asked for by name ({found.reason})"

    def models(self) -> dict[str, str]:
        """Architecture → `module:attribute`."""
        return self._merged("headrace_models")

    def quant_schemes(self) -> dict[str, str]:
        """Quantisation method → `module:attribute`."""
        return self._merged("headrace_quant_schemes")

    def weight_loaders(self) -> dict[str, str]:
        """File suffix → `module:attribute`."""
        return self._merged("headrace_weight_loaders")

    def formats(self) -> dict[str, str]:
        """Name of a tool or reasoning format → `module:attribute`."""
        return self._merged("headrace_formats")

    def grammar_backends(self) -> dict[str, str]:
        """Name → `module:attribute`."""
        return self._merged("headrace_grammar_backends")

    def drafters(self) -> dict[str, str]:
        """Name of a speculation method → `module:attribute`."""
        return self._merged("headrace_drafters")

    def kv_connectors(self) -> dict[str, str]:
        """Name of a connector → `module:attribute`."""
        return self._merged("headrace_kv_connectors")

    def find(self, hook: str, key: str) -> object | None:
        """The object that a plugin provides for a key of one of the hooks above; None if no plugin does.

        Raises PluginError that names the plugin if the object cannot be loaded, if two plugins differ, and, for a key
        that no plugin provides, if a plugin that failed to load may provide it.
        """
        self._merged(hook)
        for info, table in self._call(hook, dict):
            if key in table:
                return _load(info, f"hook {hook}, {key!r}", table[key])
        if self.failures:
            raise PluginError(f"{self.failures[0]}. Repair or uninstall it: it may provide {key!r}")
        return None

    def provider(self, hook: str, key: str) -> PluginInfo | None:
        """The plugin that provides a key of one of the hooks above. Raises PluginError if a hook fails."""
        return next((info for info, table in self._call(hook, dict) if key in table), None)

    def _best(self) -> tuple[Platform, str]:
        self._raise_failure()
        probes = self.probes()
        usable = [probe for probe in probes if probe.score >= AUTO_SCORE]
        if not usable:
            reasons = "; ".join(f"{probe.platform.name}: {probe.reason}" for probe in probes)
            reasons = reasons or "no platform is installed"
            raise PlatformError(f"no platform can be used here ({reasons}): install one, or name one")
        best = usable[0]
        others = ", ".join(f"{probe.platform.name} {probe.score}" for probe in probes[1:])
        return best.platform, f"{best.platform.name}: score {best.score}, {best.reason}" + (
            f" (scores of others: {others})" if others else ""
        )

    def _raise_failure(self) -> None:
        """Raise the error of a plugin that failed: ignoring it could choose another device silently."""
        if self.failures:
            raise PluginError(f"{self.failures[0]}. Repair or uninstall it, or choose a platform by name")

    def _platforms(self) -> dict[str, tuple[Platform, PluginInfo]]:
        found: dict[str, tuple[Platform, PluginInfo]] = {}
        for info, platforms in self._call("headrace_platforms", list):
            _admit(found, info, platforms)
        return found

    def _merged(self, hook: str) -> dict[str, str]:
        merged: dict[str, str] = {}
        for info, table in self._call(hook, dict):
            for key, target in table.items():
                if merged.setdefault(key, target) != target:
                    raise info.fault(f"hook {hook}: {key!r} is {merged[key]!r} already")
        return merged

    def _call(self, hook: str, read: Callable[[Any], Any]) -> list[tuple[PluginInfo, Any]]:
        """Each plugin's result, in entry-point order; an exception becomes a PluginError that names plugin and hook."""
        return [(info, _call_hook(info, hook, function, read)) for info, function in self._implementations(hook)]

    def _implementations(self, hook: str) -> Iterator[tuple[PluginInfo, Callable[[], Any]]]:
        # A plugin that failed may have registered some of its hooks.
        loaded: Mapping[str, PluginInfo] = {info.name: info for info in self.plugins if info.error is None}
        for implementation in getattr(self._manager.hook, hook).get_hookimpls():
            info = loaded.get(implementation.plugin_name)
            if info is not None:
                yield info, implementation.function


def _collecting(faults: list[PluginError], ask: Callable[..., _T], *values: Any) -> _T | None:
    """The result of a call; None if it raises a PluginError, which is added to `faults`."""
    try:
        return ask(*values)
    except PluginError as fault:
        faults.append(fault)
        return None


def _call_hook(info: PluginInfo, hook: str, function: Callable[[], Any], read: Callable[[Any], Any]) -> Any:
    try:
        return read(function())
    except Exception as error:
        raise info.fault(f"hook {hook} failed: {type(error).__name__}: {error}") from error


def _admit(found: dict[str, tuple[Platform, PluginInfo]], info: PluginInfo, platforms: Iterable[Any]) -> None:
    """Add the platforms of a plugin. Raises PluginError for one that violates the contract or uses another's name."""
    for platform in platforms:
        try:
            valid = isinstance(platform, Platform)
            fault = version_fault(platform.api_version) if valid else None
        # Members may be properties that fail in any way.
        except Exception as error:
            raise info.fault(f"hook headrace_platforms: {type(error).__name__}: {error}") from error
        if not valid:
            raise info.fault(f"hook headrace_platforms returned {platform!r}, which lacks members of Platform")
        if fault is not None:
            raise info.fault(f"platform {platform.name!r}: {fault}")
        if platform.name in found:
            raise info.fault(f"platform {platform.name!r} is already provided by {found[platform.name][1]}")
        found[platform.name] = platform, info


def _load(info: PluginInfo, what: str, path: str) -> object:
    """Load `module:attribute` of a plugin."""
    module, _, name = str(path).partition(":")
    try:
        found: object = getattr(importlib.import_module(module), name)
    # As at discovery: an import may fail in any way.
    except Exception as error:
        raise info.fault(f"{what}: {path!r} cannot be loaded: {type(error).__name__}: {error}") from error
    return found


def _probe(platform: Platform, info: PluginInfo) -> PlatformProbe:
    try:
        score, reason = platform.probe()
        return PlatformProbe(platform, info, int(score), str(reason))
    except Exception as error:
        what = f"platform {platform.name!r}: probe raised {type(error).__name__}: {error}; it must return (0, reason)"
        raise info.fault(what) from error
