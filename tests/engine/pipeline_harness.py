"""The stages of a pipeline in one process, a thread each, and engines of several ranks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from engine_harness import GroupingClient, config_of
from model_harness import one_sequence

from headrace.checkpoints.checkpoint import Checkpoint, open_checkpoint
from headrace.config import Config, ParallelConfig
from headrace.engine.stages import connect_stages
from headrace.kernels.inputs import batch_of
from headrace.kernels.registry import bind
from headrace.models.decoder import Decoder
from headrace.models.sharding import Shard
from headrace.platforms.cpu.native_device import NativeDevice
from headrace.platforms.interface import Device
from headrace.tokenization.tokenizer import load_tokenizer
from headrace.types import Bucket, KVLayout

_CONTEXT = 64


def stage_logits(
    model: Path,
    ids: Sequence[int],
    stages: int,
    directory: Path,
    opened: Callable[..., Device] = NativeDevice,
    cuts: Sequence[int] = (),
    look: Callable[[Checkpoint, Decoder], None] = lambda checkpoint, decoder: None,
) -> torch.Tensor:
    """float32 [len(ids), vocab] after every token, by the last stage; the tokens are computed in chunks that end at
    `cuts`. `look` gets what each stage has read."""
    directory.mkdir(exist_ok=True)

    def stage_main(stage: int) -> torch.Tensor | None:
        ranks = {"rank": stage, "world_size": stages, "rendezvous": f"file://{directory}/meeting"}
        device = opened(threads=1, dtype="float32", **(ranks if stages > 1 else {}))
        try:
            shard, checkpoint = Shard(stage=stage, stages=stages), open_checkpoint(model)
            links = connect_stages(device, shard)
            decoder = checkpoint.build(bind(device), _CONTEXT, shard=shard, links=links)
            look(checkpoint, decoder)
            return _run(device, decoder, list(ids), [*cuts, len(ids)], shard)
        finally:
            device.close()

    with ThreadPoolExecutor(stages) as pool:
        found = [one.result(300) for one in [pool.submit(stage_main, stage) for stage in range(stages)]]
    assert all(one is None for one in found[:-1])
    assert found[-1] is not None
    return found[-1]


def _run(device: Device, decoder: Decoder, ids: list[int], ends: list[int], shard: Shard) -> torch.Tensor | None:
    def step(kv: Any, inputs: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
        function = decoder.forward if shard.samples else decoder.pass_on
        return kv, {"found": function(batch_of(inputs), kv, inputs["history"])}

    kv = device.alloc_kv(KVLayout(decoder.config.kv_layers, 16, "float32"), _CONTEXT // 16 + 1)
    executable = device.compile(step, Bucket(_CONTEXT, 1, _CONTEXT, _CONTEXT // 16))
    history, found, start = device.put(np.zeros((1, _CONTEXT), np.int32)), [], 0
    for end in ends:
        batch = one_sequence(ids, start, end, block=16)
        inputs = {field.name: getattr(batch, field.name) for field in fields(batch)} | {"history": history}
        kv, outputs = executable(kv, inputs)
        found.append(torch.from_numpy(device.get(outputs["found"]).result()))
        start = end
    return torch.cat(found) if shard.samples else None


def split(config: Config, stages: int, size: int = 1) -> Config:
    parallel = ParallelConfig(pipeline_parallel_size=stages, tensor_parallel_size=size)
    model = config.model.model_copy(update={"packed_cache": 0})
    return config.model_copy(update={"parallel": parallel, "model": model})


@asynccontextmanager
async def pipeline(model: Path, stages: int, size: int = 1, **sizes: Any) -> AsyncIterator[GroupingClient]:
    client = GroupingClient(split(config_of(model, **sizes), stages, size), load_tokenizer(model))
    await client.start()
    try:
        yield client
    finally:
        await client.close()
