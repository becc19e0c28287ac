"""Writes a trained head, in the published layout of its method, as a directory for `--speculate METHOD:DIRECTORY`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from headrace.training.training_head import TrainingHead

__all__ = ["round_weights", "write_head"]


@torch.no_grad()
def round_weights(head: TrainingHead) -> None:
    """Round the parameters to bfloat16, in which they are written."""
    for parameter in head.parameters():
        parameter.copy_(parameter.to(torch.bfloat16).float())


def write_head(head: TrainingHead, out: Path, facts: Mapping[str, Any]) -> None:
    """config.json, model.safetensors in bfloat16, and training.json with what is known of the training."""
    tensors = {
        name: (tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor).contiguous()
        for name, tensor in head.tensors().items()
    }
    (out / "model.safetensors").write_bytes(save(tensors, {"format": "pt"}))
    (out / "config.json").write_text(json.dumps({**head.settings(), "dtype": "bfloat16"}, indent=2) + "\n")
    (out / "training.json").write_text(json.dumps(facts, indent=1) + "\n")
