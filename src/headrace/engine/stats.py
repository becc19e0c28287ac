"""The stats of an engine: a snapshot for `/metrics`, and totals since its start."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.core.block_source import TierStats
from headrace.core.inspection import PrefixView, SchedulerView, SequenceView
from headrace.types import SchedulerStats

__all__ = [
    "EngineStats",
    "EngineTotals",
    "EngineView",
    "MethodTotals",
    "PrefixView",
    "SchedulerView",
    "SequenceView",
    "SpeculationTotals",
    "TierStats",
]


@dataclass(frozen=True, slots=True)
class EngineTotals:
    """Totals since the engine's start; they never decrease. The difference of two readings gives the means between
    them."""

    busy_seconds: float = 0.0
    """Seconds in which the device worked on steps."""
    slot_shares: float = 0.0
    """Running sequences over max_num_seqs, summed over the steps."""
    kv_shares: float = 0.0
    """Stored tokens over the capacity of held blocks, summed over the samples of the memory."""
    kv_samples: int = 0
    host_seconds: float = 0.0
    """Processor time of the thread that schedules, plans, launches and commits."""
    peak_bytes: int = 0
    """Peak memory of the engine's process, without other ranks; 0 if the system does not report it."""


@dataclass(frozen=True, slots=True)
class MethodTotals:
    """What one method of speculative decoding has drafted since the engine's start."""

    method: str
    rounds: int
    """Verifications of at least one drafted token."""
    drafted: tuple[int, ...]
    """Tokens by their position in the draft."""
    accepted: tuple[int, ...]
    """The same for those that were accepted; as long as `drafted`."""

    @property
    def mean_length(self) -> float:
        """Tokens that a round yields: the accepted ones and the one that the target samples after them."""
        return 1 + sum(self.accepted) / self.rounds if self.rounds else 1.0


@dataclass(frozen=True, slots=True)
class SpeculationTotals:
    """Totals of speculative decoding since the engine's start."""

    seconds: float = 0.0
    """Time that the engine's loop spent in drafters and in the choice of drafts."""
    methods: tuple[MethodTotals, ...] = ()
    """By name; those that have drafted."""


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
    """Stored tokens over the capacity of held blocks, mean over the last window; 0 when nothing ran in it."""
    restarts: int = 0
    totals: EngineTotals = EngineTotals()
    speculation: SpeculationTotals = SpeculationTotals()
    tiers: tuple[TierStats, ...] = ()
    """What keeps blocks beside the device."""


@dataclass(frozen=True, slots=True)
class EngineView:
    """A look into the engine at one moment."""

    now: float
    """Monotonic seconds."""
    stats: EngineStats
    scheduler: SchedulerView
