"""Run a decoder without an engine: the reference operators, one sequence, any chunking."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from headrace.kernels import paged
from headrace.kernels.ops import Batch, Ops
from headrace.kernels.registry import bind
from headrace.kernels.spec import OpSpec
from headrace.models.decoder import Decoder
from headrace.platforms.interface import own_extension
from headrace.types import Capabilities, KVLayout

Tensor = torch.Tensor
_BLOCK = 8


class _NoDevice:
    """Has no operator of its own: every reference serves."""

    def capabilities(self) -> Capabilities:
        return Capabilities(frozenset({"float32"}), frozenset({"float32"}))

    def op(self, spec: OpSpec) -> Callable[..., Any] | None:
        return None

    torch_device = torch.device("cpu")

    def extension(self, kind: Any) -> Any:
        return own_extension(self, kind)


def reference_ops() -> Ops:
    return bind(_NoDevice())


def logits_of(
    decoder: Decoder, ids: list[int], chunk: int | None = None, kv_dtype: str = "float32", device: Any = None
) -> Tensor:
    """float32 [len(ids), vocab]: logits after every token, the prompt fed in chunks; the cache is that of a device, if
    given."""
    block = _BLOCK if device is None else 16
    layout = KVLayout(decoder.config.kv_layers, block, kv_dtype)
    blocks = len(ids) // block + 2
    kv = paged.alloc(layout, blocks, torch.device("cpu")) if device is None else device.alloc_kv(layout, blocks)
    history = torch.zeros(1, len(ids) + 1, dtype=torch.int32)
    step = chunk or len(ids)
    pieces = [
        decoder.forward(one_sequence(ids, start, start + step, block), kv, history).clone()
        for start in range(0, len(ids), step)
    ]
    return torch.cat(pieces)


def is_view_of(tensor: Tensor, path: Path) -> bool:
    """The tensor's memory is a map of the file; true without a look where the system does not list its maps."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return True
    lines = (line for line in maps.read_text().splitlines() if line.endswith(str(path.resolve())))
    ranges = (line.split()[0].split("-") for line in lines)
    return any(int(low, 16) <= tensor.data_ptr() < int(high, 16) for low, high in ranges)


def one_sequence(ids: list[int], start: int, end: int, block: int = _BLOCK) -> Batch:
    """The batch of tokens start to end of one sequence, every row asked for. Block 0 is never used."""
    end = min(end, len(ids))
    count = end - start
    blocks = len(ids) // block + 1
    positions = torch.arange(start, end, dtype=torch.int32)

    def ints(*values: int) -> Tensor:
        return torch.tensor(values, dtype=torch.int32)

    return Batch(
        sizes=ints(count, 1, count),
        token_ids=ints(*ids[start:end]),
        positions=positions,
        slot_mapping=positions + block,
        token_seq=torch.zeros(count, dtype=torch.int32),
        query_start=ints(0, count),
        context_lens=ints(end),
        block_tables=torch.arange(1, blocks + 1, dtype=torch.int32).unsqueeze(0),
        slots=ints(0),
        rows=torch.arange(count, dtype=torch.int32),
    )
