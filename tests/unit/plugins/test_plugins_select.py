"""The choice of a platform, and the errors of plugins: each names plugin, version, hook and cause."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from plugin_fakes import FakePlatform, RaisingProbe, install, offering, point

from headrace.errors import ConfigError, PlatformError, PluginError
from headrace.plugins import AUTO_SCORE, discover, version_fault


def test_the_highest_score_is_chosen_and_the_reason_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = discover(
        [
            offering(monkeypatch, "one", FakePlatform("slow", 10), FakePlatform("none", 0)),
            offering(monkeypatch, "two", FakePlatform("fast", 90)),
        ]
    )
    platform, reason = plugins.select_platform()
    assert platform.name == "fast"
    assert reason == "fast: score 90, fast says 90 (scores of others: slow 10, none 0)"
    assert [p.platform.name for p in plugins.probes()] == ["fast", "slow", "none"]
    assert set(plugins.platforms()) == {"fast", "slow", "none"}


def test_a_low_score_is_chosen_by_name_only(monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = discover([offering(monkeypatch, "p", FakePlatform("toy", AUTO_SCORE - 1))])
    with pytest.raises(PlatformError, match=r"no platform can be used here \(toy: toy says 9\)"):
        plugins.select_platform()
    assert plugins.select_platform("toy")[0].name == "toy"


def test_an_unusable_platform_asked_for_by_name_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = discover(
        [offering(monkeypatch, "p", FakePlatform("gpu", 0)), offering(monkeypatch, "q", FakePlatform("cpu", 10))]
    )
    with pytest.raises(PlatformError, match="'gpu' cannot be used here: gpu says 0"):
        plugins.select_platform("gpu")


def test_an_unknown_name_lists_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"'npu' is not installed; there are a, b$"):
        discover([offering(monkeypatch, "p", FakePlatform("b"), FakePlatform("a"))]).select_platform("npu")
    with pytest.raises(ConfigError, match="there are none"):
        discover([]).select_platform("cpu")
    with pytest.raises(PlatformError, match="no platform is installed"):
        discover([]).select_platform()


def test_a_plugin_that_cannot_be_imported_never_means_a_silent_fall(monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = discover([offering(monkeypatch, "good", FakePlatform("cpu", 10)), point("broken", "no_such_module_here")])
    (failure,) = plugins.failures
    said = "plugin 'broken' (no_such_module_here, unknown unknown): cannot be loaded: ModuleNotFoundError: "
    assert str(failure).startswith(said)
    with pytest.raises(PluginError, match=r"broken.*choose a platform by name"):
        plugins.select_platform()
    with pytest.raises(PluginError, match="broken"):
        plugins.select_platform("gpu")
    assert plugins.select_platform("cpu")[0].name == "cpu"
    assert [(info.name, info.error is None) for info in plugins.plugins] == [("good", True), ("broken", False)]


def test_a_plugin_error_names_distribution_and_version() -> None:
    from importlib.metadata import entry_points

    (pytest_point,) = [p for p in entry_points(group="console_scripts") if p.name == "pytest"]
    (info,) = discover([pytest_point]).plugins
    assert info.distribution == "pytest"
    assert info.version == pytest.__version__
    assert f"pytest {pytest.__version__}" in str(info.error)


def test_a_plugin_without_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    (failure,) = discover([install(monkeypatch, "empty", value=1)]).failures
    assert "implements no hook (are they marked with hookimpl?); there are headrace_drafters, headrace_formats" in str(
        failure
    )


def test_a_hook_that_this_version_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = discover([install(monkeypatch, "odd", headrace_platfroms=lambda: [FakePlatform("x")])])
    assert "implements unknown hook headrace_platfroms; there are" in str(plugins.failures[0])
    assert plugins.platforms() == {}


def test_a_hook_with_arguments_it_cannot_have(monkeypatch: pytest.MonkeyPatch) -> None:
    def headrace_platforms(engine: Any) -> list[Any]:
        return [engine]

    point = install(monkeypatch, "args", headrace_models=lambda: {"A": "a:A"}, headrace_platforms=headrace_platforms)
    plugins = discover([point])
    assert plugins.models() == {}
    (failure,) = plugins.failures
    assert "does not fit a hook" in str(failure)
    assert "engine" in str(failure)


def test_a_hook_that_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def headrace_platforms() -> list[Any]:
        raise OSError("libchip.so is missing")

    plugins = discover([install(monkeypatch, "chip", headrace_platforms=headrace_platforms)])
    with pytest.raises(PluginError, match=r"'chip'.*hook headrace_platforms failed: OSError: libchip.so is missing"):
        plugins.platforms()


def test_a_probe_that_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = discover([offering(monkeypatch, "p", RaisingProbe("gpu"))])
    with pytest.raises(PluginError, match="'gpu': probe raised RuntimeError: no driver"):
        plugins.select_platform()


def test_what_is_no_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PluginError, match="returned 7, which lacks members of Platform"):
        discover([offering(monkeypatch, "p", 7)]).platforms()


def test_two_platforms_of_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [offering(monkeypatch, name, FakePlatform("cpu")) for name in ("first", "second")]
    with pytest.raises(PluginError, match=r"'second'.*'cpu' is already provided by plugin 'first'"):
        discover(points).platforms()


def test_one_entry_point_seen_twice_is_one_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    found = offering(monkeypatch, "p", FakePlatform("cpu", 10))
    assert len(discover([found, found]).plugins) == 1


def test_two_plugins_of_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    first = offering(monkeypatch, "p", FakePlatform("a"))
    other = offering(monkeypatch, "q", FakePlatform("b"))
    plugins = discover([first, point("p", other.value)])
    assert "registered already" in str(plugins.failures[0])


@pytest.mark.parametrize(
    ("version", "fits"),
    [((2, 5), True), ((2, 4), True), ((2, 3), False), ((2, 6), False), ((1, 5), False), ((3, 4), False)],
)
def test_this_and_the_previous_minor_fit(version: tuple[int, int], fits: bool) -> None:
    fault = version_fault(version, (2, 5))
    assert (fault is None) == fits
    if fault:
        assert f"contract {version[0]}.{version[1]}, this is 2.5 (from 2.4 on)" in fault
        assert ("upgrade headrace" in fault) == (version > (2, 5))


@pytest.mark.parametrize("version", [None, 1, "1.0", (1,), (1, "0")])
def test_a_version_that_is_none(version: object) -> None:
    assert "must be (major, minor)" in str(version_fault(version))


def test_a_platform_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = discover([offering(monkeypatch, "p", FakePlatform("gpu", version=(9, 0)))])
    with pytest.raises(PluginError, match=r"'gpu': it has contract 9\.0.*upgrade headrace"):
        plugins.select_platform()


def test_tables_of_several_plugins_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        install(monkeypatch, "a", headrace_models=lambda: {"A": "a:A"}, headrace_quant_schemes=lambda: {"q": "a:q"}),
        install(monkeypatch, "b", headrace_models=lambda: {"B": "b:B"}, headrace_weight_loaders=lambda: {".x": "b:x"}),
    ]
    plugins = discover(points)
    assert plugins.models() == {"A": "a:A", "B": "b:B"}
    assert plugins.quant_schemes() == {"q": "a:q"}
    assert plugins.weight_loaders() == {".x": "b:x"}
    assert plugins.plugins[0].hooks == ("headrace_models", "headrace_quant_schemes")


def test_tables_that_contradict_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [install(monkeypatch, n, headrace_models=lambda n=n: {"A": f"{n}:A"}) for n in ("a", "b")]
    with pytest.raises(PluginError, match=r"'b'.*hook headrace_models: 'A' is 'a:A' already"):
        discover(points).models()


def test_finding_platforms_loads_no_framework() -> None:
    code = (
        "import sys; from headrace.plugins import discover; discover(); "
        "print([m for m in ('torch', 'jax', 'triton') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
