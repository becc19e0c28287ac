"""Greedy text of the default model in bfloat16 equals transformers' over 50 prompts, up to the first near-tie of each.

Both sides round to bfloat16 at their own places, so that two tokens within that rounding of each other may change places, and
the texts part there. What counts is the gap that float32 arithmetic sees between them: it must lie within the error that
transformers' own bfloat16 logits have at that position, and ours must be float32's choice as often as theirs.
"""

from __future__ import annotations

import pydoc_data.topics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from headrace.hub.catalogue import cached_path
from headrace.llm import LLM
from headrace.types import SamplingParams

pytestmark = [pytest.mark.real_model, pytest.mark.slow]
Tensor = torch.Tensor
LENGTHS = (16, 32, 48, 64, 96)
PER_LENGTH = 10
STEPS = 32


@dataclass(frozen=True)
class Parting:
    """Where two texts part: the prompt, the step, float32's gap between the tokens, the largest error of transformers' bfloat16
    logits among the first twenty, and whose token float32 picks: `ours`, `theirs` or `neither`."""

    prompt: int
    step: int
    gap: float
    error: float
    picked: str


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The catalogue's model dequantised to bfloat16, as transformers writes it."""
    file, target = cached_path("smollm2"), tmp_path_factory.mktemp("smollm2-bf16")
    stored = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.bfloat16)
    config = stored.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.load_state_dict(stored.state_dict())
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(target)
    return target


def prompts_of(directory: Path) -> list[list[int]]:
    """Ten windows of Python's own documentation for each length."""
    topics: dict[str, str] = pydoc_data.topics.topics
    text = "\n\n".join(topics[name] for name in sorted(topics))[:150_000]
    ids = AutoTokenizer.from_pretrained(directory)(text, add_special_tokens=False)["input_ids"]
    apart = len(ids) // (len(LENGTHS) * PER_LENGTH) - 1
    starts = iter(range(0, len(ids), apart))
    return [
        ids[start : start + length] for length in LENGTHS for _, start in zip(range(PER_LENGTH), starts, strict=False)
    ]


@torch.no_grad()
def generated(model: Any, prompts: list[list[int]]) -> list[list[int]]:
    """Greedy tokens, prompts of a length in one batch, so that nothing is padded."""
    found: list[list[int]] = []
    for start in range(0, len(prompts), PER_LENGTH):
        batch = torch.tensor(prompts[start : start + PER_LENGTH])
        model.generation_config.eos_token_id = None
        whole = model.generate(batch, max_new_tokens=STEPS, do_sample=False, pad_token_id=0)
        found += whole[:, batch.shape[1] :].tolist()
    return found


@torch.no_grad()
def parting(at: int, prompt: list[int], ours: list[int], theirs: list[int], exact: Any, rounded: Any) -> Parting | None:
    step = next((i for i, (one, other) in enumerate(zip(ours, theirs, strict=True)) if one != other), None)
    if step is None:
        return None
    ids = torch.tensor([prompt + theirs[:step]])
    true, found = (model(ids).logits[0, -1].float() for model in (exact, rounded))
    best = true.topk(20).indices
    gap, error = float((true[ours[step]] - true[theirs[step]]).abs()), float((true - found)[best].abs().max())
    picked = {ours[step]: "ours", theirs[step]: "theirs"}.get(int(best[0]), "neither")
    return Parting(at, step, gap, error, picked)


def test_greedy_text_equals_that_of_transformers(directory: Path) -> None:
    prompts = prompts_of(directory)
    assert len(prompts) == 50
    params = SamplingParams(max_tokens=STEPS, temperature=0.0, ignore_eos=True)
    with LLM(str(directory), max_model_len=256) as llm:
        ours = [answer.outputs[0].token_ids for answer in llm.generate(prompts, params)]
    rounded, exact = (
        AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval() for dtype in (torch.bfloat16, torch.float32)
    )
    theirs = generated(rounded, prompts)
    pairs = zip(prompts, ours, theirs, strict=True)
    parted = [found for at, pair in enumerate(pairs) if (found := parting(at, *pair, exact, rounded)) is not None]
    print(f"{len(prompts) - len(parted)} of {len(prompts)} texts are equal, {STEPS} tokens each")
    for one in parted:
        print(
            f"prompt {one.prompt} at {one.step}: {one.gap:.4f} apart, bfloat16 {one.error:.4f} off, float32 picks {one.picked}"
        )
    assert all(one.gap <= 2 * one.error for one in parted)
    # Both round to bfloat16; ours does so at fewer places, and must not be the worse of the two.
    assert sum(one.picked == "ours" for one in parted) >= sum(one.picked == "theirs" for one in parted)
