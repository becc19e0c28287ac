"""What Ollama's routes tell about the model."""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta, timezone
from typing import Any

from headrace.client.api import ModelInfo
from headrace.server.context import Context
from headrace.server.model_files import ModelFiles, read_files
from headrace.server.ollama_schemas import LocalModel, ModelDetails, ShowReply

__all__ = ["local_model", "running_model", "show", "show_files"]

_NEVER = "2318-12-31T00:00:00Z"
"""The model stays loaded."""


def local_model(name: str, path: str, created: int) -> LocalModel:
    """What a list of models tells of one. Reads the names and sizes of the checkpoint's files; any thread."""
    latest, files = _latest(name), read_files(path)
    digest = hashlib.sha256(latest.encode()).hexdigest()
    return LocalModel(latest, latest, _at(created), files.size, digest, _details(files))


def running_model(model: LocalModel, info: ModelInfo, leaves_in: float | None = None) -> LocalModel:
    """The same with what the list of loaded models adds. `leaves_in`: seconds after which it is unloaded if no request
    comes; None: it stays."""
    leaves = None if leaves_in is None else datetime.now(timezone.utc) + timedelta(seconds=leaves_in)
    model.expires_at = _NEVER if leaves is None else leaves.isoformat(timespec="seconds").replace("+00:00", "Z")
    model.size_vram, model.context_length = 0, info.max_model_len
    return model


def show(context: Context) -> ShowReply:
    """As `local_model`, of a model that is loaded."""
    info, formats = context.client.info, context.formats
    files = read_files(info.path)
    reply = _reply(context.model, files, info.created, info.max_model_len)
    reply.model_info[f"{files.architecture}.vocab_size"] = info.vocab_size
    reply.template = context.tokenizer.template_source
    facts = info.embedding
    reply.capabilities = ["completion"] * facts.generates + ["embedding"] * (facts.pooling is not None)
    reply.capabilities += ["tools"] * (formats.tools is not None) + ["thinking"] * (formats.reasoning is not None)
    return reply


def show_files(name: str, path: str, created: int) -> ShowReply:
    """What is told of a model that has not been loaded. Reads its files, as `local_model`."""
    files = read_files(path)
    return _reply(name, files, created, files.context)


def _reply(name: str, files: ModelFiles, created: int, most: int | None) -> ShowReply:
    """`most`: tokens of a prompt and its answer, if that is known."""
    family = files.architecture
    known: dict[str, Any] = {"general.architecture": family}
    if most is not None:
        known[f"{family}.context_length"] = most
    return ShowReply(f"FROM {name}\n", "", "", _details(files), known, ["completion"], _at(created))


def _details(files: ModelFiles) -> ModelDetails:
    return ModelDetails("", files.format, files.architecture, [files.architecture], files.label, files.level)


def _latest(name: str) -> str:
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def _at(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
