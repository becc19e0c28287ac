"""Every weight format and every type of cache gives the same bits however a request is computed.

Models' shapes and schedules are drawn from fixed seeds. What is held against what: alone, on one thread, whole prompts,
no prefix cache; and in a crowd, on one thread and on two, in chunks, through a cache too small for all, so that
sequences are preempted, cold and warm. A crowd's requests arrive at once: what such a small cache still holds when a
request enters depends on who came before it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_harness import BLOCK, Answer, GroupingClient, idle, in_turn, request, together
from format_models import FORMATS, drawn_shape, make

from headrace.client.api import GenerateRequest
from headrace.config import CacheConfig, Config, DeviceConfig, ModelConfig, SchedulerConfig
from headrace.engine.stats import EngineStats
from headrace.platforms.cpu import native
from headrace.tokenization.tokenizer import load_tokenizer

pytestmark = pytest.mark.skipif(native.missing() is not None, reason="the native kernels were not built")
KV_DTYPES = ("float32", "bfloat16", "float16", "int8", "float8_e4m3")


@dataclass(frozen=True)
class Model:
    path: Path
    quantize: str | None
    tokenizer: Path


def run(model: Model, rounds: list[Any], kv_dtype: str, threads: int, **sizes: Any) -> tuple[list[Answer], EngineStats]:
    """The answers of every round, one after the other, and the engine's counts at the end."""

    async def main() -> tuple[list[Answer], EngineStats]:
        config = Config(
            model=ModelConfig(model=str(model.path), quantize=model.quantize),
            cache=CacheConfig(
                num_blocks=sizes["blocks"], prefix_caching=sizes["caching"], block_size=BLOCK, kv_dtype=kv_dtype
            ),
            scheduler=SchedulerConfig(max_num_seqs=sizes["seqs"], max_num_batched_tokens=sizes["chunk"]),
            device=DeviceConfig(platform="cpu", threads=threads),
        )
        client = GroupingClient(config, load_tokenizer(model.tokenizer))
        await client.start()
        try:
            found = [answer for play, requests in rounds for answer in await play(client, requests)]
            return found, await idle(client)
        finally:
            await client.close()

    return asyncio.run(main())


def drawn(rng: np.random.Generator) -> list[GenerateRequest]:
    """Five requests, two of which open alike; greedy and sampled. Each fits a pool of five blocks, no two do in the
    end."""
    shared = rng.integers(4, 260, 33).tolist()
    requests = []
    for at in range(5):
        prompt = rng.integers(4, 260, int(rng.integers(1, 25))).tolist()
        if at % 2:
            prompt = shared[: int(rng.integers(17, 34))] + prompt
        length = max(41 - len(prompt), 0) + int(rng.integers(8, 19))
        params: dict[str, Any] = {"temperature": 1.0, "seed": at} if at > 2 else {}
        requests.append(request(prompt, f"r{at}", max_tokens=length, logprobs=2, **params))
    return requests


def check(model: Model, kv_dtype: str, seed: int) -> None:
    """A crowd on one thread and another on two, both with sequences preempted."""
    rng = np.random.default_rng(seed)
    requests = drawn(rng)
    expected, _ = run(model, [(in_turn, requests)], kv_dtype, 1, blocks=40, caching=False, seqs=1, chunk=512)
    assert len({str(one.logprobs) for one in expected}) == len(expected)
    for threads in (1, 2):
        sizes = {"blocks": 6, "seqs": int(rng.integers(3, 6)), "chunk": int(rng.choice([5, 16, 33]))}
        order = rng.permutation(len(requests)).tolist()
        mixed = [requests[at] for at in order]
        found, stats = run(model, [(together, mixed), (together, mixed)], kv_dtype, threads, caching=True, **sizes)
        for turn, one in enumerate(found):
            assert one.bits == expected[order[turn % len(order)]].bits, (turn, threads, sizes)
        assert stats.scheduler.cached_tokens > 0, sizes
        assert stats.scheduler.preemptions > 0, sizes


@pytest.mark.parametrize("name", FORMATS)
def test_every_weight_format(name: str, tiny_llama: Path, tmp_path: Path) -> None:
    seed = FORMATS.index(name)
    path, quantize = make(name, tmp_path, drawn_shape(np.random.default_rng([1, seed])))
    check(Model(path, quantize, tiny_llama), "auto", seed)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("name", ["bfloat16", "Q4_1", "gptq"])
def test_every_type_of_cache(name: str, kv_dtype: str, tiny_llama: Path, tmp_path: Path) -> None:
    seed = [2, FORMATS.index(name), KV_DTYPES.index(kv_dtype)]
    path, quantize = make(name, tmp_path, drawn_shape(np.random.default_rng(seed)))
    check(Model(path, quantize, tiny_llama), kv_dtype, 100 + KV_DTYPES.index(kv_dtype))
