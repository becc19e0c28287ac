"""Greedy tokens of the catalogue's models equal transformers' on the same weights, dequantised, over 50 prompts.

Prompts are prefixes of four stretches of one text, 10 to 1,000 tokens long: causal attention gives a prefix the same logits
as the whole, so one pass a stretch compares every position, and its keys and values serve all continuations. Where the two
sides' greedy tokens differ the reference's own gap must be below 1e-3: such near-ties are printed, not hidden.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from model_harness import logits_of, one_sequence, reference_ops
from transformers import AutoModelForCausalLM, DynamicCache

from headrace.checkpoints.checkpoint import open_checkpoint
from headrace.hub.catalogue import cached_path, find_cached, terms_of
from headrace.kernels import paged
from headrace.kernels.weight import Weight
from headrace.models.decoder import Decoder
from headrace.quant.weights import dense, stack
from headrace.types import KVLayout

pytestmark = [pytest.mark.real_model, pytest.mark.slow]
STRETCHES = (1000, 500, 300, 200)
PROMPTS = 50
STEPS = 8
NEAR = 1e-3
Tensor = torch.Tensor


def model_file(name: str) -> Path:
    if terms_of(name) is not None and find_cached(name) is None:
        pytest.skip(f"the terms of {name} have not been accepted here: run `headrace pull {name}`")
    return cached_path(name)


def plain(weight: Weight) -> Weight:
    """Dequantised once, so that the reference operators don't do it at every step."""
    whole = stack([plain(part) for part in weight.parts]) if weight.parts else dense(weight.dequantize())
    whole.bias = weight.bias
    return whole


