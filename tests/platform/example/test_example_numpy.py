"""The example with numpy tensors: the complete kit, the answers of the CPU, and its faults found by the last tier."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from example_harness import Run, install, interpreter

from headrace.conformance import KitTarget, run
from headrace.conformance.checkpoints import KINDS
from headrace.conformance.loading_tier import LoadingTier
from headrace.errors import PlatformError
from headrace.kernels.spec import OpSpec

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "examples" / "backend_numpy"


@pytest.fixture(scope="module")
def home() -> Iterator[Any]:
    """The example's device module, from its source."""
    sys.path.insert(0, str(SOURCE / "src"))
    import headrace_numpy.device

    yield headrace_numpy.device
    sys.path.remove(str(SOURCE / "src"))


@pytest.mark.slow
def test_the_kit_is_green(home: Any) -> None:
    from headrace_numpy import NumpyPlatform

    report = run(KitTarget(NumpyPlatform(), examples=2))
    assert report.ok, report.table()
    skipped = {outcome.detail for outcome in report.outcomes if outcome.result == "skipped"}
    assert [why for why in skipped if "not declared" not in why] == []
    assert {outcome.result for outcome in report.outcomes if outcome.tier == "loading"} == {"passed"}


def test_a_cache_that_was_given_away_is_an_error(home: Any) -> None:
    device = home.NumpyDevice()
    kv = device.alloc_kv(home.KVLayout((), 16, "float32"), 2)
    after, _ = device.compile(lambda kv, inputs: (kv, {}), None)(kv, {})
    assert after.stores == []
    with pytest.raises(PlatformError, match="this cache was donated to a step"):
        device.copy_blocks(kv, [0], [1])


def test_other_shapes_than_the_first_are_an_error(home: Any) -> None:
    step = home.NumpyDevice().compile(lambda kv, inputs: (kv, {}), None)
    step(None, {"x": np.zeros(4)})
    with pytest.raises(PlatformError, match=r"input x is \(5,\), but the step was compiled for \(4,\)"):
        step(None, {"x": np.zeros(5)})


def faults(home: Any) -> Mapping[str, tuple[type[Any], str]]:
    """By name: a device with one fault, and the checkpoint that shows it."""

    class TakesTorch(home.NumpyDevice):
        """Norms are right as long as they are torch's tensors."""

        def op(self, spec: OpSpec) -> Callable[..., Any] | None:
            own = super().op(spec)
            if spec.name != "rms_norm":
                return own
            return lambda x, weight, eps: own(x, torch.Tensor.numpy(weight), eps)  # type: ignore[misc]

    class LosesBiases(home.NumpyDevice):
        """Products without the bias that `pack` was to bring over."""

        def op(self, spec: OpSpec) -> Callable[..., Any] | None:
            own = super().op(spec)
            if spec.name != "linear":
                return own

            class Linear(type(own)):  # type: ignore[misc]
                def pack(self, weight: Any) -> None:
                    super().pack(weight)
                    weight.prepared.pop("numpy bias", None)

            return Linear(own._function)

    class SeesThroughTheWindow(home.NumpyDevice):
        def op(self, spec: OpSpec) -> Callable[..., Any] | None:
            own = super().op(spec)
            if spec.name != "attention":
                return own

            def attention(
                q: Any, batch: Any, kv: Any, layer: int, scale: float, window: Any, *rest: Any, **more: Any
            ) -> Any:
                return own(q, batch, kv, layer, scale, None, *rest, **more)  # type: ignore[misc]

            return attention

    class KeepsTheFirstBiases(home.NumpyDevice):
        """A step for eight biases, independently of what it was compiled for."""

        def op(self, spec: OpSpec) -> Callable[..., Any] | None:
            own = super().op(spec)
            if spec.name != "sample":
                return own

            def sample(logits: Any, inputs: Any, batch: Any, num_logprobs: int) -> Any:
                from dataclasses import replace

                few = {name: getattr(inputs, name)[:8] for name in ("bias_row", "bias_token", "bias_value")}
                return own(logits, replace(inputs, **few), batch, num_logprobs)  # type: ignore[misc]

            return sample

    class AnswersFromTheDeadCache(home.NumpyDevice):
        """After a failed step, the cache that is made again is one that was given away."""

        failed = False

        def compile(self, step_fn: Any, bucket: Any) -> Any:
            step = super().compile(step_fn, bucket)

            def call(kv: Any, inputs: Any) -> Any:
                try:
                    return step(kv, inputs)
                except PlatformError:
                    self.failed = True
                    raise

            return call

        def alloc_kv(self, layout: Any, num_blocks: int) -> Any:
            made = super().alloc_kv(layout, num_blocks)
            if self.failed:
                made.take()
            return made

    return {
        "takes torch": (TakesTorch, "plain"),
        "loses biases": (LosesBiases, "biases"),
        "sees through the window": (SeesThroughTheWindow, "window"),
        "keeps the first biases": (KeepsTheFirstBiases, ""),
        "answers from the dead cache": (AnswersFromTheDeadCache, "failure"),
    }


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("takes torch", "'numpy' for 'torch._C.TensorBase'"),
        ("loses biases", "a logprob of|tokens are the references'"),
        ("sees through the window", "a logprob of|tokens are the references'"),
        ("keeps the first biases", "[0-9]+ biases and a mask"),
        ("answers from the dead cache", "this cache was donated"),
    ],
)
def test_each_fault_is_noticed_by_the_last_tier(home: Any, name: str, words: str, tmp_path: Path) -> None:
    make, shown_by = faults(home)[name]
    tier, device = LoadingTier(), make()

    def check() -> None:
        if shown_by in KINDS:
            tier.test_a_checkpoint_is_served(device, shown_by, tmp_path)
        elif shown_by == "failure":
            tier.test_a_failing_step_leaves_an_engine_that_serves(device, tmp_path)
        else:
            tier.test_biases_and_masks_of_any_number_reach_the_sampler(device, tmp_path)

    with pytest.raises((AssertionError, PlatformError), match=words):
        check()


def test_a_model_with_experts_is_refused_where_the_device_has_none(home: Any, tmp_path: Path) -> None:
    class WithoutExperts(home.NumpyDevice):
        def op(self, spec: OpSpec) -> Callable[..., Any] | None:
            return None if spec.name == "moe" else super().op(spec)

    with pytest.raises(pytest.skip.Exception, match="optional operator moe is not declared"):
        LoadingTier().test_a_checkpoint_is_served(WithoutExperts(), "experts", tmp_path)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Run:
    site = tmp_path_factory.mktemp("numpy") / "site"
    install(SOURCE, site)
    return interpreter(site)


SERVE = """
import json, sys
from headrace import LLM, SamplingParams
params = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
answers = []
for platform in ("numpy", "cpu"):
    options = {"dtype": "float32", "num_blocks": 40, "max_num_seqs": 4, "threads": 1}
    with LLM(sys.argv[1], platform=platform, **options) as llm:
        outputs = llm.generate(["Hello", "a longer prompt of several blocks"], params)
        answers.append([one.outputs[0].token_ids for one in outputs])
print(json.dumps(answers))
"""


@pytest.mark.slow
def test_it_serves_the_tokens_of_the_cpu(python: Run, tiny: Path) -> None:
    import json

    done = python("-c", SERVE, str(tiny))
    assert done.returncode == 0, done.stderr
    own, cpu = json.loads(done.stdout.splitlines()[-1])
    assert own == cpu
    assert [len(ids) for ids in cpu] == [12, 12]
