"""The kit is green on what is right and catches each planted fault by name."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from string import Template

import numpy as np
import pytest
from broken_backends import FAULTS, Backend, Picky, Sound, TruncatesInsteadOfRounding
from hypothesis import Phase
from kit_parts import PartOfKit, before, since

from headrace.conformance import KitTarget, explore, run
from headrace.conformance.nmse import nmse
from headrace.conformance.tiers import TIERS
from headrace.errors import PlatformError
from headrace.platforms.cpu import CpuPlatform
from headrace.platforms.interface import Platform
from headrace.platforms.sim import SimPlatform


@pytest.mark.parametrize("platform", [Backend(Sound), CpuPlatform(), SimPlatform()], ids=lambda p: p.name)
def test_green_where_all_is_right(platform: Platform, tmp_path: Path) -> None:
    report = run(KitTarget(platform), junit=tmp_path / "junit.xml")
    assert report.ok, report.table()
    counts = report.badge.removeprefix("contract 1.0: ").split(" of ")
    assert counts[0] == counts[1]
    assert json.loads(report.json())["ok"] is True
    junit = (tmp_path / "junit.xml").read_text()
    assert "<testsuite" in junit
    for found in report.measured:
        assert found.nmse <= found.allowed
        assert f"{found.operator} {found.dtype}: NMSE {found.nmse:.1e} of {found.allowed:.0e}" in junit
        assert f"{found.operator:<20}{found.dtype:<10}{found.nmse:>12.1e}" in report.table()
    assert bool(report.measured) == (platform.name != "sim")


def test_nothing_is_asked_that_is_not_declared() -> None:
    report = run(KitTarget(Backend(Picky), examples=3))
    assert report.ok, report.table()


def test_a_failure_reports_the_error_of_the_smallest_call() -> None:
    name = "test_against_reference[linear-float32]"
    linear = PartOfKit(Backend(TruncatesInsteadOfRounding), examples=6, tiers=("operators",), only={"operators": name})
    report = run(linear)
    (failed,) = report.outcomes
    assert failed.name == name
    assert re.fullmatch(r"AssertionError: linear: NMSE \d.\de-0\d in float32, 1e-09 is allowed", failed.detail)
    assert re.fullmatch(r".*nmse\.py:\d+", failed.where)
    assert f"1e-09 is allowed ({failed.where})" in report.table()
    assert failed.measured is not None
    assert failed.measured.nmse > failed.measured.allowed == 1e-9
    told = json.loads(report.json())["tests"]
    assert [t["measured"]["allowed"] for t in told if t["name"] == failed.name] == [1e-9]


def test_a_failure_names_the_line_of_the_device_that_it_comes_from() -> None:
    class Broken(Sound):
        def memory(self) -> tuple[int, int]:
            try:
                raise KeyError("total")  # the line
            except KeyError as error:
                raise PlatformError("no memory here") from error

    report = run(KitTarget(Backend(Broken), examples=1))
    line = next(at for at, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "# the line" in text)
    (failed,) = (o for o in report.outcomes if o.name == "test_memory_is_free_and_total_bytes")
    assert failed.where == f"{__file__}:{line}"
    assert failed.detail == "KeyError: 'total'"


def test_examples_are_the_same_in_every_run_and_as_many_as_asked() -> None:
    def drawn(count: int) -> list[tuple[int, float]]:
        found = []
        explore.explore(lambda rng: found.append((int(rng.integers(0, 1000)), float(rng.random()))), count)
        return found

    assert drawn(7) == drawn(7)
    assert len(drawn(7)) == 7
    assert len(drawn(3)) == 3


def test_what_fails_is_shown_at_its_smallest() -> None:
    seen: list[tuple[int, int]] = []

    def check(rng: np.random.Generator) -> None:
        seen.append((int(rng.integers(0, 500)), int(rng.choice([1, 20, 300]))))
        assert seen[-1][0] < 17 or seen[-1][1] < 20

    with pytest.raises(AssertionError):
        explore.explore(check, 50)
    assert seen[-1] == (17, 20)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_each_fault_is_caught_by_name(fault: type[Sound], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tier before passes, and none behind runs. Of its own tier only the tests that may catch the fault run: what
    the others find of it is neither right nor wrong. For failures the smallest inputs are not looked for: there is a
    test of that, and it takes long."""
    monkeypatch.setattr(explore, "PHASES", (Phase.generate,))
    tier, name = FAULTS[fault]
    tiers = since("faults") if tier == "faults" else TIERS
    examples = 6 if tier == "operators" else 1
    report = run(PartOfKit(Backend(fault), examples=examples, tiers=tiers, only={tier: name}))
    failed = [outcome for outcome in report.outcomes if outcome.result == "failed"]
    assert not report.ok
    assert {outcome.tier for outcome in failed} == {tier}, report.table()
    assert any(outcome.name.startswith(name) for outcome in failed), report.table()
    later = [outcome for outcome in report.outcomes if TIERS.index(outcome.tier) > TIERS.index(tier)]
    assert all(outcome.result == "skipped" for outcome in later)
    assert all(outcome.detail == f"tier {tier} failed before" for outcome in later)


def test_faults_about_errors_and_the_end_fail_in_no_tier_before() -> None:
    """All at once: before the tier that catches them, each is a sound device."""
    late = [fault for fault, (tier, _) in FAULTS.items() if tier == "faults"]
    report = run(PartOfKit(Backend(type("All", tuple(late), {})), examples=1, tiers=before("faults")))
    assert report.ok, report.table()
    assert {outcome.tier for outcome in report.outcomes} == set(before("faults"))


def test_what_a_vendor_writes_is_short() -> None:
    """In the documentation and in what `headrace plugin new` writes: an import, a class, a fixture."""
    root = Path(__file__).parents[3]
    guide = (root / "docs" / "writing-a-backend.md").read_text()
    (shown,) = (code for code in re.findall(r"```python\n(.*?)```", guide, re.DOTALL) if "(Suite)" in code)
    written = (root / "src" / "headrace" / "cli" / "skeleton" / "test_conformance.py.in").read_text()
    for code in (shown, Template(written).substitute(title="Mychip", name="mychip")):
        assert len(code.splitlines()) <= 35
        names = {node.name for node in ast.walk(ast.parse(code)) if isinstance(node, ast.FunctionDef)}
        assert names == {"platform", "device"}


def test_infinities_in_their_places_are_right_and_others_wrong() -> None:
    wanted = np.array([1.0, -np.inf, 2.0], np.float32)
    assert nmse(wanted, wanted) == 0.0
    assert 0 < nmse(np.array([1.1, -np.inf, 2.0], np.float32), wanted) < 0.01
    for wrong in ([1.0, -9.0, 2.0], [1.0, np.inf, 2.0], [-np.inf, -np.inf, 2.0], [np.nan, -np.inf, 2.0]):
        assert not nmse(np.array(wrong, np.float32), wanted) <= 1.0