def pieces(metadata: Any, count: int) -> list[int]:
    """Token ids of the licence's text by longest match: any split will do, as long as both sides get the same."""
    ids = {token: index for index, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    space = "Ġ" if metadata["tokenizer.ggml.model"] == "gpt2" else "▁"
    text = " ".join((Path(__file__).parents[2] / "LICENSE").read_text().split()).replace(" ", space)
    found: list[int] = []
    at = 0
    while len(found) < count:
        length = next(length for length in range(16, 0, -1) if text[at : at + length] in ids)
        found.append(ids[text[at : at + length]])
        at = (at + length) % (len(text) - 16)
    return found


def prefixes() -> dict[int, list[int]]:
    """Prompt lengths by stretch, longest first: 50 in all, from 10 to 1,000, evenly on a logarithmic scale."""
    lengths = np.geomspace(10, max(STRETCHES), PROMPTS).round().astype(int).tolist()
    shared: dict[int, list[int]] = {index: [] for index in range(len(STRETCHES))}
    for turn, length in enumerate(reversed(lengths)):
        fitting = [index for index, size in enumerate(STRETCHES) if size >= length]
        shared[fitting[turn % len(fitting)]].append(length)
    return shared


class Both:
    """Our decoder and transformers' model on one stretch of text, each with its own cache."""

    def __init__(self, decoder: Decoder, reference: Any, ids: list[int]) -> None:
        self.decoder, self.reference, self.ids = decoder, reference, ids
        layout = KVLayout(decoder.config.kv_layers, 8, "float32")
        self.kv = paged.alloc(layout, (len(ids) + STEPS) // 8 + 3, torch.device("cpu"))
        self.history = torch.zeros(1, len(ids) + STEPS + 1, dtype=torch.int32)
        self.cache = DynamicCache()  # keeps all keys of windowed layers, too: their mask is what windows them

    def whole(self) -> tuple[Tensor, Tensor]:
        """Logits of every position, ours and theirs."""
        ours = self.decoder.forward(one_sequence(self.ids, 0, len(self.ids)), self.kv, self.history)
        with torch.no_grad():
            out = self.reference(torch.tensor([self.ids]), past_key_values=self.cache, use_cache=True)
        return ours, out.logits[0]

    def continuation(self, length: int, first: int) -> list[int]:
        """Eight greedy tokens of transformers after a prefix. What stood in its cache past the prefix is dropped."""
        self.cache.crop(length - self.cache.get_seq_length())
        tokens = [first]
        while len(tokens) < STEPS:
            with torch.no_grad():
                out = self.reference(torch.tensor([tokens[-1:]]), past_key_values=self.cache, use_cache=True)
            self.theirs.append(out.logits[0, -1])
            tokens.append(int(self.theirs[-1].argmax()))
        return tokens

    def check_continuation(self, length: int, first: int) -> int:
        """Near-ties among them. Ours gets their tokens in one chunk: greedy on both sides as long as each one agrees."""
        self.theirs: list[Tensor] = []
        prompt = self.ids[:length] + self.continuation(length, first)
        ours = self.decoder.forward(one_sequence(prompt, length, len(prompt) - 1), self.kv, self.history)
        return near_ties(ours, torch.stack(self.theirs))


def near_ties(ours: Tensor, theirs: Tensor) -> int:
    """How many rows pick another token, each held to be a near-tie in the reference."""
    picked, wanted = ours.argmax(-1), theirs.argmax(-1)
    gaps = theirs.gather(-1, wanted.unsqueeze(-1)) - theirs.gather(-1, picked.unsqueeze(-1))
    assert gaps.max() < NEAR, f"a greedy token differs by {gaps.max():.5f} in the reference's logits"
    return int((picked != wanted).sum())


@pytest.mark.parametrize("name", ["smollm2", "gemma3-270m"])
def test_greedy_tokens_equal_those_of_transformers(name: str) -> None:
    path = model_file(name)
    checkpoint = open_checkpoint(path)
    decoder = checkpoint.build(reference_ops(), max(STRETCHES) + STEPS + 1)
    head = plain(decoder.weights.head)
    layers = [
        type(layer)(**{key: plain(value) if isinstance(value, Weight) else value for key, value in fields(layer)})
        for layer in decoder.weights.layers
    ]
    weights = type(decoder.weights)(head, layers, decoder.weights.norm, head, decoder.weights.rope_factors)
    decoder = Decoder(decoder.config, reference_ops(), weights, max(STRETCHES) + STEPS + 1)
    reference = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    text = pieces(checkpoint.metadata, sum(STRETCHES))
    ties = compared = start = 0
    for index, size in enumerate(STRETCHES):
        both = Both(decoder, reference, text[start : start + size])
        start += size
        ours, theirs = both.whole()
        assert (ours - theirs).abs().max() < 2e-3 * theirs.std()
        ties += near_ties(ours, theirs)
        compared += size
        for length in prefixes()[index]:  # longest first: what a continuation writes lies past the next prefix
            ties += both.check_continuation(length, int(theirs[length - 1].argmax()))
            compared += STEPS - 1
    print(f"{name}: {compared} greedy tokens compared, {ties} near-ties below {NEAR}")
    assert compared == sum(STRETCHES) + PROMPTS * (STEPS - 1)
    assert ties <= compared // 200


def fields(layer: Any) -> list[tuple[str, Any]]:
    return [(name, getattr(layer, name)) for name in type(layer).__dataclass_fields__]


def test_blocks_in_memory_give_what_their_dequantised_form_gives() -> None:
    """The weights as they are served, against the form that the comparison above uses."""
    checkpoint = open_checkpoint(cached_path("smollm2"))
    decoder = checkpoint.build(reference_ops(), 16)
    ids = pieces(checkpoint.metadata, 12)
    layer = decoder.weights.layers[0]
    assert {part.scheme for part in layer.qkv.parts} == {"gguf:q4_1"}
    assert decoder.weights.embedding.scheme == "gguf:q8_0"
    torch.testing.assert_close(plain(layer.qkv).dequantize(), layer.qkv.dequantize(), rtol=0, atol=0)
    torch.testing.assert_close(logits_of(decoder, ids, 5), logits_of(decoder, ids), atol=1e-3, rtol=0)
