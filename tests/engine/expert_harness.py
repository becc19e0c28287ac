"""Ranks with complete experts whose attention is whole on every rank: what remains are the sums of one rank."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from parallel_harness import _CONTEXT, greedy

from headrace.checkpoints.checkpoint import open_checkpoint
from headrace.kernels.registry import bind
from headrace.models.decoder import Decoder
from headrace.models.sharding import Shard
from headrace.platforms.cpu.native_device import NativeDevice
from headrace.platforms.interface import Device

COMPLETE: Callable[[int, int], Shard] = partial(Shard, expert_parallel=True)


class OnlyExperts:
    """The collectives of a group whose ranks have whole layers but for the experts: there are no terms to add."""

    def __init__(self, group: Any) -> None:
        self.all_gather, self.all_to_all = group.all_gather, group.all_to_all

    def all_reduce(self, x: Any) -> Any:
        return x


def whole_attention(path: Path, device: Device, group: Any, rank: int, size: int) -> Decoder:
    ops, shard = bind(device), COMPLETE(rank, size)
    whole = open_checkpoint(path).build(ops, _CONTEXT)
    part = open_checkpoint(path).build(ops, _CONTEXT, shard=shard, group=group)
    layers = [
        one if one.router is None else replace(one, gate_up=own.gate_up, down=own.down)
        for one, own in zip(whole.weights.layers, part.weights.layers, strict=True)
    ]
    config = replace(whole.config, moe=part.config.moe)
    return Decoder(config, ops, replace(whole.weights, layers=layers), _CONTEXT, OnlyExperts(group))


def with_whole_attention(
    path: Path,
    ids: list[int],
    size: int,
    directory: Path,
    dtype: str | None = "float32",
    steps: int = 3,
    opened: Callable[..., Device] = NativeDevice,
) -> list[torch.Tensor]:
    """As `parallel_harness.logits`."""
    directory.mkdir(exist_ok=True)

    def rank_main(rank: int) -> torch.Tensor:
        device = opened(threads=1, dtype=dtype, rank=rank, world_size=size, rendezvous=f"file://{directory}/meeting")
        try:
            model = whole_attention(path, device, device.communicator(range(size)), rank, size)
            return greedy(device, model, list(ids), steps)
        finally:
            device.close()

    with ThreadPoolExecutor(size) as pool:
        return [found.result(300) for found in [pool.submit(rank_main, rank) for rank in range(size)]]
