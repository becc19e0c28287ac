"""The occupancy of kernels, against the vendors' occupancy calculators."""

from __future__ import annotations

import pytest

from compile_report.chips import CHIPS
from compile_report.occupancy import Multiprocessor, resident_warps


@pytest.mark.parametrize(
    ("chip", "warps", "registers", "shared", "columns", "resident"),
    [
        ("sm_80", 4, 32, 0, 0, 64),
        ("sm_80", 4, 64, 0, 0, 32),
        ("sm_80", 4, 65, 0, 0, 28),  # 72 a thread
        ("sm_80", 4, 255, 0, 0, 8),
        ("sm_80", 16, 72, 0, 0, 16),  # 28 warps would have registers, blocks of 16 leave 12 of them
        ("sm_80", 1, 16, 0, 0, 32),  # as many as there may be blocks
        ("sm_89", 1, 16, 0, 0, 24),
        ("sm_89", 8, 32, 0, 0, 48),
        ("sm_90", 4, 32, 227 << 10, 0, 4),  # the most that a block may have, and the system's KiB
        ("sm_90", 4, 32, 114 << 10, 0, 4),  # two and twice that KiB do not fit
        ("sm_90", 4, 32, 113 << 10, 0, 8),
        ("sm_90", 4, 32, 229 << 10, 0, 0),
        ("sm_100", 4, 32, 0, 256, 8),
        ("sm_100", 4, 32, 0, 512, 4),
        ("sm_120", 4, 128, 48 << 10, 0, 8),
        ("gfx90a", 4, 128, 0, 0, 16),
        ("gfx942", 4, 129, 0, 0, 12),
        ("gfx942", 4, 512, 0, 0, 4),
        ("gfx942", 4, 513, 0, 0, 0),
        ("gfx942", 1, 8, 0, 0, 32),
        ("gfx942", 2, 8, 0, 0, 32),
        ("gfx942", 4, 32, 32 << 10, 0, 8),
        ("gfx950", 4, 32, 32 << 10, 0, 16),  # five such blocks' 160 KiB, but whole granules of 1280
        ("gfx1100", 4, 97, 0, 0, 48),  # 120 a thread
        ("gfx1100", 4, 256, 64 << 10, 0, 8),
        ("gfx1201", 1, 24, 0, 0, 64),
        ("gfx1201", 2, 24, 0, 0, 64),
    ],
)
def test_occupancy(chip: str, warps: int, registers: int, shared: int, columns: int, resident: int) -> None:
    assert resident_warps(CHIPS[chip].unit, warps, registers, shared, columns) == resident


def test_a_small_kernel_reaches_full_occupancy() -> None:
    for chip in CHIPS.values():
        assert resident_warps(chip.unit, 4, 16, 0) == chip.unit.most == chip.unit.warps * chip.unit.parts


def test_the_limits_of_a_block_and_of_a_multiprocessor_apply() -> None:
    for chip in CHIPS.values():
        assert resident_warps(chip.unit, 4, 16, chip.shared) >= 4
        assert resident_warps(chip.unit, 4, 16, chip.unit.shared + 1) == 0


def test_blocks_of_several_warps_need_barriers() -> None:
    unit = Multiprocessor(warps=8, granule=8, barriers=4)
    assert [resident_warps(unit, warps, 8, 0) for warps in (1, 2, 4)] == [32, 8, 16]
