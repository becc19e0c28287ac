"""The hardware-neutral core: a pure state machine that decides what every step computes.

`Scheduler` is all that others use. Read in this order: `admission` (sizes, refusals), `sequence`, `block_pool`, `radix`,
`kv_cache` (block tables), `queue` (who is next), `slots` and `constraints` (parameters as arrays), `plan`, `scheduler`;
`invariants` says what holds between any two calls.
"""

from headrace.core.admission import CoreConfig
from headrace.core.scheduler import Scheduler

__all__ = ["CoreConfig", "Scheduler"]
