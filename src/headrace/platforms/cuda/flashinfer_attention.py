"""`attention` by FlashInfer (arXiv:2501.01005), on our cache without a copy.

Besides the queries its paged wrappers take the pages of all sequences as one list: `indptr` [S + 1] (start of each
sequence's pages), `indices` (block ids) and `last_page_len` [S] (keys in the last page). Planning reads these on the
host, once per step and kind of layer; all layers of that kind then use the same plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from headrace.kernels.kv import TorchKV
from headrace.kernels.ops import Batch
from headrace.platforms.accelerator.providers import SharedOperator

__all__ = ["FlashInferAttention", "Pages", "operators", "pages_of"]

Tensor = torch.Tensor
_WORKSPACE = 128 << 20
"""Bytes, as FlashInfer advises."""
_HEADS = (64, 128, 256)
_CORES = (1, 2)
"""Query heads per KV head for which decoding is faster without tensor cores."""


@dataclass(frozen=True, slots=True)
class Pages:
    """A batch in FlashInfer's form: int32 on the host, `indices` on the device."""

    tokens: int
    query_start: Tensor
    indptr: Tensor
    indices: Tensor
    last_page_len: Tensor

    @property
    def decodes(self) -> bool:
        """True if every sequence has exactly one query."""
        return self.tokens == len(self.last_page_len)


@dataclass(frozen=True, slots=True)
class LayerKind:
    """The properties that layers must share to use the same plan."""

    num_qo_heads: int
    num_kv_heads: int
    head_dim: int
    page_size: int
    scale: float
    window: int | None
    soft_cap: float | None
    dtype: torch.dtype


def pages_of(batch: Batch, page_size: int) -> Pages:
    """The pages of a batch, without sequences that have no query in this step. Reads the lengths on the host, so it
    waits for the device."""
    tokens, seqs = (int(size) for size in batch.sizes[:2])
    lengths = torch.cat([batch.query_start[: seqs + 1], batch.context_lens[:seqs]]).cpu()
    starts, context = lengths[: seqs + 1], lengths[seqs + 1 :].long()
    asking = starts.diff().nonzero()[:, 0]
    context = context[asking]
    counts = (context + page_size - 1) // page_size
    indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    row = torch.repeat_interleave(torch.arange(len(asking)), counts)
    place = torch.stack([asking[row], torch.arange(len(row)) - indptr[row]]).to(batch.block_tables.device)
    last = context - (counts - 1) * page_size
    query_start = torch.cat([starts[asking], starts[-1:]])
    return Pages(tokens, query_start, indptr.int(), batch.block_tables[place[0], place[1]], last.int())


