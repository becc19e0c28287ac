"""Compares the engine on XLA's CPU backend with the CPU platform: the same greedy tokens, one compilation per bucket.

Usage: tpu_engine.py FOLDER. PJRT_DEVICE=CPU must be set. Prints `N passed, N failed` last.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch_xla.debug.metrics
from plugin_serve import make_model

from headrace import LLM, SamplingParams
from headrace.platforms.tpu import TpuPlatform
from headrace.platforms.tpu.xla_runtime import XlaRuntime

EACH_BUCKET = ["8 bytes.", "a prompt of some", "a prompt of thirty-two bytes: 32"]
FIRST = [
    "Hello",
    "a longer prompt that fills several blocks of the cache, and is computed in chunks of a bucket",
    "!",
    "x y z",
]
SECOND = [
    "Other",
    "another prompt, as long as the one before, which finds nothing in the cache that it could use",
    "?",
    "a b c",
]
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.8, top_p=0.9, top_k=40, seed=7, max_tokens=24, ignore_eos=True)
Answers = list[list[int]]


class Watch:
    """Counts the compilations of torch-xla, and records the shapes that steps are captured for."""

    def __init__(self) -> None:
        self.keys: list[Any] = []
        self.compiled_for_steps = 0
        capture = XlaRuntime.capture

        def watched(runtime: XlaRuntime, function: Any, state: Any, inputs: Any) -> Any:
            runtime._xla.sync()  # pending computations of loading are not a step
            before = self.compilations()
            graph = capture(runtime, function, state, inputs)
            self.compiled_for_steps += self.compilations() - before
            self.keys.append((graph.name, tuple(tuple(x.shape) for x in inputs)))
            return graph

        XlaRuntime.capture = watched  # type: ignore[method-assign]

    @staticmethod
    def compilations() -> int:
        told = torch_xla.debug.metrics.metric_data("CompileTime")
        return int(told[0]) if told else 0


def answers(llm: LLM, prompts: list[str], params: SamplingParams) -> Answers:
    return [list(answer.outputs[0].token_ids) for answer in llm.generate(prompts, params)]


def open_llm(model: Path, platform: str) -> LLM:
    return LLM(
        str(model), platform=platform, dtype="float32", max_num_seqs=4, max_num_batched_tokens=32, kv_memory=8 << 20,
        prefix_caching=False,
    )  # fmt: skip


def main(folder: str) -> int:
    model = Path(folder) / "tiny"
    make_model(model)
    watch, failed = Watch(), 0

    def check(what: str, good: bool) -> None:
        nonlocal failed
        failed += not good
        print(f"{'ok      ' if good else 'FAILED  '}{what}")

    with open_llm(model, "cpu") as llm:
        wanted = [answers(llm, FIRST, GREEDY), answers(llm, SECOND, GREEDY), answers(llm, FIRST, SAMPLED)]
    with open_llm(model, "tpu") as llm:
        for prompt in EACH_BUCKET:
            answers(llm, [prompt], GREEDY)
        captured, steps, total = len(watch.keys), watch.compiled_for_steps, watch.compilations()
        first, second, sampled = answers(llm, FIRST, GREEDY), answers(llm, SECOND, GREEDY), answers(llm, FIRST, SAMPLED)
        again = watch.compilations() - total
    fallbacks = [name for name in torch_xla.debug.metrics.counter_names() if name.startswith("aten::")]
    check(f"greedy tokens are the CPU's: {sum(map(len, first + second))} of them", [first, second] == wanted[:2])
    check(f"sampled tokens are the CPU's: {sum(map(len, sampled))} of them", sampled == wanted[2])
    check(f"{steps} compilations for {captured} buckets", steps == captured == len(set(watch.keys)) == len(EACH_BUCKET))
    check(f"{again} more for {len(FIRST + SECOND + FIRST)} other requests, alone and together", again == 0)
    check(f"operators that fell back to the host in steps: {set(fallbacks) - LOADING}", set(fallbacks) <= LOADING)
    print(f"{5 - failed} passed, {failed} failed")
    return 1 if failed else 0


LOADING = {"aten::view_copy.dtype"}
"""Weights are transferred as bytes and reinterpreted once."""

if __name__ == "__main__":
    assert TpuPlatform().probe()[0], TpuPlatform().probe()[1]
    sys.exit(main(sys.argv[1]))
