"""What an engine reports about itself: a snapshot for `/metrics`, and totals since its start."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.types import SchedulerStats

__all__ = ["EngineStats", "EngineTotals"]


@dataclass(frozen=True, slots=True)
class EngineTotals:
    """Since the engine's start; none ever falls. Two readings give the means of what lay between them, whatever was before."""

    busy_seconds: float = 0.0
    """In which the device worked on steps."""
    slot_shares: float = 0.0
    """Running sequences over max_num_seqs, summed over the steps."""
    kv_shares: float = 0.0
    """Tokens stored over token places in held blocks, summed over looks at the memory."""
    kv_looks: int = 0
    host_seconds: float = 0.0
    """Processor time of the thread that schedules, plans, launches and commits."""
    peak_bytes: int = 0
    """The most memory that the engine's process has held, other ranks' not among it; 0 where the system does not tell."""


@dataclass(frozen=True, slots=True)
class EngineStats:
    scheduler: SchedulerStats
    block_size: int
    steps: int
    device_busy: float
    """Share of the last window's wall time in which the device had work, 0 to 1; 0 when idle."""
    slot_occupancy: float
    """Running sequences over max_num_seqs, mean over the last window's steps."""
    kv_utilization: float
    """Tokens stored over token places in held blocks, mean over the last window; 0 when nothing ran in it."""
    restarts: int = 0
    totals: EngineTotals = EngineTotals()
