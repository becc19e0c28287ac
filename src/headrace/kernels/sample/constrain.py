"""The changes of a row's logits before a token is chosen: biases, masks, penalties."""

from __future__ import annotations

import torch

from headrace.kernels.ops import SampleInputs

__all__ = ["constrain"]

Tensor = torch.Tensor


def constrain(logits: Tensor, inputs: SampleInputs, count: int) -> Tensor:
    """float32 [R, V] for the first `count` rows: logits + biases, -inf for masked tokens, then penalties."""
    out = logits.clone()
    rows = ((inputs.bias_row >= 0) & (inputs.bias_row < count)).nonzero()[:, 0]
    index = (inputs.bias_row[rows].long(), inputs.bias_token[rows].long())
    # A token with both a ban and a bias stays banned: -inf plus anything finite.
    out.index_put_(index, inputs.bias_value[rows].float(), accumulate=True)
    for row in (inputs.allowed_row[:count] >= 0).nonzero()[:, 0].tolist():
        out[row].masked_fill_(~_bits(inputs.allowed[inputs.allowed_row[row]], logits.shape[-1]), -torch.inf)
    penalised = (inputs.repetition_penalty != 1) | (inputs.presence_penalty != 0) | (inputs.frequency_penalty != 0)
    for row in penalised[:count].nonzero()[:, 0].tolist():
        out[row] = _penalise(out[row], inputs, row)
    return out


def _bits(words: Tensor, vocab: int) -> Tensor:
    """Unpack a mask to bool [V]: bit t mod 32 of word t div 32."""
    shifts = torch.arange(32, device=words.device)
    return ((words.long().unsqueeze(-1) >> shifts) & 1).flatten()[:vocab].bool()


def _penalise(logits: Tensor, inputs: SampleInputs, row: int) -> Tensor:
    """Apply the penalties: repetition for all tokens so far, then presence and frequency for the output.

    The repetition penalty divides positive logits and multiplies others.
    """
    vocab, position, prompt = len(logits), int(inputs.position[row]), int(inputs.prompt_len[row])
    tokens = inputs.history[int(inputs.slot[row]), :position].long()
    seen = torch.bincount(tokens, minlength=vocab)[:vocab] > 0
    output = torch.bincount(tokens[prompt:], minlength=vocab)[:vocab].float()
    penalty = inputs.repetition_penalty[row]
    repeated = torch.where(logits > 0, logits / penalty, logits * penalty)
    logits = torch.where(seen, repeated, logits)
    logits = logits - inputs.presence_penalty[row] * (output > 0).float()
    return logits - inputs.frequency_penalty[row] * output
