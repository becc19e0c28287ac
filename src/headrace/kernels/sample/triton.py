"""Triton form of `sample`: one program per row, without a synchronization with the host."""

from __future__ import annotations

import torch
import triton.language as tl
from triton.language import tensor

from headrace.kernels.ops import Batch, SampleInputs, SampleOutputs
from headrace.kernels.sample.triton_constrain import bias_kernel, clean, clean_kernel, count_kernel, penalise_kernel
from headrace.kernels.sample.triton_draw import best_of, draw, last
from headrace.kernels.tritonlib.device import jit, jit_varying, next_power
from headrace.kernels.tritonlib.launch_config import LaunchConfig

__all__ = ["choose_kernel", "sample", "score_kernel"]

Tensor = torch.Tensor
_BLOCK, _WARPS = 4096, 16
_CHUNK = 1024
"""Tokens per program if a program computes a part of a row, and entries per iteration over history or biases."""
_BIG = tl.constexpr(2147483647)


@jit
def choose_kernel(
    work: tensor, dead: tensor, chosen: tensor, tokens: tensor, sizes: tensor, temperature: tensor,
    top_k: tensor, min_p: tensor, top_p: tensor, seed: tensor, position: tensor, target: tensor, slot: tensor,
    history: tensor, vocab: int, width: int, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """One program per row.

    `chosen`: the token to score; `tokens`: the same, or -1 (NO_TOKEN) if it was given, -2 (NO_CHOICE) if bans left no
    token, -3 (NOT_FINITE) for invalid logits.
    """
    row = tl.program_id(0).to(tl.int64)
    if row < tl.load(sizes + 2):
        token, own = tl.load(target + row), work + row * vocab
        broken = tl.load(dead + row) != 0
        tl.store(tokens + row, tl.where(broken, -3, -1))
        if token == -1:
            peak, token = best_of(own, vocab, BLOCK)
            heat, place = tl.load(temperature + row), tl.load(position + row)
            some = peak > float("-inf")
            if (heat >= 1e-5) & some:
                token = draw(
                    own, vocab, peak, token, heat, tl.load(top_k + row), tl.load(min_p + row), tl.load(top_p + row),
                    tl.load(seed + row), place, BLOCK,
                )  # fmt: skip
            token = tl.where(broken, -3, tl.where(some, token, -2))
            tl.store(tokens + row, token)
            if (place < width) & (token >= 0):
                tl.store(history + tl.load(slot + row).to(tl.int64) * width + place, token)
        tl.store(chosen + row, token)


@jit
def _raw(row: tensor, at: tensor, vocab: tensor, none: tensor) -> tensor:
    x = clean(tl.load(row + at, at < vocab, float("-inf")).to(tl.float32))
    return tl.where(none & (at < vocab), 0.0, x)


@jit_varying("alternatives")
def score_kernel(
    logits: tensor, dead: tensor, chosen: tensor, logprobs: tensor, ranks: tensor, top_ids: tensor,
    top_logprobs: tensor, sizes: tensor, vocab: int, alternatives: int, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """One program per row: the token's logprob and rank, and the most likely tokens, under the raw logits; ties by the
    lower id."""
    row = tl.program_id(0).to(tl.int64)
    if row < tl.load(sizes + 2):
        own, none, lane = logits + row * vocab, tl.load(dead + row) == 1, tl.arange(0, BLOCK)
        mine = tl.max(_raw(own, tl.arange(0, 1) + tl.maximum(tl.load(chosen + row), 0), vocab, none), 0)
        top = tl.full([BLOCK], float("-inf"), tl.float32)
        higher, total = tl.zeros([BLOCK], tl.int32), tl.zeros([BLOCK], tl.float32)
        for start in range(0, vocab, BLOCK):
            x = _raw(own, start + lane, vocab, none)
            higher += (x > mine).to(tl.int32)
            top = tl.maximum(top, x)
        peak = tl.max(top, 0)
        for start in range(0, vocab, BLOCK):
            total += tl.exp(_raw(own, start + lane, vocab, none) - peak)
        norm = tl.log(tl.sum(total, 0))
        tl.store(ranks + row, 1 + tl.sum(higher, 0))
        tl.store(logprobs + row, mine - peak - norm)
        before, before_id = peak * 0.0 + float("inf"), tl.load(chosen + row) * 0 - 1
        for index in range(alternatives):
            best, token = tl.full([BLOCK], float("-inf"), tl.float32), tl.zeros([BLOCK], tl.int32) + _BIG
            for start in range(0, vocab, BLOCK):
                at = start + lane
                x = _raw(own, at, vocab, none)
                left = (at < vocab) & ((x < before) | ((x == before) & (at > before_id)))
                better = left & ((x > best) | (token == _BIG))
                best, token = tl.where(better, x, best), tl.where(better, at, token)
            before, before_id = last(best, token)
            tl.store(top_ids + row * alternatives + index, before_id)
            tl.store(top_logprobs + row * alternatives + index, before - peak - norm)


def sample(
    logits: Tensor, inputs: SampleInputs, batch: Batch, num_logprobs: int, *, config: LaunchConfig
) -> SampleOutputs:
    """See `ops.Ops.sample`; rows past the true count are undefined."""
    logits = logits.contiguous()
    rows, vocab = logits.shape
    work, counts = torch.empty_like(logits, dtype=torch.float32), torch.empty_like(logits, dtype=torch.int32)
    dead, chosen, tokens, ranks = (logits.new_empty(rows, dtype=torch.int32) for _ in range(4))
    _constrain(config, logits, work, counts, dead, inputs, batch)
    names = ("temperature", "top_k", "min_p", "top_p", "seed", "position", "target", "slot", "history")
    shared = {"dead": dead, "chosen": chosen, "sizes": batch.sizes, "vocab": vocab}
    block = min(next_power(vocab, 64), _BLOCK)
    args = {**shared, "work": work, "tokens": tokens, "width": inputs.history.shape[1], "BLOCK": block}
    config.launch(choose_kernel, (rows,), args | {name: getattr(inputs, name) for name in names}, _WARPS, 1)
    alternatives = min(max(num_logprobs, 0), vocab)
    logprobs, top_logprobs = (
        logits.new_empty(*shape, dtype=torch.float32) for shape in ((rows,), (rows, alternatives))
    )
    top_ids = logits.new_empty(rows, alternatives, dtype=torch.int32)
    if num_logprobs >= 0:
        args = {
            **shared,
            "logits": logits,
            "logprobs": logprobs,
            "ranks": ranks,
            "top_ids": top_ids,
            "top_logprobs": top_logprobs,
        }
        config.launch(score_kernel, (rows,), args | {"alternatives": alternatives, "BLOCK": block}, _WARPS, 1)
    return SampleOutputs(tokens, logprobs, ranks, top_ids, top_logprobs)


def _constrain(
    config: LaunchConfig, logits: Tensor, work: Tensor, counts: Tensor, dead: Tensor, inputs: SampleInputs, batch: Batch
) -> None:
    """Write to `work` the logits that a token is chosen from; `dead` marks rows without a finite logit."""
    rows, vocab = logits.shape
    penalties = {
        "sizes": batch.sizes,
        "repetition": inputs.repetition_penalty,
        "presence": inputs.presence_penalty,
        "frequency": inputs.frequency_penalty,
        "vocab": vocab,
    }
    block = min(next_power(vocab, 64), _BLOCK)
    args = {"logits": logits, "work": work, "counts": counts, "dead": dead, "BLOCK": block}
    config.launch(clean_kernel, (rows,), penalties | args, _WARPS, 1)
    args = {"counts": counts, "width": inputs.history.shape[1], "BLOCK": _CHUNK}
    args |= {name: getattr(inputs, name) for name in ("history", "slot", "position", "prompt_len")}
    config.launch(count_kernel, (rows,), penalties | args, 4, 1)
    args = {name: getattr(inputs, name) for name in ("bias_row", "bias_token", "bias_value")}
    args |= {"work": work, "sizes": batch.sizes, "vocab": vocab, "biases": len(inputs.bias_row), "BLOCK": _CHUNK}
    config.launch(bias_kernel, (len(inputs.bias_row),), args, 4, 1)
    args = {"work": work, "counts": counts, "allowed": inputs.allowed, "allowed_row": inputs.allowed_row}
    args |= {"words": inputs.allowed.shape[1], "BLOCK": _CHUNK}
    config.launch(penalise_kernel, (rows, -(-vocab // _CHUNK)), penalties | args, 4, 1)
