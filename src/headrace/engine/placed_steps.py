"""The parts of a step that place sequences: drafts before the forward pass, their count after sampling.

Such a step needs nothing from the host that an earlier step has not produced: the device knows how many drafts of that
step were right, finds the next ones in its history of tokens, and puts their rows at the positions behind. Those of a
head or a model that drafts were written there by its passes, which run between the two steps. With several ranks every
one knows and finds the same, but for these: rank 0 alone has the head, and a step that reads its drafts gathers them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from headrace.kernels.inputs import batch_of
from headrace.kernels.ops import Ops, OptionalOps
from headrace.models.sharding import Collectives

__all__ = ["count_drafts", "place_drafts"]


def place_drafts(
    ops: Ops,
    inputs: Mapping[str, Any],
    most: int,
    block_size: int,
    of_head: bool,
    group: Collectives | None = None,
) -> dict[str, Any]:
    """`drafts` int32 [S, most or more], and the inputs that change with them; empty if the step places no sequence.
    `group`: the ranks, if there are several and rank 0 alone makes the drafts."""
    if "lengths" not in inputs:
        return {}
    own, batch, lengths, history = cast(OptionalOps, ops), batch_of(inputs), inputs["lengths"], inputs["history"]
    drafts = (own.read_drafts if of_head else own.ngram)(batch, lengths, history, most)
    if group is not None:
        # Those of rank 0 are the first columns. A sequence has no more than `most`, and columns behind its own are not
        # read.
        drafts = group.all_gather(drafts, 1)
    return {"drafts": drafts, **own.place(batch, lengths, drafts, inputs["position"], history, block_size)._asdict()}


def count_drafts(ops: Ops, inputs: Mapping[str, Any], tokens: Any) -> dict[str, Any]:
    """`counts` of the tokens that were sampled; empty if the step places no sequence."""
    if "lengths" not in inputs:
        return {}
    own, history = cast(OptionalOps, ops), inputs["history"]
    return {"counts": own.accept(batch_of(inputs), inputs["lengths"], inputs["drafts"], tokens, history)}
