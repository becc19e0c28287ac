"""From a `StepResult` to what was asked for."""

from __future__ import annotations

from headrace.types import StepResult, TokenLogprobs

__all__ = ["token_logprobs"]


def token_logprobs(result: StepResult, row: int, token: int, count: int) -> TokenLogprobs:
    """One row's, with `count` alternatives. The device must have reported logprobs for this step."""
    assert result.logprobs is not None
    assert result.ranks is not None
    top: tuple[tuple[int, float], ...] = ()
    if count:
        assert result.top_ids is not None
        assert result.top_logprobs is not None
        ids, values = result.top_ids[row, :count].tolist(), result.top_logprobs[row, :count].tolist()
        top = tuple(zip(ids, values, strict=True))
    return TokenLogprobs(token, float(result.logprobs[row]), int(result.ranks[row]), top)
