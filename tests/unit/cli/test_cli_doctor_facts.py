"""Platforms and operators in `headrace doctor`: reasons, remedies, providers and tolerances."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pluggy
import pytest
import torch

from headrace.cli.doctor_facts import (
    all_operator_facts,
    operator_facts,
    operator_lines,
    platform_facts,
    platform_lines,
)
from headrace.errors import PlatformError
from headrace.kernels.registry import OPS, OPTIONAL
from headrace.kernels.spec import OpSpec
from headrace.platforms.accelerator.probe import MachineProbe
from headrace.platforms.cuda import CudaPlatform
from headrace.platforms.interface import Device, Platform
from headrace.platforms.rocm import RocmPlatform
from headrace.platforms.torch_device import TorchDevice
from headrace.platforms.tpu import TpuPlatform
from headrace.platforms.xpu import XpuPlatform
from headrace.plugins import Hooks, PluginInfo, PluginSet, hookimpl
from headrace.types import API_VERSION, Capabilities, DeviceInfo

CAPABILITIES = Capabilities(frozenset({"float32"}), frozenset({"float32"}))


class OwnLinear:
    tag = "mill-c++"

    def __call__(self, **arguments: Any) -> torch.Tensor:
        raise NotImplementedError


class MillDevice(TorchDevice):
    def op(self, spec: OpSpec) -> Callable[..., Any] | None:
        return OwnLinear() if spec.name in ("linear", "moe") else None

    def op_reasons(self) -> dict[str, str]:
        reasons = {spec.name: "the wheel is missing: install mill" for spec in OPS if spec.name != "linear"}
        return reasons | {"mla": "mills grind no latents"}

    def provider_versions(self) -> dict[str, str]:
        return {"Sluice": "not installed"}

    def why_uncaptured(self) -> str:
        return "too old"


class Mill:
    api_version = API_VERSION

    def __init__(self, name: str, score: int, reason: str) -> None:
        self.name, self._said = name, (score, reason)

    def probe(self) -> tuple[int, str]:
        return self._said

    def devices(self) -> list[DeviceInfo]:
        return [DeviceInfo(0, "wheel", 1 << 30)]

    def open(self, index: int, options: Mapping[str, Any]) -> Device:
        return MillDevice(torch.device("cpu"), CAPABILITIES)


MILLS = (
    Mill("best", 60, "a wheel, turning"),
    Mill("toy", 5, "for tests"),
    Mill("dry", 0, "no water here: open the sluice"),
    Mill("mute", 0, "no"),
)


def plugin_set(*platforms: Any) -> PluginSet:
    class Plugin:
        @hookimpl
        def headrace_platforms(self) -> list[Any]:
            return list(platforms)

    manager = pluggy.PluginManager("headrace")
    manager.add_hookspecs(Hooks)
    manager.register(Plugin(), "mills")
    return PluginSet(manager, (PluginInfo("mills", "mills:Plugin", "headrace-mills", "1.0"),))


@pytest.fixture
def found() -> PluginSet:
    return plugin_set(*MILLS)


def test_every_platform_has_its_reason_and_a_remedy_in_one_line(found: PluginSet) -> None:
    remedies: list[str] = []
    facts = {fact["name"]: fact for fact in platform_facts(found, MILLS[0], remedies)}
    assert remedies == []
    assert list(facts) == ["best", "toy", "dry", "mute"]
    assert {name: fact["reason"] for name, fact in facts.items()} == {mill.name: mill.probe()[1] for mill in MILLS}
    assert {name: fact["remedy"] for name, fact in facts.items()} == {
        "best": "",
        "toy": "chosen by name only: --platform toy",
        "dry": "open the sluice",
        "mute": "see its plugin, headrace-mills",
    }
    assert [fact["chosen"] for fact in facts.values()] == [True, False, False, False]
    assert [len(fact["devices"]) for fact in facts.values()] == [1, 1, 0, 0]


def test_lines_of_platforms_repeat_nothing(found: PluginSet) -> None:
    lines = list(platform_lines(platform_facts(found, MILLS[0], [])))
    assert lines[0] == " *best        score 60: a wheel, turning"
    assert "  dry         unusable: no water here: open the sluice" in lines
    assert sum("open the sluice" in line for line in lines) == 1
    assert "              see its plugin, headrace-mills" in lines


def test_every_operator_has_its_provider_its_reason_and_its_tolerance() -> None:
    remedies: list[str] = []
    facts = operator_facts(MILLS[0], remedies)
    assert facts is not None
    bound = {fact["name"]: fact for fact in facts["bound"]}
    assert list(bound) == [spec.name for spec in OPS]
    assert all(fact["tolerance"] == dict(spec.tolerance) for fact, spec in zip(bound.values(), OPS, strict=True))
    assert bound["linear"]["implementation"] == "mill-c++"
    assert bound["attention"]["implementation"] == "reference"
    assert bound["attention"]["reason"] == "the wheel is missing: install mill"
    optional = {fact["name"]: fact["implementation"] for fact in facts["optional"]}
    others = {"moe": "mill-c++", "gated_linear": "composed"}
    assert optional == {spec.name: others.get(spec.name, "reference") for spec in OPTIONAL}
    reasons = {
        fact["name"]: fact["reason"].removesuffix("; only some architectures call it") for fact in facts["optional"]
    }
    assert (reasons["mla"], reasons["moe"]) == ("mills grind no latents", "the device's own form")
    assert reasons["mamba2_scan"] == "the device has no form of its own"
    assert reasons["gated_linear"] == "out of the device's other operators"
    assert facts["providers"] == {"Sluice": "not installed"}
    (remedy,) = remedies
    assert remedy.startswith("best: by reference, slowly: resolve_tokens, ")
    assert remedy.endswith("(the wheel is missing: install mill)")


def test_a_remedy_is_all_that_follows_the_first_colon() -> None:
    mill = Mill("silted", 0, "the race is silted: dig it out, or set RACE=open: water then goes round")
    (fact,) = platform_facts(plugin_set(mill), None, [])
    assert fact["remedy"] == "dig it out, or set RACE=open: water then goes round"


@pytest.mark.parametrize("platform", [CudaPlatform, RocmPlatform, TpuPlatform, XpuPlatform])
def test_no_platforms_remedy_repeats_its_diagnosis(
    platform: Callable[[MachineProbe], Platform], tmp_path: Path
) -> None:
    """On a machine that has nothing."""
    (fact,) = platform_facts(plugin_set(platform(MachineProbe(root=tmp_path, environ={}))), None, [])
    assert fact["score"] == 0
    assert fact["remedy"].split()[0] in ("install", "load", "run"), fact["remedy"]
    assert fact["reason"].count(fact["remedy"]) == 1


def test_operators_are_shown_of_every_platform_that_opens(found: PluginSet) -> None:
    remedies: list[str] = []
    facts = all_operator_facts(found, MILLS[0], remedies, {}, others=True)
    assert list(facts) == ["best", "toy"]
    assert [fact["platform"] for fact in facts.values()] == ["best", "toy"]
    for fact in facts.values():
        shown = [*fact["bound"], *fact["optional"]]
        assert [operator["name"] for operator in shown] == [spec.name for spec in (*OPS, *OPTIONAL)]
        assert all(o["implementation"] and o["reason"] and o["tolerance"] for o in shown)
    assert {remedy.partition(":")[0] for remedy in remedies} == {"best", "toy"}
    assert list(all_operator_facts(found, MILLS[1], [], {}, others=False)) == ["toy"]


class Locked(Mill):
    def open(self, index: int, options: Mapping[str, Any]) -> Device:
        raise PlatformError("the door is locked: fetch the miller")


def test_a_platform_that_does_not_open_is_a_remedy_and_hides_no_other() -> None:
    remedies: list[str] = []
    plugins = plugin_set(Locked("locked", 30, "a door"), MILLS[0])
    assert list(all_operator_facts(plugins, MILLS[0], remedies, {}, others=True)) == ["best"]
    assert "locked: the door is locked: fetch the miller" in remedies


def test_lines_of_operators() -> None:
    facts = operator_facts(MILLS[0], [])
    assert facts is not None
    lines = list(operator_lines(facts))
    assert lines[0] == "operators on best"
    (linear,) = (line for line in lines if line.startswith("  linear "))
    assert linear.split()[1:5] == ["mill-c++", "1e-09", "1e-04", "1e-05"]
    (tokens,) = (line for line in lines if line.startswith("  resolve_tokens "))
    assert tokens.split()[2:5] == ["none", "-", "-"]
    assert lines[-3:] == [
        "  times of steps and drafts: estimated, by the host",
        "  provider Sluice: not installed",
        "  steps are not captured: too old",
    ]


def test_a_device_that_times_its_launches_is_shown() -> None:
    class Timed(MillDevice):
        def mark(self) -> int:
            return 0

        def busy_until(self, mark: int) -> float | None:
            return 0.0

    class TimedMill(Mill):
        def open(self, index: int, options: Mapping[str, Any]) -> Device:
            return Timed(torch.device("cpu"), CAPABILITIES)

    facts = operator_facts(TimedMill("timed", 60, "a wheel with a clock"), [])
    assert facts is not None
    assert facts["exact_times"] is True
    assert "  times of steps and drafts: exact, by the device" in list(operator_lines(facts))
