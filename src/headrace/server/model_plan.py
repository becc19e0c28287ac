"""A model that a server may load: its names, its configuration, its files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from headrace.config import Config
from headrace.errors import ConfigError

__all__ = ["ModelPlan", "check_names", "pooled_by", "with_aliases"]


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """One model. `config` is all of its options, also those that models share."""

    name: str
    config: Config
    path: Path
    aliases: frozenset[str] = field(default_factory=frozenset)
    preload: bool = False
    """Loaded at the start, and not by the first request."""

    @property
    def keep_alive(self) -> float | None:
        """Seconds without requests after which it is unloaded; None: when another model needs its memory."""
        seconds = self.config.loading.keep_alive
        return None if seconds is None or seconds < 0 else seconds

    @property
    def names(self) -> frozenset[str]:
        return self.aliases | {self.name}


def pooled_by(config: Config, models: int, own_aliases: Iterable[str] = ()) -> str | None:
    """What makes a pool of the server's models: the others, or the option; None for one model that stays loaded, under
    one name. `own_aliases`: of the first model, from a file."""
    if models > 1:
        return "the other models"
    loading = config.loading
    chosen = {
        "--keep-alive": loading.keep_alive is not None,
        "--models-memory": loading.models_memory is not None,
        "--alias": bool(loading.aliases),
        "the model's `aliases` in the file": any(own_aliases),
        "--enable-control-routes": config.server.enable_control_routes,
    }
    return " and ".join(name for name, given in chosen.items() if given) or None


def check_names(plans: Iterable[ModelPlan]) -> None:
    """Raises ConfigError for a name that two models have."""
    taken: dict[str, ModelPlan] = {}
    for plan in plans:
        for name in sorted(plan.names):
            other = taken.setdefault(name, plan)
            if other is not plan:
                raise ConfigError(
                    f"two models have the name {name!r}: {other.path} and {plan.path}; give each a `name` of its "
                    "own in a file for --config"
                )


def with_aliases(given: Mapping[str, str], names: Iterable[str]) -> dict[str, set[str]]:
    """The aliases of each model, of a mapping from alias to model. Raises ConfigError for one of no model."""
    found: dict[str, set[str]] = {name: set() for name in names}
    for alias, name in given.items():
        if name not in found:
            near = get_close_matches(name, found, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(found)}"
            raise ConfigError(f"--alias {alias}={name}: no model has the name {name!r}; {hint}")
        found[name].add(alias)
    return found
