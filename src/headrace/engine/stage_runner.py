"""The runner of a pipeline's stages before the last one: steps without logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, cast

import numpy.typing as npt

from headrace.engine.runner import Model, Runner
from headrace.kernels.inputs import batch_arrays, batch_of
from headrace.kernels.ops import Batch
from headrace.platforms.interface import KV, Pending, StepFn, Tensor
from headrace.types import Bucket, StepPlan

__all__ = ["StageRunner"]


class StageModel(Model, Protocol):
    """The members of a stage's model that its runner uses."""

    def pass_on(self, batch: Batch, kv: Any, history: Any) -> Any:
        """Runs the layers and sends what they give to the next stage. Returns int32 [T], when that has been done."""


class StageRunner(Runner):
    """Runs the layers of a stage and passes on what they give. The result of a step says only that it has run."""

    def _all_arrays(self, plan: StepPlan) -> dict[str, npt.NDArray[Any]]:
        return batch_arrays(plan)

    def _sampled(self, part: str, bucket: Bucket, plan: StepPlan, inputs: Mapping[str, Tensor]) -> dict[str, Pending]:
        return {"tokens": self._device.get(self._call("stage", bucket, -1, inputs)["tokens"])}

    def _step_fn(self, part: str, top: int, hidden: bool) -> StepFn:
        if part != "stage":
            return super()._step_fn(part, top, hidden)
        carry = not self._capabilities.in_place_kv

        def stage(kv: KV, inputs: Mapping[str, Tensor]) -> tuple[KV, Mapping[str, Tensor]]:
            tokens = cast(StageModel, self._model).pass_on(batch_of(inputs), kv, inputs["history"])
            return kv, {"tokens": tokens, **({"history": inputs["history"]} if carry else {})}

        return stage
