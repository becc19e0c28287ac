"""Finds a connector by its name, or by the address of another end."""

from __future__ import annotations

import importlib
from typing import cast

from headrace.errors import ConfigError, PluginError
from headrace.plugins import PluginSet, discover
from headrace.transfer.connectors.connector import Connector, ConnectorSettings, MakeConnector

__all__ = ["BUILT_IN", "connector_names", "find_connector", "open_connector"]

_HOOK = "headrace_kv_connectors"
_HERE = "headrace.transfer.connectors"
BUILT_IN = {
    "memory": f"{_HERE}.memory_connector:MemoryConnector",
    "mooncake": f"{_HERE}.mooncake_connector:MooncakeConnector",
    "nixl": f"{_HERE}.nixl_connector:NixlConnector",
    "shm": f"{_HERE}.shm_connector:SharedMemoryConnector",
    "tcp": f"{_HERE}.tcp_connector:TCPConnector",
}


def connector_names(plugins: PluginSet | None = None) -> list[str]:
    plugins = plugins or discover()
    return sorted({*BUILT_IN, *plugins.kv_connectors()})


def find_connector(name: str, plugins: PluginSet | None = None) -> MakeConnector:
    """The connector of that name. Raises ConfigError for an unknown one, PluginError if its plugin fails."""
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        return cast(MakeConnector, getattr(importlib.import_module(module), attribute))
    plugins = plugins or discover()
    found = plugins.find(_HOOK, name)
    if found is None:
        raise ConfigError(f"there is no connector {name!r}; choose one of {', '.join(connector_names(plugins))}")
    if not callable(found):
        raise PluginError(f"hook {_HOOK}: {name!r} must be a function of ConnectorSettings, is {type(found).__name__}")
    return cast(MakeConnector, found)


def open_connector(name: str, settings: ConnectorSettings, plugins: PluginSet | None = None) -> Connector:
    """An end of the connector of that name. Raises ConfigError and PluginError."""
    return find_connector(name, plugins)(settings)
