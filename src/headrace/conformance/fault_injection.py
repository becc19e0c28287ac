"""Serves requests while one step fails on the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.conformance.tiny import Serving, TinyModel
from headrace.engine.core_loop import PendingStep, StepRunner
from headrace.errors import PlatformError
from headrace.platforms.interface import KV, Device, Executable, StepFn, Tensor
from headrace.types import Bucket, StepPlan, StepResult

__all__ = ["FailingDevice", "ServingWithFault"]

_FAILING = 3
"""The number of the call that fails, while an earlier one is in flight."""


class FailingDevice:
    """A device whose third call of a step raises `fault` after its last operator, when the device runs or records it;
    all other calls succeed."""

    def __init__(self, device: Device, fault: Exception) -> None:
        self._device, self._fault, self._calls = device, fault, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def compile(self, step_fn: StepFn, bucket: Bucket) -> Executable:
        intact = self._device.compile(step_fn, bucket)

        def broken(kv: KV, inputs: Mapping[str, Tensor]) -> tuple[KV, Mapping[str, Tensor]]:
            step_fn(kv, inputs)
            raise self._fault

        def call(kv: KV, inputs: Mapping[str, Tensor]) -> tuple[KV, Mapping[str, Tensor]]:
            self._calls += 1
            executable = self._device.compile(broken, bucket) if self._calls == _FAILING else intact
            return executable(kv, inputs)

        return call


class ServingWithFault(Serving):
    """Serving with a step that fails. `raised` has the errors that the engine received for it."""

    def __init__(self, device: Device, model: TinyModel, fault: Exception) -> None:
        self.raised: list[PlatformError] = []
        failing: Any = FailingDevice(device, fault)
        super().__init__(failing, model, budget=48, seqs=3)

    def watch(self, runner: StepRunner) -> StepRunner:
        return _Watched(runner, self.raised)


class _Watched:
    """A runner whose errors are recorded."""

    def __init__(self, runner: StepRunner, raised: list[PlatformError]) -> None:
        self._runner, self._raised = runner, raised

    def launch(self, plan: StepPlan) -> PendingStep:
        try:
            return _WatchedStep(self._runner.launch(plan), self._raised)
        except PlatformError as error:
            self._raised.append(error)
            raise

    def recover(self) -> bool:
        return self._runner.recover()

    def where_not_finite(self, tokens: Sequence[int]) -> str:
        return self._runner.where_not_finite(tokens)


class _WatchedStep:
    def __init__(self, launched: PendingStep, raised: list[PlatformError]) -> None:
        self._launched, self._raised = launched, raised

    def sample(self) -> None:
        try:
            self._launched.sample()
        except PlatformError as error:
            self._raised.append(error)
            raise

    def done(self) -> bool:
        return self._launched.done()

    def result(self) -> StepResult:
        try:
            return self._launched.result()
        except PlatformError as error:
            self._raised.append(error)
            raise
