"""Whether the device makes the drafts of a method, so that steps with drafts overlap. Nothing else decides it: neither
the engine nor `headrace doctor`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headrace.checkpoints.block_drafts import block_draft_settings
from headrace.config import DRAFT, EAGLE3, MTP, Config
from headrace.kernels import correct_logits, widen_logits
from headrace.kernels.registry import DRAFTING, HEAD_DRAFTING, ByReference, Missing
from headrace.kernels.spec import OpSpec
from headrace.models.block_draft_config import BLOCK_METHODS, BlockDraftConfig
from headrace.platforms.interface import Device, TorchTensors
from headrace.speculation.ngram import NgramDrafter
from headrace.speculation.speculator import MOST_DRAFTS

__all__ = ["DraftDepth", "by_passes", "describe_drafts", "draft_depth", "drafts_of", "operator_tags"]

_NEEDED: Mapping[str, tuple[OpSpec, ...]] = {
    NgramDrafter.name: DRAFTING,
    **dict.fromkeys((DRAFT, EAGLE3, MTP, *BLOCK_METHODS), HEAD_DRAFTING),
}
"""The operators with which the device makes and verifies the drafts of a method."""
_OWN = "own"


class DraftDepth(NamedTuple):
    """Where the drafts of a method are made."""

    drafts: int
    """The most that the device makes for a sequence; 0: they are made between two steps, or none are made."""
    why: str = ""
    """What keeps the device from it, if the method is one whose drafts a device can make."""

    @property
    def steps(self) -> int:
        """The steps with drafts that are in flight at once."""
        return 2 if self.drafts else 1


def draft_depth(method: str, path: str | None, stages: int, tags: Mapping[str, str]) -> DraftDepth:
    """`method` and `path` as of `--speculate method:path`; without a path, that of a block drafter whose tokens the
    device can draw. `stages`: of the pipeline. `tags`: how a device has each optional operator (`registry.Binding`);
    one that is not among them is missing. Raises what `block_draft_settings` raises."""
    if method not in _NEEDED:
        return DraftDepth(0)
    if stages > 1:
        # Its drafts wait for nothing.
        return DraftDepth(0, "a sequence is in one step of a pipeline at a time")
    block = block_draft_settings(path, method) if method in BLOCK_METHODS and path is not None else None
    if block is not None and block.undrawable:
        return DraftDepth(0, block.undrawable)
    lacks = [spec.name for spec in _NEEDED[method] if tags.get(spec.name) in (None, ByReference.tag, Missing.tag)]
    lacks += [name for name in _by_reference_too(block) if tags.get(name) in (None, Missing.tag)]
    if lacks:
        return DraftDepth(0, f"the device lacks {', '.join(lacks)}")
    return DraftDepth(MOST_DRAFTS if block is None else block.drafts)


def _by_reference_too(block: BlockDraftConfig | None) -> list[str]:
    """Further operators that the draws of a block need, for which a reference will do."""
    if block is None:
        return []
    chained = [correct_logits.SPEC.name] if block.chained else []
    return chained + ([widen_logits.SPEC.name] if block.draft_vocab is not None else [])


def operator_tags(device: Device) -> dict[str, str]:
    """How the device has the operators that `draft_depth` asks for."""
    other = Missing.tag if device.extension(TorchTensors) is None else ByReference.tag
    specs = (*DRAFTING, *HEAD_DRAFTING, correct_logits.SPEC, widen_logits.SPEC)
    return {spec.name: other if device.op(spec) is None else _OWN for spec in specs}


def drafts_of(config: Config, device: Device) -> int:
    """The most drafts that the device makes for a sequence; 0 if the host makes them or waits for them, or none are
    made."""
    return _depth_of(config, device).drafts


def describe_drafts(config: Config, device: Device) -> list[str]:
    """A line that says what drafts and how far steps overlap; none without `--speculate`."""
    method, found = config.scheduler.draft_method, _depth_of(config, device)
    if not method:
        return []
    if found.drafts:
        return [
            f"drafts by {method}, depth 2: the device makes them, so a step is launched while the one before it runs"
        ]
    return [f"drafts by {method}, depth 1: they are made between two steps" + (f": {found.why}" if found.why else "")]


def by_passes(config: Config) -> bool:
    """Whether passes of a drafter of its own make the drafts."""
    return config.scheduler.draft_method in (DRAFT, EAGLE3, MTP, *BLOCK_METHODS)


def _depth_of(config: Config, device: Device) -> DraftDepth:
    scheduler, stages = config.scheduler, config.parallel.pipeline_parallel_size
    return draft_depth(scheduler.draft_method, scheduler.draft_model or "", stages, operator_tags(device))
