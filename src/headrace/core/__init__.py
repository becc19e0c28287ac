"""The hardware-neutral core: a pure state machine that decides what every step computes.

`Scheduler` is all that others use. Read in this order: `block_pool`, `radix`, `sequence`, `kv_cache`, `queue`, `plan`,
`scheduler`.
"""

from headrace.core.admission import CoreConfig
from headrace.core.scheduler import Scheduler

__all__ = ["CoreConfig", "Scheduler"]
