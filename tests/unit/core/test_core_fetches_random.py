"""Random operations with a source of blocks that loses, delays and spoils what it can."""

from __future__ import annotations

import pytest
from core_driver import Driver
from fake_block_source import FakeSource, tiers_of
from test_core_random import Fuzz


class TieredFuzz(Fuzz):
    def __init__(self, seed: int, depth: int, faults: float) -> None:
        super().__init__(seed, depth)
        self.source = FakeSource(seed, faults, delay=2)
        self.driver = Driver(self.config, depth, eos_every=9, tiers=tiers_of(self.source, self.config.block_size))

    def one(self) -> None:
        if self.rng.random() < 0.02:
            # What another process would do to a folder that both use.
            for name in [name for name in self.source.kept if self.rng.random() < 0.3]:
                del self.source.kept[name]
        super().one()


@pytest.mark.parametrize(("seed", "depth", "faults"), [(1, 1, 0.0), (2, 2, 0.0), (3, 2, 0.1), (4, 3, 0.3)])
def test_scheduler_with_a_source_against_the_model(seed: int, depth: int, faults: float) -> None:
    fuzz = TieredFuzz(seed, depth, faults)
    for _ in range(6_000):
        fuzz.one()
    fuzz.driver.run()
    fuzz.settle()
    fuzz.source.idle()
    assert fuzz.number > 150
    assert fuzz.source.delivered > 20
    assert fuzz.driver.scheduler.stats().preemptions > 10
