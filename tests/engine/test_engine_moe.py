"""A mixture of experts in the real engine: the tokens of transformers, and the same bits in any company."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from engine_harness import request
from moe_models import export_moe, save_moe
from parallel_harness import logits, nmse
from test_engine_formats import Model, check
from test_engine_packed import check as check_kept
from tiny_models import load_reference, prompt

from headrace.checkpoints.packed import cache
from headrace.client.in_process_client import InProcessClient
from headrace.config import CacheConfig, Config, DeviceConfig, ModelConfig, SchedulerConfig
from headrace.errors import UnsupportedModel
from headrace.platforms.cpu import native
from headrace.quant.online import quantize_weight
from headrace.quant.weights import dense
from headrace.tokenization.tokenizer import load_tokenizer

pytestmark = pytest.mark.skipif(native.missing() is not None, reason="the native kernels were not built")
VOCAB, NEW = 260, 12
PROMPTS = [prompt(length, VOCAB) for length in (1, 9, 33)]


def greedy(model: Any, ids: list[int]) -> list[int]:
    model.generation_config.eos_token_id = None  # ends are ignored, not forbidden
    out = model.generate(torch.tensor([ids]), max_new_tokens=NEW, do_sample=False)
    return out[0, len(ids) :].tolist()


def served(path: Path, tokenizer: Path, quantize: str | None) -> list[list[int]]:
    """Greedy tokens of all prompts together, in exact arithmetic."""

    async def main() -> list[list[int]]:
        config = Config(
            model=ModelConfig(model=str(path), quantize=quantize, dtype="float32"),
            cache=CacheConfig(num_blocks=40, kv_dtype="float32"),
            scheduler=SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=16),
            device=DeviceConfig(platform="cpu", threads=2),
        )
        client = InProcessClient(config, load_tokenizer(tokenizer))
        await client.start()
        try:
            wanted = [request(ids, f"r{at}", max_tokens=NEW) for at, ids in enumerate(PROMPTS)]
            return await asyncio.gather(*(_tokens(client, one) for one in wanted))
        finally:
            await client.close()

    return asyncio.run(main())


async def _tokens(client: InProcessClient, wanted: Any) -> list[int]:
    return [token async for output in client.generate(wanted) for token in output.token_ids]


def quantize_layers(model: Any, kind: str) -> Any:
    """The result of `--quantize` for every matrix of the layers except the router's."""
    for name, tensor in model.state_dict().items():
        if ".layers." in name and tensor.dim() > 1 and not name.endswith(("mlp.gate.weight", "expert_gate.weight")):
            rows = tensor.reshape(-1, tensor.shape[-1])
            tensor.copy_(quantize_weight(dense(rows, name), kind).dequantize().view_as(tensor))
    return model


@pytest.mark.parametrize("variant", ["qwen3_moe", "mixtral", "qwen2_moe", "dots1", "glm4_moe"])
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8", "int4"])
def test_greedy_tokens_are_those_of_transformers(variant: str, kind: str, tiny_llama: Path, tmp_path: Path) -> None:
    quantize = kind if kind.startswith("int") else None
    save_moe(variant, tmp_path, torch.bfloat16 if kind == "bfloat16" else torch.float32, vocab_size=VOCAB)
    model = load_reference(tmp_path)
    if quantize is not None:
        quantize_layers(model, quantize)
    wanted = [greedy(model, ids) for ids in PROMPTS]
    assert len({tuple(tokens) for tokens in wanted}) == len(PROMPTS)
    assert served(tmp_path, tiny_llama, quantize) == wanted


@pytest.mark.parametrize("name", ["bfloat16", "int8", "int4", "Q8_0", "Q4_0"])
def test_the_same_bits_however_it_is_computed(name: str, tiny_llama: Path, tmp_path: Path) -> None:
    """Cold, warm, batched, in chunks, preempted, on one thread or two."""
    if name.startswith("Q"):
        path = tmp_path / "model.gguf"
        export_moe("qwen3_moe", path, gguf.GGMLQuantizationType[name], vocab_size=VOCAB)
    else:
        path = tmp_path
        save_moe("qwen3_moe", path, torch.bfloat16, vocab_size=VOCAB)
    check(Model(path, name if name.startswith("int") else None, tiny_llama), "auto", len(name))


def test_the_same_bits_beside_a_shared_expert(tiny_llama: Path, tmp_path: Path) -> None:
    save_moe("qwen2_moe", tmp_path, torch.bfloat16, vocab_size=VOCAB)
    check(Model(tmp_path, None, tiny_llama), "auto", 1)


def test_experts_that_are_quantised_already_are_not_quantised_again(tiny_llama: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    export_moe("qwen3_moe", path, gguf.GGMLQuantizationType.Q8_0, vocab_size=VOCAB)
    with pytest.raises(UnsupportedModel, match="leave --quantize out"):
        served(path, tiny_llama, "int8")


@pytest.mark.parametrize("variant", ["qwen3_moe", "qwen2_moe", "dots1"])
def test_packed_experts_are_kept_on_disk(variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_WORTH", 0)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "home"))
    save_moe(variant, tmp_path / "model", torch.bfloat16)
    check_kept(tmp_path / "model", monkeypatch, quantize="int8")


@pytest.mark.parametrize(
    "variant",
    ["qwen3_moe", "mixtral", "qwen3_moe-some-dense", "qwen2_moe", "qwen2_moe-renormalised", "dots1", "glm4_moe"],
)
def test_two_ranks_give_what_one_gives(variant: str, tmp_path: Path) -> None:
    """Each has every expert, and half of its inner columns."""
    save_moe(variant, tmp_path / "model", torch.bfloat16)
    ids = prompt(12)
    (whole,) = logits(tmp_path / "model", ids, 1, tmp_path / "one", steps=4)
    first, second = logits(tmp_path / "model", ids, 2, tmp_path / "two", steps=4)
    assert torch.equal(first, second)
    assert nmse(first, whole) < 1e-10
    assert torch.equal(first.argmax(-1), whole.argmax(-1))


def test_gguf_experts_are_cut_between_blocks(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    export_moe("qwen3_moe", path, gguf.GGMLQuantizationType.Q8_0, moe_intermediate_size=96)
    (whole,) = logits(path, prompt(12), 1, tmp_path / "one")
    first, _ = logits(path, prompt(12), 2, tmp_path / "two")
    assert nmse(first, whole) < 1e-10
