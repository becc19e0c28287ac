"""The models that a client's key may use."""

from __future__ import annotations

from starlette.types import Scope

from headrace.server.caller import caller_of
from headrace.server.http_errors import HttpError
from headrace.server.model_pool import ModelPool
from headrace.server.served_model import ServedModel

__all__ = ["find_open", "open_models"]


def open_models(pool: ModelPool, scope: Scope) -> list[ServedModel]:
    """Those that the client may use, by any of their names."""
    caller = caller_of(scope)
    return [model for model in pool.models.values() if any(map(caller.may_use, model.plan.names))]


def find_open(pool: ModelPool, scope: Scope, name: str | None) -> ServedModel:
    """As `ModelPool.find`; without a name, the first model that the client may use. Raises HttpError 404, also for a
    model that is not open to this client's key."""
    allowed = open_models(pool, scope)
    if name is None:
        if not allowed:
            raise HttpError(404, "no model is open to this key", param="model", code="model_not_found")
        return allowed[0]
    model = pool.find(name)
    if model not in allowed:
        message = f"the model {name[:200]!r} is not open to this key"
        raise HttpError(404, message, param="model", code="model_not_found")
    return model
