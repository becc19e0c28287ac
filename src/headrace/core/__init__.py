"""The hardware-neutral core: a pure state machine that decides what every step computes.

Other packages only use `Scheduler`. Read in this order: `admission` (sizes, refusals), `sequence`, `block_pool`,
`radix`, `kv_cache` (block tables), `waiting_queue` (order of requests), `slots` and `constraints` (parameters as
arrays), `decodes` and `prefill_chunk` (the parts of a step), `plan_builder`, `sequence_ends`, `step_results`,
`scheduler`. `block_source` and `fetches` keep blocks beside the device, `prompt_scores` and `block_scores` the logprobs
of prompts beside the blocks. `invariants` checks the state between any two calls.
"""

from headrace.core.admission import CoreConfig
from headrace.core.scheduler import Scheduler

__all__ = ["CoreConfig", "Scheduler"]