class FlashInferAttention(SharedOperator):
    """A `SharedOperator` with two FlashInfer wrappers per kind of layer: one for decodes and one for all other
    batches."""

    tag = "flashinfer"
    fits = "float16 and bfloat16 with heads of 64, 128 or 256"
    rest = "float32, other heads, int8 and float8 caches, attention sinks, ALiBi slopes"

    def __init__(self, library: Any, other: Callable[..., Any], device: torch.device) -> None:
        super().__init__("attention", other)
        self._library = library
        self._workspace = torch.empty(_WORKSPACE, dtype=torch.uint8, device=device)
        self._wrappers: dict[tuple[LayerKind, bool], Any] = {}
        self._batch: Batch | None = None
        self._pages: dict[int, Pages] = {}
        self._planned: dict[LayerKind, Any] = {}

    def __call__(
        self,
        q: Tensor,
        batch: Batch,
        kv: TorchKV,
        layer: int,
        scale: float,
        window: int | None,
        soft_cap: float | None,
        sinks: Tensor | None,
        alibi: Tensor | None,
    ) -> Tensor:
        """See `ops.Ops.attention`."""
        shape = kv.layout.layers[layer]
        why = _unfit(q, kv, layer, sinks, alibi)
        if why:
            served: Tensor = self._elsewhere(why)(q, batch, kv, layer, scale, window, soft_cap, sinks, alibi)
            return served
        heads = q.shape[1] // shape.head_dim
        kind = LayerKind(
            heads, shape.num_kv_heads, shape.head_dim, kv.layout.block_size, scale, window, soft_cap, q.dtype
        )
        pages, wrapper = self._plan(batch, kind)
        if wrapper is None:
            return torch.zeros_like(q)
        queries = q[: pages.tokens].reshape(pages.tokens, heads, shape.head_dim)
        found: Tensor = wrapper.run(queries, (kv.keys[layer], kv.values[layer])).flatten(1)
        return functional.pad(found, (0, 0, 0, len(q) - pages.tokens))

    def _plan(self, batch: Batch, kind: LayerKind) -> tuple[Pages, Any]:
        """The pages and the planned wrapper. The batch is the same object for all layers of a step, and a new one per
        step."""
        if batch is not self._batch:
            self._batch = batch
            self._pages.clear()
            self._planned.clear()
        pages = self._pages.get(kind.page_size)
        if pages is None:
            pages = self._pages[kind.page_size] = pages_of(batch, kind.page_size)
        if kind not in self._planned:
            self._planned[kind] = self._planner(pages, kind) if pages.tokens else None
        return pages, self._planned[kind]

    def _planner(self, pages: Pages, kind: LayerKind) -> Any:
        wrapper = self._wrappers.get((kind, pages.decodes)) or self._wrapper(kind, pages.decodes)
        shared: dict[str, Any] = {
            "num_qo_heads": kind.num_qo_heads,
            "num_kv_heads": kind.num_kv_heads,
            "page_size": kind.page_size,
            "sm_scale": kind.scale,
            "window_left": -1 if kind.window is None else kind.window - 1,  # FlashInfer counts keys before the query
            "logits_soft_cap": kind.soft_cap,
            "q_data_type": kind.dtype,
            "kv_data_type": kind.dtype,
        }
        if pages.decodes:
            wrapper.plan(pages.indptr, pages.indices, pages.last_page_len, head_dim=kind.head_dim, **shared)
        else:
            paged = (pages.query_start, pages.indptr, pages.indices, pages.last_page_len)
            wrapper.plan(*paged, head_dim_qk=kind.head_dim, causal=True, **shared)
        return wrapper

    def _wrapper(self, kind: LayerKind, decodes: bool) -> Any:
        if decodes:
            cores = kind.num_qo_heads // kind.num_kv_heads not in _CORES
            made = self._library.BatchDecodeWithPagedKVCacheWrapper(self._workspace, "HND", use_tensor_cores=cores)
        else:
            made = self._library.BatchPrefillWithPagedKVCacheWrapper(self._workspace, "HND")
        self._wrappers[kind, decodes] = made
        return made


def operators(
    library: Any, others: Mapping[str, Callable[..., Any]], device: torch.device
) -> dict[str, FlashInferAttention]:
    return {"attention": FlashInferAttention(library, others["attention"], device)}


def _unfit(q: Tensor, kv: TorchKV, layer: int, sinks: Tensor | None, alibi: Tensor | None) -> str:
    """Why FlashInfer's paged wrappers cannot serve a call; empty if they can."""
    head_dim = kv.layout.layers[layer].head_dim
    if q.dtype not in (torch.float16, torch.bfloat16):
        return f"queries are {str(q.dtype).removeprefix('torch.')}, but it computes in 16 bits"
    if kv.keys[layer].dtype != q.dtype:
        return f"the cache is {kv.layout.dtype} and the queries are {str(q.dtype).removeprefix('torch.')}"
    if head_dim not in _HEADS:
        return f"heads have {head_dim} elements, but it has kernels for {', '.join(map(str, _HEADS))}"
    if sinks is not None:
        return "the model has attention sinks"
    return "the model has ALiBi slopes" if alibi is not None else ""
