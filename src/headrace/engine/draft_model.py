"""A smaller model that drafts: an engine of its own within the target's, on the same device.

A round gives it one request for each row: all tokens of the sequence so far as the prompt, and as many new tokens as
the round drafts, with the sequence's own parameters and seed. Since a draw depends on seed and position alone, it is
the target's own draw at that place. The prefix cache is exact to the token. So a round finds what earlier rounds have
computed, up to the last accepted draft, and computes one or two tokens more; rejected drafts are just not found.

Only drafts come from here, so a mistake costs time and changes no answer. Presence and frequency penalties are left
out: they count output, and the request has the output in its prompt.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from headrace.core import Scheduler
from headrace.core.drafts import DraftRow
from headrace.engine.core_loop import PendingStep, StepRunner
from headrace.engine.guarded_rounds import GuardedRounds
from headrace.errors import HeadraceError
from headrace.speculation.model_speculator import NEAR, ModelDrafts
from headrace.speculation.step_cost import StepCost
from headrace.types import Request, SamplingParams, StepPlan

__all__ = ["DraftModel"]

_log = logging.getLogger(__name__)
_DEPTH = 2
"""Steps in flight."""
_WARM_UP, _DRAFTS = (2, 2, 2, 2, 64, 64, 64), 8
"""Tokens of the prompts that are computed at the start, and of each answer."""
_KEPT = 9
"""Times of which the median counts."""


@dataclass(slots=True)
class _Known:
    """A sequence of the target."""

    request: Request
    tokens: list[int]
    computed: int = 0
    """The tokens that earlier rounds have computed."""
    params: dict[int, SamplingParams] = field(default_factory=dict)
    """By the number of drafts."""


class DraftModel(GuardedRounds):
    """A `speculation.model_speculator.DraftingModel`. `draft` runs the model to the end, while nothing of its sequences
    is in flight in the target. If a round fails, the error is logged once and no more drafts are made; a lost device is
    raised."""

    def __init__(
        self,
        name: str,
        scheduler: Scheduler,
        runner: StepRunner,
        busy_seconds: Callable[[], float] | None = None,
        isolated: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`busy_seconds`: the device's counter of its working time. `isolated`: sequences share no cached prefixes."""
        super().__init__(f"the draft model {name}", busy_seconds, clock)
        self.cost = StepCost()
        self.block = 0
        self.scheduler = scheduler
        self._runner = runner
        self._isolated = isolated
        self._sequences: dict[str, _Known] = {}
        self._overheads: deque[float] = deque(maxlen=_KEPT)
        self._requests = 0

    @property
    def overhead(self) -> float:
        return median(self._overheads) if self._overheads else 0.0

    def warm_up(self) -> None:
        """Make what is made on first use, and measure. Raises what the device raises."""
        config = self.scheduler.config
        most = min(config.max_model_len, (config.num_blocks - 1) * config.block_size)
        for number, length in enumerate(_WARM_UP):
            prompt = (number % config.vocab_size,) * max(1, min(length, most - _DRAFTS))
            params = SamplingParams(max_tokens=min(_DRAFTS, most - len(prompt)), temperature=0.0, ignore_eos=True)
            self._run([Request(f"warm-up {number}", prompt, params)])
        self.scheduler.reset_cache()

    def begin(self, request: Request) -> None:
        """Take up a sequence."""
        self._sequences[request.id] = _Known(request, list(request.prompt))

    def place(self, row: DraftRow) -> None:
        """Its cache has block tables of its own."""

    def extend(self, sequence: str, tokens: Sequence[int]) -> None:
        self._sequences[sequence].tokens += tokens

    def end(self, sequence: str) -> None:
        del self._sequences[sequence]

    def room(self, sequence: str) -> int:
        if self.failures:
            return 0
        return max(0, self.scheduler.config.max_model_len - len(self._sequences[sequence].tokens))

    def behind(self, sequence: str) -> int:
        known = self._sequences[sequence]
        return len(known.tokens) - known.computed

    def draft(self, wanted: Sequence[tuple[str, int]]) -> ModelDrafts:
        """Raises DeviceLost."""
        return self._guarded(len(wanted), lambda: self._round(wanted))

    def _round(self, wanted: Sequence[tuple[str, int]]) -> ModelDrafts:
        caught_up = self._catch_up([name for name, _ in wanted])
        start = self._clock()
        ready = [at for at, (name, _) in enumerate(wanted) if self.behind(name) <= NEAR]
        tokens: list[list[int]] = [[] for _ in wanted]
        for at, found in zip(ready, self._run([self._request(*wanted[at]) for at in ready]), strict=True):
            known = self._sequences[wanted[at][0]]
            known.computed = len(known.tokens)
            tokens[at] = found
        return ModelDrafts(tokens, self._clock() - start, caught_up)

    def _catch_up(self, names: Sequence[str]) -> list[float]:
        """Compute the earlier tokens of sequences that have many, no more than one step holds in all. Returns the
        seconds of each."""
        budget, counts, requests = self.scheduler.config.max_num_batched_tokens, [0] * len(names), list[Request]()
        for at, name in enumerate(names):
            known = self._sequences[name]
            if self.behind(name) > NEAR and budget > 0:
                counts[at] = min(budget, self.behind(name) - 1)
                budget -= counts[at]
                known.computed += counts[at]
                # With a token, although none is needed: the result of a step without rows comes before its end.
                requests.append(self._request(name, 1, known.computed))
        if not requests:
            return [0.0] * len(names)
        start = self._clock()
        self._run(requests)
        each = (self._clock() - start) / sum(counts)
        return [each * count for count in counts]

    def _request(self, name: str, count: int, length: int | None = None) -> Request:
        """`count` tokens after all tokens of a sequence, or after the first `length`."""
        known = self._sequences[name]
        self._requests += 1
        return Request(
            str(self._requests),
            tuple(known.tokens[:length]),
            self._params(known, count),
            known.request.eos_token_ids,
            salt=known.request.id if self._isolated else known.request.salt,
            adapter=known.request.adapter,
        )

    def _params(self, known: _Known, count: int) -> SamplingParams:
        found = known.params.get(count)
        if found is None:
            params = known.request.params
            output = len(known.tokens) - len(known.request.prompt)
            found = replace(
                params,
                n=1,
                max_tokens=count,
                min_tokens=max(0, params.min_tokens - output),
                presence_penalty=0.0,
                frequency_penalty=0.0,
                logprobs=None,
                prompt_logprobs=None,
                stop=(),
                structured_outputs=None,
            )
            if not found.min_tokens:
                known.params[count] = found
        return found

    def _run(self, requests: Sequence[Request]) -> list[list[int]]:
        """The new tokens of each request. Raises what the device raises, and HeadraceError for a request that fails."""
        found: dict[str, list[int]] = {request.id: [] for request in requests}
        if not requests:
            return []
        start = self._clock()
        for request in requests:
            self.scheduler.add(request)
        in_flight, began = deque[tuple[StepPlan, PendingStep]](), False
        while self.scheduler.has_work():
            plan = self.scheduler.schedule(start) if len(in_flight) < _DEPTH else None
            if plan is not None:
                in_flight.append((plan, self._runner.launch(plan)))
                if not began:
                    began, now = True, self._clock()
                    self._overheads.append(now - start)
                    start = now
                continue
            plan, launched = in_flight.popleft()
            result = launched.result()
            now = self._clock()
            self.cost.observe(plan.num_tokens, int(plan.positions.sum()) + plan.num_tokens, now - start)
            start = now
            for delta in self.scheduler.commit(plan, result, now):
                if delta.finish_reason == "error":
                    raise HeadraceError(delta.error or "no reason is known")
                found[delta.request_id] += delta.token_ids
        return list(found.values())
