"""Finds a drafter that works on the host by the name of its method."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from headrace.errors import ConfigError, PluginError
from headrace.plugins import PluginSet, discover
from headrace.speculation.best_of import BestOf
from headrace.speculation.drafter import HostDrafter, MakeHostDrafter
from headrace.speculation.ngram import NgramDrafter
from headrace.speculation.predicted import PredictedDrafter
from headrace.speculation.suffix import SuffixDrafter
from headrace.suggestions import did_you_mean

__all__ = ["BUILT_IN", "NEEDS", "find_drafter", "make"]

_HOOK = "headrace_drafters"


def _ngram() -> HostDrafter:
    return BestOf(NgramDrafter.name, [PredictedDrafter(), NgramDrafter()])


def _suffix() -> HostDrafter:
    return BestOf(SuffixDrafter.name, [PredictedDrafter(), SuffixDrafter()])


BUILT_IN: dict[str, MakeHostDrafter] = {"ngram": _ngram, "predicted": PredictedDrafter, "suffix": _suffix}
"""A prediction that comes with a request is followed by each of them."""
_LOADED = ("dflash:CHECKPOINT", "draft:MODEL", "dspark:CHECKPOINT", "eagle3:CHECKPOINT", "mtp")
NEEDS = {
    "dflash": "a drafter that was trained for the model, DFlash or DFlash2: dflash:CHECKPOINT",
    "dspark": "a drafter that was trained for the model: dspark:CHECKPOINT",
    "draft": "a smaller model of the same vocabulary: draft:MODEL",
    "eagle3": "a draft head that was trained for the model: eagle3:CHECKPOINT",
    "mtp": "a head for multi-token prediction in the model's own checkpoint, or trained for it: mtp:CHECKPOINT",
    "ngram": "nothing else",
    "predicted": "requests with a `prediction`",
    "suffix": "nothing else; it keeps 200,000 tokens of earlier answers",
}
"""What each method that is built in needs, for `headrace doctor`."""


def find_drafter(method: str, discovered: Callable[[], PluginSet] = discover) -> MakeHostDrafter:
    """The drafter that is built in, or a plugin's. Raises ConfigError for an unknown name, PluginError for a plugin
    that cannot be used."""
    if method in BUILT_IN:
        return BUILT_IN[method]
    plugins = discovered()
    found = plugins.find(_HOOK, method)
    if found is None:
        known = sorted({*BUILT_IN, *plugins.drafters(), *_LOADED})
        hint = did_you_mean(method, [name.partition(":")[0] for name in known])
        raise ConfigError(f"speculation method {method!r} is not installed; there are {', '.join(known)}{hint}")
    if not callable(found):
        raise PluginError(f"hook {_HOOK}: {method!r} is {found!r}: expected something to call")
    factory: MakeHostDrafter = found
    return factory


def make(method: str, discovered: Callable[[], PluginSet] = discover) -> HostDrafter:
    """A new drafter of that method. Raises what `find_drafter` does, and PluginError if a plugin's cannot be made."""
    factory = find_drafter(method, discovered)
    if method in BUILT_IN:
        return factory()
    try:
        made: object = factory()
        valid = isinstance(made, HostDrafter)
    # A plugin's code may fail in any way.
    except Exception as error:
        raise PluginError(f"hook {_HOOK}: {method!r} failed: {type(error).__name__}: {error}") from error
    if not valid:
        raise PluginError(f"hook {_HOOK}: {method!r} made {made!r}, which lacks members of HostDrafter")
    return cast(HostDrafter, made)
