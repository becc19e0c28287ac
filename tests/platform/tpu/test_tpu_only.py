"""On a TPU only."""

from __future__ import annotations

import pytest

from headrace.conformance import KitTarget, run
from headrace.conformance.tiny import Serving, TinyModel, requests
from headrace.platforms.cpu.device import CpuDevice
from headrace.platforms.tpu import TpuPlatform
from headrace.platforms.tpu.tpu_discovery import NAMED_ONLY

SCORE, REASON = TpuPlatform().probe()


@pytest.mark.needs_tpu
@pytest.mark.skipif(SCORE <= NAMED_ONLY, reason=REASON)
class TestTpuDevice:
    def test_the_kit_is_green(self) -> None:
        report = run(KitTarget(TpuPlatform(), options={"dtype": "float32"}))
        assert report.ok, report.table()

    @pytest.mark.parametrize("kernels", ["xla", "pallas"])
    def test_greedy_tokens_are_the_cpus(self, kernels: str) -> None:
        device, host = TpuPlatform().open(0, {"dtype": "float32", "kernels": kernels}), CpuDevice()
        found, wanted = (Serving(d, TinyModel(d, device.capabilities())).run(requests(6, 0.0)) for d in (device, host))
        assert {k: v[0] for k, v in found.items()} == {k: v[0] for k, v in wanted.items()}
        device.close()
        host.close()

    def test_memory_is_the_chips(self) -> None:
        device = TpuPlatform().open(0, {})
        free, total = device.memory()
        assert 0 < free <= total <= 200 << 30
        device.close()
