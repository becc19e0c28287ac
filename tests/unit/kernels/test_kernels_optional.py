"""Optional operators: a device's own form where it has one, else the reference, told once and only where it is
called."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from headrace.errors import PlatformError
from headrace.kernels import registry
from headrace.kernels.spec import OpSpec
from headrace.platforms.interface import own_extension
from headrace.types import Capabilities

SPEC = OpSpec("root", "math:sqrt", "math:sqrt", {})


class Source:
    """A device with only the given optional operators."""

    torch_device = "cpu"

    def __init__(self, own: Any = None, why: dict[str, str] | None = None) -> None:
        self._own, self._why = own, why or {}

    def capabilities(self) -> Capabilities:
        return Capabilities(frozenset({"float32"}), frozenset({"float32"}))

    def op(self, spec: OpSpec) -> Callable[..., Any] | None:
        return self._own if spec is SPEC else None

    def op_reasons(self) -> dict[str, str]:
        return self._why

    def extension(self, kind: Any) -> Any:
        return own_extension(self, kind)


@pytest.fixture(autouse=True)
def _one_optional_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "OPTIONAL", (SPEC,))


def test_the_devices_form_is_bound() -> None:
    bound = registry.binding(Source(lambda x: x + 1))
    assert bound.root(9.0) == 10.0
    assert "root" not in bound.tags


def test_the_reference_is_used_and_logged_at_the_first_call(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ops = registry.bind(Source(why={"root": "no unit for it"}))
    assert not any("root" in record.getMessage() for record in caplog.records)
    assert [ops.root(9.0), ops.root(16.0)] == [3.0, 4.0]
    told = [record.getMessage() for record in caplog.records if "root" in record.getMessage()]
    assert told == ["by reference: root (no unit for it)"]


def test_an_object_that_is_not_callable_is_refused() -> None:
    with pytest.raises(PlatformError, match=r"Source.op\('root'\) gave 7: return a callable or None"):
        registry.binding(Source(7))


def test_the_error_for_an_unknown_name_lists_the_operators() -> None:
    with pytest.raises(AttributeError, match=r"no operator 'conv'; there are resolve_tokens.*sample, root"):
        registry.binding(Source()).conv  # noqa: B018
