"""Entry points and plugin modules made on the spot."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any

import pluggy
import pytest

from headrace.platforms.interface import Device, Platform
from headrace.plugins import GROUP
from headrace.types import API_VERSION, DeviceInfo

hookimpl = pluggy.HookimplMarker("headrace")


class FakePlatform:
    def __init__(self, name: str, score: int = 50, version: Any = API_VERSION) -> None:
        self.name = name
        self.api_version = version
        self._score = score

    def probe(self) -> tuple[int, str]:
        return self._score, f"{self.name} says {self._score}"

    def devices(self) -> list[DeviceInfo]:
        return []

    def open(self, index: int, options: Mapping[str, Any]) -> Device:
        raise NotImplementedError


class RaisingProbe(FakePlatform):
    def probe(self) -> tuple[int, str]:
        raise RuntimeError("no driver")


def point(name: str, value: str | None = None) -> EntryPoint:
    return EntryPoint(name, value or f"fake_plugin_{name}", GROUP)


def install(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> EntryPoint:
    """A module `fake_plugin_<name>` with these members; functions become hook implementations."""
    module = ModuleType(f"fake_plugin_{name}")
    for key, value in members.items():
        setattr(module, key, hookimpl(value) if key.startswith("headrace_") else value)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return point(name)


def offering(monkeypatch: pytest.MonkeyPatch, name: str, *platforms: Any) -> EntryPoint:
    """A plugin with these platforms."""

    def headrace_platforms() -> list[Platform]:
        return list(platforms)

    return install(monkeypatch, name, headrace_platforms=headrace_platforms)
