"""The description of one plugin."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import PluginError

__all__ = ["PluginInfo"]


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """One entry point, loaded or not."""

    name: str
    target: str
    """The target of the entry point: a module, or `module:object`."""
    distribution: str
    """`unknown` if the entry point belongs to none."""
    version: str
    hooks: tuple[str, ...] = ()
    error: PluginError | None = None

    def __str__(self) -> str:
        return f"plugin {self.name!r} ({self.target}, {self.distribution} {self.version})"

    def fault(self, what: str) -> PluginError:
        """An error that names the plugin and its version."""
        return PluginError(f"{self}: {what}")
