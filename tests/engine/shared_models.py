"""Tiny models that other tools wrote, with what they should give, from the material beside the checkout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from model_harness import logits_of, reference_ops

from headrace.checkpoints.checkpoint import open_checkpoint
from headrace.models.decoder import Decoder

_MODELS = Path(__file__).parents[3] / "shared" / "cases" / "models"


def shared_model(name: str) -> Path:
    """The model's path; skips the test if the material is not there."""
    path = _MODELS / name
    if not path.exists():
        pytest.skip(f"no {path}: these models lie beside the checkout where there are any")
    return path


def check_against_reference(path: Path) -> Decoder:
    """Log-probabilities and greedy tokens are those that transformers gives in float32."""
    beside = path / "ref.json" if path.is_dir() else path.with_name(path.name + ".ref.json")
    wanted: dict[str, Any] = json.loads(beside.read_text())
    decoder = open_checkpoint(path).build(reference_ops(), 256)
    ids: list[int] = wanted["ids"]
    rows = logits_of(decoder, ids + wanted["greedy"]).log_softmax(-1)
    found = [float(rows[at, token]) for at, token in enumerate(ids[1:])]
    torch.testing.assert_close(found, wanted["lp"], atol=2e-3, rtol=0)
    assert rows[len(ids) - 1 : -1].argmax(-1).tolist() == wanted["greedy"]
    return decoder
