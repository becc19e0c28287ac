"""What Ollama's routes tell about the model."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from headrace.server.context import Context
from headrace.server.ollama_schemas import LocalModel, ModelDetails, ShowReply

__all__ = ["local_model", "show"]

_NEVER = "2318-12-31T00:00:00Z"
"""The model stays loaded."""
_MOST_JSON = 1 << 20


@dataclass(frozen=True, slots=True)
class _Files:
    size: int
    format: str
    architecture: str


def local_model(context: Context, running: bool) -> LocalModel:
    """Reads the names and sizes of the checkpoint's files; any thread."""
    name, info = _latest(context.model), context.client.info
    model = LocalModel(
        name,
        name,
        _at(info.created),
        _files(info.path).size,
        hashlib.sha256(name.encode()).hexdigest(),
        _details(context),
    )
    if running:
        model.expires_at, model.size_vram, model.context_length = _NEVER, 0, info.max_model_len
    return model


def show(context: Context) -> ShowReply:
    """As `local_model`."""
    info, formats = context.client.info, context.formats
    family = _files(info.path).architecture
    known: dict[str, Any] = {"general.architecture": family, f"{family}.context_length": info.max_model_len}
    known[f"{family}.vocab_size"] = info.vocab_size
    facts = info.embedding
    capabilities = ["completion"] * facts.generates + ["embedding"] * (facts.pooling is not None)
    capabilities += ["tools"] * (formats.tools is not None) + ["thinking"] * (formats.reasoning is not None)
    modelfile = f"FROM {context.model}\n"
    template = context.tokenizer.template_source
    return ShowReply(modelfile, "", template, _details(context), known, capabilities, _at(info.created))


def _details(context: Context) -> ModelDetails:
    info = context.client.info
    files = _files(info.path)
    return ModelDetails("", files.format, files.architecture, [files.architecture], "", info.dtype)


def _latest(name: str) -> str:
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def _at(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _files(path: str) -> _Files:
    place = Path(path)
    if place.is_file():
        return _Files(place.stat().st_size, "gguf" if place.suffix == ".gguf" else place.suffix[1:], "unknown")
    if not place.is_dir():
        return _Files(0, "unknown", "unknown")
    weights = [file for file in place.iterdir() if file.suffix in (".safetensors", ".gguf")]
    kinds = {file.suffix[1:] for file in weights}
    return _Files(sum(file.stat().st_size for file in weights), min(kinds, default="unknown"), _architecture(place))


def _architecture(place: Path) -> str:
    described = place / "config.json"
    if not described.is_file() or described.stat().st_size > _MOST_JSON:
        return "unknown"
    try:
        found = json.loads(described.read_bytes()).get("model_type")
    except (ValueError, AttributeError):
        return "unknown"
    return found if isinstance(found, str) else "unknown"
