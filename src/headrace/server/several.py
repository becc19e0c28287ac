"""Serves several models, or one that may be unloaded: makes their pool from what the user chose."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.config import Config
from headrace.engine.launch import EngineProcessHandle
from headrace.errors import ConfigError
from headrace.server.lifecycle import run_pool
from headrace.server.model_budget import default_memory, estimate, kv_parts
from headrace.server.model_loader import ModelLoader, OpenEngine, ProcessEngines, Progress
from headrace.server.model_plan import ModelPlan, pooled_by
from headrace.server.model_pool import ModelPool, PoolLimits
from headrace.server.served_model import ServedModel
from headrace.server.waiting_tokens import WaitingTokens

__all__ = ["make_pool", "run_several"]


def run_several(
    config: Config,
    plans: Sequence[ModelPlan],
    first_prompt: str | None = None,
    launched: EngineProcessHandle | None = None,
    progress: Progress | None = None,
) -> int:
    """Serve the models until a signal comes; returns the exit code. Raises ConfigError for models that cannot fit, and
    what engines raise while those load that are loaded at the start. `launched`: as in `lifecycle.run`; it is ended if
    no model is loaded at the start, since it would take memory until one is."""
    check_plans(config, plans)
    taken = launched if any(plan.preload for plan in plans) else None
    if taken is None and launched is not None:
        launched.discard()
    pool = make_pool(config, plans, ProcessEngines(taken, progress))
    first = plans[0].name
    server = config.server.model_copy(update={"served_model_name": first})
    return run_pool(config.model_copy(update={"server": server}), pool, first_prompt)


def check_plans(config: Config, plans: Sequence[ModelPlan]) -> None:
    """Raise ConfigError for options that do not go with several models, and for a model that cannot fit."""
    pool = pooled_by(config, len(plans), plans[0].aliases - config.loading.aliases.keys())
    if config.server.kv_events_endpoint is not None:
        raise ConfigError(f"--kv-events-endpoint tells of one model that stays loaded: leave it out, or {pool}")
    role = next((plan.config.transfer.role for plan in plans if plan.config.transfer.role is not None), None)
    if role is not None:
        raise ConfigError(f"--role {role} is for one model that stays loaded: leave it out, or {pool}")
    if config.loading.models_memory is not None:
        kv_parts([estimate(plan) for plan in plans], config.loading.models_memory, config.loading.models_max)


def make_pool(config: Config, plans: Sequence[ModelPlan], open_engine: OpenEngine) -> ModelPool:
    """Raises ConfigError if the largest model exceeds the memory that the user allows."""
    loading = config.loading
    costs = [estimate(plan) for plan in plans]
    kv = None
    if loading.models_memory is not None:
        kv = kv_parts(costs, loading.models_memory, loading.models_max)
    limits = PoolLimits(
        default_memory() if loading.models_memory is None else loading.models_memory,
        loading.models_max,
        by_default=loading.models_memory is None,
    )
    models = [
        ServedModel(plan, cost + _cache(plan, kv), keep_alive=plan.keep_alive)
        for plan, cost in zip(plans, costs, strict=True)
    ]
    for model in models:
        model.metrics.waiting = WaitingTokens(model.plan.config.server.max_waiting_tokens)
    together = None if len(plans) == 1 else min(len(plans), loading.models_max or len(plans))
    return ModelPool(models, limits, ModelLoader(open_engine, limits, kv, together), loading.load_timeout)


def _cache(plan: ModelPlan, part: int | None) -> int:
    """Bytes of the KV cache, as far as they are known before the load."""
    cache = plan.config.cache
    tier = cache.kv_host_memory or 0
    if cache.kv_memory is not None:
        return cache.kv_memory + tier
    return tier if cache.num_blocks is not None or cache.kv_share is not None else tier + (part or 0)
