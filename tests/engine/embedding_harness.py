"""Embeddings of the tiny models: by the engine, and by transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from engine_harness import GroupingClient

from headrace.client.api import GenerateRequest
from headrace.types import SamplingParams


def pooled(prompt: Sequence[int], id: str, kind: Any = "last") -> GenerateRequest:
    return GenerateRequest(id, tuple(prompt), SamplingParams(max_tokens=0), pooling=kind)


async def embed(client: GroupingClient, wanted: GenerateRequest) -> bytes:
    found = [output async for output in client.generate(wanted)]
    assert [output.finish_reason for output in found] == ["length"]
    assert found[0].usage is not None
    assert (found[0].usage.prompt_tokens, found[0].usage.completion_tokens) == (len(wanted.prompt), 0)
    assert found[0].embedding is not None
    return found[0].embedding


@torch.no_grad()
def reference(model: Any, ids: Sequence[int], kind: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    """float32 [hidden] from a transformers model: its last hidden state, after the final norm."""
    states = model.model(torch.tensor([list(ids)])).last_hidden_state[0]
    found: np.ndarray[Any, np.dtype[np.float32]] = (states[-1] if kind == "last" else states.mean(0)).numpy()
    return found
