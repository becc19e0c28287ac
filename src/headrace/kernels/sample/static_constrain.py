"""Biases, masks and penalties for all rows at once."""

from __future__ import annotations

import torch

from headrace.kernels.ops import SampleInputs

__all__ = ["constrain"]

Tensor = torch.Tensor


def constrain(logits: Tensor, inputs: SampleInputs) -> Tensor:
    """float32 [R, V]: logits + biases, -inf where a mask forbids, then penalties."""
    biased = _biased(logits, inputs)
    return _penalised(torch.where(_allowed(inputs, logits.shape[-1]), biased, -torch.inf), inputs)


def _biased(logits: Tensor, inputs: SampleInputs) -> Tensor:
    """Add the biases. Padding adds 0 to the first row's first token. -inf plus a finite bias stays -inf."""
    if not len(inputs.bias_row):
        return logits
    used = (inputs.bias_row >= 0) & (inputs.bias_row < len(logits))
    index = (torch.where(used, inputs.bias_row, 0).long(), torch.where(used, inputs.bias_token, 0).long())
    return logits.index_put(index, torch.where(used, inputs.bias_value.float(), 0.0), accumulate=True)


def _allowed(inputs: SampleInputs, vocab: int) -> Tensor:
    """The allowed tokens, bool [R, V]: bit t mod 32 of word t div 32; all tokens if a row has no mask."""
    # As an unsigned number: some compilers shift a negative number by a division that rounds to zero.
    words = (inputs.allowed.long() & 0xFFFFFFFF)[inputs.allowed_row.long().clamp(min=0)]
    shifts = torch.arange(32, device=words.device)
    bits = ((words.unsqueeze(-1) >> shifts) & 1).flatten(1)[:, :vocab] > 0
    return bits | (inputs.allowed_row < 0).unsqueeze(-1)


def _penalised(logits: Tensor, inputs: SampleInputs) -> Tensor:
    """Apply the repetition penalty for all tokens so far, then presence and frequency penalties for the output."""
    tokens = inputs.history[inputs.slot.long()].long().clamp(0, logits.shape[-1] - 1)
    at = torch.arange(tokens.shape[1], device=tokens.device)
    before = at < inputs.position.unsqueeze(-1)
    after = before & (at >= inputs.prompt_len.unsqueeze(-1))
    seen, output = _counts(logits, tokens, before) > 0, _counts(logits, tokens, after)
    penalty, presence, frequency = (
        x.float().unsqueeze(-1) for x in (inputs.repetition_penalty, inputs.presence_penalty, inputs.frequency_penalty)
    )
    repeated = torch.where(logits > 0, logits / penalty, logits * penalty)
    logits = torch.where(seen, repeated, logits) - presence * (output > 0).float()
    return logits - frequency * output


def _counts(logits: Tensor, tokens: Tensor, which: Tensor) -> Tensor:
    """Count each row's tokens that `which` marks, float32 [R, V]."""
    return torch.zeros_like(logits).scatter_add(1, tokens, which.float())
