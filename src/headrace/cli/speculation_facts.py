"""Facts of the methods of speculative decoding for `headrace doctor`: who offers them, and what they need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.errors import HeadraceError
from headrace.plugins import PluginSet
from headrace.speculation.loading import BUILT_IN, NEEDS, find_drafter, make

__all__ = ["speculation_facts", "speculation_lines"]

_HOOK = "headrace_drafters"
_OF_PLUGINS = "nothing else"
"""A plugin's drafter is made without arguments."""


def speculation_facts(found: PluginSet, chosen: str | None, remedies: list[str]) -> list[dict[str, Any]]:
    """Every method by name. `chosen`: as of `--speculate`; if there is no such method, the remedies say so. A method of
    a plugin is made once, to see whether it can be."""
    own = None if chosen is None else chosen.partition(":")[0]
    offered = _offered(found, remedies)
    facts = [_fact(name, found, name == own, remedies) for name in sorted({*BUILT_IN, *NEEDS, *offered})]
    if own is not None and not any(fact["chosen"] for fact in facts):
        try:
            find_drafter(own, lambda: found)
        except HeadraceError as error:
            remedies.append(str(error))
    return facts


def _offered(found: PluginSet, remedies: list[str]) -> dict[str, str]:
    try:
        return found.drafters()
    except HeadraceError as error:
        remedies.append(f"{error}: repair or uninstall it")
        return {}


def _fact(name: str, found: PluginSet, chosen: bool, remedies: list[str]) -> dict[str, Any]:
    if name in NEEDS:
        return {"name": name, "by": "built in", "needs": NEEDS[name], "problem": None, "chosen": chosen}
    problem, info = None, found.provider(_HOOK, name)
    try:
        make(name, lambda: found)
    except HeadraceError as error:
        problem = str(error)
        remedies.append(f"{problem}: repair or uninstall its plugin")
    return {
        "name": name,
        "by": f"plugin {info.name if info else '?'}",
        "needs": _OF_PLUGINS,
        "problem": problem,
        "chosen": chosen,
    }


def speculation_lines(facts: list[dict[str, Any]]) -> Iterator[str]:
    yield "speculation (--speculate)"
    for fact in facts:
        said = f"needs {fact['needs']}" if fact["problem"] is None else " ".join(f"unusable: {fact['problem']}".split())
        yield f" {'*' if fact['chosen'] else ' '}{fact['name']:<12}{fact['by']}: {said}"
