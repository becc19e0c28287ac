"""The facts that `doctor` finds, and its report."""

from __future__ import annotations

import json
import sys
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import pluggy
import pytest

from headrace.cli import diagnosis
from headrace.cli.diagnosis import cpu_features, diagnose
from headrace.cli.doctor_command import render
from headrace.cli.doctor_facts import operator_facts
from headrace.cli.main import main
from headrace.errors import PlatformError
from headrace.kernels.registry import OPS
from headrace.platforms.cpu import native
from headrace.plugins import GROUP, discover

hookimpl = pluggy.HookimplMarker("headrace")


def test_json_holds_every_fact(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [operator["name"] for operator in report["operators"]["bound"]] == [spec.name for spec in OPS]
    assert all(operator["implementation"] and operator["reason"] for operator in report["operators"]["bound"])
    assert report["operators"]["platform"] == next(p["name"] for p in report["platforms"] if p["chosen"])
    assert all(platform["reason"] for platform in report["platforms"])
    shown = report["operators_by_platform"]
    assert shown[report["operators"]["platform"]] == report["operators"]
    assert set(shown) == {platform["name"] for platform in report["platforms"] if platform["score"] > 0}
    assert {plugin["name"] for plugin in report["plugins"]} >= {"cpu", "sim"}
    assert all(plugin["version"] and plugin["hooks"] for plugin in report["plugins"])
    assert report["versions"]["torch"]
    assert report["machine"]["cores"] >= 1
    assert (report["native"]["library"] is None) == (report["native"]["problem"] is not None)


def test_the_text_has_the_same_facts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--platform", "sim"]) == 0
    said = capsys.readouterr().out
    for line in (
        "machine\n",
        "versions\n",
        "plugins\n",
        "platforms\n",
        "native kernels\n",
        "operators on sim\n",
        "remedies\n",
    ):
        assert line in said
    assert "*sim" in said
    assert "operators on cpu" not in said, "one platform was asked for"
    assert main(["doctor"]) == 0
    assert "operators on sim\n" in capsys.readouterr().out


def test_an_unknown_platform_is_a_fact_with_its_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--platform", "abacus", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["operators"] is None
    assert any("'abacus' is not installed" in remedy for remedy in report["remedies"])


def test_a_plugin_that_fails_is_named_and_blocks_the_choice() -> None:
    report = diagnose(plugins=discover([EntryPoint("broken", "no_such_module", GROUP)]))
    (plugin,) = report["plugins"]
    assert "no_such_module" in plugin["error"]
    assert report["usable"] is False
    assert any("repair or uninstall it" in remedy for remedy in report["remedies"])
    assert any("no_such_module" in line for line in render(report))


class _Platform:
    """A valid platform whose device cannot be opened."""

    name, api_version = "odd", (1, 0)

    def open(self, index: int, options: Any) -> Any:
        raise PlatformError("the device is asleep: wake it")


def test_a_device_that_does_not_open_is_a_fact() -> None:
    remedies: list[str] = []
    assert operator_facts(_Platform(), remedies) is None  # type: ignore[arg-type]
    assert remedies == ["odd: the device is asleep: wake it"]


def test_missing_native_kernels_are_reported_with_their_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "find", lambda: None)
    report = diagnose("sim")
    assert "the reference operators run" in report["native"]["problem"]
    assert report["native"]["problem"] in report["remedies"]
    lines = list(render(report))
    assert any("install a compiler" in line for line in lines[lines.index("remedies") :])


def test_a_terminal_gets_lines_of_its_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = diagnose("sim")
    report["remedies"].append("repair it: " + "one of many words " * 20)
    report["native"]["problem"] = "/a" * 100
    monkeypatch.setattr(diagnosis, "diagnose", lambda *_, **__: report)
    assert main(["doctor"]) == 0
    whole = capsys.readouterr().out.splitlines()
    assert max(map(len, whole)) > 300
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["doctor"]) == 0
    cut = capsys.readouterr().out.splitlines()
    assert [line.strip() for line in cut if len(line) > 100] == ["/a" * 100]
    assert " ".join(" ".join(whole).split()) == " ".join(" ".join(cut).split())
    assert all(line in whole or line.startswith(" " * 14) or len(line) > 80 for line in cut)


def test_little_memory_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "host_memory", lambda: (1 << 20, 1 << 30))
    assert any("less than 1 GiB" in remedy for remedy in diagnose("sim")["remedies"])


def test_instruction_sets_are_read_if_the_system_reports_them(tmp_path: Path) -> None:
    intel = tmp_path / "intel"
    intel.write_text("processor : 0\nflags\t\t: fpu avx2 avx512_vnni fma\nflags : other\n")
    assert cpu_features(intel) == ["avx2", "fma", "avx512_vnni"]
    arm = tmp_path / "arm"
    arm.write_text("Features\t: fp asimd sve\n")
    assert cpu_features(arm) == ["asimd", "sve"]
    assert cpu_features(tmp_path / "none") == []


class _Faulty:
    """A platform of which one member fails as a vendor's code may."""

    name, api_version = "faulty", (1, 0)

    def __init__(self, member: str, error: BaseException) -> None:
        self._member, self._error = member, error

    def _fail(self, member: str) -> None:
        if member == self._member:
            raise self._error

    def probe(self) -> tuple[int, str]:
        self._fail("probe")
        return (1, "it works") if self._member != "score" else ("many", "it works")  # type: ignore[return-value]

    def devices(self) -> list[Any]:
        self._fail("devices")
        return [object()] if self._member == "device" else []

    def open(self, index: int, options: Any) -> Any:
        self._fail("open")
        return object()


@pytest.mark.parametrize("member", ["hook", "probe", "score", "devices", "device", "open", "binding"])
def test_one_faulty_plugin_does_not_end_the_report(member: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault is reported with a remedy, and every other platform is reported."""
    module = ModuleType("plugin_of_a_vendor")

    def headrace_platforms() -> list[Any]:
        if member == "hook":
            raise OSError("libvendor.so: cannot open\nshared object")
        return [_Faulty(member, OSError("libvendor.so: cannot open\nshared object"))]

    monkeypatch.setattr(module, "headrace_platforms", hookimpl(headrace_platforms), raising=False)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    others = [point for point in entry_points(group=GROUP) if point.name in ("cpu", "sim")]
    report = diagnose(plugins=discover([*others, EntryPoint("vendor", module.__name__, GROUP)]))
    assert {"cpu", "sim"} <= {platform["name"] for platform in report["platforms"]}
    assert {"cpu", "sim"} <= set(report["operators_by_platform"])
    told = [remedy for remedy in report["remedies"] if "faulty" in remedy or "vendor" in remedy]
    assert told
    assert len(told) == len(set(told))
    assert any("vendor" in line or "faulty" in line for line in render(report))
    assert all("\n" not in line for line in render(report))


def test_a_plugin_that_exits_counts_as_failed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "plugin_that_exits.py").write_text("raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    report = diagnose(plugins=discover([EntryPoint("exits", "plugin_that_exits", GROUP)]))
    assert "SystemExit: 3" in report["plugins"][0]["error"]
