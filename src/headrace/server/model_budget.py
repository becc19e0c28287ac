"""Memory of several models: estimates before a load, and the division of what weights leave to KV caches.

An estimate is the size of the checkpoint's files and of a drafter's, scaled by what the options do to the weights, and
what an engine's process takes for itself. The KV caches share the rest: of the models by size, as many are to fit at
once as leave a quarter of the memory to their caches, at least one, and each model's cache gets an equal part of what
those leave.
"""

from __future__ import annotations

from collections.abc import Sequence

import psutil

from headrace.config import Config
from headrace.errors import ConfigError
from headrace.quant.quantized_size import bytes_of_value
from headrace.server.drafter_budget import drafter_bytes
from headrace.server.model_files import ModelFiles, read_files
from headrace.server.model_plan import ModelPlan

__all__ = ["KV_SHARE", "default_memory", "estimate", "kv_parts", "with_kv"]

PROCESS = 350 << 20
"""Bytes that an engine's process takes without a model: its libraries."""
HOST_SHARE = 0.8
"""Of the host's free memory, for all models together."""
KV_SHARE = 0.8
"""Of the free memory, for the KV caches of all models together if no limit is known."""
_FOR_CACHES = 0.25
_WIDENED = 4.0
"""Of quantised weights in float32."""


def default_memory() -> int:
    """The limit if the user gives none: a share of the host's free memory."""
    return int(psutil.virtual_memory().available * HOST_SHARE)


def estimate(plan: ModelPlan) -> int:
    """Bytes of the weights as they will be in memory, and of the engine's processes. KV caches are not in it."""
    config = plan.config
    files = read_files(str(plan.path))
    size = int(files.size * _growth(config, files))
    return size + drafter_bytes(plan, files) + PROCESS * config.parallel.world_size


def _growth(config: Config, files: ModelFiles) -> float:
    """Bytes in memory over bytes in the files."""
    stored = files.stored_bytes
    if stored is None:  # Quantised already, or unknown: kept as it is, unless exact arithmetic is asked for.
        return _WIDENED if config.model.dtype == "float32" else 1.0
    if config.model.quantize is not None:
        return bytes_of_value(config.model.quantize) / stored
    return {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}.get(config.model.dtype, stored) / stored


def kv_parts(costs: Sequence[int], memory: int, most: int | None) -> int:
    """Bytes of each model's KV cache, from the estimates of all models and the limits of the pool. Raises ConfigError
    if the largest model leaves no room."""
    by_size = sorted(costs, reverse=True)
    if by_size[0] >= memory:
        raise ConfigError(
            f"--models-memory {memory / 2**20:g}MiB: the largest model needs about {by_size[0] / 2**30:.2f} GiB "
            "without its KV cache: raise the limit, or quantise the model"
        )
    together = 1
    for count in range(2, min(len(costs), most or len(costs)) + 1):
        if sum(by_size[:count]) <= memory * (1 - _FOR_CACHES):
            together = count
    return (memory - sum(by_size[:together])) // together


def with_kv(config: Config, bytes_: int | None, models: int | None) -> Config:
    """The model's configuration with its part for the KV cache, unless the user has given its size. `bytes_` None: of
    no known limit, so that each of the `models` gets a share of what is free when it is loaded; the only model of a
    server (None) keeps the default share."""
    cache = config.cache
    if cache.kv_memory is not None or cache.num_blocks is not None or cache.kv_share is not None:
        return config
    if bytes_ is None and models is None:
        return config
    part = {"kv_memory": bytes_} if bytes_ is not None else {"kv_share": KV_SHARE / (models or 1)}
    return config.model_copy(update={"cache": cache.model_copy(update=part)})
