"""Checks that the ctypes structures of the kernels' arguments agree with the loaded library, field by field."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

from headrace.errors import PlatformError
from headrace.kernels.linear.cpu_pack import InputArgs, PackedArgs, PartArgs
from headrace.platforms.cpu import native_args as args
from headrace.platforms.cpu.native import REMEDY, HostCopy, Library
from headrace.platforms.cpu.native_blocks import MovedBlocksArgs
from headrace.platforms.cpu.native_chain import CorrectLogitsArgs
from headrace.platforms.cpu.native_features import (
    BlockConvArgs,
    FeatureArgs,
    TakeRowsArgs,
    WidenLogitsArgs,
)
from headrace.platforms.cpu.native_kv import KVArgs
from headrace.platforms.cpu.native_linear import EmbeddingArgs, GatedLinearArgs, LinearArgs, LogitsArgs
from headrace.platforms.cpu.native_moe import ExpertsArgs, MoEArgs
from headrace.platforms.cpu.native_named import NamedLogprobsArgs
from headrace.platforms.cpu.native_split import OwnArgs

__all__ = [
    "BLOCK_TWINS",
    "CHAIN_TWINS",
    "DRAFTER_KERNELS",
    "DRAFTER_TWINS",
    "EXPERT_TWINS",
    "NAMED_TWINS",
    "TWINS",
    "Twins",
    "check_layouts",
]

Twins = Mapping[str, type[ctypes.Structure]]
"""By the name of the C structure."""
TWINS: Twins = {
    "hr_dim": args.Dim,
    "hr_copy": HostCopy,
    "hr_copy_blocks_args": args.CopyBlocksArgs,
    "hr_kv": KVArgs,
    "hr_input": InputArgs,
    "hr_part": PartArgs,
    "hr_packed": PackedArgs,
    "hr_linear_args": LinearArgs,
    "hr_logits_args": LogitsArgs,
    "hr_embedding_args": EmbeddingArgs,
    "hr_own_args": OwnArgs,
    "hr_segment": args.SegmentArgs,
    "hr_all_reduce_args": args.ReduceArgs,
    "hr_all_gather_args": args.GatherArgs,
    "hr_limit_args": args.LimitArgs,
    "hr_moe_args": MoEArgs,
    "gated_linear_args": GatedLinearArgs,
    "gated_activation_args": args.GatedActivationArgs,
    "rms_norm_args": args.RmsNormArgs,
    "add_rms_norm_args": args.AddRmsNormArgs,
    "resolve_tokens_args": args.ResolveTokensArgs,
    "rotary_cache_args": args.RotaryCacheArgs,
    "attention_args": args.AttentionArgs,
    "sample_args": args.SampleArgs,
}


DRAFTER_KERNELS = (
    "ngram", "place", "accept", "read_drafts", "shift", "store_features", "load_features", "take_rows", "widen_logits",
    "block_conv",
)  # fmt: skip
"""Kernels that only drafters call."""
DRAFTER_TWINS: Twins = {
    "hr_feature_args": FeatureArgs,
    "take_rows_args": TakeRowsArgs,
    "widen_logits_args": WidenLogitsArgs,
    "block_conv_args": BlockConvArgs,
    "ngram_args": args.NgramArgs,
    "place_args": args.PlaceArgs,
    "accept_args": args.AcceptArgs,
    "read_drafts_args": args.ReadDraftsArgs,
    "shift_args": args.ShiftArgs,
}
"""Those of operators that only drafters call: they are checked before the first call."""
BLOCK_TWINS: Twins = {"hr_moved_blocks_args": MovedBlocksArgs}
"""Those of operators that only tiers call: the same."""
CHAIN_TWINS: Twins = {"correct_logits_args": CorrectLogitsArgs}
"""That of drafts of which each depends on the one before it: the same, when such a drafter is loaded."""
NAMED_TWINS: Twins = {"named_logprobs_args": NamedLogprobsArgs}
"""That of logprobs by token: the same."""

EXPERT_TWINS: Twins = {"hr_experts_args": ExpertsArgs, "hr_all_to_all_args": args.ExchangeArgs}
"""Those of experts that are distributed over ranks: the same."""


def check_layouts(library: Library, twins: Twins = TWINS) -> None:
    """Raises PlatformError for a structure that lies in the library (`HR_LAYOUT`) in another way than here."""
    for name, twin in twins.items():
        here = _layout(twin)
        there = _exported(library, f"hr_layout_{name}")
        if there != here:
            detail = "is not described" if there is None else f"lies as {there} there and as {here} here"
            raise PlatformError(f"cpu: {library.path} was built from other sources: {name} {detail}: {REMEDY}")


def _layout(twin: type[ctypes.Structure]) -> list[int]:
    """The size, then each field's offset and size."""
    found = [ctypes.sizeof(twin)]
    for name, *_ in twin._fields_:
        field = getattr(twin, name)
        found += [field.offset, field.size]
    return found


def _exported(library: Library, symbol: str) -> list[int] | None:
    """The layout that the library exports, in the form of `_layout`; None if it has no such symbol."""
    try:
        fields = ctypes.c_int32.in_dll(library.functions, symbol).value
        return list((ctypes.c_int32 * (2 * fields + 2)).in_dll(library.functions, symbol))[1:]
    except ValueError:
        return None
