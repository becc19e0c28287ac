"""`sample` for compilers of complete steps: all rows run the same operations, independently of values.

The rules are the reference's. The reference processes only rows that use a parameter; here every row is processed, with
neutral values if it doesn't use it. Ties are ordered by the lower id, by a stable sort.
"""

from __future__ import annotations

import torch

from headrace.kernels.ops import Batch, SampleInputs, SampleOutputs
from headrace.kernels.sample.static_constrain import constrain
from headrace.types import NO_CHOICE, NO_TOKEN, NOT_FINITE

__all__ = ["sample"]

Tensor = torch.Tensor
_GREEDY_BELOW = 1e-5
_MASK = 0xFFFFFFFF


def sample(logits: Tensor, inputs: SampleInputs, batch: Batch, num_logprobs: int) -> SampleOutputs:
    """Choose one token per row and write it to history[slot, position]; scored rows get NO_TOKEN and write nothing."""
    if not len(logits):
        return _nothing(logits, num_logprobs)
    raw, target = _finite(logits), inputs.target.long()
    broken = ~_is_finite(logits)
    token = torch.where(broken, NOT_FINITE, torch.where(target == NO_TOKEN, _choose(raw, inputs), target))
    _remember(token, target, inputs, batch)
    tokens = torch.where((target == NO_TOKEN) | broken, token, NO_TOKEN).int()
    if num_logprobs < 0:
        return _nothing(logits, num_logprobs, tokens)
    scored = torch.where(target == NO_TOKEN, token, target).clamp(min=0)
    return SampleOutputs(tokens, *_scores(raw, scored, min(num_logprobs, raw.shape[1])))


def _nothing(logits: Tensor, count: int, tokens: Tensor | None = None) -> SampleOutputs:
    none = logits.new_zeros(len(logits), dtype=torch.float32)
    top = logits.new_zeros((len(logits), max(count, 0)), dtype=torch.float32)
    return SampleOutputs(none.int() if tokens is None else tokens, none, none.int(), top.int(), top)


def _finite(logits: Tensor) -> Tensor:
    """Clean float32 logits: NaN counts as -inf, +inf as the largest float, and a row without a finite logit as
    zeros."""
    largest = torch.finfo(torch.float32).max
    wide = logits.float()
    clean = torch.where(torch.isnan(wide), -torch.inf, wide.clamp(max=largest))
    return torch.where(_nothing_left(clean), 0.0, clean)


def _is_finite(logits: Tensor) -> Tensor:
    """Whether each row has no NaN, no +inf, and a value that is not -inf; bool [R]."""
    wide = logits.float()
    return (wide <= torch.finfo(torch.float32).max).all(-1) & (wide != -torch.inf).any(-1)


def _nothing_left(logits: Tensor) -> Tensor:
    """Whether all logits of a row are -inf, bool [R, 1]. A maximum is not used: in some compilers it is never -inf."""
    return (logits == -torch.inf).all(-1, keepdim=True)


def _remember(token: Tensor, target: Tensor, inputs: SampleInputs, batch: Batch) -> None:
    """Write the tokens by adding differences: rows that write nothing add 0."""
    history = inputs.history
    live = torch.arange(len(token), device=history.device) < batch.sizes[2].to(history.device)
    writes = live & (target == NO_TOKEN) & (token >= 0) & (inputs.position < history.shape[1])
    place = (inputs.slot.long(), inputs.position.long().clamp(max=history.shape[1] - 1))
    change = torch.where(writes, token - history[place], 0).to(history.dtype)
    history.index_put_(place, change, accumulate=True)


def _choose(raw: Tensor, inputs: SampleInputs) -> Tensor:
    """The chosen tokens, int64 [R]."""
    logits = constrain(raw, inputs)
    nothing = _nothing_left(logits)[:, 0]
    greedy = inputs.temperature < _GREEDY_BELOW
    temperature = torch.where(greedy, 1.0, inputs.temperature.float()).unsqueeze(-1)
    scaled = (logits - logits.amax(-1, keepdim=True)) / temperature
    noise = _gumbel(inputs.seed, inputs.position, raw.shape[-1])
    drawn = torch.where(_kept(scaled, inputs), scaled + noise, -torch.inf).argmax(-1)
    return torch.where(nothing, NO_CHOICE, torch.where(greedy, logits.argmax(-1), drawn))


def _kept(scaled: Tensor, inputs: SampleInputs) -> Tensor:
    """The tokens that top-k, min-p and top-p keep, applied in this order, bool [R, V]. `scaled` is at most 0."""
    vocab = scaled.shape[-1]
    ranked, tokens = torch.sort(scaled + 0.0, dim=-1, descending=True, stable=True)
    weight, rank = torch.exp(ranked), torch.arange(vocab, device=scaled.device)
    top_k, min_p, top_p = (x.unsqueeze(-1) for x in (inputs.top_k, inputs.min_p, inputs.top_p))
    kept = (rank < top_k) | (top_k <= 0)
    kept = kept & (weight >= min_p)
    sums = torch.where(kept, weight, 0.0).double().cumsum(-1)
    within = sums - weight.double() < top_p.double() * sums[:, -1:]
    kept = (kept & (within | (top_p >= 1))) | (rank == 0)
    return torch.zeros_like(kept).scatter(1, tokens, kept)


def _gumbel(seed: Tensor, position: Tensor, vocab: int) -> Tensor:
    """`philox.gumbel`, all elements in one call."""
    quads = torch.arange(-(-vocab // 4), device=seed.device).unsqueeze(0)
    seed, position = seed.long().unsqueeze(1), position.long().unsqueeze(1) & _MASK
    zero, low = torch.zeros_like(quads), seed & _MASK
    words = _philox([quads, position, zero, zero], low, ((seed - low) >> 32) & _MASK)
    word = torch.stack([w.expand(len(seed), quads.shape[1]) for w in words], -1).flatten(1)[:, :vocab]
    u = ((word.float() + 0.5) * 2.0**-32).clamp(max=1 - 2.0**-24)
    return -torch.log(-torch.log1p(-u))


def _philox(counter: list[Tensor], k0: Tensor, k1: Tensor) -> list[Tensor]:
    """`philox.philox` without negative numbers, which some compilers shift by a division that rounds to zero."""
    c0, c1, c2, c3 = counter
    for _ in range(10):
        high0, low0 = _product(c0, 0xD2511F53)
        high1, low1 = _product(c2, 0xCD9E8D57)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return [c0, c1, c2, c3]


def _product(x: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """High and low word of x times factor, both below 2^32."""
    upper, lower = x * (factor >> 16), x * (factor & 0xFFFF)
    return (upper + (lower >> 16)) >> 16, ((upper & 0xFFFF) * 65536 + lower) & _MASK


def _scores(logits: Tensor, tokens: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(logprob [R], rank [R], ids [R, K], logprobs [R, K]) under the raw logits."""
    shifted = logits - logits.amax(-1, keepdim=True)
    total = torch.log(torch.exp(shifted).sum(-1, keepdim=True))
    index = tokens.clamp(min=0).unsqueeze(-1)
    ranks = 1 + (logits > logits.gather(-1, index)).sum(-1)
    order = (
        torch.sort(logits + 0.0, dim=-1, descending=True, stable=True)[1][:, :count]
        if count
        else tokens[:, None][:, :0]
    )
    logprobs = (shifted.gather(-1, index) - total).squeeze(-1)
    return logprobs, ranks.int(), order.int(), shifted.gather(-1, order) - total
