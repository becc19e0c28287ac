"""Stand-ins for vendors' libraries: they take what the real ones' documentation names, keep it, and compute it the
plain way."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch.nn import functional

Tensor = torch.Tensor


def flashinfer() -> ModuleType:
    """FlashInfer's two paged wrappers, in the layout that its tutorial on page tables describes."""
    made = ModuleType("flashinfer")
    made.wrappers = []  # type: ignore[attr-defined]

    class Prefill(_Prefill):
        home = made

    class Decode(_Decode):
        home = made

    made.BatchPrefillWithPagedKVCacheWrapper = Prefill  # type: ignore[attr-defined]
    made.BatchDecodeWithPagedKVCacheWrapper = Decode  # type: ignore[attr-defined]
    return made


class _Wrapper:
    home: Any

    def __init__(self, float_workspace_buffer: Tensor, kv_layout: str = "NHD") -> None:
        assert (float_workspace_buffer.dtype, kv_layout) == (torch.uint8, "HND")
        self.plans: list[dict[str, Any]] = []
        self.runs = 0
        self.home.wrappers.append(self)

    def keep(self, indptr: Tensor, indices: Tensor, last: Tensor, **said: Any) -> None:
        for tensor in (indptr, indices, last):
            assert tensor.dtype == torch.int32
            assert tensor.is_contiguous()
        assert indptr[0] == 0
        assert indptr[-1] == len(indices)
        assert len(indptr) - 1 == len(last)
        assert ((last >= 1) & (last <= said["page_size"])).all(), "an empty last page"
        assert said["num_qo_heads"] % said["num_kv_heads"] == 0
        assert said["q_data_type"] == said["kv_data_type"]
        self.plans.append({"indptr": indptr, "indices": indices, "last": last, **said})

    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor]) -> Tensor:
        """[tokens, heads, size], in float64 and rounded once."""
        plan = self.plans[-1]
        self.runs += 1
        assert q.shape[1:] == (plan["num_qo_heads"], plan["head_dim"])
        assert q.dtype == paged_kv_cache[0].dtype == plan["q_data_type"]
        out = torch.empty_like(q)
        for seq in range(len(plan["last"])):
            first, behind = int(plan["indptr"][seq]), int(plan["indptr"][seq + 1])
            length = (behind - first - 1) * plan["page_size"] + int(plan["last"][seq])
            pages = plan["indices"][first:behind].long()
            k, v = (cache[pages].transpose(1, 2).flatten(0, 1)[:length].double() for cache in paged_kv_cache)
            rows = slice(int(plan["starts"][seq]), int(plan["starts"][seq + 1]))
            out[rows] = _attend(q[rows].double(), k, v, plan).to(q.dtype)
        return out


class _Prefill(_Wrapper):
    def plan(
        self, qo_indptr: Tensor, paged_kv_indptr: Tensor, paged_kv_indices: Tensor, paged_kv_last_page_len: Tensor,
        num_qo_heads: int, num_kv_heads: int, head_dim_qk: int, page_size: int, *, causal: bool = False,
        sm_scale: float | None = None, window_left: int = -1, logits_soft_cap: float | None = None,
        q_data_type: torch.dtype = torch.float16, kv_data_type: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        assert causal
        assert qo_indptr.dtype == torch.int32
        self.keep(
            paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, starts=qo_indptr, num_qo_heads=num_qo_heads,
            num_kv_heads=num_kv_heads, head_dim=head_dim_qk, page_size=page_size, scale=sm_scale, window=window_left,
            cap=logits_soft_cap, q_data_type=q_data_type, kv_data_type=kv_data_type,
        )  # fmt: skip


class _Decode(_Wrapper):
    def __init__(self, workspace: Tensor, kv_layout: str = "NHD", *, use_tensor_cores: bool = False) -> None:
        super().__init__(workspace, kv_layout)
        self.cores = use_tensor_cores

    def plan(
        self, indptr: Tensor, indices: Tensor, last_page_len: Tensor, num_qo_heads: int, num_kv_heads: int,
        head_dim: int, page_size: int, *, window_left: int = -1, logits_soft_cap: float | None = None,
        q_data_type: torch.dtype = torch.float16, kv_data_type: torch.dtype | None = None,
        sm_scale: float | None = None,
    ) -> None:  # fmt: skip
        self.keep(
            indptr, indices, last_page_len, starts=torch.arange(len(indptr)), num_qo_heads=num_qo_heads,
            num_kv_heads=num_kv_heads, head_dim=head_dim, page_size=page_size, scale=sm_scale, window=window_left,
            cap=logits_soft_cap, q_data_type=q_data_type, kv_data_type=kv_data_type,
        )  # fmt: skip


def _attend(q: Tensor, k: Tensor, v: Tensor, plan: dict[str, Any]) -> Tensor:
    """One sequence: its last len(q) positions over all of its keys."""
    group = plan["num_qo_heads"] // plan["num_kv_heads"]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    score = torch.einsum("qhd,khd->hqk", q, k) * plan["scale"]
    if plan["cap"]:
        score = plan["cap"] * torch.tanh(score / plan["cap"])
    query = torch.arange(len(k) - len(q), len(k)).unsqueeze(1)
    key = torch.arange(len(k))
    seen = key <= query
    if plan["window"] >= 0:
        seen &= query - key <= plan["window"]
    return torch.einsum("hqk,khd->qhd", score.masked_fill(~seen, -torch.inf).softmax(-1), v)


def ipex() -> ModuleType:
    """`intel_extension_for_pytorch.llm.functional`; `calls` lists what was asked for."""
    made = ModuleType("intel_extension_for_pytorch.llm.functional")
    calls: list[str] = []

    def rms_norm(hidden_states: Tensor, weight: Tensor, eps: float) -> Tensor:
        calls.append("rms_norm")
        assert hidden_states.dtype == weight.dtype
        return functional.rms_norm(hidden_states.float(), weight.shape, weight.float(), eps).to(hidden_states.dtype)

    def add_rms_norm(
        residual: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, add_back: bool = False
    ) -> Tensor:
        calls.append("add_rms_norm")
        assert bias is None
        assert add_back
        residual.add_(x)
        return functional.rms_norm(residual.float(), weight.shape, weight.float(), eps).to(x.dtype)

    def silu_mul(x: Tensor, y: Tensor, out: Tensor | None = None) -> Tensor:
        calls.append("silu_mul")
        return (functional.silu(x.float()) * y.float()).to(x.dtype)

    def gelu_mul(x: Tensor, y: Tensor, out: Tensor | None = None, approximate: str = "none") -> Tensor:
        calls.append(f"gelu_mul {approximate}")
        return (functional.gelu(x.float(), approximate=approximate) * y.float()).to(x.dtype)

    for function in (rms_norm, add_rms_norm, silu_mul, gelu_mul):
        setattr(made, function.__name__, function)
    made.calls = calls  # type: ignore[attr-defined]
    return made
