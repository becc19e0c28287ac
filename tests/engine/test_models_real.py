"""Greedy tokens of the catalogue's models equal transformers' on the same weights, dequantized, over 50 prompts.

Prompts are prefixes of four stretches of one text, 10 to 1,000 tokens long: causal attention gives a prefix the same
logits as the whole, so one pass a stretch compares every position, and its keys and values serve all continuations. If
the two sides' greedy tokens differ, the reference's own gap must be below 1e-3: such near-ties are printed, not hidden.
What transformers gives is kept (`real_references`); for a model of which nothing is kept it is computed. Ours comes of
the CPU platform in its exact arithmetic, float32, and from the weights as they are stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from model_harness import logits_of, one_sequence, reference_ops
from real_references import PROMPTS, STEPS, STRETCHES, Arrays, columns_of, compute_logits, kept, pieces, prefixes

from headrace.checkpoints.checkpoint import open_checkpoint
from headrace.hub.catalogue import cached_path, find_cached, terms_of
from headrace.kernels.registry import bind
from headrace.kernels.weight import Weight
from headrace.models.decoder import Decoder
from headrace.platforms.cpu import CpuPlatform
from headrace.platforms.interface import Device
from headrace.quant.weights import dense, stack
from headrace.types import KVLayout

pytestmark = [pytest.mark.real_model, pytest.mark.slow]
BLOCK = 16
NEAR = 1e-3
CLOSE = 2e-3
"""Of the deviation of all logits."""
Tensor = torch.Tensor


def model_file(name: str) -> Path:
    if terms_of(name) is not None and find_cached(name) is None:
        pytest.skip(f"the terms of {name} have not been accepted here: run `headrace pull {name}`")
    return cached_path(name)


def plain(weight: Weight) -> Weight:
    """Dequantized once."""
    whole = stack([plain(part) for part in weight.parts]) if weight.parts else dense(weight.dequantize())
    whole.bias = weight.bias
    return whole


@dataclass
class Reference:
    """Rows of transformers' logits in the order in which they are kept, and how many near-ties our rows had with
    them."""

    arrays: Arrays
    row: int = 0
    ties: int = 0

    def compare(self, ours: Tensor, spread: float) -> None:
        """Our next rows [n, vocab]: near to theirs, and with their largest or a near-tie of it."""
        own = slice(self.row, self.row + len(ours))
        top_ids, top, some = (torch.from_numpy(self.arrays[key][own]) for key in ("top_ids", "top", "some"))
        assert len(top) == len(ours), "the kept reference has fewer rows: run make_references.py again"
        columns = torch.from_numpy(columns_of(self.row, *ours.shape))
        self.row += len(ours)
        assert (ours.gather(1, columns) - some).abs().max() < CLOSE * spread
        assert (ours.gather(1, top_ids.long()) - top).abs().max() < CLOSE * spread
        picked = ours.argmax(-1, keepdim=True)
        found = torch.where(top_ids == picked, top, -torch.inf).amax(-1)
        gap = (top[:, 0] - found).max()
        assert gap < NEAR, f"a greedy token differs by {gap:.5f} in the reference's logits"
        self.ties += int((picked[:, 0] != top_ids[:, 0]).sum())


@dataclass(frozen=True)
class Ours:
    """Our decoder on a device, one sequence at a time."""

    decoder: Decoder
    device: Device

    def compare(self, ids: list[int], continued: dict[int, list[int]], reference: Reference, spread: float) -> None:
        """One stretch of text whole, then each prefix with the tokens by which the reference continues it."""
        layout = KVLayout(self.decoder.config.kv_layers, BLOCK, "float32")
        kv = self.device.alloc_kv(layout, (len(ids) + STEPS) // BLOCK + 3)
        history = torch.zeros(1, len(ids) + STEPS + 1, dtype=torch.int32)

        def logits(tokens: list[int], start: int, end: int) -> Tensor:
            found: Tensor = self.decoder.forward(one_sequence(tokens, start, end, BLOCK), kv, history)
            return found

        reference.compare(logits(ids, 0, len(ids)), spread)
        for length, tokens in continued.items():  # in one chunk: greedy on both sides as long as each one agrees
            prompt = ids[:length] + tokens
            reference.compare(logits(prompt, length, len(prompt) - 1), spread)


@pytest.mark.parametrize("name", ["smollm2", "gemma3-270m"])
def test_greedy_tokens_equal_those_of_transformers(name: str) -> None:
    path = model_file(name)
    checkpoint = open_checkpoint(path)
    device = CpuPlatform().open(0, {"dtype": "float32"})
    ours = Ours(checkpoint.build(bind(device), max(STRETCHES) + STEPS + 1), device)
    text = pieces(checkpoint.metadata, sum(STRETCHES))
    reference = Reference(kept(f"{name}-logits") or compute_logits(path, text))
    assert reference.arrays["ids"].tolist() == text, (
        "the kept reference is of another text: run make_references.py again"
    )
    tokens, start = iter(reference.arrays["tokens"].tolist()), 0
    for index, size in enumerate(STRETCHES):
        continued = {length: next(tokens) for length in prefixes()[index]}
        spread = float(reference.arrays["spread"][index])
        ours.compare(text[start : start + size], continued, reference, spread)
        start += size
    device.close()
    compared = reference.row
    print(f"{name}: {compared} greedy tokens compared, {reference.ties} near-ties below {NEAR}")
    assert compared == sum(STRETCHES) + PROMPTS * (STEPS - 1) == len(reference.arrays["top"])
    assert reference.ties <= compared // 200


def test_stored_blocks_and_their_dequantized_form_give_the_same() -> None:
    """The weights as they are served, against the form that other engines dequantize them to."""
    checkpoint = open_checkpoint(cached_path("smollm2"))
    decoder = checkpoint.build(reference_ops(), 16)
    ids = pieces(checkpoint.metadata, 12)
    layer = decoder.weights.layers[0]
    assert {part.scheme for part in layer.qkv.parts} == {"gguf:q4_1"}
    assert decoder.weights.embedding.scheme == "gguf:q8_0"
    torch.testing.assert_close(plain(layer.qkv).dequantize(), layer.qkv.dequantize(), rtol=0, atol=0)
    torch.testing.assert_close(logits_of(decoder, ids, 5), logits_of(decoder, ids), atol=1e-3, rtol=0)
