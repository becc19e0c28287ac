"""Serving in which one step fails on the device, handled as the engine handles it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.conformance.tiny import Serving, TinyModel
from headrace.errors import DeviceLost, PlatformError
from headrace.kernels.inputs import batch_of
from headrace.platforms.interface import KV, Device, Pending, Tensor
from headrace.types import Delta, StepPlan

__all__ = ["Interrupted"]

_FAILING = 3
"""The launch that fails: one is under way before it."""


class Interrupted(Serving):
    """The third step raises `fault` behind its last operator, wherever the device runs or records it; all others are sound.

    A step that fails ends the requests that took part in it, whose messages `errors` keeps, and the others go on; the loss of
    the device is raised, since it ends the engine.
    """

    def __init__(self, device: Device, model: TinyModel, fault: Exception) -> None:
        super().__init__(device, model, budget=48, seqs=3)
        self.errors: dict[str, str] = {}
        self.raised: list[PlatformError] = []
        self._fault, self._model, self._launches = fault, model, 0

    def failed(self, plan: StepPlan, error: PlatformError) -> list[Delta]:
        self.raised.append(error)
        if isinstance(error, DeviceLost):
            raise error
        deltas = self.scheduler.fail(plan, f"step {plan.step} failed on the device: {error}")
        self.errors |= {delta.request_id: delta.error for delta in deltas if delta.error is not None}
        return deltas

    def launch(self, plan: StepPlan) -> dict[str, Pending]:
        self._launches += 1
        if self._launches != _FAILING:
            return super().launch(plan)
        sound, self._executable = self._executable, self._device.compile(self._failing, self._bucket)
        try:
            return super().launch(plan)
        finally:
            self._executable = sound

    def _failing(self, kv: KV, inputs: Mapping[str, Tensor]) -> tuple[KV, Mapping[str, Any]]:
        self._model.forward(batch_of(inputs), kv, inputs["history"])
        raise self._fault
