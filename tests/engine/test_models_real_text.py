"""Greedy text of the default model in bfloat16 equals transformers' over 50 prompts, up to the first near-tie of each.

Both sides round to bfloat16 at their own places, so that two tokens within that rounding of each other may change
places, and the texts part there. What counts is the gap that float32 arithmetic sees between them: it must lie within
the error that transformers' own bfloat16 logits have at that position, and ours must be float32's choice as often as
theirs. What transformers gives is kept (`real_references`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from real_references import (
    LENGTHS,
    PER_LENGTH,
    TEXT_STEPS,
    Arrays,
    compute_text,
    convert,
    convert_as_kept,
    kept,
    windows,
)

from headrace.hub.catalogue import cached_path
from headrace.llm import LLM
from headrace.types import SamplingParams

pytestmark = [pytest.mark.real_model, pytest.mark.slow]


@dataclass(frozen=True)
class Parting:
    """Where two texts part: the prompt, the step, float32's gap between the tokens, the largest error of transformers'
    bfloat16 logits among the first twenty, and whose token float32 picks: `ours`, `theirs` or `neither`."""

    prompt: int
    step: int
    gap: float
    error: float
    picked: str


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The catalogue's model dequantized to bfloat16, as transformers writes it."""
    target, reference = tmp_path_factory.mktemp("smollm2-bf16"), kept("smollm2-text")
    if reference is None:
        convert(cached_path("smollm2"), target)
    else:
        convert_as_kept(cached_path("smollm2"), target, reference)
    return target


def prompts_of(reference: Arrays) -> list[list[int]]:
    tokens = iter(reference["prompts"].tolist())
    return [[next(tokens) for _ in range(length)] for length in LENGTHS for _ in range(PER_LENGTH)]


def parting(at: int, ours: list[int], reference: Arrays) -> Parting | None:
    theirs: list[int] = reference["tokens"][at].tolist()
    step = next((i for i, (one, other) in enumerate(zip(ours, theirs, strict=True)) if one != other), None)
    if step is None:
        return None
    best: list[int] = reference["top_ids"][at, step].tolist()
    true = dict(zip(best, reference["top"][at, step].tolist(), strict=True))
    gap = abs(true.get(ours[step], -float("inf")) - true.get(theirs[step], float("inf")))
    picked = {ours[step]: "ours", theirs[step]: "theirs"}.get(best[0], "neither")
    return Parting(at, step, gap, float(reference["error"][at, step]), picked)


def test_greedy_text_equals_that_of_transformers(directory: Path) -> None:
    reference = kept("smollm2-text") or compute_text(directory, windows(directory))
    prompts = prompts_of(reference)
    assert len(prompts) == len(reference["tokens"]) == 50
    params = SamplingParams(max_tokens=TEXT_STEPS, temperature=0.0, ignore_eos=True)
    with LLM(str(directory), max_model_len=256) as llm:
        ours = [answer.outputs[0].token_ids for answer in llm.generate(prompts, params)]
    parted = [found for at, text in enumerate(ours) if (found := parting(at, text, reference)) is not None]
    print(f"{len(prompts) - len(parted)} of {len(prompts)} texts are equal, {TEXT_STEPS} tokens each")
    for one in parted:
        print(
            f"prompt {one.prompt} at {one.step}: {one.gap:.4f} apart, bfloat16 {one.error:.4f} off, "
            f"float32 picks {one.picked}"
        )
    assert all(one.gap <= 2 * one.error for one in parted)
    # Both round to bfloat16; ours does so at fewer places, and must not be the worse of the two.
    assert sum(one.picked == "ours" for one in parted) >= sum(one.picked == "theirs" for one in parted)
