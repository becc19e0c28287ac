"""Loads architectures, quantization schemes and weight files from plugins, only for what is not built in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.errors import PluginError
from headrace.models.assemble import Source
from headrace.models.family import Family
from headrace.plugins import PluginSet, discover
from headrace.quant.methods import SchemeFactory

__all__ = ["Extensions"]


class Extensions:
    """The plugins' extensions.

    Plugins are discovered at the first call, so that built-in families don't wait for them.
    """

    def __init__(self, discovered: Callable[[], PluginSet] = discover) -> None:
        self._discover = discovered
        self._found: PluginSet | None = None

    def family(self, architecture: str) -> Family | None:
        """A plugin's family. Raises PluginError like `PluginSet.find`, and if the object is not a Family."""
        found = self._find("headrace_models", architecture)
        if found is None or isinstance(found, Family):
            return found
        raise PluginError(f"hook headrace_models: {architecture!r} is {found!r}: expected a models.family.Family")

    def scheme(self, method: str) -> SchemeFactory | None:
        """A plugin's factory of schemes. Raises PluginError like `PluginSet.find`."""
        make: SchemeFactory | None = self._callable("headrace_quant_schemes", method)
        return make

    def source(self, directory: Path) -> tuple[Source, int] | None:
        """The tensors of a directory without safetensors, and the bytes of their files.

        None if no plugin reads any of the files.
        """
        for suffix in sorted({path.suffix for path in directory.iterdir() if path.suffix}):
            open_ = self._callable("headrace_weight_loaders", suffix)
            if open_ is not None:
                return open_(directory), sum(path.stat().st_size for path in directory.glob(f"*{suffix}"))
        return None

    def _callable(self, hook: str, key: str) -> Any:
        found = self._find(hook, key)
        if found is None or callable(found):
            return found
        raise PluginError(f"hook {hook}: {key!r} is {found!r}: expected something to call")

    def _find(self, hook: str, key: str) -> object | None:
        if self._found is None:
            self._found = self._discover()
        return self._found.find(hook, key)
