"""Vendors' libraries that compute some operators in place of Triton, if option `operators` names one."""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from headrace.errors import PlatformError
from headrace.kernels.registry import OPS
from headrace.kernels.spec import Tagged

__all__ = ["ProvidedOperators", "Provider", "SharedOperator", "provider_versions", "with_provider", "without_provider"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Provider:
    """One library. It is not imported before a device is opened with it."""

    title: str
    distribution: str
    module: str
    """The module to import."""
    home: str
    """Our module with `operators(library, others, device)`: the operators by name, each a `SharedOperator`."""
    remedy: str
    """Tells the user how to install it."""
    lacks: Mapping[str, str]
    """Operators that it has but that Triton still serves, with the reason."""
    eager: str = ""
    """Why steps with it cannot be captured; empty if they can."""
    without: Mapping[str, str] = field(default_factory=dict)
    """Optional operators that the device lacks with it, with the reason."""


class SharedOperator:
    """An operator that a library serves for the calls that fit it; another operator serves the rest, with one log line
    per reason."""

    tag: str
    fits: str
    """The calls that the library serves, for `doctor`."""
    rest: str
    """The calls that the other operator serves."""

    def __init__(self, name: str, other: Callable[..., Any]) -> None:
        self._name, self._other = name, other
        self._logged: set[str] = set()

    @property
    def reason(self) -> str:
        return f"{self.fits}; by {self._by}: {self.rest}"

    @property
    def _by(self) -> str:
        return self._other.tag if isinstance(self._other, Tagged) else "reference"

    def _elsewhere(self, why: str) -> Callable[..., Any]:
        if why not in self._logged:
            self._logged.add(why)
            _log.warning("%s is not computed by %s but by %s: %s", self._name, self.tag, self._by, why)
        return self._other


@dataclass(frozen=True, slots=True)
class ProvidedOperators:
    """The operators of a device, with or without a provider."""

    operators: Mapping[str, Callable[..., Any]]
    reasons: Mapping[str, str]
    eager: str


def with_provider(
    provider: Provider, table: Mapping[str, Callable[..., Any]], device: torch.device
) -> ProvidedOperators:
    """`table` with the provider's operators, and without those that do not go with it. Raises PlatformError if the
    library is not installed or cannot be loaded."""
    try:
        library = importlib.import_module(provider.module)
    except Exception as error:
        raise PlatformError(_why_not(provider, device, error)) from error
    others = {spec.name: table.get(spec.name) or spec.reference for spec in OPS}
    own: Mapping[str, Any] = importlib.import_module(provider.home).operators(library, others, device)
    reasons = {name: operator.reason for name, operator in own.items()}
    operators = {name: operator for name, operator in table.items() if name not in provider.without}
    operators.update(own)
    return ProvidedOperators(operators, {**provider.lacks, **provider.without, **reasons}, provider.eager)


def without_provider(table: Mapping[str, Callable[..., Any]]) -> ProvidedOperators:
    """The unchanged table."""
    return ProvidedOperators(table, {}, "")


def provider_versions(providers: Mapping[str, Provider]) -> dict[str, str]:
    """Title → version and the option that selects it, or that it is not installed. Imports none of them."""
    return {provider.title: _version(provider, option) for option, provider in providers.items()}


def _why_not(provider: Provider, device: torch.device, error: Exception) -> str:
    start = f"{device}: option operators names {provider.title}, but "
    if isinstance(error, ModuleNotFoundError) and error.name == provider.module.partition(".")[0]:
        return f"{start}{provider.distribution} is not installed: {provider.remedy}, or leave the option out"
    reason = f"{type(error).__name__}: {error}"
    return (
        f"{start}{provider.module} cannot be loaded: {reason}: repair it ({provider.remedy}), or leave the option out"
    )


def _version(provider: Provider, option: str) -> str:
    try:
        found = importlib.metadata.version(provider.distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
    return f"{found}; option operators={option} selects it"
