"""Facts of the methods of speculative decoding for `headrace doctor`: who offers them, and what they need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headrace.config import DRAFT, MTP, WITH_CHECKPOINT
from headrace.errors import HeadraceError
from headrace.hub.catalogue import CATALOGUE, resolve_model
from headrace.hub.model_reference import parse_repository
from headrace.options import make_config
from headrace.plugins import PluginSet
from headrace.speculation.loading import BUILT_IN, NEEDS, find_drafter, make
from headrace.speculation.ngram import NgramDrafter

__all__ = ["add_depths", "speculation_facts", "speculation_lines"]

_HOOK = "headrace_drafters"
_BETWEEN = {"dflash": "DFlash2", "dspark": "gated and recurrent Markov heads"}
"""Checkpoints of a method whose drafts the device does not make."""
_OF_PLUGINS = "nothing else"
"""A plugin's drafter is made without arguments."""


def speculation_facts(
    found: PluginSet, chosen: str | None, remedies: list[str], stages: int = 1
) -> list[dict[str, Any]]:
    """Every method by name. `chosen`: as of `--speculate`, `stages`: as of `--pipeline-parallel-size`; if it cannot be
    used with these, the remedies say so. A method of a plugin is made once, to see whether it can be. A model is looked
    for on this machine, and not fetched."""
    own = None if chosen is None else chosen.partition(":")[0]
    offered = _offered(found, remedies)
    facts = [_fact(name, found, name == own, remedies) for name in sorted({*BUILT_IN, *NEEDS, *offered})]
    fault = None if chosen is None else _fault(chosen, found, stages)
    if fault is not None and fault not in " ".join(remedies):
        remedies.append(fault)
    for fact in facts:
        if fact["chosen"]:
            fact["problem"] = fact["problem"] or fault
            fact["about"] = None if fact["problem"] is not None else _about(chosen)
    return facts


def add_depths(
    facts: list[dict[str, Any]], operators: Mapping[str, Any] | None, chosen: str | None = None, stages: int = 1
) -> None:
    """Set `depth` of each method, the steps with drafts that are in flight at once, and `why`. `operators`: facts of
    the chosen platform. `chosen`: as of `--speculate`; `stages`: as of `--pipeline-parallel-size`."""
    # Late: torch.
    from headrace.engine.draft_depth import draft_depth

    tags = {} if operators is None else {one["name"]: one["implementation"] for one in operators["optional"]}
    for fact in facts:
        path = _directory(chosen) if fact.get("chosen") and fact["problem"] is None else None
        found = draft_depth(fact["name"], path, stages, tags)
        fact["depth"] = found.steps
        if found.drafts:
            # The others are refused there.
            rest = " and of pipelines" if fact["name"] == NgramDrafter.name else ""
            rest += f" and of {_BETWEEN[fact['name']]}" if fact["name"] in _BETWEEN and not fact.get("chosen") else ""
            fact["why"] = f"the device makes the drafts, except those of predictions{rest}"
        else:
            fact["why"] = "drafts are made between two steps" + (f": {found.why}" if found.why else "")


def _directory(chosen: str | None) -> str | None:
    """The checkpoint of `--speculate chosen`, if it is on this machine."""
    path = (chosen or "").partition(":")[2]
    return path if path and Path(path).is_dir() else None


def _about(chosen: str | None) -> str | None:
    """What is known of the chosen checkpoint, if it is a head or a block drafter on this machine."""
    method, _, path = (chosen or "").partition(":")
    if method == DRAFT or method not in (*WITH_CHECKPOINT, MTP) or not Path(path).is_dir():
        return None
    # Late: torch.
    from headrace.checkpoints.block_drafts import describe_block_draft
    from headrace.checkpoints.drafter_weights import describe_head_files
    from headrace.models.block_draft_config import BLOCK_METHODS

    parts = [describe_block_draft(path, method)] if method in BLOCK_METHODS else []
    parts += [describe_head_files(Path(path))] if any(Path(path).glob("*.safetensors")) else []
    return "; ".join(parts) or None


def _fault(chosen: str, found: PluginSet, stages: int) -> str | None:
    """Why a server would not start with `--speculate chosen`; None if nothing is known against it."""
    # Late: torch.
    from headrace.engine.stages import check_stages

    try:
        config = make_config("", {"speculate": chosen, "pipeline_parallel_size": stages}, flags=True)
        check_stages(config)
        model = config.scheduler.draft_model
        if chosen == MTP:
            return None
        if model is None:
            find_drafter(chosen, lambda: found)
        elif model not in CATALOGUE and parse_repository(model) is None:
            resolve_model(model)
        _about(chosen)
    except HeadraceError as error:
        return str(error)
    return None


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
        said = f"needs {fact['needs']}; depth {fact['depth']} ({fact['why']})"
        if fact["problem"] is not None:
            said = " ".join(f"unusable: {fact['problem']}".split())
        said += f" ({fact['about']})" if fact.get("about") else ""
        yield f" {'*' if fact['chosen'] else ' '}{fact['name']:<12}{fact['by']}: {said}"
