"""The kit is green on what is right and catches each planted fault by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from broken_backends import FAULTS, Backend, Sound

from headrace.conformance import Target, run
from headrace.conformance.tiers import TIERS
from headrace.platforms.cpu import CpuPlatform
from headrace.platforms.sim import SimPlatform


@pytest.mark.parametrize("platform", [Backend(Sound), CpuPlatform(), SimPlatform()], ids=lambda p: p.name)
def test_green_where_all_is_right(platform: object, tmp_path: Path) -> None:
    report = run(Target(platform), junit=tmp_path / "junit.xml")
    assert report.ok, report.table()
    counts = report.badge.removeprefix("contract 1.0: ").split(" of ")
    assert counts[0] == counts[1]
    assert json.loads(report.json())["ok"] is True
    assert "<testsuite" in (tmp_path / "junit.xml").read_text()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_each_fault_is_caught_by_name(fault: type[Sound]) -> None:
    tier, name = FAULTS[fault]
    report = run(Target(Backend(fault)))
    failed = [outcome for outcome in report.outcomes if outcome.result == "failed"]
    assert not report.ok
    assert {outcome.tier for outcome in failed} == {tier}, report.table()
    assert any(outcome.name.startswith(name) for outcome in failed), report.table()
    later = [outcome for outcome in report.outcomes if TIERS.index(outcome.tier) > TIERS.index(tier)]
    assert all(outcome.result == "skipped" for outcome in later)
    assert all(outcome.detail == f"tier {tier} failed before" for outcome in later)
